//! Stages that run one after another, with a table of their times.

use crate::shell::{Failure, Outcome};
use std::time::{Duration, Instant};

type Work<'a> = Box<dyn FnOnce() -> Outcome + 'a>;

/// A list of named stages.
#[derive(Default)]
pub(crate) struct Stages<'a> {
    list: Vec<(&'static str, Result<Work<'a>, &'static str>)>,
}

impl<'a> Stages<'a> {
    /// Adds a stage at the end.
    pub(crate) fn add(&mut self, name: &'static str, work: impl FnOnce() -> Outcome + 'a) {
        self.list.push((name, Ok(Box::new(work))));
    }

    /// Adds a stage that cannot run here, with the reason for the table.
    pub(crate) fn skip(&mut self, name: &'static str, why: &'static str) {
        self.list.push((name, Err(why)));
    }

    /// Runs the stages up to the first that fails, and prints the table in any case.
    pub(crate) fn run(self) -> Outcome {
        let mut table = Table::default();
        let outcome = self.list.into_iter().try_for_each(|(name, stage)| match stage {
            Ok(work) => table.time(name, work),
            Err(why) => {
                table.rows.push((name, format!("skipped: {why}")));
                Ok(())
            }
        });
        println!("\n{}", table.text());
        outcome
    }
}

#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, String)>,
    total: Duration,
}

impl Table {
    #[expect(clippy::disallowed_methods, reason = "the minutes of a stage are real minutes")]
    fn time(&mut self, name: &'static str, work: Work) -> Outcome {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = work();
        let spent = start.elapsed();
        self.total += spent;
        let mark = if outcome.is_ok() { "" } else { "  FAILED" };
        self.rows.push((name, format!("{}{mark}", minutes(spent))));
        outcome.map_err(|failure| in_stage(name, failure))
    }

    fn text(&self) -> String {
        let rows = self.rows.iter().map(|(name, what)| (*name, what.clone()));
        let lines =
            rows.chain([("total", minutes(self.total))]).map(|(name, what)| format!("{name:<14} {what}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn in_stage(name: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Failed(why) => Failure::Failed(format!("stage `{name}` failed: {why}")),
        other => other,
    }
}

fn minutes(spent: Duration) -> String {
    let seconds = spent.as_secs_f64().round();
    format!("{:>3}:{:02}", (seconds / 60.0).floor(), seconds % 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn stages_run_in_order_up_to_the_first_that_fails() {
        let seen = RefCell::new(Vec::new());
        let mut stages = Stages::default();
        for (name, good) in [("one", true), ("two", false), ("three", true)] {
            let seen = &seen;
            stages.add(name, move || {
                seen.borrow_mut().push(name);
                if good { Ok(()) } else { Err(Failure::Failed("no luck".into())) }
            });
        }
        assert_eq!(stages.run(), Err(Failure::Failed("stage `two` failed: no luck".into())));
        assert_eq!(*seen.borrow(), ["one", "two"]);
    }

    #[test]
    fn the_table_shows_times_failures_and_what_was_skipped() {
        let mut table = Table::default();
        table.time("tests", Box::new(|| Err(Failure::Exited(3)))).unwrap_err();
        table.rows.push(("deny", "skipped: not here".into()));
        let text = table.text();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            ["tests            0:00  FAILED", "deny           skipped: not here", "total            0:00"]
        );
    }

    #[test]
    fn time_is_shown_as_minutes_and_seconds() {
        assert_eq!(minutes(Duration::from_millis(65_400)), "  1:05");
        assert_eq!(minutes(Duration::from_secs(3_599)), " 59:59");
        assert_eq!(minutes(Duration::from_millis(59_900)), "  1:00");
    }
}
