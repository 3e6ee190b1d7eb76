//! The programs of PostgreSQL, and the account that runs them: they refuse to run as root.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::geteuid;

use super::super::require_file;

/// Where Debian installs the programs, in a directory per major version: not on the `PATH`.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The account that the packages create.
const ACCOUNT: &str = "postgres";

/// Returns the path of a program of the newest installed version, such as `initdb`.
///
/// # Panics
/// If it is not installed.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let newest = versions
        .filter(|version| version.path().join("bin/postgres").is_file())
        .filter_map(|version| version.file_name().to_str()?.parse::<u32>().ok())
        .max();
    let version = newest.map_or_else(|| "*".to_owned(), |number| number.to_string());
    let program = Path::new(VERSIONS).join(version).join("bin").join(name);
    require_file(&program);
    program
}

/// The user and group that servers run as, where we are root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    user: u32,
    group: u32,
}

impl Account {
    /// Returns the account, or `None` if we are an ordinary user, who can run the servers.
    ///
    /// # Panics
    /// If we are root and there is no such account.
    pub(super) fn get() -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let found = fields.find(|fields| fields.first() == Some(&ACCOUNT) && fields.len() > 3);
        let number = |field: usize| found.as_ref().and_then(|fields| fields[field].parse().ok());
        let account = number(2).zip(number(3)).map(|(user, group)| Self { user, group });
        Some(account.expect("the account `postgres` exists: the package creates it"))
    }

    /// Returns the args before the command of a server.
    fn prefix(self) -> Vec<OsString> {
        let (user, group) = (format!("--reuid={}", self.user), format!("--regid={}", self.group));
        ["setpriv", &user, &group, "--clear-groups", "--"].map(OsString::from).into()
    }

    fn own(self, path: &Path) {
        chown(path, Some(self.user), Some(self.group)).expect("root can change owners");
    }
}

/// Returns the args before the command of a server, which has the rights of the account.
pub(super) fn server_prefix() -> Vec<OsString> {
    Account::get().map(Account::prefix).unwrap_or_default()
}

/// Gives a directory and the files in it to the account; its subdirectories are not entered.
pub(super) fn give(folder: &Path) {
    let Some(account) = Account::get() else { return };
    account.own(folder);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        account.own(&entry.path());
    }
}

/// Returns a command with the rights of the account.
pub(super) fn command(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(program(name));
    // The directory of the tests may be closed to the account.
    command.current_dir(folder).env("LC_ALL", "C");
    if let Some(account) = Account::get() {
        command.uid(account.user).gid(account.group);
    }
    command
}

/// Runs a command and returns its output, or its error.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    text_of(&command.output().expect("the command can be started"))
}

/// Returns the output of a command that has ended, or its error.
pub(super) fn text_of(done: &Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}
