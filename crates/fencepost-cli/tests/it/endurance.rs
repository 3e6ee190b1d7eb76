//! Ten thousand short commands leave nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rusqlite::Connection;

use crate::sandbox::{Running, Sandbox, until};

const SHELLS: usize = 4;
const RUNS: usize = 2_500;
const FOLDER: &str = "FENCEPOST_TEST_ENDURANCE";

/// No zombie, no orphan, no descriptor, no row, no socket.
#[test]
fn ten_thousand_short_commands_leave_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut parent = Command::new(std::env::current_exe().unwrap());
    parent.args(["--exact", "endurance::parent_process"]).env(FOLDER, sandbox.path(""));
    let mut parent = Running::start(&mut parent);
    // It may take any time, as long as it makes progress.
    let runs = || sandbox.read("runs").len();
    while !parent.has_ended() {
        let before = runs();
        until("another run has ended", || parent.has_ended() || runs() > before);
    }
    parent.expect(0);
    assert_eq!(sandbox.read("runs").len(), SHELLS * RUNS);

    // Every lease was for a day: a lock that was not released is still there.
    let database = Connection::open(sandbox.path("locks.db")).unwrap();
    for table in ["holders", "tickets", "cells", "sightings"] {
        let count = format!("SELECT count(*) FROM {table}");
        let rows: i64 = database.query_row(&count, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "rows in {table}");
    }
    let mut left = names_in(&sandbox.path("locks.db-peers"));
    left.sort();
    assert_eq!(left, ["gate", "turn"]);
}

/// Not a test by itself: the parent of all runs, which adopts every process whose own parent is gone.
#[test]
fn parent_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let before = names_in(Path::new("/proc/self/fd")).len();
    let mut shells: Vec<Child> = (0..SHELLS).map(|number| shell(Path::new(&folder), number)).collect();
    for shell in &mut shells {
        assert_eq!(shell.wait().unwrap().code(), Some(0));
    }
    drop(shells);
    assert_eq!(names_in(Path::new("/proc/self/fd")).len(), before, "descriptors");
    let mut children = String::new();
    for thread in names_in(Path::new("/proc/self/task")) {
        children += &fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
    }
    assert_eq!(children, "", "processes that were not reaped");
}

/// Half of the locks are used by this shell alone, and for the other half it has to wait.
fn shell(folder: &Path, number: usize) -> Child {
    let script = "i=0; while [ $i -lt $2 ]; do i=$((i + 1)); \
                  if [ $((i % 2)) = 0 ]; then name=shared; else name=own-$1-$i; fi; \
                  \"$0\" run -q --ttl 1d $name -- sh -c 'printf x >> runs' || exit 1; done";
    // It uses the CPU time that the other tests leave.
    let mut shell = Command::new("nice");
    shell.args([
        "-n",
        "19",
        "sh",
        "-c",
        script,
        env!("CARGO_BIN_EXE_fencepost"),
        &number.to_string(),
        &RUNS.to_string(),
    ]);
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    shell.current_dir(folder).env("FENCEPOST_URL", url).stdin(Stdio::null()).spawn().unwrap()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}
