//! The signals that fencepost acts on. One that was ignored when it started, as under `nohup`, stays ignored: for
//! fencepost and for the command, which inherits that.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that end a program by default: while it waits they end fencepost, later they are passed on.
const ENDING: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];
/// Signals that mean something to the command only.
const PASSED_ON: [Signal; 3] = [Signal::WINCH, Signal::CONT, Signal::TSTP];
/// The same request to end, if it is heard again within this time, is an echo of the first: `timeout` sends to its child
/// and to its group, and others pass on what the terminal has sent to everybody.
const ECHO: Duration = Duration::from_millis(250);

/// The signals that have come and were not looked at yet.
pub(crate) struct Signals {
    ignored: u64,
    streams: Vec<(Signal, unix::Signal)>,
    children: unix::Signal,
    requests: Requests,
}

impl Signals {
    /// Takes over the signals that end a program, and those of children.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn new() -> io::Result<Self> {
        // Children must be watched before there is one: if their signal was ignored, the kernel would reap them.
        let children = unix::signal(SignalKind::child())?;
        // Whoever started us may have blocked their signal, and we would not hear of an end.
        let mut blocked = SigSet::empty();
        blocked.add(nix::sys::signal::Signal::SIGCHLD);
        blocked.thread_unblock()?;
        let mut signals = Self {
            ignored: ignored_at_start(),
            streams: Vec::new(),
            children,
            requests: Requests::default(),
        };
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
        loop {
            let signal = next(&mut self.streams).await;
            if !self.requests.is_echo(signal, Clock::system().now()) {
                return signal;
            }
        }
    }

    /// Forgets a signal that has come and was not looked at yet.
    pub(crate) fn forget(&mut self, signal: Signal) {
        let mut nobody = Context::from_waker(Waker::noop());
        for (_, stream) in self.streams.iter_mut().filter(|(taken, _)| *taken == signal) {
            let _ = stream.poll_recv(&mut nobody);
        }
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
        loop {
            // What was sent to us first: it may be the reason for what a child has done.
            let signal = tokio::select! {
                biased;
                signal = next(&mut self.streams) => signal,
                _ = self.children.recv() => return None,
            };
            if !self.requests.is_echo(signal, Clock::system().now()) {
                return Some(signal);
            }
        }
    }
}

/// The requests to end that were heard.
#[derive(Debug, Default)]
struct Requests {
    last: Option<(Signal, Moment)>,
}

impl Requests {
    /// Whether a signal is the echo of a request that was heard a moment ago. If not, it is remembered.
    fn is_echo(&mut self, signal: Signal, now: Moment) -> bool {
        if !asks_to_end(signal) {
            return false;
        }
        let echo = self.last.is_some_and(|(last, at)| last == signal && now.since(at) < ECHO);
        if !echo {
            self.last = Some((signal, now));
        }
        echo
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
    fn the_same_request_a_moment_later_is_an_echo() {
        let at = |millis| Moment::START + Duration::from_millis(millis);
        let mut requests = Requests::default();
        assert!(!requests.is_echo(Signal::INT, at(0)));
        assert!(requests.is_echo(Signal::INT, at(1)));
        assert!(!requests.is_echo(Signal::TERM, at(2)), "another request");
        assert!(requests.is_echo(Signal::TERM, at(251)));
        assert!(!requests.is_echo(Signal::TERM, at(252)), "an echo does not last");
    }

    #[test]
    fn what_does_not_ask_to_end_has_no_echo() {
        let mut requests = Requests::default();
        for signal in [Signal::HUP, Signal::WINCH, Signal::USR1, Signal::CONT] {
            assert!(!requests.is_echo(signal, Moment::START));
            assert!(!requests.is_echo(signal, Moment::START));
        }
    }

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
