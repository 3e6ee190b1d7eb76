//! `cargo xtask ci`: everything that a change must pass, the quickest checks first.

use crate::shell::{self, Failure, Outcome, cargo};
use crate::stages::Stages;
use crate::test::{self, Options};
use crate::tidy;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "everything a change must pass: install, fmt, clippy, tidy, test, docs, deny";

/// Runs every check; what is missing on the machine is installed first, because clippy compiles C as well.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`ci` takes no arguments, but got `{word}`")));
    }
    let options = Options { yes: true, ..Options::default() };
    let mut stages = Stages::default();
    test::add_install(&mut stages, &options);
    stages.add("fmt", || shell::run(&mut cargo(["fmt", "--all", "--check"])));
    stages.add("clippy", clippy);
    stages.add("tidy", || tidy::run(&[]));
    test::add_tests(&mut stages, &options);
    stages.add("docs", docs);
    if shell::succeeds(&mut cargo(["deny", "--version"])) {
        stages.add("deny", || shell::run(&mut cargo(["deny", "check", "bans", "licenses", "sources"])));
    } else {
        stages.skip("deny", "cargo-deny is not installed (cargo install --locked cargo-deny)");
    }
    stages.run()
}

fn clippy() -> Outcome {
    let args = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    shell::run(&mut cargo(args))
}

fn docs() -> Outcome {
    let mut doc = cargo(["doc", "--workspace", "--no-deps", "--all-features"]);
    shell::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
}
