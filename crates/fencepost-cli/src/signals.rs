//! The signals that fencepost handles. One that was ignored when it started, as under `nohup`, stays ignored: for
//! fencepost and for the command, which inherits that.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that terminate a program by default: while it waits they end fencepost, later they are forwarded.
const ENDING: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];
/// Signals that are only forwarded to the command.
const FORWARDED: [Signal; 3] = [Signal::WINCH, Signal::CONT, Signal::TSTP];
/// The same request to end within this time is a duplicate of the first: `timeout` signals its child and its group, and
/// other programs forward what the terminal has sent to the whole group.
const DUPLICATE_INTERVAL: Duration = Duration::from_millis(250);

/// The signals that were received and not handled yet.
pub(crate) struct Signals {
    ignored: u64,
    streams: Vec<(Signal, unix::Signal)>,
    children: unix::Signal,
    requests: Requests,
}

impl Signals {
    /// Handles the signals that terminate a program, and SIGCHLD.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn new() -> io::Result<Self> {
        // SIGCHLD must be handled before there is a child: if it was ignored, the kernel would reap them.
        let children = unix::signal(SignalKind::child())?;
        // The parent may have blocked SIGCHLD, and the end of a child would not be noticed.
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

    /// Handles the signals that are forwarded to a command, too.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn take_all(&mut self) -> io::Result<()> {
        self.take(&FORWARDED)
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
            if !self.requests.is_duplicate(signal, Clock::system().now()) {
                return signal;
            }
        }
    }

    /// Discards a signal that was received and not handled yet.
    pub(crate) fn discard(&mut self, signal: Signal) {
        let mut context = Context::from_waker(Waker::noop());
        for (_, stream) in self.streams.iter_mut().filter(|(taken, _)| *taken == signal) {
            let _ = stream.poll_recv(&mut context);
        }
    }

    /// Waits until this many requests to end were received: INT or TERM.
    ///
    /// # Cancel safety
    /// Dropping the future loses the count.
    pub(crate) async fn requests_to_end(&mut self, times: u32) {
        let mut received = 0;
        while received < times {
            received += u32::from(is_request_to_end(self.next().await));
        }
    }

    /// Waits for a signal, or for a change of a child (`None`).
    ///
    /// # Cancel safety
    /// Dropping the future loses no signal.
    pub(crate) async fn next_or_child(&mut self) -> Option<Signal> {
        loop {
            // The signals of this process first: one of them may be the reason for the change of the child.
            let signal = tokio::select! {
                biased;
                signal = next(&mut self.streams) => signal,
                _ = self.children.recv() => return None,
            };
            if !self.requests.is_duplicate(signal, Clock::system().now()) {
                return Some(signal);
            }
        }
    }
}

/// The last request to end.
#[derive(Debug, Default)]
struct Requests {
    last: Option<(Signal, Moment)>,
}

impl Requests {
    /// Returns whether a signal is a duplicate of the last request. If it is another request, it is stored.
    fn is_duplicate(&mut self, signal: Signal, now: Moment) -> bool {
        if !is_request_to_end(signal) {
            return false;
        }
        let is_duplicate =
            self.last.is_some_and(|(last, at)| last == signal && now.since(at) < DUPLICATE_INTERVAL);
        if !is_duplicate {
            self.last = Some((signal, now));
        }
        is_duplicate
    }
}

/// Returns whether a signal asks a program to end; a second one asks to end at once.
pub(crate) fn is_request_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::TERM)
}

/// Returns whether a terminal sends this signal to its whole foreground group.
pub(crate) fn is_sent_by_terminal(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::QUIT | Signal::TSTP | Signal::WINCH)
}

async fn next(streams: &mut [(Signal, unix::Signal)]) -> Signal {
    poll_fn(|cx| {
        let received = streams
            .iter_mut()
            .find_map(|(signal, stream)| stream.poll_recv(cx).is_ready().then_some(*signal));
        received.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Returns the mask of ignored signals; none where the system does not tell.
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
    fn the_same_request_a_moment_later_is_a_duplicate() {
        let at = |millis| Moment::START + Duration::from_millis(millis);
        let mut requests = Requests::default();
        assert!(!requests.is_duplicate(Signal::INT, at(0)));
        assert!(requests.is_duplicate(Signal::INT, at(1)));
        assert!(!requests.is_duplicate(Signal::TERM, at(2)), "another request");
        assert!(requests.is_duplicate(Signal::TERM, at(251)));
        assert!(!requests.is_duplicate(Signal::TERM, at(252)), "the interval is over");
    }

    #[test]
    fn only_requests_to_end_have_duplicates() {
        let mut requests = Requests::default();
        for signal in [Signal::HUP, Signal::WINCH, Signal::USR1, Signal::CONT] {
            assert!(!requests.is_duplicate(signal, Moment::START));
            assert!(!requests.is_duplicate(signal, Moment::START));
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
