//! Dialects: locks in the key format of another library, so that its locks and Fencepost's exclude each other.
//!
//! The lock's key and value are those of the other library, byte for byte; Fencepost's own data is below its namespace. There
//! is no hand-over: a lock is released, and the first client that tries acquires it. For fairness Fencepost's clients leave
//! the lock free for a while after a streak of their own, and their first waiter is notified when a key changes that a
//! foreign client holds.

pub(crate) mod backend;
pub(crate) mod encode;
mod side_connection;
mod signals;
pub(crate) mod tracking;
mod value;

use std::time::Duration;

/// The library whose key format is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// No library in particular: `SET name value NX PX ttl`.
    Raw,
    RedisPy,
    Redsync,
    NodeRedlock,
    Rslock,
    PythonRedisLock,
    Shedlock {
        environment: String,
    },
}

/// How the clients of the other library wait, and how long Fencepost's clients may hold a lock before they leave a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The longest poll interval of the other library.
    pub(crate) poll_interval: Duration,
    /// How long Fencepost's clients may hold the lock one after the other before they leave a gap.
    pub(crate) max_streak: Duration,
}

impl Dialect {
    /// The default environment of `ShedLock`.
    const DEFAULT_ENVIRONMENT: &str = "default";

    fn all() -> [Self; 7] {
        let environment = Self::DEFAULT_ENVIRONMENT.into();
        [
            Self::RedisPy,
            Self::Redsync,
            Self::NodeRedlock,
            Self::Rslock,
            Self::PythonRedisLock,
            Self::Shedlock { environment },
            Self::Raw,
        ]
    }

    /// Returns the dialect of a URL option: `dialect=redis-py`, `layout=raw`.
    pub(crate) fn named(key: &str, value: &str) -> Option<Self> {
        Self::all().into_iter().find(|dialect| dialect.key_and_value() == (key, value))
    }

    /// Returns the values that the option `key` accepts.
    pub(crate) fn values(key: &str) -> Vec<&'static str> {
        let options = Self::all().map(|dialect| dialect.key_and_value());
        options.into_iter().filter(|(option, _)| *option == key).map(|(_, value)| value).collect()
    }

    /// Returns all URL options that select a dialect.
    #[cfg(test)]
    pub(crate) fn options() -> Vec<String> {
        Self::all().iter().map(Self::option).collect()
    }

    /// Returns the URL option that selects this dialect.
    pub(crate) fn option(&self) -> String {
        let (key, value) = self.key_and_value();
        match self {
            Self::Shedlock { environment } if environment != Self::DEFAULT_ENVIRONMENT => {
                format!("{key}={value}&environment={environment}")
            }
            _ => format!("{key}={value}"),
        }
    }

    fn key_and_value(&self) -> (&'static str, &'static str) {
        match self {
            Self::Raw => ("layout", "raw"),
            Self::RedisPy => ("dialect", "redis-py"),
            Self::Redsync => ("dialect", "redsync"),
            Self::NodeRedlock => ("dialect", "node-redlock"),
            Self::Rslock => ("dialect", "rslock"),
            Self::PythonRedisLock => ("dialect", "python-redis-lock"),
            Self::Shedlock { .. } => ("dialect", "shedlock"),
        }
    }

    /// Returns the key of a lock.
    pub(crate) fn key(&self, name: &str) -> String {
        self.key_prefix() + name
    }

    /// Returns the name of the lock with this key.
    pub(crate) fn name_in<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.key_prefix())
    }

    fn key_prefix(&self) -> String {
        match self {
            Self::PythonRedisLock => "lock:".into(),
            Self::Shedlock { environment } => format!("job-lock:{environment}:"),
            Self::Raw | Self::RedisPy | Self::Redsync | Self::NodeRedlock | Self::Rslock => String::new(),
        }
    }

    /// Returns the list on which the other library's waiters block, if they do. A release pushes a signal to it.
    pub(crate) fn signal_list(&self, name: &str) -> Option<String> {
        matches!(self, Self::PythonRedisLock).then(|| format!("lock-signal:{name}"))
    }

    pub(crate) fn pace(&self) -> Pace {
        let pace = |poll_interval, max_streak| Pace {
            poll_interval: Duration::from_millis(poll_interval),
            max_streak: Duration::from_millis(max_streak),
        };
        match self {
            Self::RedisPy | Self::Raw => pace(100, 35),
            Self::Redsync => pace(250, 80),
            Self::NodeRedlock => pace(300, 100),
            Self::Rslock => pace(200, 70),
            // Its waiters receive a signal at once, and so do Fencepost's.
            Self::PythonRedisLock => pace(10, 5),
            // It never waits, so that no gap is needed.
            Self::Shedlock { .. } => pace(1000, 24 * 3600 * 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_each_library() {
        let shedlock = Dialect::Shedlock { environment: "prod".into() };
        let keys = [
            (Dialect::Raw, "a:b"),
            (Dialect::RedisPy, "a:b"),
            (Dialect::Redsync, "a:b"),
            (Dialect::NodeRedlock, "a:b"),
            (Dialect::Rslock, "a:b"),
            (Dialect::PythonRedisLock, "lock:a:b"),
            (shedlock, "job-lock:prod:a:b"),
        ];
        for (dialect, key) in keys {
            assert_eq!(dialect.key("a:b"), key, "{dialect:?}");
            assert_eq!(dialect.name_in(key), Some("a:b"), "{dialect:?}");
        }
        assert_eq!(Dialect::PythonRedisLock.signal_list("a").as_deref(), Some("lock-signal:a"));
        assert_eq!(Dialect::PythonRedisLock.name_in("a"), None);
    }
}
