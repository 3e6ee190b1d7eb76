//! Grants that are held.

use super::*;
use crate::clock::{survivable_outage, valid_until};

fn renewed() -> Reply {
    Reply::Renewed { ttl: TTL }
}

#[test]
fn renews_at_a_third_and_again_and_again() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.tick(at(2)), "");
    for round in 1..10 {
        let now = stage.machine.next_due();
        assert_eq!(now, at(4 * round));
        assert_eq!(stage.tick(now), "renew");
        stage.answer(RequestKind::Renew, now, renewed(), now);
    }
}

#[test]
fn a_renewal_without_a_reply_is_repeated_after_a_sixth() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.tick(at(4)), "renew");
    assert_eq!(stage.tick(at(5)), "");
    assert_eq!(stage.tick(at(6)), "renewal unanswered, renew");
}

#[test]
fn a_failed_renewal_is_repeated_after_a_twelfth() {
    let mut stage = Stage::holding(None);
    stage.tick(at(4));
    let responder = stage.answer(RequestKind::Renew, at(4), failure(ErrorKind::Unreachable), at(4));
    assert_eq!(responder, "renewal failed");
    assert_eq!(stage.machine.next_due(), at(5));
}

/// Scenarios 20 and 31: a hung renewal does not delay the outcome.
#[test]
fn is_lost_at_the_deadline_whatever_is_in_flight() {
    let mut stage = Stage::holding(None);
    stage.tick(at(4));
    let deadline = valid_until(at(0), TTL);
    while stage.machine.next_due() < deadline {
        let now = stage.machine.next_due();
        assert_eq!(stage.tick(now), "renewal unanswered, renew");
    }
    assert_eq!(stage.machine.next_due(), deadline);
    assert_eq!(stage.tick(deadline), "lost Expired");
    assert_eq!(stage.answer(RequestKind::Renew, at(4), renewed(), deadline), "");
    assert!(stage.is_over());
}

#[test]
fn the_deadline_is_checked_before_anything_is_renewed() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.tick(at(60)), "lost Expired");
}

#[test]
fn a_late_reply_counts_from_its_own_send() {
    let mut stage = Stage::holding(None);
    stage.tick(at(4));
    stage.tick(at(6));
    assert_eq!(stage.answer(RequestKind::Renew, at(6), renewed(), at(7)), "renewed until 17.878");
    assert_eq!(stage.answer(RequestKind::Renew, at(4), renewed(), at(7)), "renewed until 17.878");
}

/// Scenario 32: a lease is not renewed for ever.
#[test]
fn max_hold_ends_a_lease_that_could_be_renewed() {
    let mut stage = Stage::holding(Some(Duration::from_secs(7)));
    assert_eq!(stage.tick(at(4)), "renew");
    stage.answer(RequestKind::Renew, at(4), renewed(), at(4));
    assert_eq!(stage.tick(at(7)), "lost MaxHold, release");
    assert_eq!(stage.release(Some(LostReason::MaxHold), at(8)), "release failed Closed");
}

#[test]
fn a_backend_without_the_grant_ends_it() {
    let mut stage = Stage::holding(None);
    stage.tick(at(4));
    let responder = stage.answer(RequestKind::Renew, at(4), Reply::NotHeld, at(4));
    assert_eq!(responder, "renewal finds nothing, lost NotHeld");
    assert_eq!(stage.release(Some(LostReason::NotHeld), at(5)), "release failed Lost");
    assert!(stage.is_over());
}

#[test]
fn a_push_of_a_loss_ends_it() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.push_gone(LostReason::Broken, at(1)), "lost Broken");
    assert_eq!(stage.push_gone(LostReason::Broken, at(1)), "");
    assert_eq!(stage.tick(at(60)), "");
}

/// A guard that has seen its deadline pass is not renewed.
#[test]
fn a_grant_that_the_guard_has_seen_expire_is_not_renewed() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.on(Input::Forfeit(stage.owner), at(3)), "");
    assert_eq!(stage.machine.next_due(), Moment::NEVER);
    assert_eq!(stage.release(Some(LostReason::Expired), at(4)), "release failed Lost, release");
}

#[test]
fn a_client_that_closes_releases_what_it_holds() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.on(Input::Close, at(1)), "lost Closed, release");
    assert!(!stage.is_over());
    assert_eq!(stage.answer(RequestKind::Release, at(1), Reply::Released, at(1)), "");
    assert!(stage.is_over());
}

/// The guard has seen its deadline pass, but the backend has just renewed the lease.
#[test]
fn a_client_that_closes_releases_what_its_guard_has_seen_expire() {
    let mut stage = Stage::holding(None);
    stage.on(Input::Forfeit(stage.owner), at(3));
    assert_eq!(stage.on(Input::Close, at(4)), "release");
}

#[test]
fn requests_that_are_due_soon_are_sent_together() {
    let mut stage = Stage::new();
    for millis in 0..1000 {
        let now = at(0) + Duration::from_millis(millis);
        let attempt = attempt();
        let request = Request { owner: attempt.owner, kind: RequestKind::Acquire };
        let (on_busy, until, max_hold) = (OnBusy::Return, Moment::NEVER, None);
        stage.on(Input::Acquire { attempt, on_busy, until, max_hold, caller: "caller" }, now);
        stage.on(Input::Replied { request, sent: now, reply: Ok(granted(millis + 1)) }, now);
    }
    assert_eq!(stage.tick(at(4)).matches("renew").count(), 1000);
}

#[test]
fn a_reconnect_makes_everything_due() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(1)), "renew");
}

/// Its guard may not have been dropped yet; a renewal would block the lock.
#[test]
fn what_is_lost_is_not_renewed_after_a_reconnect() {
    let mut stage = Stage::holding(None);
    assert_eq!(stage.tick(at(12)), "lost Expired");
    assert_eq!(stage.on(Input::Pushed(Wakeup::CheckAll), at(13)), "");
    assert_eq!(stage.machine.next_due(), Moment::NEVER);
}

/// Scenario 75: whenever an outage begins, and whether requests hang or fail in it, it consumes no more of the lease than the
/// bound allows.
#[test]
fn an_outage_below_the_bound_leaves_the_rest_of_the_lease() {
    let outage = Duration::from_secs(3);
    let left = survivable_outage(TTL).saturating_sub(outage);
    for (begin, hangs) in (0..400).flat_map(|tick| [(tick, true), (tick, false)]) {
        let begin = at(0) + Duration::from_millis(begin * 10);
        let end = begin + outage;
        let mut stage = Stage::holding(None);
        let mut valid = valid_until(at(0), TTL);
        while stage.machine.next_due() < end + TTL {
            let sent = stage.machine.next_due();
            assert!(stage.tick(sent).ends_with("renew"));
            let is_unreachable = sent >= begin && sent < end;
            if is_unreachable && !hangs {
                stage.answer(RequestKind::Renew, sent, failure(ErrorKind::Unreachable), sent);
                continue;
            }
            let on_reply = if is_unreachable { end } else { sent };
            assert!(valid.since(on_reply) >= left, "an outage from {begin:?} on, hanging: {hangs}");
            stage.answer(RequestKind::Renew, sent, renewed(), on_reply);
            valid = valid_until(sent, TTL);
        }
    }
}
