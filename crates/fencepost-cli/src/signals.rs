//! The signals that fencepost acts on. One that was ignored when it started, as under `nohup`, stays ignored: for
//! fencepost and for the command, which inherits that.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that end a program by default: while it waits they end fencepost, later they are passed on.
const ENDING: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];
/// Signals that mean something to the command only.
const PASSED_ON: [Signal; 3] = [Signal::WINCH, Signal::CONT, Signal::TSTP];

/// The signals that have come and were not looked at yet.
pub(crate) struct Signals {
    ignored: u64,
    streams: Vec<(Signal, unix::Signal)>,
    children: unix::Signal,
}

impl Signals {
    /// Takes over the signals that end a program, and those of children.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn new() -> io::Result<Self> {
        // Children must be watched before there is one: if their signal was ignored, the kernel would reap them.
        let children = unix::signal(SignalKind::child())?;
        let mut signals = Self { ignored: ignored_at_start(), streams: Vec::new(), children };
        signals.take(&ENDING)?;
        Ok(signals)
    }

    /// Takes over those that are passed on to a command, too.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn take_all(&mut self) -> io::Result<()> {
        self.take(&PASSED_ON)
    }

    fn take(&mut self, signals: &[Signal]) -> io::Result<()> {
        for signal in signals.iter().filter(|signal| !is_in(self.ignored, **signal)) {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            self.streams.push((*signal, stream));
        }
        Ok(())
    }

    /// Waits for a signal other than a child's.
    ///
    /// # Cancel safety
    /// Dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        next(&mut self.streams).await
    }

    /// Waits until the user has asked so many times to end, with INT or TERM.
    ///
    /// # Cancel safety
    /// Dropping the future forgets how often it was asked.
    pub(crate) async fn asked_to_end(&mut self, times: u32) {
        let mut asked = 0;
        while asked < times {
            asked += u32::from(asks_to_end(self.next().await));
        }
    }

    /// Waits for a signal, or for news of a child (`None`).
    ///
    /// # Cancel safety
    /// Dropping the future loses no signal.
    pub(crate) async fn next_or_child(&mut self) -> Option<Signal> {
        tokio::select! {
            signal = next(&mut self.streams) => Some(signal),
            _ = self.children.recv() => None,
        }
    }
}

/// Whether a signal asks a program to end, now or at once if it is repeated.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::TERM)
}

/// Whether a terminal sends it to everybody in its foreground.
pub(crate) fn comes_from_the_terminal(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::QUIT | Signal::TSTP | Signal::WINCH)
}

async fn next(streams: &mut [(Signal, unix::Signal)]) -> Signal {
    poll_fn(|cx| {
        let came = streams
            .iter_mut()
            .find_map(|(signal, stream)| stream.poll_recv(cx).is_ready().then_some(*signal));
        came.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// The mask of signals that are ignored. Systems that do not tell are taken to ignore none.
fn ignored_at_start() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_in(&status))
}

fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        let mask =
            ignored_in("Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t00\n");
        assert!(is_in(mask, Signal::HUP));
        assert!(is_in(mask, Signal::PIPE));
        assert!(!is_in(mask, Signal::INT));
        assert_eq!(ignored_in("Name:\tx\n"), 0);
    }
}
