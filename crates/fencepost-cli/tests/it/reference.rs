//! `docs/reference/cli.md` is what the command says about itself.

use std::fmt::Write;
use std::path::Path;

use crate::sandbox::Sandbox;

const INTRODUCTION: &str = "\
# The command

This page is what `fencepost --help` and the help of each command say; a test keeps it so
(`UPDATE_DOCS=1 cargo test -p fencepost-cli reference` rewrites it).

The guarantees of `run` about processes, time and the terminal are in [running commands](../concepts/running.md); its events are
in [events](events.md).

`list` and `show` exit with 0 whether or not a lock is held; a script uses `show --exit-code` or reads `show --json`. Commands that
only inspect, and `break`, create no database: a path without one is an error, and to `doctor` a finding. What `watch` prints is
described in [watch.md](watch.md), what to do about the findings of `doctor` in [the doctor](../guides/doctor.md).
";

#[test]
fn the_reference_is_what_the_help_says() {
    let mut page = INTRODUCTION.to_owned();
    let sandbox = Sandbox::new();
    for words in [
        &["--help"][..],
        &["run", "--help"],
        &["hold", "--help"],
        &["list", "--help"],
        &["show", "--help"],
        &["watch", "--help"],
        &["break", "--help"],
        &["doctor", "--help"],
        &["rights", "--help"],
        &["schema", "--help"],
        &["sweep", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
    ] {
        let help = sandbox.run(words).expect(0).stdout();
        let help: Vec<&str> = help.trim().lines().map(str::trim_end).collect();
        write!(page, "\n## `fencepost {}`\n\n```text\n{}\n```\n", words.join(" "), help.join("\n")).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/cli.md is out of date: set UPDATE_DOCS=1 and run this test again"
    );
}
