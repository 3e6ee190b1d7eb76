//! The clock of the server is set back under waiters that are gone, and whose tickets seem to last.

use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};

use super::plain::{DIRECT, POOLED, Plain, RELEASE, RENEW, RENEWED, replies};
use super::{ACQUIRE_OR_WAIT, GRANTED, RELEASED, Stage, WAITING};

const HOUR: i64 = 3600;
/// Longer than the leases and tickets, which have 120 s.
const LATER: i64 = 125;

/// Has the lock "a" granted to owner 1, an hour later than the clock shows afterwards, with waiters that the server cannot tell from
/// live ones. Returns the token.
async fn held_before(server: &PostgresServer, stage: &Stage, waiters: &[i32]) -> i64 {
    server.shift_clock(HOUR);
    stage.create(&["a"]).await;
    let token = stage.replies(&[Plain(ACQUIRE_OR_WAIT, "a", 1, 0)]).await[0].2.expect("it is free");
    for waiter in waiters {
        join(stage, *waiter).await;
    }
    server.shift_clock(0);
    token
}

async fn join(stage: &Stage, waiter: i32) {
    let wait = stage.plain(POOLED, &[Plain(ACQUIRE_OR_WAIT, "a", waiter, 0)]);
    assert_eq!(replies(&stage.control, &wait).await[0].1, WAITING);
}

async fn holder(stage: &Stage) -> String {
    stage.value("SELECT right(owner::text, 1) FROM @.locks").await
}

/// The first renewal shortens the tickets, so that those that no check has extended have expired when the lock is released.
#[tokio::test]
async fn a_renewal_shortens_tickets() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock());
    let stage = Stage::on(&server).await;
    let token = held_before(&server, &stage, &[2]).await;
    for seconds in [0, 60, 119] {
        server.shift_clock(seconds);
        assert_eq!(stage.replies(&[Plain(RENEW, "a", 1, token)]).await[0].1, RENEWED);
    }
    server.shift_clock(LATER);
    join(&stage, 3).await;
    assert_eq!(stage.replies(&[Plain(RELEASE, "a", 1, token)]).await[0].1, RELEASED);
    assert_eq!(holder(&stage).await, "3");
}

/// A hand-over right after the clock was set back cannot tell a waiter that is gone from a live one. It shortens the tickets of the
/// others, so that only one turn is lost.
#[tokio::test]
async fn a_hand_over_shortens_tickets() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock());
    let stage = Stage::on(&server).await;
    let token = held_before(&server, &stage, &[2, 3]).await;
    assert_eq!(stage.replies(&[Plain(RELEASE, "a", 1, token)]).await[0].1, RELEASED);
    assert_eq!(holder(&stage).await, "2");
    server.shift_clock(LATER);
    let acquire = stage.plain(DIRECT, &[Plain(ACQUIRE_OR_WAIT, "a", 4, 0)]);
    assert_eq!(replies(&stage.control, &acquire).await[0].1, GRANTED);
}
