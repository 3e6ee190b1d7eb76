//! Limits repetition: a report is written if it differs from the last one, or if that was written a while ago.

use std::time::Duration;

use fencepost::clock::Moment;

/// The time after which the same report is written again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// The last report that was written, and when.
#[derive(Debug)]
pub(crate) struct News<T>(Option<(T, Moment)>);

impl<T: PartialEq> News<T> {
    /// Starts with nothing written.
    pub(crate) fn new() -> Self {
        Self(None)
    }

    /// Returns whether this should be written; if so, it counts as written.
    pub(crate) fn is_news(&mut self, what: T, now: Moment) -> bool {
        let news =
            self.0.as_ref().is_none_or(|(last, at)| *last != what || now.since(*at) >= REPEAT_INTERVAL);
        if news {
            self.0 = Some((what, now));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_written_twice_a_minute_and_something_else_at_once() {
        let mut news = News::new();
        let at = |seconds| Moment::START + Duration::from_secs(seconds);
        assert!(news.is_news("gone", at(1)));
        assert!(!news.is_news("gone", at(30)));
        assert!(news.is_news("gone", at(31)));
        assert!(news.is_news("full", at(32)));
        assert!(!news.is_news("full", at(61)));
    }
}
