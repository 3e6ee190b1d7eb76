//! The test kit's scripted process, with more commands, and with mounts of its own.

use std::path::Path;
use std::process::Command;

use fencepost_core::{Client, Error, Keep};
use fencepost_testkit::scripted_process::{ScriptedProcess, execute_commands_with, reply};

use crate::bench::SqliteBench;

/// Starts a process on this bench.
pub(crate) fn scripted_process(bench: &SqliteBench) -> ScriptedProcess {
    ScriptedProcess::new(bench.path())
}

/// Starts a process that sees a file system of one megabyte over the bench's folder.
pub(crate) fn on_a_small_disk(bench: &SqliteBench) -> ScriptedProcess {
    with_mount("mount -t tmpfs -o size=1m none \"$1\"", bench.folder(), &bench.path())
}

/// Starts a process that sees the bench's database mounted under another name without its folder, as in a container.
pub(crate) fn with_the_file_mounted_at(bench: &SqliteBench, other: &Path) -> ScriptedProcess {
    let mount = format!("mount --bind '{}' \"$1\"", bench.path().display());
    with_mount(&mount, other, other)
}

fn with_mount(mount: &str, point: &Path, path: &Path) -> ScriptedProcess {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!("{mount} && shift && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(point);
    command.arg(ScriptedProcess::test_binary().get_program());
    ScriptedProcess::start_with(command, path)
}

/// Pauses the process, but not while it has the turn to write, because no other could then write. What it has written can be
/// read a moment before it releases the turn.
pub(crate) fn pause_between_writes(process: &ScriptedProcess, bench: &SqliteBench) {
    let turn = bench.turnstile("turn");
    loop {
        process.pause();
        if turn.try_lock().is_ok() {
            return turn.unlock().unwrap();
        }
        process.resume();
    }
}

/// Runs in the child process; does nothing in the test run itself.
#[test]
fn executes_commands() {
    execute_commands_with(fencepost_sqlite::connect, execute);
}

async fn execute(client: &Client, words: &[&str]) {
    match words {
        ["holder", name] => {
            let state = client.inspect(name).await.unwrap();
            reply(&format!("holder {}", state.holders[0].token.unwrap()));
        }
        ["switches"] => reply(&format!("switches {}", writer_switches())),
        ["fill"] => {
            let error = fill(client).await;
            reply(&format!("full {:?} {error}", error.kind()));
        }
        ["count_on", name, rounds, file] => {
            for _ in 0..rounds.parse().unwrap() {
                let guard = client.lock(name).acquire().await.unwrap();
                let number: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
                std::fs::write(file, (number + 1).to_string()).unwrap();
                guard.release().await.unwrap();
            }
            reply("counted");
        }
        _ => panic!("unknown command {words:?}"),
    }
}

/// Returns how often the writer thread has gone to sleep so far.
fn writer_switches() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read =
        |thread: &std::path::Path, file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    let writers = threads.filter(|thread| read(&thread.path(), "comm").starts_with("fencepost-sqlit"));
    let count = |status: String| {
        let number =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().to_owned();
        number.parse::<u64>().ok()
    };
    writers.filter_map(|thread| count(read(&thread.path(), "status"))).sum()
}

/// Writes cells of 64 KiB until the disk is full.
async fn fill(client: &Client) -> Error {
    let mut guards = Vec::new();
    for number in 0..1000 {
        let guard = match client.lock(format!("filler/{number}")).acquire().await {
            Ok(guard) => guard,
            Err(error) => return error,
        };
        let written = guard.write_cell(vec![7; 64 * 1024], Keep::WhileHeld).await;
        guards.push(guard);
        if let Err(error) = written {
            return error;
        }
    }
    panic!("the disk is never full");
}
