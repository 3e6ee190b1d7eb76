//! Attempts, from the first request to the outcome.

use super::*;
use crate::machine::entry::Phase;

/// Returns when the lease of the grant began, as far as is known.
fn counted_from(stage: &Stage) -> Moment {
    match &stage.machine.entries.get(stage.owner).unwrap().phase {
        Phase::Held(held) => held.counted_from,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_grant_counts_from_its_send() {
    let mut stage = Stage::asking(OnBusy::Return, Moment::NEVER);
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), granted(1), at(3)), "granted");
    assert_eq!(counted_from(&stage), at(1));
}

/// Scenario 11: stopped between sending and reading for longer than the lease.
#[test]
fn a_grant_that_is_read_too_late_is_released() {
    let mut stage = Stage::asking(OnBusy::Return, Moment::NEVER);
    assert_eq!(stage.answer(RequestKind::Acquire, at(0), granted(1), at(12)), "release, failed Lost");
    assert_eq!(stage.answer(RequestKind::Release, at(12), Reply::NotHeld, at(12)), "");
    assert!(stage.is_over());
}

/// Scenario 12: the validity counts from the send that succeeded.
#[test]
fn a_grant_after_a_resend_counts_from_the_resend() {
    let mut stage = Stage::outcome_unknown(OnBusy::Return, at(2));
    assert_eq!(stage.machine.next_due(), at(3));
    assert_eq!(stage.tick(at(3)), "acquire");
    assert_eq!(stage.answer(RequestKind::Acquire, at(3), granted(1), at(4)), "granted");
    assert_eq!(counted_from(&stage), at(3));
}

#[test]
fn an_acquire_without_a_reply_is_repeated_soon_however_long_its_lease_is() {
    let mut stage = Stage::new();
    let attempt = Attempt { ttl: Duration::from_secs(3600), ..stage.attempt.with_new_owner() };
    stage.attempt = Arc::new(attempt);
    stage.ask(OnBusy::Wait, Moment::NEVER, None);
    stage.answer(RequestKind::Acquire, at(0), failure(ErrorKind::OutcomeUnknown), at(5));
    assert!(stage.machine.next_due() <= at(8));
}

#[test]
fn an_unknown_outcome_is_undone_after_the_last_send() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(0));
    assert_eq!(stage.tick(at(1)), "acquire");
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), failure(ErrorKind::OutcomeUnknown), at(1)), "");
    assert_eq!(stage.tick(at(2)), "acquire");
    let last = stage.answer(RequestKind::Acquire, at(2), failure(ErrorKind::OutcomeUnknown), at(2));
    assert_eq!(last, "leave, failed OutcomeUnknown");
    // It may have left the queue; a late send meets a tombstone only after a leave of an unknown owner.
    assert_eq!(stage.answer(RequestKind::Leave, at(2), Reply::Left, at(2)), "leave");
    assert_eq!(stage.answer(RequestKind::Leave, at(2), Reply::Left, at(2)), "");
    assert!(stage.is_over());
}

#[test]
fn what_was_not_applied_is_not_undone() {
    let mut stage = Stage::asking(OnBusy::Wait, Moment::NEVER);
    let responder = stage.answer(RequestKind::Acquire, at(0), failure(ErrorKind::Unreachable), at(0));
    assert_eq!(responder, "failed Unreachable");
    assert!(stage.is_over());
}

fn refused() -> Result<Reply> {
    Err(Error::new(ErrorKind::Unreachable, "not now").transient())
}

/// Scenario 66: a transient error. The attempt is retried, and there is nothing to undo.
#[test]
fn a_transient_error_is_retried() {
    let mut stage = Stage::asking(OnBusy::Wait, at(60));
    for second in 0..10 {
        assert_eq!(stage.answer(RequestKind::Acquire, at(second), refused(), at(second)), "");
        assert_eq!(stage.machine.next_due(), at(second + 1));
        assert_eq!(stage.tick(at(second + 1)), "acquire");
    }
    // They do not count as sends whose outcome is unknown.
    assert_eq!(stage.answer(RequestKind::Acquire, at(10), failure(ErrorKind::OutcomeUnknown), at(10)), "");
    assert_eq!(stage.tick(at(11)), "acquire");
    assert_eq!(stage.answer(RequestKind::Acquire, at(11), still_waiting(), at(11)), "");
    assert_eq!(stage.tick(at(60)), "leave, waited out");
}

/// A waiter whose ticket has expired, and that retries, does not fail if the backend is unreachable just then.
#[test]
fn a_waiter_that_retries_outlasts_an_outage() {
    let mut stage = Stage::queued();
    assert_eq!(stage.tick(at(4)), "check");
    assert_eq!(stage.answer(RequestKind::Check, at(4), Reply::NoTicket, at(4)), "acquire");
    for second in 4..10 {
        let away = failure(ErrorKind::Unreachable);
        assert_eq!(stage.answer(RequestKind::Acquire, at(second), away, at(second)), "");
        assert_eq!(stage.tick(at(second + 1)), "acquire");
    }
    assert_eq!(stage.answer(RequestKind::Acquire, at(10), granted(3), at(10)), "granted");
}

/// A waiter whose first send may have a ticket does not fail if the backend is unreachable when it is sent again. A try does.
#[test]
fn a_waiter_whose_reply_was_lost_outlasts_an_outage() {
    let away = || failure(ErrorKind::Unreachable);
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(0));
    assert_eq!(stage.tick(at(1)), "acquire");
    for second in 1..10 {
        assert_eq!(stage.answer(RequestKind::Acquire, at(second), away(), at(second)), "");
        assert_eq!(stage.tick(at(second + 1)), "acquire");
    }
    assert_eq!(stage.answer(RequestKind::Acquire, at(10), granted(3), at(10)), "granted");
    let mut stage = Stage::outcome_unknown(OnBusy::Return, at(0));
    assert_eq!(stage.tick(at(1)), "acquire");
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), away(), at(1)), "leave, failed Unreachable");
}

/// Scenario 66: a try fails at once, and a wait that ends meanwhile reports the transient error.
#[test]
fn a_transient_error_that_lasts_is_reported() {
    let mut stage = Stage::asking(OnBusy::Return, Moment::NEVER);
    assert_eq!(stage.answer(RequestKind::Acquire, at(0), refused(), at(0)), "failed Unreachable");
    for is_in_flight in [false, true] {
        let mut stage = Stage::asking(OnBusy::Wait, at(3));
        stage.answer(RequestKind::Acquire, at(0), refused(), at(0));
        if is_in_flight {
            assert_eq!(stage.tick(at(1)), "acquire");
        }
        assert_eq!(stage.tick(at(3)), "failed Unreachable");
        stage.answer(RequestKind::Acquire, at(3), refused(), at(3));
        assert!(stage.is_over());
    }
    let mut stage = Stage::asking(OnBusy::Wait, Moment::NEVER);
    stage.answer(RequestKind::Acquire, at(0), refused(), at(0));
    assert_eq!(stage.abandon(at(1)), "");
    assert!(stage.is_over());
}

/// Scenario 50: the first send may still arrive after the reply to the second.
#[test]
fn busy_after_an_unknown_send_is_undone() {
    let mut stage = Stage::outcome_unknown(OnBusy::Return, at(0));
    stage.tick(at(1));
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), Reply::Busy, at(1)), "leave, busy");
}

/// The first send has met a tombstone meanwhile; the caller still waits.
#[test]
fn a_waiter_that_meets_its_own_tombstone_retries_under_a_new_owner() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(0));
    let first = stage.owner;
    stage.tick(at(1));
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), Reply::Busy, at(1)), "leave, acquire");
    assert_ne!(stage.owner, first);
    assert_eq!(stage.answer(RequestKind::Acquire, at(1), granted(1), at(1)), "granted");
}

#[test]
fn a_pushed_grant_counts_from_the_newest_heartbeat() {
    let mut stage = Stage::queued();
    for sent in [4, 8] {
        assert_eq!(stage.tick(at(sent)), "check");
        assert_eq!(stage.answer(RequestKind::Check, at(sent), still_waiting(), at(sent)), "");
    }
    // Less than two thirds of the lease are left: it is renewed at once.
    assert_eq!(stage.push_grant(1, at(13)), "granted, renew");
    assert_eq!(counted_from(&stage), at(8));
    assert_eq!(stage.push_grant(1, at(13)), "");
}

#[test]
fn a_push_may_come_before_the_reply_that_says_wait() {
    let mut stage = Stage::asking(OnBusy::Wait, Moment::NEVER);
    assert_eq!(stage.push_grant(1, at(2)), "granted");
    assert_eq!(counted_from(&stage), at(0));
    assert_eq!(stage.answer(RequestKind::Acquire, at(0), still_waiting(), at(3)), "");
}

#[test]
fn a_push_of_a_loss_may_come_before_the_reply_that_grants() {
    for (on_busy, end) in [(OnBusy::Wait, "release, acquire"), (OnBusy::Return, "release, failed Lost")] {
        let mut stage = Stage::asking(on_busy, Moment::NEVER);
        assert_eq!(stage.push_gone(LostReason::Broken, at(1)), "");
        assert_eq!(stage.answer(RequestKind::Acquire, at(0), granted(1), at(2)), end);
    }
}

#[test]
fn a_grant_of_a_later_request_is_not_the_lost_one() {
    let mut stage = Stage::queued();
    stage.push_gone(LostReason::Broken, at(1));
    assert_eq!(stage.push_turn(at(2)), "check");
    assert_eq!(stage.answer(RequestKind::Check, at(2), granted(1), at(3)), "granted");
    assert_eq!(counted_from(&stage), at(2));
}

#[test]
fn a_push_to_check_may_come_before_the_reply_that_says_wait() {
    let mut stage = Stage::asking(OnBusy::Wait, Moment::NEVER);
    assert_eq!(stage.push_turn(at(0)), "");
    assert_eq!(stage.answer(RequestKind::Acquire, at(0), still_waiting(), at(1)), "check");
    // It may also come before the reply to a check, and then another check is sent.
    assert_eq!(stage.push_turn(at(1)), "");
    assert_eq!(stage.answer(RequestKind::Check, at(1), still_waiting(), at(2)), "check");
    assert_eq!(stage.answer(RequestKind::Check, at(2), still_waiting(), at(3)), "");
}

/// The push is not trusted, but not ignored: the reply that says wait is older.
#[test]
fn a_push_with_an_unknown_send_before_the_reply_that_says_wait_is_checked() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(5));
    assert_eq!(stage.tick(at(6)), "acquire");
    assert_eq!(stage.push_grant(1, at(6)), "");
    assert_eq!(stage.answer(RequestKind::Acquire, at(6), still_waiting(), at(7)), "check");
}

/// A push about an attempt with an unknown outcome makes a check due at once.
#[test]
fn a_push_between_two_acquires_is_checked_at_once() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(5));
    assert_eq!(stage.push_grant(1, at(5)), "acquire");
    assert_eq!(stage.answer(RequestKind::Acquire, at(5), granted(1), at(5)), "granted");
}

/// An unstable connection must not use up the sends of an acquire.
#[test]
fn an_acquire_that_failed_keeps_its_backoff_when_the_backend_is_back() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(0));
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(0)), "");
    assert_eq!(stage.machine.next_due(), at(1));
}

/// Scenario 45: a waiter that was stopped reads a grant whose lease has expired.
#[test]
fn a_grant_that_is_pushed_too_late_is_released_and_requested_again() {
    let mut stage = Stage::queued();
    let first = stage.owner;
    assert_eq!(stage.push_grant(1, at(12)), "release, acquire");
    assert_ne!(stage.owner, first);
}

/// The first send joined the queue and was granted, but its reply was lost: the lease began before the second send, from which
/// it must not be counted.
#[test]
fn a_push_proves_nothing_while_the_outcome_of_an_earlier_send_is_unknown() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(5));
    assert_eq!(stage.tick(at(6)), "acquire");
    assert_eq!(stage.push_grant(1, at(6)), "");
    assert_eq!(stage.answer(RequestKind::Acquire, at(6), granted(1), at(7)), "granted");
    assert_eq!(counted_from(&stage), at(6));
}

/// The grant of the first send expired unseen, the second send joined the queue again, and only then the push of the first grant
/// arrives.
#[test]
fn a_push_of_a_grant_that_has_ended_is_not_believed() {
    let mut stage = Stage::outcome_unknown(OnBusy::Wait, at(12));
    assert_eq!(stage.tick(at(13)), "acquire");
    assert_eq!(stage.answer(RequestKind::Acquire, at(13), still_waiting(), at(13)), "");
    assert_eq!(stage.push_grant(1, at(14)), "check");
    assert_eq!(stage.answer(RequestKind::Check, at(14), granted(2), at(14)), "granted");
    assert_eq!(counted_from(&stage), at(14));
}

#[test]
fn a_ticket_that_has_expired_is_requested_again() {
    let mut stage = Stage::queued();
    let first = stage.owner;
    stage.tick(at(4));
    assert_eq!(stage.answer(RequestKind::Check, at(4), Reply::NoTicket, at(4)), "acquire");
    assert_ne!(stage.owner, first);
    // If the backend grants the old ticket after all, the grant is released.
    assert_eq!(stage.push_grant(1, at(4)), "release");
}

#[test]
fn a_check_that_fails_for_a_while_keeps_the_position() {
    let mut stage = Stage::queued();
    assert_eq!(stage.tick(at(4)), "check");
    assert_eq!(stage.answer(RequestKind::Check, at(4), failure(ErrorKind::Unreachable), at(4)), "");
    assert_eq!(stage.tick(at(5)), "check");
    assert_eq!(stage.answer(RequestKind::Check, at(5), failure(ErrorKind::OutcomeUnknown), at(5)), "");
    assert_eq!(stage.tick(at(6)), "check");
    let denied = failure(ErrorKind::Denied);
    assert_eq!(stage.answer(RequestKind::Check, at(6), denied, at(6)), "leave, failed Denied");
}

#[test]
fn a_ticket_is_checked_for_ever_and_never_lost() {
    let mut stage = Stage::queued();
    for _ in 0..50 {
        let now = stage.machine.next_due();
        assert_eq!(stage.tick(now), "check");
        stage.answer(RequestKind::Check, now, failure(ErrorKind::Unreachable), now);
    }
}

#[test]
fn a_client_that_closes_rejects_new_attempts() {
    let mut stage = Stage::new();
    stage.on(Input::Close, at(0));
    assert_eq!(stage.ask(OnBusy::Wait, Moment::NEVER, None), "failed Closed");
    assert!(stage.is_over());
}
