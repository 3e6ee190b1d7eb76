//! `cargo xtask tidy`: the invariants that the compiler cannot check, a small file for each.

mod architecture;
mod backends;
mod generated;
pub(crate) mod layers;
mod links;
mod markdown;
pub(crate) mod repo;
pub(crate) mod scan;
pub(crate) mod sizes;
pub(crate) mod vocabulary;
mod words;

use crate::shell::{Failure, Outcome};
use repo::{Complaint, Repo};

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "check what the compiler cannot: layers, links, code words, replaced words";

const CHECKS: [fn(&Repo) -> Vec<Complaint>; 8] = [
    architecture::check,
    layers::check,
    words::check,
    links::check,
    backends::check,
    generated::check,
    sizes::check,
    vocabulary::check,
];

/// Prints every complaint as `path:line: message`, and fails if there is one.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`tidy` takes no arguments, but got `{word}`")));
    }
    let repo = Repo::load(&crate::shell::root())?;
    let mut complaints: Vec<Complaint> = CHECKS.iter().flat_map(|check| check(&repo)).collect();
    complaints.sort();
    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => println!("tidy: {} files, no complaints", repo.len()),
        1 => return Err(Failure::Failed("tidy: one complaint".into())),
        count => return Err(Failure::Failed(format!("tidy: {count} complaints"))),
    }
    Ok(())
}
