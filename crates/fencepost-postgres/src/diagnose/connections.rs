//! How many more connections the server accepts.

use fencepost_core::Finding;

use super::Storage;

/// A client whose locks are in tables has this many connections at most.
const PER_CLIENT: i64 = 4;

/// Checks that there are connections left: of `max`, `used` are in use; limits of the account or the database may leave fewer.
pub(super) fn connections(used: i64, max: i64, left_by_limits: Option<i64>, storage: Storage) -> Finding {
    let left = left_by_limits.into_iter().chain([max - used]).min().unwrap_or_default().max(0);
    let limited = if left < max - used { ", by the limit of the role or the database" } else { "" };
    let found = format!("{used} of {max} in use, {left} left{limited}");
    let (enough, advice) = match storage {
        Storage::Tables { .. } => (
            PER_CLIENT * 2,
            format!(
                "a client uses up to {PER_CLIENT}: raise max_connections or the limit, or put a pooler in front"
            ),
        ),
        Storage::Sessions { per_client } => (
            i64::try_from(per_client).unwrap_or(i64::MAX),
            format!(
                "each lock that is held or waited for has one, and a client uses up to {per_client}: raise max_connections \
                 or the limit, lower connections= in the URL, or use mode=lease"
            ),
        ),
    };
    if left >= enough && left >= max / 20 {
        return Finding::ok("connections", found);
    }
    Finding::warning("connections", found).with_advice(advice)
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn few_connections_are_a_warning() {
        let (tables, sessions) = (Storage::Tables { is_pooled: false }, Storage::Sessions { per_client: 33 });
        for (used, max, limits, storage, severity, left) in [
            (5, 97, None, tables, Severity::Ok, "92 left"),
            (90, 97, None, tables, Severity::Warning, "7 left"),
            (960, 1000, None, tables, Severity::Warning, "40 left"),
            (5, 97, Some(50), tables, Severity::Ok, "50 left, by the limit"),
            (5, 97, Some(-1), tables, Severity::Warning, "0 left, by the limit"),
            (64, 97, None, sessions, Severity::Ok, "33 left"),
            (65, 97, None, sessions, Severity::Warning, "32 left"),
            (5, 97, Some(20), sessions, Severity::Warning, "20 left, by the limit"),
        ] {
            let finding = connections(used, max, limits, storage);
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.found.contains(left), "{finding}");
        }
    }
}
