//! What the other process does, word by word.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, Guard, Lock, Result};

use super::{STRINGS, VOICE};

/// Does what it is told with a client of its own until nobody tells it any more. Without strings it hangs still.
///
/// # Panics
/// If it is told what it does not know.
pub fn dances(connect: impl AsyncFnOnce(&str) -> Result<Client>) {
    dances_with(connect, async |_, words| panic!("what is {words:?}?"));
}

/// Like [`dances`], for a test crate with words of its own: `more` gets what is not known here.
///
/// # Panics
/// If no runtime can be made.
pub fn dances_with(
    connect: impl AsyncFnOnce(&str) -> Result<Client>,
    mut more: impl AsyncFnMut(&Client, &[&str]),
) {
    let Ok(storage) = std::env::var(STRINGS) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let client = match connect(&storage).await {
            Ok(client) => client,
            Err(error) => return tell(&format!("refused {error}")),
        };
        let mut guards = Vec::new();
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if !dance(&client, &mut guards, &words).await {
                more(&client, &words).await;
            }
        }
    });
}

/// Says something to the test.
///
/// # Panics
/// If the test does not listen any more.
pub fn tell(word: &str) {
    // Past the test runner, which may keep what a test prints.
    writeln!(std::io::stdout(), "{VOICE}{word}").expect("somebody listens");
}

/// Whether it knew what to do.
async fn dance(client: &Client, guards: &mut Vec<Guard>, words: &[&str]) -> bool {
    match words {
        ["acquire", name, ttl] => match client.lock(name).ttl(millis(ttl)).acquire().await {
            Ok(guard) => {
                tell(&format!("granted {}", guard.token()));
                guards.push(guard);
            }
            Err(error) => tell(&format!("failed {error}")),
        },
        ["release"] => match guards.pop().expect("it holds something").release().await {
            Ok(()) => tell("released"),
            Err(error) => tell(&format!("failed {error}")),
        },
        ["valid"] => tell(&format!("valid {}", guards[0].is_valid())),
        // Whether it has lost nothing of what it was granted.
        ["kept"] => {
            let lost = guards.iter().find_map(Guard::lost_reason);
            tell(&lost.map_or_else(|| "kept".to_owned(), |why| format!("lost {why:?}")));
        }
        ["turns", name, ttl] => take_turns(&client.lock(name).ttl(millis(ttl))).await,
        ["count", name, ttl, folder] => count(&client.lock(name).ttl(millis(ttl)), Path::new(folder)).await,
        _ => return false,
    }
    true
}

/// Takes turns until it is killed, and says of each when it began and until when it was seen to last.
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
            tell(&format!("turn {} {} {}", guard.token(), from.as_nanos(), to.as_nanos()));
        }
        // Of a lock that is lost there is nothing to give back.
        let _ = guard.release().await;
    }
}

/// Counts in a plain file under the lock, until there is a file that says to stop.
async fn count(lock: &Lock, folder: &Path) {
    let (file, stop) = (folder.join("count"), folder.join("stop"));
    let mut counted = 0;
    while !stop.exists() {
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                tell(&format!("refused {error}"));
                continue;
            }
        };
        let text = std::fs::read_to_string(&file).expect("the count can be read");
        let (number, token) = text.split_once(' ').expect("a number and a token");
        let (number, token): (u64, u64) = (whole(number), whole(token));
        if guard.token().get() <= token {
            tell(&format!("stale {} after {token}", guard.token()));
        }
        std::fs::write(&file, format!("{} {}", number + 1, guard.token())).expect("it can be written");
        counted += 1;
        if let Some(why) = guard.lost_reason() {
            tell(&format!("lost {why:?}"));
        }
        // Whether a release arrived may be unknown when a server is killed.
        let _ = guard.release().await;
    }
    tell(&format!("counted {counted}"));
}

fn whole(text: &str) -> u64 {
    text.parse().expect("a whole number")
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(whole(text))
}
