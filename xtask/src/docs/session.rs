//! One bash that executes the commands of a block, in a directory of its own.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::servers::{Running, Server};
use super::transcript::{difference, matches, steps};
use crate::shell::Failure;

/// The longest time that a block may take, in seconds.
const TIMEOUT: &str = "60";
/// Separates the outputs of commands. A control character, so that no command prints it.
const MARK: char = '\u{1}';

/// The environment of one block.
pub(super) struct Session {
    directory: PathBuf,
    path: OsString,
    server: Option<Running>,
}

impl Session {
    /// Creates the directory, and starts the server if the block asks for one. `programs` is first in the `PATH`.
    pub(super) fn start(programs: &Path, server: Option<Server>) -> Result<Self, Failure> {
        // Not below the target directory: the path of a socket may only have about a hundred bytes.
        let directory = env::temp_dir().join(format!("fencepost-docs-{}", std::process::id()));
        let work = directory.join("work");
        fs::create_dir_all(&work).map_err(|why| failed("create a directory", &why))?;
        let old = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(std::iter::once(programs.to_owned()).chain(env::split_paths(&old)));
        let path = path.map_err(|why| Failure::Failed(format!("the PATH is invalid: {why}")))?;
        let server = server.map(|server| server.start(&directory)).transpose()?;
        Ok(Self { directory, path, server })
    }

    /// Executes the block; returns the line and a message for each command whose output differs.
    pub(super) fn compare(self, block: &str) -> Result<Vec<(usize, String)>, Failure> {
        let steps = steps(block);
        let script: Vec<String> = steps.iter().map(|step| format!("{}\n__mark\n", step.command)).collect();
        let output = self.execute(&script.concat())?;
        let mut outputs = output.split(MARK);
        let mut differences = Vec::new();
        for step in &steps {
            let lines: Vec<&str> = outputs.next().unwrap_or_default().lines().collect();
            let shown = without_blank_end(&step.shown);
            if !matches(shown, without_blank_end(&lines)) {
                differences.push((step.line, difference(step, &lines)));
            }
        }
        Ok(differences)
    }

    /// Executes a script; returns what it prints to standard output and standard error.
    fn execute(&self, script: &str) -> Result<String, Failure> {
        let file = self.directory.join("script");
        // The mark keeps `$?` for the next command. Processes in the background end with the block.
        let head = format!(
            "exec 2>&1\n__mark() {{ local status=$?; printf '\\{:03o}'; return $status; }}\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n",
            u32::from(MARK)
        );
        fs::write(&file, head + script).map_err(|why| failed("write the script", &why))?;
        let work = self.directory.join("work");
        let mut bash = Command::new("timeout");
        bash.args(["--kill-after=5", TIMEOUT, "bash"]).arg(&file).current_dir(&work).stdin(Stdio::null());
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
            bash.env_remove(name);
        }
        bash.env("PATH", &self.path)
            .env("HOME", &self.directory)
            .env("XDG_STATE_HOME", self.directory.join("state"));
        bash.env("FENCEPOST_URL", format!("sqlite:{}", work.join("locks.db").display()))
            .env("LC_ALL", "C.UTF-8");
        if let Some(server) = &self.server {
            bash.env(server.variable, &server.url);
            bash.envs(server.others.iter().map(|(name, value)| (*name, value)));
        }
        let output = bash.output().map_err(|why| failed("run bash", &why))?;
        if output.status.code() == Some(124) {
            println!("a block was killed after {TIMEOUT} s");
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.take();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn failed(what: &str, why: &std::io::Error) -> Failure {
    Failure::Failed(format!("could not {what}: {why}"))
}

fn without_blank_end<'a, 'b>(lines: &'b [&'a str]) -> &'b [&'a str] {
    let end = lines.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1);
    &lines[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_block_share_a_shell_and_are_compared_one_by_one() {
        let block = "$ a=5; cd /\n$ echo \"$a in $PWD\" >&2\n5 in /\n$ sh -c 'exit 3'\n$ echo $?\n3\n\n$ echo x\ny\n$ sleep 30 &\n";
        let session = Session::start(Path::new("/nowhere"), None).unwrap();
        let directory = session.directory.clone();
        let differences = session.compare(block).unwrap();
        assert_eq!(differences, [(8, "`echo x` prints something else than shown\n    - y\n    + x".into())]);
        assert!(!directory.exists());
    }
}
