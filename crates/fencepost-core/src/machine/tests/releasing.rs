//! Releases.

use super::*;

#[test]
fn not_held_at_first_is_lost() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.release(None, at(1)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(1), Reply::NotHeld, at(1)), "release failed Lost");
    assert!(stage.is_over());
}

#[test]
fn not_held_after_a_lost_reply_is_unknown() {
    let mut stage = Stage::holding(None);
    stage.release(None, at(1));
    assert_eq!(stage.answer(RequestKind::Release, at(1), failure(ErrorKind::OutcomeUnknown), at(1)), "");
    assert_eq!(stage.tick(at(2)), "release");
    let responder = stage.answer(RequestKind::Release, at(2), Reply::NotHeld, at(2));
    assert_eq!(responder, "release failed OutcomeUnknown");
}

#[test]
fn is_sent_until_the_lease_has_ended_by_itself() {
    let mut stage = Stage::holding(None);
    stage.release(None, at(0));
    let (mut sends, mut now) = (1, at(0));
    while stage.answer(RequestKind::Release, now, failure(ErrorKind::Unreachable), now).is_empty() {
        now = stage.machine.next();
        assert_eq!(stage.tick(now), "release");
        sends += 1;
    }
    assert_eq!(sends, 12);
    assert!(stage.is_over());
}

/// The storage is back before the next attempt would be due.
#[test]
fn a_storage_that_is_back_is_told_at_once() {
    let mut stage = Stage::holding(None);
    stage.release(None, at(0));
    stage.answer(RequestKind::Release, at(0), failure(ErrorKind::Unreachable), at(0));
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(0)), "release");
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(0)), "", "it is in flight");
}

/// A grant that was on_push while a check was in flight: its release does not overtake the check.
#[test]
fn a_release_waits_for_the_answer_to_a_check() {
    let mut stage = Stage::in_line();
    assert_eq!(stage.push_turn(at(1)), "check");
    assert_eq!(stage.push_grant(1, at(1)), "granted");
    assert_eq!(stage.release(None, at(1)), "");
    assert_eq!(stage.answer(RequestKind::Check, at(1), granted(1), at(2)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(2), Reply::Released, at(2)), "released");
    assert!(stage.is_over());
}

/// A send of the acquire that is still in doubt would find the lock free after the release.
#[test]
fn a_late_send_is_defeated_after_the_release() {
    let mut stage = Stage::outcome_unknown(OnBusy::Return, at(0));
    stage.tick(at(1));
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), granted(1), at(1)), "granted");
    assert_eq!(stage.release(None, at(2)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(2), Reply::Released, at(2)), "released, leave");
    assert_eq!(stage.answer(RequestKind::Leave, at(2), Reply::Left, at(2)), "");
    assert!(stage.is_over());
}

/// The storage had a second ticket of the same owner and grants it when the first grant is released: that is undone, too.
#[test]
fn another_grant_of_an_owner_that_is_being_released_is_given_back() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.release(None, at(1)), "release");
    assert_eq!(stage.push_grant(2, at(1)), "");
    assert_eq!(stage.answer(RequestKind::Release, at(1), Reply::Released, at(1)), "released, leave");
    assert_eq!(stage.answer(RequestKind::Leave, at(1), Reply::AlreadyGranted(award(2)), at(1)), "release");
}
