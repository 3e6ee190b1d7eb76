//! How command lines are parsed.

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::*;

fn run(words: &[&str]) -> Result<Run, ErrorKind> {
    let words = ["fencepost", "run"].iter().chain(words);
    match Args::try_parse_from(words) {
        Ok(Args { command: Command::Run(run), .. }) => Ok(*run),
        Ok(other) => panic!("not a run: {other:?}"),
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn the_definition_is_consistent() {
    Args::command().debug_assert();
}

#[test]
fn everything_after_the_first_word_belongs_to_the_command() {
    let with_dashes = run(&["a", "-n", "--", "sh", "-c", "x", "-v"]).unwrap();
    let without = run(&["a", "-n", "sh", "-c", "x", "-v"]).unwrap();
    for run in [with_dashes, without] {
        assert_eq!(run.command, ["sh", "-c", "x", "-v"]);
        assert!(run.waiting.no_wait && run.shell.is_none());
        assert_eq!(run.verbosity.level(), Level::Normal);
    }
    assert_eq!(run(&["a", "--", "--version"]).unwrap().command, ["--version"]);
    assert_eq!(run(&["a", "x", "--", "y", "--url", "z"]).unwrap().command, ["x", "--", "y", "--url", "z"]);
}

#[test]
fn a_misspelt_option_before_the_command_is_rejected() {
    assert_eq!(run(&["a", "--tll", "5s", "--", "x"]).unwrap_err(), ErrorKind::UnknownArgument);
    assert_eq!(run(&["--tll", "a", "x"]).unwrap_err(), ErrorKind::UnknownArgument);
}

#[test]
fn flock_spelling_is_understood() {
    let run = |words: &[&str]| run(words).unwrap();
    assert!(run(&["--nonblock", "a", "x"]).waiting.no_wait);
    assert_eq!(run(&["-w", "1.5", "a", "x"]).waiting.wait, Some(Duration::from_millis(1500)));
    assert_eq!(run(&["--timeout", "5m", "a", "x"]).waiting.wait, Some(Duration::from_secs(300)));
    assert_eq!(run(&["-E", "9", "a", "x"]).waiting.conflict_exit_code, Some(9));
    assert_eq!(run(&["-s", "a", "x"]).sharing.mode(), Mode::Shared);
    assert_eq!(run(&["-e", "a", "x"]).sharing.mode(), Mode::Exclusive);
    assert_eq!(run(&["-x", "a", "-c", "echo hi"]).shell, Some("echo hi".into()));
    assert_eq!(run(&["--semaphore", "3", "a", "x"]).sharing.mode(), Mode::Semaphore { permits: 3 });
}

#[test]
fn skip_ok_does_not_wait_unless_wait_is_given() {
    let on_busy = |words: &[&str]| run(words).unwrap().waiting.on_busy();
    assert_eq!(on_busy(&["a", "x"]), OnBusy::Wait);
    assert_eq!(on_busy(&["-n", "a", "x"]), OnBusy::Exit);
    assert_eq!(on_busy(&["--skip-ok", "a", "x"]), OnBusy::Exit);
    assert_eq!(on_busy(&["--skip-ok", "-w", "5m", "a", "x"]), OnBusy::Wait);
    assert_eq!(on_busy(&["-E", "0", "a", "x"]), OnBusy::Wait);
}

#[test]
fn conflicting_options_are_rejected() {
    for words in [
        ["-n", "-w", "5", "a", "x"].as_slice(),
        &["-s", "-x", "a", "x"],
        &["-s", "--semaphore", "2", "a", "x"],
        &["-q", "-v", "a", "x"],
        &["-E", "5", "--skip-ok", "a", "x"],
        &["-c", "true", "a", "x"],
    ] {
        assert_eq!(run(words).unwrap_err(), ErrorKind::ArgumentConflict, "{words:?}");
    }
    assert_eq!(run(&["a"]).unwrap_err(), ErrorKind::MissingRequiredArgument);
    for words in [
        ["--ttl", "x", "a", "x"].as_slice(),
        &["--semaphore", "0", "a", "x"],
        &["--meta", "novalue", "a", "x"],
        &["--owner-label", "", "a", "x"],
        &["", "x"],
    ] {
        assert!(run(words).is_err(), "{words:?}");
    }
}

#[test]
fn metadata_may_be_repeated() {
    let run = run(&["--meta", "a=1", "--meta", "b=x=y", "n", "x"]).unwrap();
    assert_eq!(run.identity.meta, [("a".into(), "1".into()), ("b".into(), "x=y".into())]);
}
