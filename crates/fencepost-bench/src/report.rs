//! The figures: printed to stderr as they are measured, and as a table or as JSON lines at the end.

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
    /// For a median of several rounds: the difference between highest and lowest, as a share of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<f64>,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) json: bool,
    figures: Vec<Figure>,
    /// Each with the backend that it is about.
    notes: Vec<(&'static str, String)>,
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

    /// Adds a note that is no figure: which subject was left out, and why.
    pub(crate) fn note(&mut self, backend: &'static str, note: &str) {
        eprintln!("  {backend}: {note}");
        let note = (backend, note.to_owned());
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the figures of a backend.
    pub(crate) fn figures(&self, backend: &str) -> Vec<Figure> {
        self.figures.iter().filter(|figure| figure.backend == backend).cloned().collect()
    }

    /// Returns the notes about a backend.
    pub(crate) fn notes(&self, backend: &str) -> Vec<&str> {
        let found = self.notes.iter().filter(|(about, _)| *about == backend);
        found.map(|(_, note)| note.as_str()).collect()
    }

    pub(crate) fn print(&self) {
        for figure in self.figures.iter().filter(|_| self.json) {
            println!("{}", serde_json::to_string(figure).unwrap_or_default());
        }
        if self.json {
            return;
        }
        println!(
            "{:<16} {:<9} {:<36} {:>6}  {:<40} {:>20}",
            "bench", "backend", "subject", "tasks", "metric", "value"
        );
        for figure in &self.figures {
            println!(
                "{:<16} {:<9} {:<36} {:>6}  {:<40} {:>20}",
                figure.bench,
                figure.backend,
                figure.subject,
                figure.tasks,
                figure.metric,
                shown(figure)
            );
        }
        for (backend, note) in &self.notes {
            println!("{backend}: {note}");
        }
    }
}

fn shown(figure: &Figure) -> String {
    let value = figure.value;
    let number = if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    let spread = figure.spread.map(|spread| format!("  spread {:.0} %", spread * 100.0)).unwrap_or_default();
    format!("{number} {}{spread}", figure.unit)
}
