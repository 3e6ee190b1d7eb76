//! The figures of a contended run, from the times at which each hold of the lock started and ended.

use std::time::Duration;

use crate::rounds::Reading;
use crate::statistics::{jain, number, percentile};
use crate::workers::WorkerResult;

/// Returns the figures of one contended run of this length.
pub(crate) fn values(found: &[WorkerResult], length: Duration) -> Vec<Reading> {
    let HoldTimes { utilisation, mut gaps } = hold_times(found, length);
    let mut waits: Vec<f64> = found.iter().flat_map(|found| found.waits.iter().copied()).collect();
    let shares: Vec<f64> =
        found.iter().flat_map(|found| found.turns.iter().map(|turns| number(*turns))).collect();
    let dead = gaps.iter().sum::<f64>() / number(gaps.len()).max(1.0);
    let value = |metric, value, unit| Reading { metric, value, unit };
    vec![
        value("utilisation", utilisation, "held ÷ wall"),
        value("dead time per hand-over", dead * 1e6, "µs"),
        value("hand-over p50", percentile(&mut gaps, 0.5) * 1e6, "µs"),
        value("hand-over p99", percentile(&mut gaps, 0.99) * 1e6, "µs"),
        value("wait p50", percentile(&mut waits, 0.5) * 1e3, "ms"),
        value("wait p99", percentile(&mut waits, 0.99) * 1e3, "ms"),
        value("fairness between tasks", jain(&shares), "Jain"),
    ]
}

/// Returns the number of grants.
pub(crate) fn count(found: &[WorkerResult]) -> usize {
    found.iter().map(|found| found.waits.len()).sum()
}

/// Returns how often a hold started before the previous one had ended: never, if the lock works.
pub(crate) fn overlaps(found: &[WorkerResult]) -> usize {
    gaps(&sorted(found)).iter().filter(|gap| **gap < 0.0).count()
}

#[derive(Debug)]
struct HoldTimes {
    /// The share of the time in which the lock was held.
    utilisation: f64,
    /// The times from the start of a release to the next grant.
    gaps: Vec<f64>,
}

fn hold_times(found: &[WorkerResult], length: Duration) -> HoldTimes {
    let mut spans = sorted(found);
    // Towards the end fewer and fewer tasks compete: only the time in which all did counts.
    let first = spans.first().map_or(0.0, |(entered, _)| *entered);
    spans.retain(|(entered, _)| *entered <= first + length.as_secs_f64());
    let last = spans.last().map_or(first, |(_, left)| *left);
    let held: f64 = spans.iter().map(|(entered, left)| left - entered).sum();
    let utilisation = if last > first { held / (last - first) } else { 0.0 };
    HoldTimes { utilisation, gaps: gaps(&spans) }
}

fn sorted(found: &[WorkerResult]) -> Vec<(f64, f64)> {
    let mut spans: Vec<(f64, f64)> = found.iter().flat_map(|found| found.spans.iter().copied()).collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    spans
}

fn gaps(spans: &[(f64, f64)]) -> Vec<f64> {
    spans.windows(2).map(|pair| pair[1].0 - pair[0].1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spans: &[(f64, f64)]) -> WorkerResult {
        let waits = spans.iter().map(|_| 0.1).collect();
        WorkerResult { turns: vec![spans.len()], spans: spans.to_vec(), waits, ..WorkerResult::default() }
    }

    #[test]
    fn holds_of_all_processes_are_one_sequence() {
        let both = [found(&[(1.0, 2.0), (4.5, 5.0)]), found(&[(2.5, 4.0), (99.0, 100.0)])];
        let times = hold_times(&both, Duration::from_secs(10));
        assert_eq!(times.gaps, [0.5, 0.5]);
        assert!((times.utilisation - 0.75).abs() < 1e-9);
        assert_eq!((count(&both), overlaps(&both)), (4, 0));
        let reported = values(&both, Duration::from_secs(10));
        let dead = reported.iter().find(|value| value.metric == "dead time per hand-over").unwrap();
        assert!((dead.value - 500_000.0).abs() < 1e-3);
    }

    #[test]
    fn overlapping_holds_are_counted() {
        assert_eq!(overlaps(&[found(&[(1.0, 2.0)]), found(&[(1.9, 3.0), (3.0, 4.0)])]), 1);
    }

    #[test]
    fn no_holds_give_zero_values() {
        assert!(values(&[], Duration::from_secs(1)).iter().all(|value| value.value == 0.0));
    }
}
