//! The only place that prints. What fencepost has to say goes to stderr; what it was asked for goes to stdout.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use fencepost::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::live;
use crate::words::plain;

/// How long somebody may take to hear a message.
const HEARD: Duration = Duration::from_millis(50);
/// How long the end waits for somebody who has not heard everything.
const FAREWELL: Duration = Duration::from_secs(1);

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Errors only.
    Quiet,
    /// What keeps the user waiting, too.
    Normal,
    /// Everything.
    Verbose,
}

/// Where fencepost speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    level: Level,
}

impl Output {
    pub(crate) fn new(level: Level) -> Self {
        Self { level }
    }

    pub(crate) fn level(self) -> Level {
        self.level
    }

    /// Something that happens, for those who want to know everything.
    pub(crate) fn detail(self, text: impl Display) {
        if self.level >= Level::Verbose {
            self.note(text);
        }
    }

    /// Something that the user should know, unless they asked for silence.
    pub(crate) fn note(self, text: impl Display) {
        if self.level >= Level::Normal {
            say(&format!("fencepost: {}\n", plain(&text.to_string())));
        }
    }

    /// Something that went wrong and does not change the outcome.
    pub(crate) fn warning(self, text: impl Display) {
        self.note(format_args!("warning: {text}"));
    }
}

/// Something that went wrong, in words. It is said whatever the level.
pub(crate) fn failure(text: impl Display) {
    say(&format!("fencepost: error: {text}\n"));
}

/// Something that went wrong, with its cause and what to do about it. It is said whatever the level.
pub(crate) fn error(error: &Error) {
    say(&report(error));
}

/// What belongs to a list and is not part of it.
pub(crate) fn remark(text: impl Display) {
    say(&format!("{text}\n"));
}

/// A question, whose answer is typed behind it.
pub(crate) fn question(text: impl Display) {
    say(&format!("{} ", plain(&text.to_string())));
}

/// What is wrong with the command line, or the help for one that is empty.
pub(crate) fn usage(text: &str) {
    let prefix = if text.starts_with("error:") { "fencepost: " } else { "" };
    say(&format!("{prefix}{}\n", text.trim_end()));
}

/// The help, or the version, that was asked for.
pub(crate) fn help(text: &str) {
    // Who has closed the pipe does not want to read on.
    let _ = results(format_args!("{}\n", text.trim_end()));
}

/// Writes results to stdout.
pub(crate) fn results(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")?;
    stdout.flush()
}

/// Whether the reader of our results has gone: nothing needs to be written to find out.
pub(crate) fn nobody_reads() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|_| watched[0].revents().intersects(gone))
}

fn report(error: &Error) -> String {
    let hint = error.hint().map(|hint| format!("hint: {}\n", plain(hint)));
    format!("fencepost: error: {}\n{}", plain(&error.full_message()), hint.unwrap_or_default())
}

/// A message, and who wants to know when it is written.
type Message = (String, mpsc::SyncSender<()>);

/// Where messages wait to be written, once there was one. None if there is no thread left to write them.
static SPEAKER: OnceLock<Option<mpsc::Sender<Message>>> = OnceLock::new();

/// Says something. Nobody to hear it is no reason to fail, and somebody who does not read no reason to miss a deadline:
/// what takes too long is left to the thread that writes.
fn say(text: &str) {
    hand_on(format!("{}{text}", live::before_message()), HEARD);
}

/// Writes a state of the live line.
pub(crate) fn draw(line: String) {
    hand_on(line, HEARD);
}

/// Writes what erases the live line, and waits until it is written.
pub(crate) fn erase(sequence: &str) {
    hand_on(sequence.to_owned(), FAREWELL);
}

/// Waits until everything that was said is written, but not for ever. To be called before the end.
pub(crate) fn farewell() {
    if SPEAKER.get().is_some() {
        hand_on(String::new(), FAREWELL);
    }
}

fn hand_on(text: String, patience: Duration) {
    let Some(speaker) = SPEAKER.get_or_init(speaker) else {
        // There may be no room for a thread just now. To be slow is better than to be silent.
        return write(&text);
    };
    let (done, written) = mpsc::sync_channel(1);
    if speaker.send((text, done)).is_ok() {
        let _ = written.recv_timeout(patience);
    }
}

/// In one piece, so that messages of several processes do not mix.
fn write(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

fn speaker() -> Option<mpsc::Sender<Message>> {
    let (speaker, messages) = mpsc::channel::<Message>();
    let speak = move || {
        for (text, done) in messages {
            write(&text);
            // Whoever has lost patience does not want to know.
            let _ = done.try_send(());
        }
    };
    std::thread::Builder::new().name("fencepost-say".into()).spawn(speak).ok().map(|_| speaker)
}

#[cfg(test)]
mod tests {
    use fencepost::ErrorKind;

    use super::*;

    #[test]
    fn an_error_is_told_with_its_cause_and_hint() {
        let error = Error::new(ErrorKind::Backend, "could not open it")
            .with_source(io::Error::other("disk full"))
            .with_hint("make room");
        assert_eq!(report(&error), "fencepost: error: could not open it: disk full\nhint: make room\n");
    }

    #[test]
    fn a_cause_is_not_told_twice() {
        let error = Error::new(ErrorKind::Backend, "could not open it: disk full");
        let error = error.with_source(io::Error::other("disk full"));
        assert_eq!(report(&error), "fencepost: error: could not open it: disk full\n");
    }

    #[test]
    fn levels_are_ordered() {
        assert!(Level::Quiet < Level::Normal && Level::Normal < Level::Verbose);
    }
}
