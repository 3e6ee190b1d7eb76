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
fn is_sent_until_the_lease_has_expired() {
    let mut stage = Stage::holding(None);
    stage.release(None, at(0));
    let (mut sends, mut now) = (1, at(0));
    while stage.answer(RequestKind::Release, now, failure(ErrorKind::Unreachable), now).is_empty() {
        now = stage.machine.next_due();
        assert_eq!(stage.tick(now), "release");
        sends += 1;
    }
    assert_eq!(sends, 12);
    assert!(stage.is_over());
}

/// The backend is reachable again before the next retry is due.
#[test]
fn a_release_is_repeated_at_once_after_a_reconnect() {
    let mut stage = Stage::holding(None);
    stage.release(None, at(0));
    stage.answer(RequestKind::Release, at(0), failure(ErrorKind::Unreachable), at(0));
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(0)), "release");
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(0)), "", "it is in flight");
}

/// A grant that was pushed while a check was in flight: its release does not overtake the check.
#[test]
fn a_release_waits_for_the_reply_to_a_check() {
    let mut stage = Stage::queued();
    assert_eq!(stage.push_turn(at(1)), "check");
    assert_eq!(stage.push_grant(1, at(1)), "granted");
    assert_eq!(stage.release(None, at(1)), "");
    assert_eq!(stage.answer(RequestKind::Check, at(1), granted(1), at(2)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(2), Reply::Released, at(2)), "released");
    assert!(stage.is_over());
}

/// A send of the acquire with an unknown outcome would find the lock free after the release.
#[test]
fn a_late_send_meets_a_tombstone_after_the_release() {
    let mut stage = Stage::outcome_unknown(OnBusy::Return, at(0));
    stage.tick(at(1));
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), granted(1), at(1)), "granted");
    assert_eq!(stage.release(None, at(2)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(2), Reply::Released, at(2)), "released, leave");
    assert_eq!(stage.answer(RequestKind::Leave, at(2), Reply::Left, at(2)), "");
    assert!(stage.is_over());
}

/// The backend had a second ticket of the same owner and grants it when the first grant is released: that is undone too.
#[test]
fn another_grant_of_an_owner_that_is_being_released_is_released() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.release(None, at(1)), "release");
    assert_eq!(stage.push_grant(2, at(1)), "");
    assert_eq!(stage.answer(RequestKind::Release, at(1), Reply::Released, at(1)), "released, leave");
    assert_eq!(stage.answer(RequestKind::Leave, at(1), Reply::AlreadyGranted(award(2)), at(1)), "release");
}
