//! Per-call deadlines: no call of a backend blocks for ever.

use std::time::Duration;

use fencepost::{ErrorKind, Finding, Keep, Options, Page, Severity};
use fencepost_testkit::proxy::OpKind;
use fencepost_testkit::wait;

use crate::stage::{TTL, on_stage};

const CALL_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn a_hung_inspect_answers_at_its_deadline() {
    on_stage("hung-inspect", async |stage| {
        let (client, proxy) = stage.proxied(Options::new().call_timeout(CALL_TIMEOUT)).await;
        proxy.pause();
        let asking = client.clone();
        let question = tokio::spawn(async move { asking.inspect("a").await });
        assert!(stage.seconds_until_over(&question).await >= 5);
        let error = question.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.to_string(), "could not inspect lock \"a\": no reply from memory: within 5s");
        proxy.resume();
        assert!(client.inspect("a").await.unwrap().is_idle(), "it works again");
    });
}

#[test]
fn a_hung_list_answers_after_half_a_minute_by_default() {
    on_stage("hung-list", async |stage| {
        let (client, proxy) = stage.proxied(Options::new()).await;
        proxy.pause();
        let asking = client.clone();
        let question = tokio::spawn(async move { asking.list("", Page::new(1)).await.map(drop) });
        assert!(stage.seconds_until_over(&question).await >= 30);
        let error = question.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.to_string(), "could not list locks: no reply from memory: within 30s");
    });
}

/// A diagnosis matters most when the backend hangs.
#[test]
fn a_hung_examination_is_a_finding() {
    on_stage("hung-examination", async |stage| {
        let (client, proxy) = stage.proxied(Options::new().call_timeout(CALL_TIMEOUT)).await;
        proxy.pause();
        let asking = client.clone();
        let question = tokio::spawn(async move { asking.diagnose().await });
        assert!(stage.seconds_until_over(&question).await >= 5);
        let late =
            Finding::problem("answer", "could not diagnose the backend: no reply from memory: within 5s");
        assert_eq!(question.await.unwrap().unwrap(), [late]);
        proxy.resume();
        proxy.cut();
        assert_eq!(client.locate("a").await.unwrap()[0].severity, Severity::Problem);
        assert_eq!(client.locate("").await.unwrap_err().kind(), ErrorKind::BadName);
        client.close().await;
        assert_eq!(client.diagnose().await.unwrap_err().kind(), ErrorKind::Closed);
    });
}

/// What may have been done is unknown; what only reads has done nothing.
#[test]
fn silence_means_unknown_only_where_something_may_have_happened() {
    on_stage("silence", async |stage| {
        let (client, proxy) = stage.proxied(Options::new().call_timeout(CALL_TIMEOUT)).await;
        let guard = client.lock("a").ttl(TTL * 100).acquire().await.unwrap();
        let token = guard.token();
        proxy.pause();
        let (reading, breaking) = (client.clone(), client.clone());
        let read = tokio::spawn(async move { reading.read_cell("a").await.map(drop) });
        let broken = tokio::spawn(async move { breaking.break_lock("a", token).await });
        let written = tokio::spawn(async move { guard.write_cell(*b"x", Keep::Always).await });
        for (task, kind) in [
            (read, ErrorKind::Unreachable),
            (broken, ErrorKind::OutcomeUnknown),
            (written, ErrorKind::OutcomeUnknown),
        ] {
            stage.seconds_until_over(&task).await;
            let error = task.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.to_string(), "no reply from memory: within 5s");
        }
        proxy.resume();
    });
}

/// Flights that hang block pending operations for a sixth of the deadline at most, however long their leases are.
#[test]
fn a_call_behind_long_leases_that_hang_has_its_deadline_too() {
    on_stage("behind", async |stage| {
        let (client, proxy) = stage.proxied(Options::new().call_timeout(CALL_TIMEOUT)).await;
        proxy.pause();
        let room = client.info().max_flights;
        for number in 0..room {
            let lock = client.lock(format!("{number}")).ttl(TTL * 100);
            tokio::spawn(async move { lock.try_acquire().await.map(drop) });
            wait::until("it has left", async || proxy.count(OpKind::Acquire) > number).await;
        }
        let asking = client.clone();
        let read = tokio::spawn(async move { asking.read_cell("a").await.map(drop) });
        let seconds = stage.seconds_until_over(&read).await;
        assert!(seconds <= 2 * 5, "it took {seconds} s");
        assert_eq!(read.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
        proxy.resume();
    });
}

#[test]
fn a_deadline_of_zero_is_refused() {
    on_stage("zero", async |stage| {
        let options = Options::new().call_timeout(Duration::ZERO);
        let error = stage.memory.client_with(options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
    });
}
