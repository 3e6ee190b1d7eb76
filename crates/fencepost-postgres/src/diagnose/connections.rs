//! How many more connections the server accepts.

use fencepost_core::Finding;

/// A client has this many connections at most.
const PER_CLIENT: i64 = 4;

/// Checks that there are connections left: of `max`, `used` are in use; limits of the account or the database may leave fewer.
pub(super) fn connections(used: i64, max: i64, left_by_limits: Option<i64>) -> Finding {
    let left = left_by_limits.into_iter().chain([max - used]).min().unwrap_or_default().max(0);
    let limited = if left < max - used { ", by the limit of the role or the database" } else { "" };
    let found = format!("{used} of {max} in use, {left} left{limited}");
    if left >= PER_CLIENT * 2 && left >= max / 20 {
        return Finding::ok("connections", found);
    }
    Finding::warning("connections", found).with_advice(format!(
        "a client uses up to {PER_CLIENT}: raise max_connections or the limit, or put a pooler in front"
    ))
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn few_connections_are_a_warning() {
        for (used, max, limits, severity, left) in [
            (5, 97, None, Severity::Ok, "92 left"),
            (90, 97, None, Severity::Warning, "7 left"),
            (960, 1000, None, Severity::Warning, "40 left"),
            (5, 97, Some(50), Severity::Ok, "50 left, by the limit"),
            (5, 97, Some(-1), Severity::Warning, "0 left, by the limit"),
        ] {
            let finding = connections(used, max, limits);
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.found.contains(left), "{finding}");
        }
    }
}
