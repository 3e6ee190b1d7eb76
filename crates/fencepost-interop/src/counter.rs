//! The file counter: a number that is read, incremented and written under the lock without further protection, and a log of
//! the turns. The peers in other languages do the same with the same files.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_testkit::wait;

/// The prefix of our logs.
pub const OURS: &str = "ours-";
/// The prefix of their logs.
pub const THEIRS: &str = "theirs-";
/// The log entry of a turn, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When it ended: milliseconds since 1970.
    pub ended: u64,
    /// The number in the counter when it started.
    pub count: usize,
    /// The queue position of its worker, as a number that grows; 0 if there is no queue.
    pub joined: u64,
}

impl Turn {
    fn read(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map_while(|word| word.parse().ok());
        let (ended, count, joined) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Self { ended, count: usize::try_from(count).ok()?, joined })
    }
}

/// A folder with the counter and the logs.
#[derive(Clone, Debug)]
pub struct Counter {
    folder: PathBuf,
    /// The length of a turn.
    turn: Duration,
}

impl Counter {
    /// Creates a counter at zero.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn new(folder: &Path, turn: Duration) -> Self {
        fs::write(folder.join("counter"), "0").expect("it can be written");
        Self { folder: folder.into(), turn }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The length of a turn.
    pub fn turn(&self) -> Duration {
        self.turn
    }

    /// Returns how many workers are ready.
    ///
    /// # Panics
    /// If the folder does not exist any more.
    pub fn workers(&self) -> usize {
        self.notes(OURS).count() + self.notes(THEIRS).count()
    }

    /// Starts all workers; returns the time since 1970 in milliseconds.
    ///
    /// # Panics
    /// If the folder does not exist any more.
    pub fn start(&self) -> u64 {
        fs::write(self.folder.join("start"), "").expect("it can be written");
        wall_millis()
    }

    /// Stops all workers after their present turn.
    ///
    /// # Panics
    /// If the folder does not exist any more.
    pub fn stop(&self) -> u64 {
        fs::write(self.folder.join("stop"), "").expect("it can be written");
        wall_millis()
    }

    /// Returns whether to take another turn.
    pub fn goes_on(&self) -> bool {
        !self.folder.join("stop").exists()
    }

    /// Waits for the start.
    pub async fn started(&self) {
        wait::until("the run starts", async || self.folder.join("start").exists()).await;
    }

    /// Creates the log of one worker.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn worker(&self, side: &str, number: usize) -> Notes {
        let file = fs::File::create(self.folder.join(format!("{side}{number}")));
        Notes { counter: self.clone(), file: file.expect("it can be written") }
    }

    /// Returns the number in the counter.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn count(&self) -> usize {
        let text = fs::read_to_string(self.folder.join("counter")).expect("it can be read");
        text.trim().parse().expect("it is a number")
    }

    /// Returns the turns of this side.
    ///
    /// # Panics
    /// If the logs cannot be read.
    pub fn turns(&self, side: &str) -> Vec<Turn> {
        let notes = self.notes(side).map(|path| fs::read_to_string(path).expect("it can be read"));
        let text: String = notes.collect();
        text.lines().map(|line| Turn::read(line).expect("it is a turn")).collect()
    }

    /// Returns how many turns this side has had so far.
    ///
    /// # Panics
    /// If the logs cannot be read.
    pub fn had(&self, side: &str) -> usize {
        // A line that is being written has no end yet.
        let lines = |path| fs::read_to_string(path).expect("it can be read").matches('\n').count();
        self.notes(side).map(lines).sum()
    }

    fn notes(&self, side: &str) -> impl Iterator<Item = PathBuf> {
        let files = fs::read_dir(&self.folder).expect("it can be read").flatten();
        files.filter(move |file| file.file_name().to_string_lossy().starts_with(side)).map(|file| file.path())
    }
}

/// The log of one worker.
#[derive(Debug)]
pub struct Notes {
    counter: Counter,
    file: fs::File,
}

impl Notes {
    /// Takes one turn, of a worker with this queue position: to be called under the lock.
    ///
    /// # Panics
    /// If the files cannot be read or written.
    pub async fn take_turn(&mut self, joined: u64) {
        let count = self.counter.count();
        wait::elapse(self.counter.turn).await;
        fs::write(self.counter.folder.join("counter"), (count + 1).to_string()).expect("it can be written");
        writeln!(self.file, "{} {count} {joined}", wall_millis()).expect("it can be written");
    }
}

fn wall_millis() -> u64 {
    u64::try_from(fencepost::clock::wall_time().as_millis()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_is_written() {
        assert_eq!(Turn::read("1700 41 9"), Some(Turn { ended: 1700, count: 41, joined: 9 }));
        assert_eq!(Turn::read("1700"), None);
        assert_eq!(Turn::read(""), None);
    }
}
