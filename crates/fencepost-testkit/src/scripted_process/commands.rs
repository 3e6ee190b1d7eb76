//! The commands of a [`ScriptedProcess`](super::ScriptedProcess), as the child process executes them.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, ErrorKind, Guard, Lock, Result};

use super::{REPLY_MARK, URL_VARIABLE};
use crate::wait;

/// Executes commands with a client of its own until standard input ends. Returns at once if this is not a child process.
///
/// # Panics
/// If a command is unknown.
pub fn execute_commands(connect: impl AsyncFnOnce(&str) -> Result<Client>) {
    execute_commands_with(connect, async |_, words| panic!("unknown command {words:?}"));
}

/// Like [`execute_commands`], for a test crate with commands of its own: `more` gets those that are unknown here.
///
/// # Panics
/// If no runtime can be created.
pub fn execute_commands_with(
    connect: impl AsyncFnOnce(&str) -> Result<Client>,
    mut more: impl AsyncFnMut(&Client, &[&str]),
) {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be created").block_on(async {
        let client = match connect(&url).await {
            Ok(client) => client,
            Err(error) => return reply(&format!("refused {error}")),
        };
        let mut guards = Vec::new();
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if !execute(&client, &mut guards, &words).await {
                more(&client, &words).await;
            }
        }
    });
}

/// Sends a reply to the test.
///
/// # Panics
/// If the test does not read any more.
pub fn reply(text: &str) {
    // Not by `println!`, which the test runner may capture.
    writeln!(std::io::stdout(), "{REPLY_MARK}{text}").expect("the test reads the replies");
}

/// Executes a command of this module; returns false if it is unknown.
async fn execute(client: &Client, guards: &mut Vec<Guard>, words: &[&str]) -> bool {
    match words {
        ["acquire", name, ttl] => match client.lock(name).ttl(millis(ttl)).acquire().await {
            Ok(guard) => {
                reply(&format!("granted {}", guard.token()));
                guards.push(guard);
            }
            Err(error) => reply(&format!("failed {error}")),
        },
        ["release"] => match guards.pop().expect("a lock is held").release().await {
            Ok(()) => reply("released"),
            Err(error) => reply(&format!("failed {error}")),
        },
        ["valid"] => reply(&format!("valid {}", guards[0].is_valid())),
        // Replies whether every granted lock is still held.
        ["kept"] => {
            let lost = guards.iter().find_map(Guard::lost_reason);
            reply(&lost.map_or_else(|| "kept".to_owned(), |why| format!("lost {why:?}")));
        }
        ["turns", name, ttl] => take_turns(&client.lock(name).ttl(millis(ttl))).await,
        ["count", name, ttl, folder] => count(&client.lock(name).ttl(millis(ttl)), Path::new(folder)).await,
        _ => return false,
    }
    true
}

/// Acquires and releases until it is killed; replies for each grant with its token, its start and the last moment at which it was
/// seen to be valid.
async fn take_turns(lock: &Lock) {
    let clock = Clock::system();
    loop {
        let Ok(guard) = lock.acquire().await else {
            continue;
        };
        let from = clock.now();
        if !guard.is_valid() {
            continue;
        }
        tokio::task::yield_now().await;
        let to = clock.now();
        if guard.is_valid() {
            reply(&format!("turn {} {} {}", guard.token(), from.as_nanos(), to.as_nanos()));
        }
        // The release of a lost lock fails.
        let _ = guard.release().await;
    }
}

/// Increments the number in the file `count` under the lock, until the file `stop` exists.
async fn count(lock: &Lock, folder: &Path) {
    let (file, stop) = (folder.join("count"), folder.join("stop"));
    let mut counted = 0;
    while !stop.exists() {
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            // While a cluster elects a leader it serves none of its clients. The test waits for progress.
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                wait::elapse(Duration::from_millis(20)).await;
                continue;
            }
            Err(error) => {
                reply(&format!("refused {error}"));
                continue;
            }
        };
        let text = std::fs::read_to_string(&file).expect("the count can be read");
        let (number, token) = text.split_once(' ').expect("a number and a token");
        let (number, token): (u64, u64) = (parse_number(number), parse_number(token));
        if guard.token().get() <= token {
            reply(&format!("stale {} after {token}", guard.token()));
        }
        std::fs::write(&file, format!("{} {}", number + 1, guard.token())).expect("the count can be written");
        counted += 1;
        if let Some(why) = guard.lost_reason() {
            reply(&format!("lost {why:?}"));
        }
        // The outcome of a release is unknown if its server is killed meanwhile.
        let _ = guard.release().await;
    }
    reply(&format!("counted {counted}"));
}

fn parse_number(text: &str) -> u64 {
    text.parse().expect("a whole number")
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(parse_number(text))
}
