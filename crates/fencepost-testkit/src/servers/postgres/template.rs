//! An initialised data directory that servers start with a copy of: `initdb` takes a second.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::super::supervisor::Supervisor;
use super::{programs, temporary_folder};

/// The superuser of all servers.
pub(super) const SUPERUSER: &str = "postgres";

/// The template of this process. Its supervisor runs no server and removes the directory when the process ends.
struct Template {
    supervisor: Supervisor,
}

/// Creates the data directory of a server by copying the template.
pub(super) fn copy_to(data: &Path) {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    let template = TEMPLATE.get_or_init(Template::make).supervisor.folder().join("data");
    let copied = Command::new("cp").args(["-a", "--reflink=auto"]).arg(template).arg(data).output();
    let copied = copied.expect("cp can be started");
    assert!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
}

/// Runs statements, a line each, on the data directory of a server that does not run.
pub(super) fn run_single(data: &Path, statements: &str) {
    if statements.is_empty() {
        return;
    }
    let script = data.with_extension("sql");
    std::fs::write(&script, statements).expect("it can be written");
    let mut postgres = programs::command("postgres", data);
    postgres.args(["--single", "-F", "-D"]).arg(data).arg("postgres");
    postgres.stdin(File::open(&script).expect("it was written"));
    let done = programs::output(&mut postgres);
    done.unwrap_or_else(|error| panic!("postgres --single failed: {error}"));
    std::fs::remove_file(script).expect("it was written");
}

impl Template {
    fn make() -> Self {
        let folder = temporary_folder();
        programs::give(&folder);
        let mut initdb = programs::command("initdb", &folder);
        initdb.args(["--username", SUPERUSER, "--auth=trust", "--no-locale", "--encoding=UTF8"]);
        initdb.args(["--no-sync", "--no-instructions", "--pgdata"]).arg(folder.join("data"));
        // Before anything can fail, so that the directory is removed.
        let supervisor = Supervisor::new(folder, []);
        programs::output(&mut initdb).unwrap_or_else(|error| panic!("initdb failed: {error}"));
        Self { supervisor }
    }
}
