//! The page and the plot of `docs/benchmarks`, from the figures of one run.

use std::fmt::Write;

use super::compare::{P50, P99, PAIRS};
use super::{bare, us};
use crate::plot::{self, Bar, Kind, Panel, shown};
use crate::report::Figure;

/// What the figures were measured on.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) redis: String,
}

const BEFORE: &str = "\
# Redis: figures

Written by the command below; it starts a server of its own, and runs every subject in turns, so that a busy moment strikes
all alike. What is shown is the median of the rounds. Compare the subjects with each other, not with figures of another
machine.
";

/// The plot.
pub(crate) fn plot(figures: &[Figure]) -> String {
    let panel = |title: &str, bench: &str, tasks: usize, metric: &str, unit, better| {
        let found = figures.iter().filter(|figure| is(figure, bench, tasks, metric) && figure.unit != "×");
        // Beside redis-benchmark's bar all others would be short.
        let mut bars: Vec<Bar> = found.filter(|figure| figure.subject != bare::BENCHMARK).map(bar).collect();
        bars.sort_by(|one, other| other.value.total_cmp(&one.value));
        if better == SHORTER {
            bars.reverse();
        }
        Panel { title: title.to_owned(), unit, better, bars }
    };
    let panels = [
        panel("Acquire + release, 64 tasks", "uncontended", 64, PAIRS, "pairs per second", LONGER),
        panel("Acquire + release, 256 tasks", "uncontended", 256, PAIRS, "pairs per second", LONGER),
        panel("Acquire + release, one task", "uncontended", 1, P50, "µs, median", SHORTER),
        panel(
            "16 want one lock: time in which it is in use",
            "contended",
            16,
            "utilisation",
            "share",
            LONGER,
        ),
        panel(
            "16 want one lock: how long they wait",
            "contended",
            16,
            "wait p99",
            "ms, 99th percentile",
            SHORTER,
        ),
    ];
    let panels: Vec<Panel> = panels.into_iter().filter(|panel| !panel.bars.is_empty()).collect();
    plot::svg("Fencepost on Redis beside other locks", &panels)
}

const LONGER: &str = "longer is better";
const SHORTER: &str = "shorter is better";

fn bar(figure: &Figure) -> Bar {
    let kind = match figure.subject.as_str() {
        us::NAME => Kind::Ours,
        bare::NAME => Kind::Floor,
        _ => Kind::Peer,
    };
    Bar { label: figure.subject.clone(), value: figure.value, kind }
}

fn is(figure: &Figure, bench: &str, tasks: usize, metric: &str) -> bool {
    figure.bench == bench && figure.tasks == tasks && figure.metric == metric
}

/// The page.
pub(crate) fn page(
    command: &str,
    machine: &Machine,
    versions: &[(&str, String)],
    figures: &[Figure],
    notes: &[String],
) -> String {
    let mut page = Page { text: BEFORE.to_owned(), figures };
    let Machine { cores, redis } = machine;
    page.line(&format!("\n```sh\n{command}\n```\n"));
    page.line(&format!(
        "Machine: {cores} cores. Server: Redis {redis}, on the same machine, without persistence.\n"
    ));
    page.line("![Bars: Fencepost beside other locks](redis.svg)\n");
    page.line("Who takes part (fencepost is fenced, fair and renewed; the others are not fenced):\n");
    for (name, version) in versions {
        page.line(&format!("* {name}: {version}"));
    }
    page.line(&format!(
        "* {}: `SET`, as many under way on one connection as there are tasks; a pair is two of them",
        bare::BENCHMARK
    ));
    for note in notes {
        page.line(&format!("* {note}"));
    }
    let rates = [("1 task, /s", 1, PAIRS), ("64 tasks, /s", 64, PAIRS), ("256 tasks, /s", 256, PAIRS)];
    let latencies = [("1 task p50, µs", 1, P50), ("p99, µs", 1, P99)];
    page.table("Acquire + release, nobody in the way", "uncontended", &[&rates[..], &latencies[..]].concat());
    let columns = [
        ("in use", 16, "utilisation"),
        ("dead time per hand-over, µs", 16, "dead time per hand-over"),
        ("hand-over p50, µs", 16, "hand-over p50"),
        ("wait p50, ms", 16, "wait p50"),
        ("wait p99, ms", 16, "wait p99"),
        ("fairness (Jain)", 16, "fairness between tasks"),
    ];
    page.table("16 want one lock (hold 5 ms, think 20 ms), one process", "contended", &columns);
    page.table("The same over 4 processes", "contended over 4", &columns);
    let sent = "commands sent per turn";
    let scripted = "commands in scripts per turn";
    let to = "bytes to the server per turn";
    let from = "bytes from the server per turn";
    let columns = [
        ("sent, 1 waiter", 1, sent),
        ("16", 16, sent),
        ("256", 256, sent),
        ("in scripts, 1 waiter", 1, scripted),
        ("16", 16, scripted),
        ("256", 256, scripted),
        ("bytes to, 1 waiter", 1, to),
        ("16", 16, to),
        ("256", 256, to),
        ("bytes from, 1 waiter", 1, from),
        ("16", 16, from),
        ("256", 256, from),
    ];
    page.table("Commands and bytes per turn, in a line that never ends", "line", &columns);
    page.list("10,000 held locks, all renewals due at once", "held");
    page.ratios();
    page.text
}

struct Page<'a> {
    text: String,
    figures: &'a [Figure],
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("a string takes everything");
    }

    /// A row for each subject, if there is any.
    fn table(&mut self, title: &str, bench: &str, columns: &[(&str, usize, &str)]) {
        let mut subjects: Vec<&str> = Vec::new();
        for figure in self.figures.iter().filter(|figure| figure.bench == bench && figure.unit != "×") {
            if !subjects.contains(&figure.subject.as_str()) {
                subjects.push(&figure.subject);
            }
        }
        if subjects.is_empty() {
            return;
        }
        self.line(&format!("\n## {title}\n"));
        let heads: Vec<&str> = columns.iter().map(|(head, ..)| *head).collect();
        self.line(&format!("| | {} |\n|---|{}", heads.join(" | "), "--:|".repeat(heads.len())));
        for subject in subjects {
            let cell = |(_, tasks, metric): &(&str, usize, &str)| {
                let mut found = self.figures.iter().filter(|figure| is(figure, bench, *tasks, metric));
                found.find(|figure| figure.subject == subject && figure.unit != "×").map_or("–".into(), cell)
            };
            let cells: Vec<String> = columns.iter().map(cell).collect();
            self.line(&format!("| {subject} | {} |", cells.join(" | ")));
        }
    }

    fn list(&mut self, title: &str, bench: &str) {
        let found: Vec<&Figure> = self.figures.iter().filter(|figure| figure.bench == bench).collect();
        if found.is_empty() {
            return;
        }
        self.line(&format!("\n## {title}\n"));
        for figure in found {
            self.line(&format!("* {}: {} {}", figure.metric, cell(figure), figure.unit));
        }
    }

    fn ratios(&mut self) {
        // With many tasks the latency only repeats what the rate says.
        let says_more = |figure: &&Figure| figure.metric != P50 || figure.tasks == 1;
        let found: Vec<&Figure> =
            self.figures.iter().filter(|figure| figure.unit == "×").filter(says_more).collect();
        if found.is_empty() {
            return;
        }
        self.line("\n## Ratios\n\n| | bench | tasks | of | ratio |\n|---|---|--:|---|--:|");
        for Figure { bench, subject, tasks, metric, value, .. } in found {
            self.line(&format!("| {subject} | {bench} | {tasks} | {metric} | {} |", shown(*value)));
        }
    }
}

/// A value, with its spread if the rounds were far apart.
fn cell(figure: &Figure) -> String {
    match figure.spread {
        Some(spread) if spread >= 0.1 => format!("{} (spread {:.0} %)", shown(figure.value), spread * 100.0),
        _ => shown(figure.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(bench: &'static str, subject: &str, tasks: usize, metric: &'static str, value: f64) -> Figure {
        let (backend, subject, unit) = ("redis".to_owned(), subject.to_owned(), "/s");
        Figure { bench, backend, subject, tasks, metric, value, unit, samples: 1, spread: Some(0.25) }
    }

    fn figures() -> Vec<Figure> {
        let ratio = Figure { unit: "×", ..figure("uncontended", "fencepost / rslock", 64, PAIRS, 1.4) };
        vec![
            figure("uncontended", "fencepost", 64, PAIRS, 140_000.0),
            figure("uncontended", "rslock", 64, PAIRS, 100_000.0),
            Figure { spread: None, ..figure("held", "fencepost", 10_000, "renewal of all", 20.0) },
            ratio,
        ]
    }

    #[test]
    fn a_page_has_a_row_for_each_subject_and_no_table_without_figures() {
        let machine = Machine { cores: 2, redis: "7.0.15".into() };
        let notes = ["redsync: skipped: go is not installed".to_owned()];
        let page =
            page("cargo xtask bench redis", &machine, &[("rslock", "0.10.0".into())], &figures(), &notes);
        for expected in [
            "cargo xtask bench redis",
            "Machine: 2 cores. Server: Redis 7.0.15",
            "* rslock: 0.10.0",
            "* redsync: skipped: go is not installed",
            "| fencepost | – | 140,000 (spread 25 %) | – | – | – |",
            "* renewal of all: 20 /s",
            "| fencepost / rslock | uncontended | 64 | pairs per second | 1.4 |",
        ] {
            assert!(page.contains(expected), "{expected} is missing in {page}");
        }
        assert!(!page.contains("over 4 processes"));
    }

    #[test]
    fn a_plot_shows_subjects_and_no_ratios() {
        let drawn = plot(&figures());
        // One bar, and one in the legend.
        assert_eq!(drawn.matches("class=\"ours\"").count(), 2);
        assert_eq!(drawn.matches("class=\"peer\"").count(), 2);
        assert!(!drawn.contains("256 tasks"));
    }
}
