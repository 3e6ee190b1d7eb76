//! Metrics: what is counted, under which labels, and that no lock's name is among them unasked.

use std::sync::Arc;
use std::time::Duration;

use fencepost::clock::drift;
use fencepost::memory::Memory;
use fencepost::{ErrorKind, LockName, LostReason, Mode, Options, Page};
use fencepost_testkit::proxy::OpKind;
use fencepost_testkit::wait;

use crate::recorder::{Recorded, global};
use crate::stage::{Stage, TTL, on_stage};

/// What one test's backend has had recorded.
struct Seen {
    recorded: Recorded,
    scheme: &'static str,
}

impl Seen {
    fn key(&self, name: &str, labels: &str) -> String {
        let comma = if labels.is_empty() { "" } else { "," };
        format!("fencepost_{name}{{backend={}{comma}{labels}}}", self.scheme)
    }

    fn counter(&self, name: &str, labels: &str) -> u64 {
        self.recorded.counter(&self.key(name, labels))
    }

    /// These gauges count.
    fn gauge(&self, name: &str) -> i64 {
        let value = self.recorded.gauge(&self.key(name, ""));
        value.to_string().parse().expect("a whole number")
    }

    /// In milliseconds.
    fn times(&self, name: &str, labels: &str) -> Vec<u128> {
        let values = self.recorded.values(&self.key(name, labels));
        values.into_iter().map(|seconds| Duration::from_secs_f64(seconds).as_millis()).collect()
    }

    fn keys(&self) -> Vec<String> {
        let ours = format!("backend={}", self.scheme);
        self.recorded.keys().into_iter().filter(|key| key.contains(&ours)).collect()
    }
}

/// Runs a test with the process's recorder in place.
fn recorded(scheme: &'static str, test: impl AsyncFnOnce(Stage, Seen) + Send + 'static) {
    let recorded = global();
    on_stage(scheme, async move |stage| test(stage, Seen { recorded, scheme }).await);
}

#[test]
fn every_way_an_acquire_can_end_is_counted() {
    recorded("outcomes", async |stage, seen| {
        let client = stage.client();
        let ended = |outcome: &str| {
            let total = seen.counter("lock_acquire_total", &format!("kind=exclusive,outcome={outcome}"));
            (total, seen.times("lock_acquire_duration_seconds", &format!("outcome={outcome}")))
        };
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        assert_eq!(ended("acquired"), (1, vec![0]));
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        assert_eq!(ended("held"), (1, vec![0]));

        let lock = client.lock("a").ttl(TTL).wait(Duration::from_secs(5));
        let waiter = tokio::spawn(async move { lock.acquire().await });
        wait::until("it is in the queue", async || stage.memory.count().tickets == 1).await;
        assert_eq!(seen.gauge("lock_waiters"), 1);
        stage.clock.advance(Duration::from_secs(5));
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::WaitTimeout);
        assert_eq!(ended("timeout"), (1, vec![5000]));
        wait::until("it has left the line", async || stage.memory.count().tickets == 0).await;

        let waiter = stage.queued(&client, "a").await;
        stage.clock.advance(Duration::from_secs(3));
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        assert_eq!(ended("cancelled"), (1, vec![3000]));
        wait::until("it has left the line", async || stage.memory.count().tickets == 0).await;

        stage.memory.faults().cut();
        client.lock("b").ttl(TTL).acquire().await.unwrap_err();
        assert_eq!(ended("error"), (1, vec![0]));
        stage.memory.faults().heal();
        guard.release().await.unwrap();
        client.close().await;
        client.lock("b").acquire().await.unwrap_err();
        assert_eq!(ended("error").0, 2, "a closed client refuses, and that is no cancelling");
        assert_eq!((ended("acquired").0, ended("cancelled").0), (1, 1));
        assert_eq!(seen.gauge("lock_waiters"), 0);
    });
}

#[test]
fn kinds_are_told_apart() {
    recorded("kinds", async |stage, seen| {
        let client = stage.client();
        let _reader = client.lock("r").mode(Mode::Shared).acquire().await.unwrap();
        let _slot = client.lock("s").mode(Mode::Semaphore { permits: 3 }).acquire().await.unwrap();
        for (kind, count) in [("exclusive", 0), ("shared", 1), ("semaphore", 1)] {
            let labels = format!("kind={kind},outcome=acquired");
            assert_eq!(seen.counter("lock_acquire_total", &labels), count, "{kind}");
        }
        assert_eq!(seen.gauge("locks_held"), 2);
    });
}

#[test]
fn a_wait_is_as_long_as_the_caller_waited() {
    recorded("waited", async |stage, seen| {
        let client = stage.client();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let waiter = stage.queued(&client, "a").await;
        stage.clock.advance(Duration::from_secs(7));
        guard.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        assert_eq!(seen.times("lock_acquire_duration_seconds", "outcome=acquired"), [0, 7000]);
        stage.clock.advance(Duration::from_secs(2));
        next.release().await.unwrap();
        assert_eq!(seen.times("lock_hold_duration_seconds", "end=released"), [7000, 2000]);
        assert_eq!((seen.gauge("locks_held"), seen.gauge("lock_waiters")), (0, 0));
    });
}

#[test]
fn a_lock_that_expires_is_seen_to() {
    recorded("expiry", async |stage, seen| {
        let client = stage.client();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        assert_eq!((seen.gauge("locks_held"), seen.gauge("backend_up")), (1, 1));
        stage.memory.faults().cut();
        stage.clock.advance(TTL);
        assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
        assert_eq!((seen.gauge("locks_held"), seen.gauge("backend_up")), (0, 0));
        assert_eq!(seen.counter("lock_lost_total", "reason=expired"), 1);
        let valid = (TTL.checked_sub(drift(TTL)).unwrap()).as_millis();
        assert_eq!(seen.times("lock_hold_duration_seconds", "end=expired"), [valid]);
        // At a third of the ttl, and after each twelfth until the end.
        assert_eq!(seen.counter("lock_renew_total", "outcome=failed"), 8);
        let failed = seen.times("backend_request_duration_seconds", "op=execute,outcome=unreachable");
        assert_eq!(failed, vec![0; 8]);
        stage.memory.faults().heal();
        client.inspect("a").await.unwrap();
        assert_eq!(seen.gauge("backend_up"), 1);
        guard.release().await.unwrap_err();
        assert_eq!(seen.counter("lock_lost_total", "reason=expired"), 1, "it is lost once");
    });
}

/// A backend that hangs sends no reply to count; the repeated renewals are counted.
#[test]
fn a_storage_that_hangs_is_seen_before_the_lock_is_lost() {
    recorded("hanging", async |stage, seen| {
        let (client, proxy) = stage.proxied(Options::new()).await;
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        proxy.pause();
        stage.clock.advance(TTL / 3 + TTL / 6);
        wait::until("it is told", async || seen.counter("lock_renew_total", "outcome=failed") == 1).await;
        assert_eq!(seen.gauge("backend_up"), 0);
        assert!(guard.is_valid());
        // And after each sixth until the end.
        stage.clock.advance(TTL / 2);
        wait::until("it is lost", async || guard.lost_reason() == Some(LostReason::Expired)).await;
        assert_eq!(seen.counter("lock_renew_total", "outcome=failed"), 3);
        proxy.resume();
    });
}

/// A guard that looks at the clock before the client's thread does ends the hold too, and once.
#[test]
fn a_holder_that_was_stopped_counts_once() {
    recorded("stopped", async |stage, seen| {
        let client = stage.client();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        stage.clock.jump(TTL * 10);
        assert!(!guard.is_valid());
        wait::until("it is counted", async || seen.counter("lock_lost_total", "reason=expired") == 1).await;
        guard.release().await.unwrap_err();
        assert_eq!(seen.counter("lock_lost_total", "reason=expired"), 1);
        assert_eq!(seen.gauge("locks_held"), 0);
    });
}

#[test]
fn a_broken_lock_is_forced_for_one_and_lost_for_the_other() {
    recorded("breaking", async |stage, seen| {
        let (ours, theirs) = (stage.client(), stage.client());
        let guard = ours.lock("a").ttl(TTL).acquire().await.unwrap();
        theirs.break_lock("a", guard.token()).await.unwrap();
        theirs.break_lock("a", guard.token()).await.unwrap_err();
        assert_eq!(guard.lost().await, LostReason::Broken);
        wait::until("it is counted", async || seen.counter("lock_lost_total", "reason=broken") == 1).await;
        assert_eq!(seen.counter("lock_forced_release_total", ""), 1, "what was not broken does not count");
        assert_eq!(seen.times("lock_hold_duration_seconds", "end=forced"), [0]);
        assert_eq!(seen.gauge("locks_held"), 0);
    });
}

#[test]
fn every_other_loss_has_its_reason() {
    recorded("reasons", async |stage, seen| {
        let client = stage.client();
        let _stolen = client.lock("stolen").ttl(TTL).acquire().await.unwrap();
        let _long = client.lock("long").ttl(TTL).max_hold(TTL * 2).acquire().await.unwrap();
        let _open = client.lock("open").ttl(TTL).acquire().await.unwrap();
        stage.memory.forget_holders(&LockName::new("stolen").unwrap());
        stage.clock.advance(TTL * 3);
        client.close().await;
        for reason in ["not_held", "max_hold", "closed"] {
            assert_eq!(seen.counter("lock_lost_total", &format!("reason={reason}")), 1, "{reason}");
        }
        assert_eq!(seen.counter("lock_renew_total", "outcome=not_held"), 1);
        assert_eq!(seen.times("lock_hold_duration_seconds", "end=lost"), [4000, 24_000, 36_000]);
        assert_eq!(seen.gauge("locks_held"), 0);
    });
}

#[test]
fn the_margin_is_what_was_left_when_the_renewal_landed() {
    recorded("margin", async |stage, seen| {
        let client = stage.client();
        let _guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let valid = TTL.checked_sub(drift(TTL)).unwrap();
        let left = |after: u64| (valid.checked_sub(Duration::from_secs(after)).unwrap()).as_millis();
        stage.clock.advance(Duration::from_secs(4));
        assert_eq!(seen.times("lock_renew_margin_seconds", ""), [left(4)]);
        stage.memory.faults().cut();
        stage.clock.advance(Duration::from_secs(6));
        stage.memory.faults().heal();
        stage.clock.advance(Duration::from_secs(1));
        assert_eq!(seen.times("lock_renew_margin_seconds", ""), [left(4), left(7)]);
        assert_eq!(seen.counter("lock_renew_total", "outcome=renewed"), 2);
        assert_eq!(seen.counter("lock_renew_total", "outcome=failed"), 3);
    });
}

#[test]
fn requests_are_told_apart_by_what_came_of_them() {
    recorded("requests", async |stage, seen| {
        let (client, proxy) = stage.proxied(Options::new()).await;
        let took = |labels: &str| seen.times("backend_request_duration_seconds", labels);
        client.inspect("a").await.unwrap();
        client.list("", Page::new(1)).await.unwrap();
        assert_eq!(took("op=inspect,outcome=ok"), [0]);
        assert_eq!(took("op=list,outcome=ok"), [0]);
        proxy.lose_reply(OpKind::ReadCell);
        client.read_cell("a").await.unwrap_err();
        assert_eq!((took("op=execute,outcome=unknown"), seen.gauge("backend_up")), (vec![0], 0));
        client.read_cell("a").await.unwrap();
        assert_eq!((took("op=execute,outcome=ok"), seen.gauge("backend_up")), (vec![0], 1));

        proxy.pause();
        let asking = client.clone();
        let hangs = tokio::spawn(async move { asking.read_cell("a").await.map(drop) });
        stage.seconds_until_over(&hangs).await;
        wait::until("it is given up", async || took("op=execute,outcome=unknown").len() == 2).await;
        assert_eq!((took("op=execute,outcome=unknown")[1], seen.gauge("backend_up")), (30_000, 0));
        let asking = client.clone();
        let hangs = tokio::spawn(async move { asking.inspect("a").await.map(drop) });
        stage.seconds_until_over(&hangs).await;
        assert_eq!(took("op=inspect,outcome=unreachable"), [30_000]);
    });
}

const HOSTILE: [&str; 6] = ["invoice/4711", "}", "a\",lock=\"b", "{backend=x}", "🔒 ключ", "* OR 1=1 --"];

#[test]
fn no_name_becomes_a_label_by_itself() {
    recorded("nameless", async |stage, seen| {
        let client = stage.client();
        let mut first = None;
        for name in ["first"].into_iter().chain(HOSTILE) {
            let guard = client.lock(name).ttl(TTL).acquire().await.unwrap();
            client.break_lock(name, guard.token()).await.unwrap();
            client.inspect(name).await.unwrap();
            guard.lost().await;
            wait::until("it is counted", async || seen.gauge("locks_held") == 0).await;
            let series = seen.keys();
            let first = first.get_or_insert(series.clone());
            assert_eq!(series, *first, "{name} brings no new series");
        }
        assert!(seen.keys().iter().all(|key| !key.contains("lock=")));
    });
}

#[test]
fn a_name_is_labelled_with_its_pattern_if_wanted() {
    recorded("patterns", async |stage, seen| {
        let client = stage.client_with(Options::new().metrics_names(["order:*", "nightly"]));
        for name in ["order:1", "order:2", "nightly", "nightly2"].into_iter().chain(HOSTILE) {
            client.lock(name).acquire().await.unwrap().release().await.unwrap();
        }
        let hostile = HOSTILE.len() as u64;
        for (label, count) in [("order:*", 2), ("nightly", 1), ("other", 1 + hostile)] {
            let labels = format!("lock={label},kind=exclusive,outcome=acquired");
            assert_eq!(seen.counter("lock_acquire_total", &labels), count, "{label}");
            let held = seen.times("lock_hold_duration_seconds", &format!("lock={label},end=released"));
            assert_eq!(held.len() as u64, count, "{label}");
        }
        let known = |key: &String| match key.split_once("lock=") {
            Some((_, rest)) => ["order:*", "nightly", "other"].iter().any(|label| rest.starts_with(label)),
            None => key.starts_with("fencepost_backend_"),
        };
        assert!(seen.keys().iter().all(known), "{:?}", seen.keys());
    });
}

/// A recorder that comes later is found, and a gauge goes down where it went up.
#[test]
fn an_event_goes_to_the_recorder_of_its_thread() {
    recorded("local", async |stage, seen| {
        let client = stage.client();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let waiter = stage.queued(&client, "a").await;
        let local = Recorded::default();
        let lock = client.lock("b");
        metrics::with_local_recorder(&local, || {
            drop(futures_executor::block_on(lock.acquire()).unwrap());
        });
        let acquired = "lock_acquire_total";
        let labels = "kind=exclusive,outcome=acquired";
        assert_eq!(local.counter(&seen.key(acquired, labels)), 1);
        assert!(local.gauge(&seen.key("lock_waiters", "")).abs() < 0.5);
        assert_eq!((seen.counter(acquired, labels), seen.gauge("lock_waiters")), (1, 1));
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!((seen.counter(acquired, labels), seen.gauge("lock_waiters")), (2, 0));
    });
}

#[test]
fn every_metric_is_described_and_in_the_reference() {
    recorded("described", async |stage, seen| {
        let page = include_str!("../../../../docs/reference/metrics.md");
        stage.client().lock("a").acquire().await.unwrap().release().await.unwrap();
        let described = seen.recorded.described();
        assert_eq!(described.len(), 11);
        for name in described.keys() {
            assert!(page.contains(&format!("| `{name}` |")), "{name} is missing in the reference");
        }
        for key in seen.keys() {
            let name = key.split('{').next().unwrap();
            assert!(described.contains_key(name), "{name} is not described");
        }
    });
}

/// The real exporter: what it shows can be read by what scrapes it, whatever the patterns are.
#[test]
fn the_exporter_shows_it_as_text() {
    let exporter = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = exporter.handle();
    let memory = Arc::new(Memory::new());
    metrics::with_local_recorder(&exporter, || {
        let options = Options::new().metrics_names(["say \"hi\"*"]);
        let client = memory.client_with(options).unwrap();
        drop(futures_executor::block_on(client.lock("say \"hi\" to all").acquire()).unwrap());
    });
    let text = page.render();
    let line = r#"fencepost_lock_acquire_total{backend="memory",lock="say \"hi\"*",kind="exclusive",outcome="acquired"} 1"#;
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(text.contains("# HELP fencepost_lock_acquire_total Attempts"), "{text}");
}
