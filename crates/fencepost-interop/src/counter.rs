//! The file counter: what is read, increased and written under the lock without any care, and the notes of who did it
//! when. The peers in other languages do the same with the same files.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_testkit::wait;

/// Our notes begin so.
pub const OURS: &str = "ours-";
/// Their notes begin so.
pub const THEIRS: &str = "theirs-";
/// What is noted of a turn, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When it ended: milliseconds since 1970.
    pub ended: u64,
    /// What the counter said when it began.
    pub count: usize,
    /// When its taker joined the line, as a number that grows; 0 if there is no line.
    pub joined: u64,
}

impl Turn {
    fn read(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map_while(|word| word.parse().ok());
        let (ended, count, joined) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Self { ended, count: usize::try_from(count).ok()?, joined })
    }
}

/// A folder with the counter and the notes.
#[derive(Clone, Debug)]
pub struct Counter {
    folder: PathBuf,
    /// How long a turn is.
    turn: Duration,
}

impl Counter {
    /// A counter at zero.
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

    /// How long a turn is.
    pub fn turn(&self) -> Duration {
        self.turn
    }

    /// How many workers are ready.
    ///
    /// # Panics
    /// If the folder is gone.
    pub fn workers(&self) -> usize {
        self.notes(OURS).count() + self.notes(THEIRS).count()
    }

    /// Lets everybody begin; the time since 1970 in milliseconds.
    ///
    /// # Panics
    /// If the folder is gone.
    pub fn start(&self) -> u64 {
        fs::write(self.folder.join("start"), "").expect("it can be written");
        wall_millis()
    }

    /// Lets nobody begin another turn.
    ///
    /// # Panics
    /// If the folder is gone.
    pub fn stop(&self) -> u64 {
        fs::write(self.folder.join("stop"), "").expect("it can be written");
        wall_millis()
    }

    /// Whether to begin another turn.
    pub fn goes_on(&self) -> bool {
        !self.folder.join("stop").exists()
    }

    /// Waits for the start.
    pub async fn started(&self) {
        wait::until("the run starts", async || self.folder.join("start").exists()).await;
    }

    /// The notes of one worker.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn worker(&self, side: &str, number: usize) -> Notes {
        let file = fs::File::create(self.folder.join(format!("{side}{number}")));
        Notes { counter: self.clone(), file: file.expect("it can be written") }
    }

    /// What the counter says.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn count(&self) -> usize {
        let text = fs::read_to_string(self.folder.join("counter")).expect("it can be read");
        text.trim().parse().expect("it is a number")
    }

    /// The turns of this side.
    ///
    /// # Panics
    /// If the notes cannot be read.
    pub fn turns(&self, side: &str) -> Vec<Turn> {
        let notes = self.notes(side).map(|path| fs::read_to_string(path).expect("it can be read"));
        let text: String = notes.collect();
        text.lines().map(|line| Turn::read(line).expect("it is a turn")).collect()
    }

    /// How many turns this side has had so far.
    ///
    /// # Panics
    /// If the notes cannot be read.
    pub fn had(&self, side: &str) -> usize {
        // A line that is just being written does not end yet.
        let lines = |path| fs::read_to_string(path).expect("it can be read").matches('\n').count();
        self.notes(side).map(lines).sum()
    }

    fn notes(&self, side: &str) -> impl Iterator<Item = PathBuf> {
        let files = fs::read_dir(&self.folder).expect("it can be read").flatten();
        files.filter(move |file| file.file_name().to_string_lossy().starts_with(side)).map(|file| file.path())
    }
}

/// What one worker writes down.
#[derive(Debug)]
pub struct Notes {
    counter: Counter,
    file: fs::File,
}

impl Notes {
    /// One turn of somebody who joined the line then: to be taken under the lock.
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
