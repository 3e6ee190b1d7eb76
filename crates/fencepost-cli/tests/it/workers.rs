//! The process that runs under the lock in these tests: this test binary executed again. It writes its token into a log,
//! over and over, and tries an effect that is fenced.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::clock::Clock;

use crate::sandbox::{Sandbox, until};

const FOLDER: &str = "FENCEPOST_TEST_LOGGER";

/// One line of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) token: u64,
    /// When it was written, on the machine's clock.
    pub(crate) nanos: u64,
    /// Whether the fence accepted the effect.
    pub(crate) passed: bool,
}

/// Returns the arguments that run a worker, after `fencepost run … --`. Workers of the same folder write into one log.
pub(crate) fn worker(folder: &Path) -> Vec<String> {
    let test = std::env::current_exe().unwrap().display().to_string();
    let variable = format!("{FOLDER}={}", folder.display());
    ["env", &variable, &test, "--exact", "workers::worker_process"].map(str::to_owned).to_vec()
}

/// Creates a folder for the log of one lock.
pub(crate) fn folder(sandbox: &Sandbox, name: &str) -> PathBuf {
    let folder = sandbox.path(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("mark"), "0").unwrap();
    folder
}

/// Returns the log so far.
pub(crate) fn log(folder: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(folder.join("log")).unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
        Entry { token: number(), nanos: number(), passed: number() == 1 }
    };
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(entry).collect()
}

/// Waits until a worker with a larger token than this has written this many lines, and returns its token.
pub(crate) fn next_after(folder: &Path, token: u64, lines: usize) -> u64 {
    let mut found = 0;
    until("the next holder writes", || {
        let later: Vec<Entry> = log(folder).into_iter().filter(|entry| entry.token > token).collect();
        found = later.first().map_or(0, |entry| entry.token);
        later.len() >= lines
    });
    found
}

/// Checks that no worker wrote after a later holder had begun.
#[track_caller]
pub(crate) fn assert_no_overlap(log: &[Entry]) {
    if let Some(pair) = log.windows(2).find(|pair| pair[0].token > pair[1].token) {
        let began = log.iter().find(|entry| entry.token == pair[0].token).map_or(0, |entry| entry.nanos);
        let late = Duration::from_nanos(pair[1].nanos.saturating_sub(began));
        panic!("an earlier holder wrote {late:?} after a later one had begun: {pair:?}");
    }
}

/// Not a test by itself: the process under the lock. It ends when its folder is gone, so that nothing outlives a test.
#[test]
fn worker_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let token: u64 = std::env::var("FENCEPOST_TOKEN").unwrap().parse().unwrap();
    let clock = Clock::system();
    while let Ok(mut log) = File::options().append(true).create(true).open(folder.join("log")) {
        let passed = u8::from(fenced(folder, token));
        // One write, so that lines do not mix.
        let line = format!("{token} {} {passed}\n", clock.now().as_nanos());
        log.write_all(line.as_bytes()).unwrap();
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Applies an effect to a resource that checks the token: a file with the largest token so far. A smaller one is rejected.
fn fenced(folder: &Path, token: u64) -> bool {
    let Ok(gate) = File::open(folder) else { return false };
    gate.lock().unwrap();
    let mark = folder.join("mark");
    let largest: u64 = fs::read_to_string(&mark).ok().and_then(|mark| mark.parse().ok()).unwrap_or(0);
    if token < largest {
        return false;
    }
    if token > largest {
        fs::write(&mark, token.to_string()).unwrap();
    }
    true
}
