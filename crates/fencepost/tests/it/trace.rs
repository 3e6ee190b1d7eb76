//! Spans and events: where they hang, what they say, and when they end.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost::{LostReason, Mode};
use fencepost_testkit::wait;
use tracing::{Instrument, Level, info_span};

use crate::listener::{Fields, Heard, Seen};
use crate::stage::{Stage, TTL, on_stage};

/// Runs a test with a listener on its thread.
fn heard(scheme: &'static str, test: impl AsyncFnOnce(Stage, Heard) + Send + 'static) {
    on_stage(scheme, async move |stage| {
        let heard = Heard::default();
        let listening = heard.listen();
        test(stage, heard).await;
        drop(listening);
    });
}

fn of<'a>(fields: &'a Fields, key: &str) -> &'a str {
    fields.get(&format!("fencepost.lock.{key}")).map_or("", String::as_str)
}

/// The only span of this name.
fn only(heard: &Heard, name: &str) -> Seen {
    let [span] = <[Seen; 1]>::try_from(heard.spans(name)).expect("there is one such span");
    span
}

#[test]
fn whoever_connects_is_warned_of_what_weakens_a_promise() {
    heard("connecting", async |_, heard| {
        let server = fencepost_testkit::servers::redis::shared();
        let client = fencepost::connect(server.url()).await.unwrap();
        wait::until("it is warned", async || !heard.events("persistence").is_empty()).await;
        let warning = &heard.events("persistence")[0];
        assert_eq!((warning.level, of(&warning.fields, "backend")), (Level::WARN, "redis"));
        assert!(warning.fields["fencepost.advice"].contains("appendonly yes"), "{warning:?}");
        assert!(heard.events("eviction policy").is_empty(), "what is fine is not told");
        client.close().await;
    });
}

#[test]
fn waiting_and_holding_are_children_of_the_callers_span() {
    heard("tree", async |stage, heard| {
        let client = stage.client();
        let work = async {
            let guard = client.lock("invoice/42").ttl(TTL).acquire().await.unwrap();
            let token = guard.token().to_string();
            let acquire = only(&heard, "lock acquire");
            assert!(acquire.closed, "it ended when the lock was there");
            assert_eq!(acquire.parent, Some("request"));
            let told = ["name", "backend", "mode", "token", "outcome", "wait_ms"];
            let told = told.map(|key| of(&acquire.fields, key));
            assert_eq!(told, ["invoice/42", "tree", "exclusive", &token, "acquired", "0"]);

            let hold = only(&heard, "lock hold");
            assert_eq!((hold.parent, hold.closed), (Some("request"), false));
            assert_eq!(["name", "token"].map(|key| of(&hold.fields, key)), ["invoice/42", &token]);
            stage.clock.advance(Duration::from_secs(3));
            guard.release().await.unwrap();
        };
        work.instrument(info_span!("request")).await;
        let hold = only(&heard, "lock hold");
        assert!(hold.closed);
        assert_eq!(["end", "hold_ms"].map(|key| of(&hold.fields, key)), ["released", "3000"]);
        assert!(only(&heard, "request").closed, "nothing keeps the caller's span");
        assert!(heard.events("lock lost").is_empty());
    });
}

#[test]
fn a_span_says_how_the_wait_ended() {
    heard("waits", async |stage, heard| {
        let client = stage.client();
        let lock = client.lock("a").ttl(TTL).mode(Mode::Semaphore { permits: 1 });
        let guard = lock.acquire().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        {
            let mut waiting = pin!(lock.acquire());
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
            wait::until("it is in the queue", async || stage.memory.count().tickets == 1).await;
            stage.clock.advance(Duration::from_secs(2));
        }
        wait::until("it has left the line", async || stage.memory.count().tickets == 0).await;
        stage.memory.faults().cut();
        client.lock("b").acquire().await.unwrap_err();
        stage.memory.faults().heal();
        guard.release().await.unwrap();
        let spans = heard.spans("lock acquire");
        assert!(spans.iter().all(|span| span.closed));
        let ends: Vec<_> = spans
            .iter()
            .map(|span| ["mode", "outcome", "wait_ms"].map(|key| of(&span.fields, key)))
            .collect();
        let expected = [
            ["semaphore", "acquired", "0"],
            ["semaphore", "held", "0"],
            ["semaphore", "cancelled", "2000"],
            ["exclusive", "error", "0"],
        ];
        assert_eq!(ends, expected);
    });
}

#[test]
fn a_loss_is_a_warning_inside_the_span_that_it_ends() {
    heard("losses", async |stage, heard| {
        let client = stage.client();
        let guard = client.lock_all(["b", "a"]).ttl(TTL).acquire().await.unwrap();
        stage.memory.faults().cut();
        stage.clock.advance(TTL);
        assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
        let hold = only(&heard, "lock hold");
        assert!(hold.closed, "it ended with the lock, not with the guard");
        assert_eq!(["name", "end"].map(|key| of(&hold.fields, key)), ["a, b", "expired"]);
        let warnings = heard.events("lock lost");
        assert_eq!(warnings.len(), 1);
        assert_eq!((warnings[0].level, warnings[0].inside), (Level::WARN, Some("lock hold")));
        let told = ["name", "backend", "token", "reason"].map(|key| of(&warnings[0].fields, key));
        assert_eq!(told, ["a, b", "losses", &guard.token().to_string(), "expired"]);
    });
}

#[test]
fn what_was_asked_for_is_no_warning() {
    heard("closing", async |stage, heard| {
        let client = stage.client();
        let guard = client.lock("a").acquire().await.unwrap();
        client.close().await;
        assert_eq!(guard.lost().await, LostReason::Closed);
        assert_eq!(of(&only(&heard, "lock hold").fields, "end"), "closed");
        assert!(heard.events("lock lost").is_empty());
    });
}

#[test]
fn renewals_are_told_quietly_and_their_failures_loudly() {
    heard("renewals", async |stage, heard| {
        let client = stage.client();
        let _guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        stage.clock.advance(Duration::from_secs(8));
        let renewed = heard.events("lease renewed");
        let margins: Vec<_> = renewed.iter().map(|event| of(&event.fields, "margin_ms")).collect();
        assert_eq!(margins, ["7878", "7878"]);
        assert!(renewed.iter().all(|event| event.level == Level::TRACE));
        assert!(renewed.iter().all(|event| event.inside == Some("lock hold")));

        stage.memory.faults().cut();
        stage.clock.advance(Duration::from_secs(6));
        let failed = heard.events("renewal failed");
        assert_eq!(failed.len(), 3, "one for each that failed");
        assert!(failed.iter().all(|event| event.level == Level::WARN));
        assert_eq!(failed[0].fields["error"], "injected fault: the backend in memory is unreachable");
    });
}

#[test]
fn hostile_names_are_shown_as_they_are() {
    heard("hostile", async |stage, heard| {
        let client = stage.client();
        let names = ["a\", outcome=\"acquired", "{}", "%s", "🔒", "' OR 1=1 --"];
        for name in names {
            client.lock(name).acquire().await.unwrap().release().await.unwrap();
        }
        let spans = heard.spans("lock acquire");
        assert_eq!(spans.iter().map(|span| of(&span.fields, "name")).collect::<Vec<_>>(), names);
    });
}
