//! `cargo xtask bench redis`: us beside the peers and the floors, on a private server, in turns.

mod bare;
mod commandstats;
mod compare;
mod docs;
mod go;
mod held;
mod node;
mod python;
mod rslock;
mod subject;
mod turns;
mod us;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::Options;
use fencepost_testkit::servers::redis::{RedisServer, Setup};
use redis::Connection;

use crate::Plan;
use crate::report::Report;
use subject::Subject;

/// The benches of this module.
pub(crate) const BENCHES: [&str; 4] = ["uncontended", "contended", "held", "line"];

/// What a bench works with.
pub(crate) struct Setting {
    server: RedisServer,
    /// Looks at the server, beside those that are measured.
    look: Connection,
    /// Who is measured. Whoever fails is left out from then on.
    subjects: Vec<Subject>,
    rounds: usize,
    length: Duration,
}

/// Runs the benches, and writes the pages that the plan wants.
pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let subjects = subjects(plan, report);
    let versions: Vec<(&str, String)> =
        subjects.iter().map(|subject| (subject.name, subject.version.clone())).collect();
    subject::require("redis-server")?;
    let server = RedisServer::start(&Setup::plain());
    let look = redis::Client::open(server.url()).and_then(|client| client.get_connection());
    let look = look.map_err(|why| format!("redis-server does not answer: {why}"))?;
    let mut setting = Setting { server, look, subjects, rounds: plan.rounds, length: plan.length };
    let benches: [fn(&mut Setting, &mut Report); 4] =
        [compare::uncontended, compare::contended, held::measure, compare::line];
    for (_, bench) in BENCHES.iter().zip(benches).filter(|(name, _)| plan.wants(name)) {
        bench(&mut setting, report);
    }
    let ours = versions.iter().any(|(name, _)| *name == us::NAME);
    let failed = ours && setting.subjects.iter().all(|subject| subject.name != us::NAME);
    let svg = docs::plot(report.figures());
    if let Some(file) = &plan.plot {
        write(file, &svg)?;
    }
    if failed {
        return Err(format!("{} itself could not be measured", us::NAME));
    }
    if plan.write_docs {
        let info = commandstats::info(&mut setting.look, "server")?;
        let redis = commandstats::field(&info, "redis_version").unwrap_or("unknown").to_owned();
        let machine =
            docs::Machine { redis, cores: std::thread::available_parallelism().map_or(1, usize::from) };
        let page = docs::page(&plan.command, &machine, &versions, report.figures(), report.notes());
        let folder = subject::root().join("docs/benchmarks");
        std::fs::create_dir_all(&folder)
            .map_err(|why| format!("{} cannot be made: {why}", folder.display()))?;
        write(&folder.join("redis.md"), &page)?;
        write(&folder.join("redis.svg"), &svg)?;
    }
    Ok(())
}

/// The worker of this sort, if it is one of ours.
pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    Some(match sort {
        "worker" => us::serve(words, &Options::new()),
        us::LOW_LATENCY_WORKER => us::serve(words, &Options::new().low_latency()),
        "rslock" => rslock::serve(words),
        "bare" => bare::serve(words),
        "holder" => held::serve(words),
        _ => return None,
    })
}

/// Everybody whom the plan wants and who can be built here; who cannot is noted.
fn subjects(plan: &Plan, report: &mut Report) -> Vec<Subject> {
    type Build = fn() -> Result<Subject, String>;
    let all: [(&str, Build); 8] = [
        (us::NAME, || Ok(us::subject())),
        ("low-latency", || Ok(us::low_latency())),
        ("rslock", || Ok(rslock::subject())),
        ("redsync", go::subject),
        ("node-redlock", node::subject),
        ("redis-py", python::redis_py),
        ("python-redis-lock", python::python_redis_lock),
        (bare::NAME, || Ok(bare::subject())),
    ];
    let wanted = |name: &str| plan.subjects.is_empty() || plan.subjects.iter().any(|subject| subject == name);
    let mut subjects = Vec::new();
    for (name, build) in all.into_iter().filter(|(name, _)| wanted(name) || *name == bare::NAME) {
        match build() {
            Ok(subject) => subjects.push(subject),
            Err(why) => report.note(format!("{name}: skipped: {why}")),
        }
    }
    subjects
}

impl Setting {
    /// Does this with an empty server; if it fails, the subject is noted and left out from now on.
    fn tried<T>(
        &mut self,
        subject: &Subject,
        report: &mut Report,
        work: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Option<T> {
        if self.subjects.iter().all(|other| other.name != subject.name) {
            return None;
        }
        let emptied = redis::cmd("FLUSHALL").exec(&mut self.look).map_err(|why| format!("FLUSHALL: {why}"));
        match emptied.and_then(|()| work(self)) {
            Ok(done) => Some(done),
            Err(why) => {
                report.note(format!("{}: failed and left out: {why}", subject.name));
                self.subjects.retain(|other| other.name != subject.name);
                None
            }
        }
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|why| format!("{} cannot be written: {why}", file.display()))?;
    eprintln!("  wrote {}", file.display());
    Ok(())
}
