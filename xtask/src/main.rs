//! The commands for working on this repository, as `cargo xtask COMMAND`: a small file for each command.

mod bench;
mod ci;
mod commands;
mod docs;
mod interop;
mod lines;
mod manifest;
mod mutants;
mod proto;
mod scenarios;
mod shell;
mod stages;
mod test;
mod tidy;
mod words;

use shell::{Failure, Outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((name, rest)) => run(name, rest),
        None => Err(Failure::Usage("which command?".into())),
    };
    outcome.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn run(name: &str, rest: &[String]) -> Outcome {
    // The bench has a help text of its own.
    let explain = name != "bench" && rest.iter().any(|word| matches!(word.as_str(), "-h" | "--help"));
    if let Some(command) = commands::find(name).filter(|_| !explain) {
        return (command.run)(rest);
    }
    if explain {
        println!("{}", commands::usage());
        return Ok(());
    }
    if !matches!(name, "help" | "-h" | "--help") {
        return Err(Failure::Usage(format!("there is no command `{name}`")));
    }
    println!("{}", commands::usage());
    Ok(())
}
