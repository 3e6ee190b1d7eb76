//! Figures of several rounds: the median is reported, with its spread.

use crate::report::{Figure, Report};
use crate::statistics::{median, ratio, spread};

/// One value of a subject in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

/// The rounds of one bench.
#[derive(Debug)]
pub(crate) struct Rounds {
    bench: &'static str,
    backend: &'static str,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    subject: String,
    tasks: usize,
    metric: &'static str,
    unit: &'static str,
    values: Vec<f64>,
    samples: usize,
}

impl Rounds {
    pub(crate) fn new(bench: &'static str, backend: &'static str) -> Self {
        Self { bench, backend, rows: Vec::new() }
    }

    /// Adds a round of this subject, from this many samples.
    pub(crate) fn add(&mut self, subject: &str, tasks: usize, samples: usize, values: &[Reading]) {
        for Reading { metric, value, unit } in values {
            let same = |row: &&mut Row| row.is(subject, tasks, metric);
            if let Some(row) = self.rows.iter_mut().find(same) {
                row.values.push(*value);
                row.samples += samples;
            } else {
                let (subject, values) = (subject.to_owned(), vec![*value]);
                self.rows.push(Row { subject, tasks, metric, unit, values, samples });
            }
        }
    }

    /// Reports the medians.
    pub(crate) fn report(&self, report: &mut Report) {
        for row in &self.rows {
            let spread = (row.values.len() > 1).then(|| spread(&row.values));
            report.add(Figure { spread, ..self.figure(row, row.subject.clone(), median(&row.values)) });
        }
    }

    /// Reports how `one` compares with every other subject in this metric, with as many tasks.
    pub(crate) fn report_ratios(&self, report: &mut Report, one: &str, metric: &'static str) {
        for ours in self.rows.iter().filter(|row| row.subject == one && row.metric == metric) {
            let others = self.rows.iter().filter(|row| row.tasks == ours.tasks && row.metric == metric);
            for other in others.filter(|row| row.subject != one) {
                if let Some(ratio) = ratio(median(&ours.values), median(&other.values)) {
                    let subject = format!("{one} / {}", other.subject);
                    report.add(Figure { unit: "×", ..self.figure(ours, subject, ratio) });
                }
            }
        }
    }

    fn figure(&self, row: &Row, subject: String, value: f64) -> Figure {
        let (bench, backend) = (self.bench, self.backend.to_owned());
        let Row { tasks, metric, unit, samples, .. } = *row;
        Figure { bench, backend, subject, tasks, metric, value, unit, samples, spread: None }
    }
}

impl Row {
    fn is(&self, subject: &str, tasks: usize, metric: &str) -> bool {
        self.subject == subject && self.tasks == tasks && self.metric == metric
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64) -> [Reading; 1] {
        [Reading { metric: "pairs per second", value, unit: "/s" }]
    }

    fn reported(tell: impl FnOnce(&Rounds, &mut Report)) -> Vec<(String, usize, String)> {
        let mut rounds = Rounds::new("uncontended", "redis");
        for (ours, theirs) in [(140.0, 100.0), (900.0, 90.0), (130.0, 110.0)] {
            rounds.add("us", 64, 10, &rate(ours));
            rounds.add("them", 64, 10, &rate(theirs));
        }
        rounds.add("them", 1, 10, &rate(7.0));
        let mut report = Report::default();
        tell(&rounds, &mut report);
        let reported = report.figures("redis").into_iter();
        reported.map(|figure| (figure.subject, figure.tasks, format!("{:.2}", figure.value))).collect()
    }

    #[test]
    fn medians_are_told() {
        let expected = [("us", 64, "140.00"), ("them", 64, "100.00"), ("them", 1, "7.00")];
        let expected = expected.map(|(subject, tasks, value)| (subject.to_owned(), tasks, value.to_owned()));
        assert_eq!(reported(Rounds::report), expected);
    }

    #[test]
    fn ratios_are_of_medians_with_as_many_tasks() {
        let reported = reported(|rounds, report| rounds.report_ratios(report, "us", "pairs per second"));
        assert_eq!(reported, [("us / them".to_owned(), 64, "1.40".to_owned())]);
    }

    #[test]
    fn a_spread_needs_two_rounds() {
        let mut rounds = Rounds::new("uncontended", "redis");
        rounds.add("us", 1, 10, &rate(90.0));
        let mut report = Report::default();
        rounds.report(&mut report);
        rounds.add("us", 1, 10, &rate(110.0));
        rounds.report(&mut report);
        let [first, second] = &report.figures("redis")[..] else { panic!("two figures") };
        assert_eq!((first.spread, first.samples, second.samples), (None, 10, 20));
        assert!(second.spread.is_some_and(|spread| (spread - 0.2).abs() < 1e-9));
    }
}
