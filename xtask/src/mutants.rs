//! `cargo xtask mutants`: takes one safeguard after the other out of a copy of the sources, and expects that the simulation
//! alone notices each of them.

use std::fs;
use std::path::Path;

use crate::shell::{self, Failure, Outcome, cargo};
use crate::tidy::repo::Repo;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "take safeguards out of a copy, one at a time; the simulation must notice each";

/// A safeguard, and how to take it out.
struct Mutant {
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const MUTANTS: [Mutant; 0] = [];

/// Runs the simulation against the sources as they are, and then against each mutant.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`mutants` takes no arguments, but got `{word}`")));
    }
    let copy = shell::target_dir().join("mutants");
    let repo = Repo::load(&shell::root())?;
    write_all(&repo, &copy)?;
    if let Some(why) = complaint(&copy)? {
        return Err(Failure::Failed(format!("the simulation fails without any mutation: {why}")));
    }
    let mut unnoticed = Vec::new();
    for Mutant { name, file, from, to } in &MUTANTS {
        let text = repo.text(file).unwrap_or_default();
        if text.matches(from).count() != 1 {
            return Err(Failure::Failed(format!("{file} does not have the code of the mutant \"{name}\" once")));
        }
        write(&copy.join(file), &text.replace(from, to))?;
        let found = complaint(&copy)?;
        write(&copy.join(file), text)?;
        println!("{name}: {}", found.as_deref().unwrap_or("NOT NOTICED"));
        if found.is_none() {
            unnoticed.push(*name);
        }
    }
    if unnoticed.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("not noticed: {}", unnoticed.join(", ")))) }
}

/// Runs the simulation in the copy; returns the first complaint, if there is one.
fn complaint(copy: &Path) -> Result<Option<String>, Failure> {
    let mut command = cargo(["test", "-p", "fencepost-testkit", "--test", "it", "simulation"]);
    command.current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target"));
    let output = command.output().map_err(|why| Failure::Failed(format!("could not run cargo: {why}")))?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("seed "));
    match line {
        Some(line) => Ok(Some(line.to_owned())),
        None => Err(Failure::Failed(format!("it did not run:\n{}", String::from_utf8_lossy(&output.stderr)))),
    }
}

fn write_all(repo: &Repo, copy: &Path) -> Outcome {
    repo.files().try_for_each(|(path, text)| write(&copy.join(path), text))
}

/// Writes a file unless it is there already, so that cargo builds only what has changed.
fn write(path: &Path, text: &str) -> Outcome {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let failed = |why| Failure::Failed(format!("could not write {}: {why}", path.display()));
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}
