//! What the user sees while a run waits: a live line on a terminal, and otherwise a message when something has changed.

use std::time::Duration;

use fencepost::clock::Moment;

use crate::live;
use crate::news::News;
use crate::output::{Level, Output};

/// A wait that lasts longer than this is reported.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// The same with `-v`.
pub(crate) const SHORT_WAIT_VERBOSE: Duration = Duration::from_millis(50);
/// The time between two states of the live line.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which a state is read again if it is reported by messages.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(5);

/// What a run waits for at the moment.
pub(crate) struct Report<T> {
    /// A message is written when this changes.
    pub(crate) subject: T,
    pub(crate) message: String,
    /// The live line, from its longest form to its shortest.
    pub(crate) live: Vec<String>,
}

/// Reports what a run waits for. When it is dropped the live line is erased.
pub(crate) struct Progress<T> {
    output: Output,
    /// Before this the wait is too short to be reported.
    starts: Moment,
    written: News<T>,
}

impl<T: PartialEq> Progress<T> {
    /// Reports a wait that began then.
    pub(crate) fn new(output: Output, began: Moment) -> Self {
        let short_wait = if output.level() == Level::Verbose { SHORT_WAIT_VERBOSE } else { SHORT_WAIT };
        Self { output, starts: began + short_wait, written: News::new() }
    }

    /// Returns when the wait is long enough to be reported.
    pub(crate) fn starts(&self) -> Moment {
        self.starts
    }

    /// Shows this report, if it is due. Returns when the next one should be made.
    pub(crate) fn show(&mut self, report: Report<T>, now: Moment) -> Moment {
        if now < self.starts {
            return self.starts;
        }
        if self.output.level() > Level::Quiet && live::is_possible() {
            live::draw(&report.live);
            return now + LIVE_INTERVAL;
        }
        live::abandon();
        if self.written.is_news(report.subject, now) {
            self.output.note(report.message);
        }
        now + MESSAGE_INTERVAL
    }
}

impl<T> Drop for Progress<T> {
    fn drop(&mut self) {
        if live::is_possible() {
            live::erase();
        } else {
            live::abandon();
        }
    }
}
