//! An initialised data directory that servers start with a copy of: `mariadb-install-db` takes seconds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::geteuid;

use super::super::supervisor::Supervisor;

/// The template of this process. Its supervisor runs no server and removes the directory when the process ends.
struct Template {
    supervisor: Supervisor,
}

/// Where the data of a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// In memory, if the system has such a directory: to create a table syncs files, whatever the settings are, and every test
    /// creates its own.
    Memory,
    Disk,
}

pub(super) fn temporary_folder(medium: Medium) -> PathBuf {
    let mut builder = tempfile::Builder::new();
    builder.prefix("fencepost-mariadb-");
    let in_memory = (medium == Medium::Memory).then(|| builder.tempdir_in("/dev/shm").ok()).flatten();
    let folder = in_memory.map_or_else(|| builder.tempdir(), Ok);
    folder.expect("a directory can be created").keep()
}

/// Creates the data directory of a server by copying the template.
pub(super) fn copy_to(data: &Path) {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    let template = TEMPLATE.get_or_init(Template::make).supervisor.folder().join("data");
    run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(template).arg(data));
}

/// Gives a directory and everything in it to the account that the server runs as, if we are root.
pub(super) fn give(folder: &Path) {
    if geteuid().is_root() {
        run(Command::new("chown").args(["-R", "mysql:"]).arg(folder));
    }
}

fn run(command: &mut Command) {
    let done = command.output().expect("the command can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{command:?}: {}{}", text(&done.stdout), text(&done.stderr));
}

impl Template {
    fn make() -> Self {
        let folder = temporary_folder(Medium::Memory);
        let data = format!("--datadir={}", folder.join("data").display());
        // A server removes the temporary tables of all others in the same directory when it starts.
        let temporary = format!("--tmpdir={}", folder.display());
        give(&folder);
        // Before anything can fail, so that the directory is removed.
        let supervisor = Supervisor::new(folder, []);
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.args(["--skip-name-resolve", "--innodb-flush-method=nosync", "--innodb-log-file-size=16M"]);
        install.arg(temporary);
        if geteuid().is_root() {
            install.arg("--user=mysql");
        }
        run(&mut install);
        Self { supervisor }
    }
}
