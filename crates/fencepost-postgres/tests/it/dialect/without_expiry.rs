//! A table without an end of leases: a row is held until it is deleted.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{HolderState, OnBusy, Op, Reply};
use fencepost_core::{Attempt, ErrorKind, Grant, LockName, Mode, Owner, Rule, Severity, Want};
use fencepost_testkit::{TestBench, suite, wait};

use super::bench::TableBench;

const LONG: Duration = Duration::from_secs(60);

fencepost_testkit::behaviors_in_groups! { postgres_table_without_expiry [TableBench::without_expiry] [all]
    exclusion {
        a_held_lock_is_not_granted_to_another_client,
        two_acquires_in_one_flight_have_one_holder,
        one_of_many_racers_wins,
        increments_under_the_lock_are_never_lost,
    }
    expiry {
        expired_lease_is_not_revived,
        an_expired_holder_cannot_release_the_next_grant,
    }
    renewal {
        a_lock_is_held_over_many_ttls,
    }
    release {
        stale_owner_cannot_release,
        a_late_release_does_not_touch_the_next_grant,
        the_release_of_a_lost_lock_fails_with_the_reason,
    }
    waiting {
        cancelled_waiter_leaves_the_queue,
    }
    fencing {
        tokens_rise_over_releases,
    }
    cancellation {
        a_dropped_try_acquires_nothing,
        a_waiter_dropped_when_granted_releases_its_grant,
        a_dropped_close_completes,
    }
    admin {
        a_list_comes_in_pages,
        a_broken_holder_without_pushes_is_lost_at_its_renewal,
    }
    failure {
        a_short_outage_goes_unnoticed,
        a_try_during_an_outage_fails_and_leaves_nothing,
        a_stolen_lock_is_lost,
        an_acquire_with_a_lost_reply_is_granted_once,
    }
    names {
        long_names_are_kept_in_full,
    }
    contract {
        late_acquire_is_defeated,
        a_check_returns_the_grant,
    }
}

#[test]
fn a_row_of_another_program_is_held_until_it_is_deleted() {
    let name = "a_row_of_another_program_is_held_until_it_is_deleted";
    suite::run(name, TableBench::without_expiry, async |bench: &TableBench| {
        let client = bench.client().await;
        bench.psql("INSERT INTO @ VALUES ('a', 'theirs')");
        let state = client.inspect("a").await.unwrap();
        assert_eq!(state.holders[0].expires_in, Some(HolderState::NO_EXPIRY));
        assert_eq!(&*state.holders[0].label, "theirs (not a Fencepost client)");
        let waiter = tokio::spawn({
            let lock = client.lock("a").ttl(LONG);
            async move { lock.acquire().await }
        });
        wait::until("the attempt waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
        assert_eq!(bench.psql("DELETE FROM @ RETURNING owner_id"), "theirs");
        let guard = wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap();
        guard.release().await.unwrap();
        assert_eq!(bench.psql("SELECT count(*) FROM @"), "0");
        client.close().await;
    });
}

/// The row of a client that crashed stays, as `info` and `doctor` say, and an administrator can end it.
#[test]
fn the_row_of_a_dead_client_stays_until_it_is_broken() {
    let name = "the_row_of_a_dead_client_stays_until_it_is_broken";
    suite::run(name, TableBench::without_expiry, async |bench: &TableBench| {
        let (dying, proxy) = bench.proxied().await;
        let dead = dying.lock("a").ttl(bench.ttl()).acquire().await.unwrap();
        proxy.crash();
        let client = bench.client().await;
        wait::within_timeout("the lock is lost", dead.lost()).await;
        wait::elapse(bench.ttl()).await;
        let holder = &client.inspect("a").await.unwrap().holders[0];
        assert_eq!((holder.token, holder.expires_in), (Some(dead.token()), Some(HolderState::NO_EXPIRY)));
        let findings = client.diagnose().await.unwrap();
        let warning = findings.iter().find(|finding| finding.check == "end of leases").unwrap();
        assert_eq!(warning.severity, Severity::Warning);
        let exceptions = client.info().exceptions.join("; ");
        assert!(exceptions.contains("the row of a client that crashed stays"), "{exceptions}");
        client.break_lock("a", dead.token()).await.unwrap();
        assert!(client.lock("a").try_acquire().await.unwrap().is_some());
        client.close().await;
    });
}

/// A client that could not renew for a ttl has lost the lock, and removes its row when it can.
#[test]
fn a_row_that_was_not_renewed_is_removed_after_an_outage() {
    let name = "a_row_that_was_not_renewed_is_removed_after_an_outage";
    suite::run(name, TableBench::without_expiry, async |bench: &TableBench| {
        let client = bench.client().await;
        let guard = client.lock("a").ttl(bench.ttl()).acquire().await.unwrap();
        bench.cut().await;
        wait::within_timeout("the lock is lost", guard.lost()).await;
        assert_eq!(bench.psql("SELECT count(*) FROM @"), "1");
        bench.heal().await;
        wait::until("the row is removed", async || bench.psql("SELECT count(*) FROM @") == "0").await;
        client.close().await;
    });
}

/// An acquire without a reply that was applied: its row is removed although its owner was answered "left" before.
#[test]
fn a_row_that_arrives_after_its_leave_is_removed() {
    let name = "a_row_that_arrives_after_its_leave_is_removed";
    suite::run(name, TableBench::without_expiry, async |bench: &TableBench| {
        let backend = bench.connect().await.unwrap();
        let wants = vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }];
        let (owner, ttl, label) = (Owner::random(), LONG, "bare".into());
        let attempt = Arc::new(Attempt { owner, wants, rule: Rule::All, ttl, label, meta: [].into() });
        let acquire = Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Return };
        let tail = &owner.to_hex()[17..];
        bench.wire.lose_reply_to(&tail.as_bytes()[3..]);
        let lost = backend.execute(vec![acquire]).await.remove(0).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown, "{lost:?}");
        // It is not there yet when its owner leaves.
        bench.psql("DELETE FROM @");
        let mut left = backend.execute(vec![Op::Leave(attempt.clone())]).await.remove(0);
        while left.is_err() {
            left = backend.execute(vec![Op::Leave(attempt.clone())]).await.remove(0);
        }
        assert_eq!(left.unwrap(), Reply::Left);
        let mark = format!("018bcfe7-4a40-8c54-8{}-{}", &tail[..3], &tail[3..]);
        bench.psql(&format!("INSERT INTO @ VALUES ('a', '{mark}')"));
        wait::until("the row is removed", async || bench.psql("SELECT count(*) FROM @") == "0").await;
        let award = fencepost_core::Award { token: 1.into(), ttl, chosen: 0, elapsed: Duration::ZERO };
        let release = backend.execute(vec![Op::Release(Grant { attempt, award })]).await.remove(0);
        assert_eq!(release.unwrap(), Reply::NotHeld);
        backend.close().await;
    });
}
