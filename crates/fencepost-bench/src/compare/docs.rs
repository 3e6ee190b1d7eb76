//! The page and the plot in `docs/benchmarks`, from the figures of one run.

use std::fmt::Write;

use super::benches::{P50, P99, PAIRS};
use super::{BenchServer, ours};
use crate::plot::{self, Bar, Kind, Panel, shown};
use crate::report::Figure;

/// How the figures were measured.
#[derive(Clone, Debug)]
pub(crate) struct About<'a> {
    /// The command line, as it would be typed.
    pub(crate) command: &'a str,
    /// The server that they were measured on.
    pub(crate) server: &'a str,
    /// The subjects and their versions.
    pub(crate) subjects: &'a [(&'a str, String)],
    /// The subjects that were left out, and why.
    pub(crate) notes: &'a [&'a str],
}

const BEFORE: &str = "\
Written by the command below; it starts a private server, and each round runs every subject, so that a busy moment affects
all alike. The figures are medians of the rounds. Compare the subjects with each other, not with figures of another
machine.
";

/// The plot.
pub(crate) fn plot<S: BenchServer>(figures: &[Figure]) -> String {
    let panel = |title: &str, bench: &str, tasks: usize, metric: &str, unit, better| {
        let found = figures.iter().filter(|figure| is(figure, bench, tasks, metric) && figure.unit != "×");
        // Next to the bar of the server's own tool all others would be short.
        let is_tool = |figure: &&Figure| S::TOOL.is_some_and(|(tool, _)| figure.subject == tool);
        let mut bars: Vec<Bar> = found.filter(|figure| !is_tool(figure)).map(bar::<S>).collect();
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
            "16 tasks, one lock: share of the time in which it is held",
            "contended",
            16,
            "utilisation",
            "share",
            LONGER,
        ),
        panel(
            "16 tasks, one lock: time to acquire it",
            "contended",
            16,
            "wait p99",
            "ms, 99th percentile",
            SHORTER,
        ),
    ];
    let panels: Vec<Panel> = panels.into_iter().filter(|panel| !panel.bars.is_empty()).collect();
    plot::svg(&format!("Fencepost on {} beside other locks", S::TITLE), &panels)
}

const LONGER: &str = "longer is better";
const SHORTER: &str = "shorter is better";

fn bar<S: BenchServer>(figure: &Figure) -> Bar {
    let kind = match figure.subject.as_str() {
        ours::NAME | ours::LOW_LATENCY => Kind::Ours,
        floor if floor == S::FLOOR => Kind::Floor,
        _ => Kind::Peer,
    };
    Bar { label: figure.subject.clone(), value: figure.value, kind }
}

fn is(figure: &Figure, bench: &str, tasks: usize, metric: &str) -> bool {
    figure.bench == bench && figure.tasks == tasks && figure.metric == metric
}

/// The page.
pub(crate) fn page<S: BenchServer>(about: &About<'_>, figures: &[Figure]) -> String {
    let mut page = Page { text: format!("# {}: figures\n\n{BEFORE}", S::TITLE), figures };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    page.line(&format!("\n```sh\n{}\n```\n", about.command));
    page.line(&format!("Machine: {cores} cores. Server: {}.\n", about.server));
    page.line(&format!("![Bars: Fencepost beside other locks]({}.svg)\n", S::NAME));
    page.line(&format!("Subjects ({}):\n", S::PARTICIPANTS));
    for (name, version) in about.subjects {
        page.line(&format!("* {name}: {version}"));
    }
    if let Some((tool, what)) = S::TOOL {
        page.line(&format!("* {tool}: {what}"));
    }
    for note in about.notes {
        page.line(&format!("* {note}"));
    }
    let rates = [("1 task, /s", 1, PAIRS), ("64 tasks, /s", 64, PAIRS), ("256 tasks, /s", 256, PAIRS)];
    let latencies = [("1 task p50, µs", 1, P50), ("p99, µs", 1, P99)];
    page.table("Acquire + release, uncontended", "uncontended", &[&rates[..], &latencies[..]].concat());
    let columns: &[(&str, usize, &str)] = &[
        ("held", 16, "utilisation"),
        ("dead time per hand-over, µs", 16, "dead time per hand-over"),
        ("hand-over p50, µs", 16, "hand-over p50"),
        ("hand-over p99, µs", 16, "hand-over p99"),
        ("wait p50, ms", 16, "wait p50"),
        ("wait p99, ms", 16, "wait p99"),
        ("fairness (Jain)", 16, "fairness between tasks"),
    ];
    let columns = [columns, S::CONTENDED_COLUMNS].concat();
    page.table("16 tasks, one lock (hold 5 ms, think 20 ms), one process", "contended", &columns);
    page.table("The same over 4 processes", "contended over 4", &columns);
    S::add_sections(&mut page);
    page.ratios();
    page.text
}

/// A page under construction.
pub(crate) struct Page<'a> {
    text: String,
    figures: &'a [Figure],
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("a string takes everything");
    }

    /// Adds a table with a row for each subject, if there is any.
    pub(crate) fn table(&mut self, title: &str, bench: &str, columns: &[(&str, usize, &str)]) {
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

    /// Adds a list with an item for each figure of this bench, if there is any.
    pub(crate) fn list(&mut self, title: &str, bench: &str) {
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
        // With many tasks the latency only repeats the rate.
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

/// Returns a value, with its spread if the rounds were far apart.
fn cell(figure: &Figure) -> String {
    match figure.spread {
        Some(spread) if spread >= 0.1 => format!("{} (spread {:.0} %)", shown(figure.value), spread * 100.0),
        _ => shown(figure.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Redis;

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
        let about = About {
            command: "cargo xtask bench redis",
            server: "Redis 7.0.15, here",
            subjects: &[("rslock", "0.10.0".into())],
            notes: &["redsync: skipped: go is not installed"],
        };
        let page = page::<Redis>(&about, &figures());
        for expected in [
            "cargo xtask bench redis",
            "# Redis: figures",
            " cores. Server: Redis 7.0.15, here.",
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
        let drawn = plot::<Redis>(&figures());
        // One bar, and one in the legend.
        assert_eq!(drawn.matches("class=\"ours\"").count(), 2);
        assert_eq!(drawn.matches("class=\"peer\"").count(), 2);
        assert!(!drawn.contains("256 tasks"));
    }
}
