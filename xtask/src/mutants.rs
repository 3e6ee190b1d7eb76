//! `cargo xtask mutants`: removes one safeguard after the other from a copy of the sources, and expects that the simulation
//! alone detects each removal.

use std::fs;
use std::path::Path;

use crate::shell::{self, Failure, Outcome, cargo};
use crate::tidy::repo::Repo;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "remove safeguards from a copy, one at a time; the simulation must detect each";

/// A safeguard, and how to remove it.
struct Mutant {
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const MUTANTS: [Mutant; 8] = [
    Mutant {
        name: "a release does not compare the owner",
        file: "crates/fencepost-core/src/lock_table/step.rs",
        from: "            if self.holds(&want.name, grant) {
                self.remove_holder(&want.name, grant.attempt.owner);
",
        to:
            "            let owner = self.record(&want.name).holders.iter().next().map(|holder| holder.owner);
            if let Some(owner) = owner {
                self.remove_holder(&want.name, owner);
",
    },
    Mutant {
        name: "no tombstone",
        file: "crates/fencepost-core/src/lock_table/step.rs",
        from: "self.table.tombstones.insert(attempt.owner, self.now + attempt.ttl);",
        to: "",
    },
    Mutant {
        name: "a lease is renewed after its deadline",
        file: "crates/fencepost-core/src/machine/held.rs",
        from: "            held.lose(reason);
            Some((reason, held.award))
",
        to: "            if reason == LostReason::Expired {
                (held.counted_from, held.renew_at) = (now, now);
                return None;
            }
            held.lose(reason);
            Some((reason, held.award))
",
    },
    Mutant {
        name: "a grant that arrives too late is returned",
        file: "crates/fencepost-core/src/machine/acquire.rs",
        from: "lost.is_none() && valid_until(counted_from, award.ttl) > now",
        to: "lost.is_none()",
    },
    Mutant {
        name: "a grant whose caller is gone is not released",
        file: "crates/fencepost-core/src/machine/acquire.rs",
        from: "        if acquiring.caller.is_none() {
            self.release_award(owner, award, None, now);
",
        to: "        if acquiring.caller.is_none() {
            self.remove_or_undo(owner, now);
",
    },
    Mutant {
        name: "requests about one owner do not wait for each other",
        file: "crates/fencepost-core/src/machine/entry.rs",
        from: "(self.in_flight.is_some() && !is_renewal && !is_closing)",
        to: "false",
    },
    Mutant {
        name: "a late acquire takes effect after its ticket was given up",
        file: "crates/fencepost-core/src/machine/leaving.rs",
        from: "Ok(_) if *outcome_unknown && leaving.may_be_queued => now,",
        to: "",
    },
    Mutant {
        name: "a lost grant is renewed when the backend is reachable again",
        file: "crates/fencepost-core/src/machine/entry.rs",
        from: "            Phase::Held(held) if held.lost.is_some() => {}
",
        to: "",
    },
];

/// Runs the simulation against the unchanged sources, and then against each mutant.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`mutants` takes no arguments, but got `{word}`")));
    }
    let copy = shell::target_dir().join("mutants");
    let repo = Repo::load(&shell::root())?;
    write_all(&repo, &copy)?;
    if let Some(why) = complaint(&copy)? {
        return Err(Failure::Failed(format!("the simulation fails without a mutation: {why}")));
    }
    let mut undetected = Vec::new();
    for Mutant { name, file, from, to } in &MUTANTS {
        let text = repo.text(file).unwrap_or_default();
        if text.matches(from).count() != 1 {
            return Err(Failure::Failed(format!(
                "{file} does not have the code of the mutant \"{name}\" once"
            )));
        }
        write(&copy.join(file), &text.replace(from, to))?;
        let found = complaint(&copy)?;
        write(&copy.join(file), text)?;
        println!("{name}: {}", found.as_deref().unwrap_or("NOT DETECTED"));
        if found.is_none() {
            undetected.push(*name);
        }
    }
    if undetected.is_empty() {
        Ok(())
    } else {
        Err(Failure::Failed(format!("not detected: {}", undetected.join(", "))))
    }
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
        None => Err(Failure::Failed(format!(
            "the simulation did not run:\n{}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

fn write_all(repo: &Repo, copy: &Path) -> Outcome {
    repo.files().try_for_each(|(path, text)| write(&copy.join(path), text))
}

/// Writes a file unless it has this content already, so that cargo rebuilds only what has changed.
fn write(path: &Path, text: &str) -> Outcome {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let failed = |why| Failure::Failed(format!("could not write {}: {why}", path.display()));
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_is_code_of_its_file() {
        for Mutant { name, file, from, .. } in &MUTANTS {
            let text = fs::read_to_string(shell::root().join(file)).unwrap_or_default();
            assert_eq!(text.matches(from).count(), 1, "{name}");
        }
    }
}
