//! What is worth saying: something else than last time, or the same when it was not said for a while.

use std::time::Duration;

use fencepost::clock::Moment;

/// How often the same is said again.
pub(crate) const REPEAT: Duration = Duration::from_secs(30);

/// What was said last, and when.
#[derive(Debug)]
pub(crate) struct News<T>(Option<(T, Moment)>);

impl<T: PartialEq> News<T> {
    /// Nothing was said yet.
    pub(crate) fn new() -> Self {
        Self(None)
    }

    /// Whether this is worth saying. If it is, it is taken to be said.
    pub(crate) fn is_news(&mut self, what: T, now: Moment) -> bool {
        let news = self.0.as_ref().is_none_or(|(said, at)| *said != what || now.since(*at) >= REPEAT);
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
    fn the_same_is_said_twice_a_minute_and_something_else_at_once() {
        let mut news = News::new();
        let at = |seconds| Moment::START + Duration::from_secs(seconds);
        assert!(news.is_news("gone", at(1)));
        assert!(!news.is_news("gone", at(30)));
        assert!(news.is_news("gone", at(31)));
        assert!(news.is_news("full", at(32)));
        assert!(!news.is_news("full", at(61)));
    }
}
