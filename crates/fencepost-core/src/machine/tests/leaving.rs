//! Attempts that are undone: the wait ends, the caller is dropped, the ticket is not known.

use super::*;

#[test]
fn a_waiter_whose_wait_ends_leaves_the_queue() {
    let mut stage = Stage::asking(OnBusy::Wait, at(3));
    stage.answer(RequestKind::Acquire, at(0), still_waiting(), at(0));
    assert_eq!(stage.machine.next_due(), at(3));
    assert_eq!(stage.tick(at(3)), "leave, waited out");
    assert_eq!(stage.answer(RequestKind::Leave, at(3), Reply::Left, at(3)), "");
    assert!(stage.is_over());
}

#[test]
fn a_waiter_whose_wait_ends_before_a_reply_is_told_at_once_and_undone_after_it() {
    let mut stage = Stage::asking(OnBusy::Wait, at(5));
    assert_eq!(stage.tick(at(5)), "waited out");
    assert_eq!(stage.machine.next_due(), Moment::NEVER);
    assert_eq!(stage.answer(RequestKind::Acquire, at(0), granted(1), at(6)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(6), Reply::Released, at(6)), "");
    assert!(stage.is_over());
}

#[test]
fn an_attempt_whose_caller_is_dropped_is_undone_by_the_reply() {
    for (reply, undone) in [
        (Ok(granted(1)), "release"),
        (Ok(still_waiting()), "leave"),
        (Ok(Reply::Busy), ""),
        (failure(ErrorKind::OutcomeUnknown), "leave"),
        (failure(ErrorKind::Unreachable), ""),
    ] {
        let mut stage = Stage::asking(OnBusy::Wait, Moment::NEVER);
        assert_eq!(stage.abandon(at(1)), "");
        assert_eq!(stage.answer(RequestKind::Acquire, at(0), reply, at(2)), undone);
    }
}

/// A caller refers to its attempt by the first owner.
#[test]
fn a_dropped_caller_is_found_under_its_new_owner() {
    let mut stage = Stage::queued();
    stage.tick(at(4));
    stage.answer(RequestKind::Check, at(4), Reply::NoTicket, at(4));
    assert_ne!(stage.owner, stage.attempt.owner);
    stage.answer(RequestKind::Acquire, at(4), still_waiting(), at(4));
    assert_eq!(stage.abandon(at(5)), "leave");
    stage.answer(RequestKind::Leave, at(5), Reply::Left, at(5));
    assert!(stage.is_over() && stage.machine.current_owners.is_empty());
}

#[test]
fn a_grant_that_comes_while_the_attempt_leaves_the_queue_is_released() {
    let mut stage = Stage::queued();
    assert_eq!(stage.abandon(at(1)), "leave");
    assert_eq!(stage.push_grant(1, at(1)), "");
    assert_eq!(stage.answer(RequestKind::Leave, at(1), Reply::AlreadyGranted(award(1)), at(1)), "release");
    assert_eq!(stage.answer(RequestKind::Release, at(1), Reply::Released, at(1)), "");
    assert!(stage.is_over());
}

#[test]
fn a_leave_waits_for_the_reply_to_a_check() {
    let mut stage = Stage::queued();
    assert_eq!(stage.tick(at(4)), "check");
    assert_eq!(stage.abandon(at(4)), "");
    assert_eq!(stage.answer(RequestKind::Check, at(4), still_waiting(), at(5)), "leave");
    let mut stage = Stage::queued();
    assert_eq!(stage.tick(at(4)), "check");
    assert_eq!(stage.on(Input::Close, at(4)), "leave, failed Closed", "a client that closes does not wait");
    assert_eq!(stage.answer(RequestKind::Check, at(4), granted(1), at(5)), "");
    assert_eq!(stage.answer(RequestKind::Leave, at(4), Reply::AlreadyGranted(award(1)), at(5)), "release");
}

#[test]
fn a_leave_is_repeated_until_its_leases_have_expired() {
    let mut stage = Stage::queued();
    stage.abandon(at(0));
    let (mut leaves, mut now) = (1, at(0));
    while !stage.is_over() {
        stage.answer(RequestKind::Leave, now, failure(ErrorKind::Unreachable), now);
        if !stage.is_over() {
            now = stage.machine.next_due();
            assert_eq!(stage.tick(now), "leave");
            leaves += 1;
        }
    }
    assert_eq!((leaves, now), (25, at(24)));
}

/// A ticket that the backend has for this client, which does not know it.
fn adopted() -> Stage {
    let mut stage = Stage::new();
    let attempt = stage.attempt.clone();
    assert_eq!(stage.on(Input::Pushed(Wakeup::Offered { attempt }), at(0)), "check");
    stage
}

#[test]
fn an_unknown_ticket_that_was_granted_is_released() {
    let mut stage = Stage::new();
    assert_eq!(stage.push_grant(5, at(0)), "release");
    let mut stage = adopted();
    assert_eq!(stage.answer(RequestKind::Check, at(0), granted(5), at(1)), "release");
    stage.answer(RequestKind::Release, at(1), Reply::Released, at(1));
    assert!(stage.is_over());
}

#[test]
fn an_unknown_ticket_leaves_the_queue() {
    for reply in [Ok(still_waiting()), failure(ErrorKind::Unreachable)] {
        let mut stage = adopted();
        assert_eq!(stage.answer(RequestKind::Check, at(0), reply, at(1)), "leave");
        assert_eq!(stage.answer(RequestKind::Leave, at(1), Reply::Left, at(1)), "");
        assert!(stage.is_over());
    }
}

#[test]
fn an_unknown_ticket_that_the_backend_does_not_have_is_forgotten() {
    let mut stage = adopted();
    assert_eq!(stage.answer(RequestKind::Check, at(0), Reply::NoTicket, at(1)), "");
    assert!(stage.is_over());
}
