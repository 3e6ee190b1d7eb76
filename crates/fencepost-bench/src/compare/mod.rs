//! `cargo xtask bench redis`, `etcd`, `zookeeper`: us beside the peers and the floors, on a private server, in turns.

pub(crate) mod benches;
pub(crate) mod docs;
pub(crate) mod go;
pub(crate) mod java;
pub(crate) mod python;
pub(crate) mod subject;
pub(crate) mod turns;
pub(crate) mod us;

use std::path::Path;
use std::time::Duration;

use crate::Plan;
use crate::report::Report;
use crate::workers::{self, Order};
use docs::{About, Page};
use subject::Subject;

/// How to come by a subject.
pub(crate) type Build = fn() -> Result<Subject, String>;
/// Measures all subjects.
pub(crate) type Bench<S> = fn(&mut Setting<S>, &mut Report);

/// A private server of a storage where others take locks, too.
pub(crate) trait Storage: Sized + 'static {
    /// What it is called on the command line, in figures, and as a page.
    const NAME: &'static str;
    /// What people call it.
    const TITLE: &'static str;
    /// The subject that is no lock: what one would have to pay at least.
    const FLOOR: &'static str;
    /// What those who take part have in common, and what not.
    const PARTICIPANTS: &'static str;
    /// A tool of the storage that says how many operations per second there could be, and what it does.
    const TOOL: Option<(&'static str, &'static str)> = None;
    /// Who can be measured, under the names that `--subjects` knows.
    const SUBJECTS: &'static [(&'static str, Build)];
    /// What is measured, in this order.
    const BENCHES: &'static [(&'static str, Bench<Self>)];

    fn start() -> Result<Self, String>;

    /// Where the next subject works.
    fn url(&self) -> String;

    /// Lets the next subject find nothing of the ones before.
    fn clear(&mut self) -> Result<(), String>;

    /// The version of the server, and how it stores.
    fn described(&mut self) -> Result<String, String>;

    /// Operations per second by [`Storage::TOOL`], with so many under way at once.
    fn tool(&self, _tasks: usize, _length: Duration) -> Result<u32, String> {
        Err("there is none".to_owned())
    }

    /// What the page says beyond what it says of every storage.
    fn say_more(_page: &mut Page<'_>) {}
}

/// What a bench works with.
pub(crate) struct Setting<S> {
    pub(crate) storage: S,
    /// Who is measured. Whoever fails is left out from then on.
    pub(crate) subjects: Vec<Subject>,
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
}

/// Runs the benches on one storage, and writes the pages that the plan wants.
pub(crate) fn measure<S: Storage>(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let subjects = subjects::<S>(plan, report);
    let who: Vec<(&str, String)> =
        subjects.iter().map(|subject| (subject.name, subject.version.clone())).collect();
    let mut setting = Setting { storage: S::start()?, subjects, rounds: plan.rounds, length: plan.length };
    setting.warm_up(report);
    for (_, bench) in S::BENCHES.iter().filter(|(name, _)| plan.wants(name)) {
        bench(&mut setting, report);
    }
    let figures = report.figures(S::NAME);
    let svg = docs::plot::<S>(&figures);
    if let Some(file) = &plan.plot {
        write(file, &svg)?;
    }
    let is_us = |name: &str| name == us::NAME;
    if who.iter().any(|(name, _)| is_us(name)) && !setting.subjects.iter().any(|subject| is_us(subject.name))
    {
        return Err(format!("{} itself could not be measured on {}", us::NAME, S::TITLE));
    }
    if plan.write_docs {
        let server = setting.storage.described()?;
        let about =
            About { command: &plan.command, server: &server, who: &who, notes: &report.notes(S::NAME) };
        let page = docs::page::<S>(&about, &figures);
        let folder = subject::root().join("docs/benchmarks");
        std::fs::create_dir_all(&folder)
            .map_err(|why| format!("{} cannot be made: {why}", folder.display()))?;
        write(&folder.join(S::NAME).with_extension("md"), &page)?;
        write(&folder.join(S::NAME).with_extension("svg"), &svg)?;
    }
    Ok(())
}

/// Everybody whom the plan wants and who can be built here; who cannot is noted.
fn subjects<S: Storage>(plan: &Plan, report: &mut Report) -> Vec<Subject> {
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

impl<S: Storage> Setting<S> {
    /// The subjects that are locks.
    pub(crate) fn locks(&self) -> Vec<Subject> {
        self.subjects.iter().filter(|subject| subject.name != S::FLOOR).cloned().collect()
    }

    /// Does this with an empty storage; if it fails, the subject is noted and left out from now on.
    pub(crate) fn tried<T>(
        &mut self,
        subject: &Subject,
        report: &mut Report,
        work: impl FnOnce(&mut S) -> Result<T, String>,
    ) -> Option<T> {
        if self.subjects.iter().all(|other| other.name != subject.name) {
            return None;
        }
        match self.storage.clear().and_then(|()| work(&mut self.storage)) {
            Ok(done) => Some(done),
            Err(why) => {
                report.note(S::NAME, &format!("{}: failed and left out: {why}", subject.name));
                self.subjects.retain(|other| other.name != subject.name);
                None
            }
        }
    }

    /// Lets the server do what it does only at first, before anybody is measured.
    fn warm_up(&mut self, report: &mut Report) {
        let Some(floor) = self.subjects.iter().find(|subject| subject.name == S::FLOOR).cloned() else {
            return;
        };
        let length = self.length;
        self.tried(&floor, report, |storage| {
            workers::run(&floor.program, &Order::uncontended(&storage.url(), 64, length), 1)
        });
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|why| format!("{} cannot be written: {why}", file.display()))?;
    eprintln!("  wrote {}", file.display());
    Ok(())
}
