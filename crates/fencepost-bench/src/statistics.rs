//! Statistics for figures.

/// Returns the value below which this share of the samples lies.
pub(crate) fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = (samples.len() as f64 * share) as usize;
    samples.get(at.min(samples.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Returns the middle one, or the mean of the two in the middle.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => 0.0,
        count if count % 2 == 1 => samples[middle],
        _ => f64::midpoint(samples[middle - 1], samples[middle]),
    }
}

/// Returns the difference between highest and lowest, as a share of the median.
pub(crate) fn spread(samples: &[f64]) -> f64 {
    let highest = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lowest = samples.iter().copied().fold(f64::INFINITY, f64::min);
    ratio(highest - lowest, median(samples)).unwrap_or(0.0)
}

/// Returns how many times `other` fits into `one`; nothing if that is undefined.
pub(crate) fn ratio(one: f64, other: f64) -> Option<f64> {
    let ratio = one / other;
    ratio.is_finite().then_some(ratio)
}

/// Converts a count to a floating point number; counts here are far below the limit.
pub(crate) fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Returns Jain's fairness index: 1 if all got the same, 1/n if one got everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (number(shares.len()) * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn percentiles_are_samples() {
        let mut samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert!(near(percentile(&mut samples, 0.5), 51.0));
        assert!(near(percentile(&mut samples, 0.99), 100.0));
        assert!(near(percentile(&mut samples, 1.0), 100.0));
        assert!(near(percentile(&mut [], 0.5), 0.0));
    }

    #[test]
    fn the_median_is_not_moved_by_one_bad_round() {
        assert!(near(median(&[10.0, 900.0, 11.0]), 11.0));
        assert!(near(median(&[4.0, 1.0, 2.0, 3.0]), 2.5));
        assert!(near(median(&[]), 0.0));
    }

    #[test]
    fn the_spread_is_a_share_of_the_median() {
        assert!(near(spread(&[90.0, 100.0, 120.0]), 0.3));
        assert!(near(spread(&[7.0]), 0.0));
        assert!(near(spread(&[]), 0.0));
    }

    #[test]
    fn there_is_no_ratio_to_nothing() {
        assert!(ratio(14.0, 10.0).is_some_and(|ratio| near(ratio, 1.4)));
        assert_eq!(ratio(1.0, 0.0), None);
        assert_eq!(ratio(0.0, 0.0), None);
    }

    #[test]
    fn fairness_is_one_for_equals_and_one_of_n_for_a_tyrant() {
        assert!(near(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0));
        assert!(near(jain(&[9.0, 0.0, 0.0, 0.0]), 0.25));
        assert!(near(jain(&[]), 0.0));
    }
}
