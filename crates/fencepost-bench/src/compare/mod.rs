//! `cargo xtask bench redis`, `etcd` and so on: Fencepost beside its peers and the floors, on a private server.

pub(crate) mod benches;
pub(crate) mod docs;
pub(crate) mod go;
pub(crate) mod hold_times;
pub(crate) mod java;
pub(crate) mod ours;
pub(crate) mod python;
pub(crate) mod shedlock;
pub(crate) mod subject;

use std::path::Path;
use std::time::Duration;

use crate::Plan;
use crate::report::Report;
use crate::workers::{self, Order};
use docs::{About, Page};
use subject::Subject;

/// Builds a subject.
pub(crate) type Build = fn() -> Result<Subject, String>;
/// Measures all subjects.
pub(crate) type Bench<S> = fn(&mut Setting<S>, &mut Report);

/// A private server on which other libraries are measured too.
pub(crate) trait BenchServer: Sized + 'static {
    /// The name on the command line, in figures, and of the page.
    const NAME: &'static str;
    /// The title of the page.
    const TITLE: &'static str;
    /// The subject that is no lock: the least that a lock could cost.
    const FLOOR: &'static str;
    /// What the subjects have in common, and what they do not.
    const PARTICIPANTS: &'static str;
    /// A tool of the server that measures its operations per second, and what it does.
    const TOOL: Option<(&'static str, &'static str)> = None;
    /// The subjects, under the names that `--subjects` accepts.
    const SUBJECTS: &'static [(&'static str, Build)];
    /// The benches, in this order.
    const BENCHES: &'static [(&'static str, Bench<Self>)];

    /// Columns of the tables of the contended benches that only this server has.
    const CONTENDED_COLUMNS: &'static [(&'static str, usize, &'static str)] = &[];

    fn start() -> Result<Self, String>;

    /// Returns the URL for the next subject.
    fn url(&self) -> String;

    /// Removes what earlier subjects have left.
    fn clear(&mut self) -> Result<(), String>;

    /// Returns the version of the server, and how it stores.
    fn describe(&mut self) -> Result<String, String>;

    /// Measures the operations per second with [`BenchServer::TOOL`], with this many in flight.
    fn tool(&self, _tasks: usize, _length: Duration) -> Result<u32, String> {
        Err("there is none".to_owned())
    }

    /// Returns how many statements the server has executed so far, where waiters poll and that is their cost.
    fn queries(&mut self) -> Option<u64> {
        None
    }

    /// Adds sections to the page that are special to this server.
    fn add_sections(_page: &mut Page<'_>) {}
}

/// What a bench works with.
pub(crate) struct Setting<S> {
    pub(crate) server: S,
    /// The subjects. One that fails is left out from then on.
    pub(crate) subjects: Vec<Subject>,
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    /// How many turns the vacuum bench takes.
    pub(crate) turns: usize,
}

/// Runs the benches on one server, and writes the requested pages.
pub(crate) fn measure<S: BenchServer>(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let subjects = subjects::<S>(plan, report);
    let versions: Vec<(&str, String)> =
        subjects.iter().map(|subject| (subject.name, subject.version.clone())).collect();
    let Plan { rounds, length, turns, .. } = *plan;
    let mut setting = Setting { server: S::start()?, subjects, rounds, length, turns };
    setting.warm_up(report);
    for (_, bench) in S::BENCHES.iter().filter(|(name, _)| plan.wants(name)) {
        bench(&mut setting, report);
    }
    let figures = report.figures(S::NAME);
    let svg = docs::plot::<S>(&figures);
    if let Some(file) = &plan.plot {
        write(file, &svg)?;
    }
    let is_us = |name: &str| name == ours::NAME;
    if versions.iter().any(|(name, _)| is_us(name))
        && !setting.subjects.iter().any(|subject| is_us(subject.name))
    {
        return Err(format!("{} itself could not be measured on {}", ours::NAME, S::TITLE));
    }
    if plan.write_docs {
        let server = setting.server.describe()?;
        let about = About {
            command: &plan.command,
            server: &server,
            subjects: &versions,
            notes: &report.notes(S::NAME),
        };
        let page = docs::page::<S>(&about, &figures);
        let folder = subject::root().join("docs/benchmarks");
        std::fs::create_dir_all(&folder)
            .map_err(|why| format!("{} cannot be created: {why}", folder.display()))?;
        write(&folder.join(S::NAME).with_extension("md"), &page)?;
        write(&folder.join(S::NAME).with_extension("svg"), &svg)?;
    }
    Ok(())
}

/// Builds the requested subjects; those that cannot be built here are noted.
fn subjects<S: BenchServer>(plan: &Plan, report: &mut Report) -> Vec<Subject> {
    let wanted = |name: &str| plan.subjects.is_empty() || plan.subjects.iter().any(|subject| subject == name);
    let mut subjects = Vec::new();
    for (name, build) in S::SUBJECTS.iter().filter(|(name, _)| wanted(name) || *name == S::FLOOR) {
        match build() {
            Ok(subject) => subjects.push(subject),
            Err(why) => report.note(S::NAME, &format!("{name}: skipped: {why}")),
        }
    }
    subjects
}

impl<S: BenchServer> Setting<S> {
    /// Returns the subjects that are locks.
    pub(crate) fn locks(&self) -> Vec<Subject> {
        self.subjects.iter().filter(|subject| subject.name != S::FLOOR).cloned().collect()
    }

    /// Runs the work on an empty server; if it fails, the subject is noted and left out from now on.
    pub(crate) fn run_on_empty<T>(
        &mut self,
        subject: &Subject,
        report: &mut Report,
        work: impl FnOnce(&mut S) -> Result<T, String>,
    ) -> Option<T> {
        if self.subjects.iter().all(|other| other.name != subject.name) {
            return None;
        }
        match self.server.clear().and_then(|()| work(&mut self.server)) {
            Ok(done) => Some(done),
            Err(why) => {
                report.note(S::NAME, &format!("{}: failed and left out: {why}", subject.name));
                self.subjects.retain(|other| other.name != subject.name);
                None
            }
        }
    }

    /// Warms the server up before the first measurement.
    fn warm_up(&mut self, report: &mut Report) {
        let Some(floor) = self.subjects.iter().find(|subject| subject.name == S::FLOOR).cloned() else {
            return;
        };
        let length = self.length;
        self.run_on_empty(&floor, report, |server| {
            workers::run(&floor.program, &Order::uncontended(&server.url(), 64, length), 1)
        });
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|why| format!("{} cannot be written: {why}", file.display()))?;
    eprintln!("  wrote {}", file.display());
    Ok(())
}
