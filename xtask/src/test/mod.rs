//! `cargo xtask test`: installs what is missing, then runs every test, stage by stage.

mod areas;
mod features;
mod install;
mod macos;
mod old_rusqlite;

use crate::shell::{self, Failure, Outcome, cargo};
use crate::stages::Stages;
use crate::{docs, interop};
use areas::Area;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "[--yes] [--only AREA,…] [--full]  install what is missing and run the tests";

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Install without asking.
    pub(crate) yes: bool,
    /// The areas to test; empty means everything.
    pub(crate) only: Vec<&'static Area>,
    /// Also run what takes too long for a usual run.
    pub(crate) full: bool,
}

impl Options {
    fn covers(&self, area: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|chosen| chosen.name == area)
    }
}

/// Runs the requested stages.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = parse(args)?;
    let mut stages = Stages::default();
    add_install(&mut stages, &options);
    add_tests(&mut stages, &options);
    stages.run()
}

/// Adds the stage that installs what is missing.
pub(crate) fn add_install<'a>(stages: &mut Stages<'a>, options: &'a Options) {
    stages.add("install", || install::run(&areas::needs(&options.only), options.yes));
}

/// Adds the test stages.
pub(crate) fn add_tests<'a>(stages: &mut Stages<'a>, options: &'a Options) {
    if options.covers("interop") {
        stages.add("peers", interop::prepare_python);
    }
    stages.add("tests", || cargo_test(options));
    if options.covers("cli") {
        stages.add("features", features::run);
        stages.add("doc blocks", || docs::run(&[]));
    }
    if options.full && options.covers("sqlite") {
        stages.add("old rusqlite", old_rusqlite::run);
    }
    if options.full && options.covers("cli") {
        stages.add("macos", macos::run);
    }
}

fn cargo_test(options: &Options) -> Outcome {
    let mut command = cargo(["test", "--all-features"]);
    if options.only.is_empty() {
        command.arg("--workspace");
    }
    if options.full {
        command.env("FENCEPOST_FULL", "1");
    }
    for package in options.only.iter().flat_map(|area| area.packages) {
        command.args(["-p", package]);
    }
    shell::run(&mut command)
}

fn parse(args: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--yes" => options.yes = true,
            "--full" => options.full = true,
            "--only" => options.only.extend(areas::named(words.next().unwrap_or_default())?),
            _ => match word.strip_prefix("--only=") {
                Some(list) => options.only.extend(areas::named(list)?),
                None => return Err(Failure::Usage(format!("`test` does not know `{word}`"))),
            },
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, Failure> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn without_options_everything_is_covered() {
        let options = parsed("").unwrap();
        assert_eq!(options, Options::default());
        assert!(options.covers("sqlite") && options.covers("cli"));
    }

    #[test]
    fn only_narrows_to_the_named_areas() {
        for line in ["--only sqlite,memory --yes", "--yes --only=sqlite --only memory"] {
            let options = parsed(line).unwrap();
            assert!(options.yes && !options.full);
            assert!(options.covers("sqlite") && options.covers("memory") && !options.covers("cli"));
        }
    }

    #[test]
    fn an_unknown_word_is_a_usage_error() {
        for line in ["--quick", "sqlite", "--only", "--only=floppy"] {
            assert!(matches!(parsed(line), Err(Failure::Usage(_))), "{line}");
        }
    }
}
