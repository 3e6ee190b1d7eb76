//! The only module that prints: messages to stderr, results to stdout.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use fencepost::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::colors::{ERROR, HINT, Palette, WARNING};
use crate::live;
use crate::words::plain;

/// How long the caller waits for one message to be written.
const WRITE_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the end of the program waits for messages that are not written yet.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How much is printed to stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Errors only.
    Quiet,
    /// Notes and warnings, too.
    Normal,
    /// Everything.
    Verbose,
}

/// Messages to stderr, filtered by level.
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

    /// Prints what only a verbose user wants to know.
    pub(crate) fn detail(self, text: impl Display) {
        if self.level >= Level::Verbose {
            self.note(text);
        }
    }

    /// Prints what the user should know, unless the output is quiet.
    pub(crate) fn note(self, text: impl Display) {
        if self.level >= Level::Normal {
            send(&format!("fencepost: {}\n", plain(&text.to_string())));
        }
    }

    /// Prints a failure that does not change the outcome, unless the output is quiet.
    pub(crate) fn warning(self, text: impl Display) {
        if self.level >= Level::Normal {
            let warning = Palette::stderr().paint(WARNING, "warning:");
            send(&format!("fencepost: {warning} {}\n", plain(&text.to_string())));
        }
    }
}

/// Prints an error message at every level.
pub(crate) fn failure(text: impl Display) {
    send(&format!("fencepost: {} {text}\n", Palette::stderr().paint(ERROR, "error:")));
}

/// Prints an error with its cause and its hint, at every level.
pub(crate) fn error(error: &Error) {
    send(&report(error, Palette::stderr()));
}

/// Prints to stderr what accompanies a result and is not part of it.
pub(crate) fn remark(text: impl Display) {
    send(&format!("{text}\n"));
}

/// Prints a question; the answer is typed behind it.
pub(crate) fn question(text: impl Display) {
    send(&format!("{} ", plain(&text.to_string())));
}

/// Prints a usage error, or the help for an empty command line.
pub(crate) fn usage(text: &str) {
    let text = text.trim_end();
    match text.strip_prefix("error:") {
        Some(text) => failure(text.trim_start()),
        None => send(&format!("{text}\n")),
    }
}

/// Prints the help, or the version, that was asked for.
pub(crate) fn help(text: &str) {
    // A reader that has closed the pipe needs no more.
    let _ = results(format_args!("{}\n", text.trim_end()));
}

/// Writes results to stdout.
pub(crate) fn results(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")?;
    stdout.flush()
}

/// Returns whether the reader of stdout is gone, without writing to it.
pub(crate) fn reader_is_gone() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|_| watched[0].revents().intersects(gone))
}

fn report(error: &Error, palette: Palette) -> String {
    let hint = error.hint().map(|hint| format!("{} {}\n", palette.paint(HINT, "hint:"), plain(hint)));
    format!(
        "fencepost: {} {}\n{}",
        palette.paint(ERROR, "error:"),
        plain(&error.full_message()),
        hint.unwrap_or_default()
    )
}

/// A message, and the channel that reports that it is written.
type Message = (String, mpsc::SyncSender<()>);

/// The queue of the thread that writes messages, once there was one. `None` if no thread could be started.
static WRITER: OnceLock<Option<mpsc::Sender<Message>>> = OnceLock::new();

/// Prints a message. A stderr that is closed or not read must neither fail the program nor delay a deadline: after a
/// timeout the message is left to the thread that writes.
fn send(text: &str) {
    send_within(format!("{}{text}", live::before_message()), WRITE_TIMEOUT);
}

/// Writes a state of the live line.
pub(crate) fn draw(line: String) {
    send_within(line, WRITE_TIMEOUT);
}

/// Writes what erases the live line, and waits until it is written.
pub(crate) fn erase(sequence: &str) {
    send_within(sequence.to_owned(), FLUSH_TIMEOUT);
}

/// Waits until all messages are written, with a timeout. To be called before the process ends.
pub(crate) fn flush() {
    if WRITER.get().is_some() {
        send_within(String::new(), FLUSH_TIMEOUT);
    }
}

fn send_within(text: String, timeout: Duration) {
    let Some(writer) = WRITER.get_or_init(start_writer) else {
        // No thread could be started: a blocking write is better than a lost message.
        return write(&text);
    };
    let (done, written) = mpsc::sync_channel(1);
    if writer.send((text, done)).is_ok() {
        let _ = written.recv_timeout(timeout);
    }
}

/// In one piece, so that messages of several processes do not mix.
fn write(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

fn start_writer() -> Option<mpsc::Sender<Message>> {
    let (writer, messages) = mpsc::channel::<Message>();
    let write_all = move || {
        for (text, done) in messages {
            write(&text);
            // After its timeout the sender no longer listens.
            let _ = done.try_send(());
        }
    };
    std::thread::Builder::new().name("fencepost-say".into()).spawn(write_all).ok().map(|_| writer)
}

#[cfg(test)]
mod tests {
    use fencepost::ErrorKind;

    use super::*;

    #[test]
    fn an_error_is_printed_with_its_cause_and_hint() {
        let error = Error::new(ErrorKind::Backend, "could not open it")
            .with_source(io::Error::other("disk full"))
            .with_hint("make room");
        assert_eq!(
            report(&error, Palette::PLAIN),
            "fencepost: error: could not open it: disk full\nhint: make room\n"
        );
    }

    #[test]
    fn a_cause_is_not_printed_twice() {
        let error = Error::new(ErrorKind::Backend, "could not open it: disk full");
        let error = error.with_source(io::Error::other("disk full"));
        assert_eq!(report(&error, Palette::PLAIN), "fencepost: error: could not open it: disk full\n");
    }

    #[test]
    fn prefixes_are_coloured_and_texts_are_not() {
        let error = Error::new(ErrorKind::Backend, "it failed").with_hint("retry");
        assert_eq!(
            report(&error, Palette::COLORED),
            "fencepost: \u{1b}[1m\u{1b}[31merror:\u{1b}[0m it failed\n\u{1b}[1m\u{1b}[36mhint:\u{1b}[0m retry\n"
        );
    }

    #[test]
    fn levels_are_ordered() {
        assert!(Level::Quiet < Level::Normal && Level::Normal < Level::Verbose);
    }
}
