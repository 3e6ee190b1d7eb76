//! How fast the server replies, and which ttl that allows.

use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::{BackendInfo, Client, Finding, LockName, Result};

use crate::durations;

const CHECK: &str = "ttl";
/// How many reads are timed.
const READS: usize = 9;
/// The lock that is read if none was given. Reading creates nothing.
const ANY_LOCK: &str = "fencepost/doctor";
/// The default ttl of `fencepost run`.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The shortest ttl of `fencepost run`.
const MIN_TTL: Duration = Duration::from_secs(1);
/// A lease is renewed at a third of its ttl. This many round trips leave room for renewals that are lost and sent again,
/// and for times at which the server is ten times as slow.
const ROUND_TRIPS: u32 = 100;

pub(super) async fn measure(client: &Client, name: Option<&LockName>) -> Finding {
    let name = name.map_or(ANY_LOCK, LockName::as_str);
    match median_read(client, name).await {
        Ok(median) => check(median, client.info()),
        Err(error) => Finding::failed(CHECK, &error),
    }
}

async fn median_read(client: &Client, name: &str) -> Result<Duration> {
    let clock = Clock::system();
    let mut times = [Duration::ZERO; READS];
    for time in &mut times {
        let sent = clock.now();
        client.inspect(name).await?;
        *time = clock.now().since(sent);
    }
    times.sort_unstable();
    Ok(times[READS / 2])
}

fn check(median: Duration, info: &BackendInfo) -> Finding {
    let sensible = sensible_ttl(median, info.min_ttl);
    let least = durations::show(sensible);
    let found = format!("a read takes {} (the median of {READS})", brief(median));
    if sensible > info.max_ttl {
        return Finding::problem(CHECK, format!("{found}: every ttl is too short"))
            .with_advice("use a backend that replies faster");
    }
    if sensible > DEFAULT_TTL {
        let default = durations::show(DEFAULT_TTL);
        return Finding::warning(CHECK, format!("{found}: the default ttl of {default} leaves little room"))
            .with_advice(format!("give --ttl {least} or more, or use a backend that replies faster"));
    }
    Finding::ok(CHECK, format!("{found}: {least} or more is sensible"))
}

/// Returns the shortest ttl that survives a slow moment, in whole seconds.
fn sensible_ttl(median: Duration, min_ttl: Duration) -> Duration {
    let needed = (median * ROUND_TRIPS).max(min_ttl).max(MIN_TTL);
    Duration::from_secs(needed.as_secs() + u64::from(needed.subsec_nanos() > 0))
}

fn brief(time: Duration) -> String {
    if time < Duration::from_millis(1) { "less than 1ms".to_owned() } else { durations::show(time) }
}

#[cfg(test)]
mod tests {
    use fencepost::{Scope, Severity, StorageId};

    use super::*;

    fn info() -> BackendInfo {
        let mut info = BackendInfo::new("x", "x:", Scope::Fleet, StorageId::random());
        info.min_ttl = Duration::from_millis(100);
        info.max_batch = 1;
        info
    }

    #[test]
    fn a_slower_server_needs_a_longer_ttl() {
        for (micros, seconds) in [(0, 1), (200, 1), (10_000, 1), (10_001, 2), (250_000, 25), (400_000, 40)] {
            let sensible = sensible_ttl(Duration::from_micros(micros), Duration::from_millis(100));
            assert_eq!(sensible, Duration::from_secs(seconds), "{micros} µs");
        }
        assert_eq!(sensible_ttl(Duration::ZERO, Duration::from_secs(5)), Duration::from_secs(5));
    }

    #[test]
    fn a_server_that_is_too_slow_for_the_default_is_a_warning() {
        let checked = |millis| check(Duration::from_millis(millis), &info());
        let fast = checked(0);
        assert_eq!(fast.severity, Severity::Ok);
        assert_eq!(fast.found, "a read takes less than 1ms (the median of 9): 1s or more is sensible");
        let slow = checked(400);
        assert_eq!(slow.severity, Severity::Warning);
        assert!(slow.advice.unwrap().starts_with("give --ttl 40s or more"));
        assert_eq!(checked(900_000).severity, Severity::Problem);
    }
}
