//! The figures: told as they come, printed as a table or as JSON lines at the end.

use serde::Serialize;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) bench: &'static str,
    pub(crate) backend: String,
    pub(crate) subject: String,
    pub(crate) tasks: usize,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) samples: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) json: bool,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn add(&mut self, figure: Figure) {
        eprintln!(
            "  {} {} {} tasks={} {}: {}",
            figure.bench,
            figure.backend,
            figure.subject,
            figure.tasks,
            figure.metric,
            shown(&figure)
        );
        self.figures.push(figure);
    }

    pub(crate) fn print(&self) {
        for figure in self.figures.iter().filter(|_| self.json) {
            println!("{}", serde_json::to_string(figure).unwrap_or_default());
        }
        if self.json {
            return;
        }
        println!(
            "{:<12} {:<8} {:<22} {:>6}  {:<28} {:>14}",
            "bench", "backend", "subject", "tasks", "metric", "value"
        );
        for figure in &self.figures {
            println!(
                "{:<12} {:<8} {:<22} {:>6}  {:<28} {:>14}",
                figure.bench,
                figure.backend,
                figure.subject,
                figure.tasks,
                figure.metric,
                shown(figure)
            );
        }
    }
}

fn shown(figure: &Figure) -> String {
    let value = figure.value;
    let number = if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    format!("{number} {}", figure.unit)
}

/// The value below which this share of the samples lies.
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

/// Jain's fairness: 1 if all got the same, 1/n if one got everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let count = shares.len() as f64;
    if squares == 0.0 { 0.0 } else { sum * sum / (count * squares) }
}
