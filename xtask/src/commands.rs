//! The list of commands: the one place to add one.

use crate::shell::Outcome;
use crate::{bench, ci, docs, interop, lines, mutants, proto, scenarios, test, tidy, words};

/// A command: its name, its help, and its function, which gets the remaining arguments.
pub(crate) struct Command {
    name: &'static str,
    help: &'static str,
    pub(crate) run: fn(&[String]) -> Outcome,
}

const COMMANDS: [Command; 11] = [
    Command { name: "test", help: test::HELP, run: test::run },
    Command { name: "tidy", help: tidy::HELP, run: tidy::run },
    Command { name: "docs", help: docs::HELP, run: docs::run },
    Command { name: "bench", help: bench::HELP, run: bench::run },
    Command { name: "interop", help: interop::HELP, run: interop::run },
    Command { name: "lines", help: lines::HELP, run: lines::run },
    Command { name: "words", help: words::HELP, run: words::run },
    Command { name: "mutants", help: mutants::HELP, run: mutants::run },
    Command { name: "proto", help: proto::HELP, run: proto::run },
    Command { name: "scenarios", help: scenarios::HELP, run: scenarios::run },
    Command { name: "ci", help: ci::HELP, run: ci::run },
];

/// Returns the command of this name.
pub(crate) fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

/// Returns what `cargo xtask help` prints.
pub(crate) fn usage() -> String {
    let lines = COMMANDS.map(|command| format!("\n  cargo xtask {:<9} {}", command.name, command.help));
    format!("usage:{}", lines.concat())
}
