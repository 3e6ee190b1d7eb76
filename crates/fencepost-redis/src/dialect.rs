//! Locks in the form of another library, so that its locks and ours exclude each other: where it looks for a lock, what
//! it takes for a value of its own, and how it waits.
//!
//! The lock's key and value are the other's, byte for byte; what we keep beside them is below our namespace. No lock
//! is handed over: it is given back, and the first client that comes takes it. So that both sides get turns, ours leave a gap
//! after some time, and the first of ours in line is notified when a lock changes that another library's client holds.

pub(crate) mod backend;
mod ear;
pub(crate) mod encode;
mod line;
pub(crate) mod tracking;
mod value;

use std::time::Duration;

/// Another library whose locks we share.
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

/// How others wait, and so how long ours may have a lock in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The longest pause of theirs between two looks.
    pub(crate) pause: Duration,
    /// For how long ours may have the lock one after the other before they leave a gap.
    pub(crate) turn: Duration,
}

impl Dialect {
    /// What an environment is called that was not given.
    const ENVIRONMENT: &str = "default";

    fn all() -> [Self; 7] {
        let environment = Self::ENVIRONMENT.into();
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

    /// The dialect that an option of a URL names: `dialect=redis-py`, `layout=raw`.
    pub(crate) fn named(key: &str, value: &str) -> Option<Self> {
        Self::all().into_iter().find(|dialect| dialect.words() == (key, value))
    }

    /// All options that name a dialect.
    pub(crate) fn options() -> Vec<String> {
        Self::all().iter().map(Self::option).collect()
    }

    /// The option of a URL that names it.
    pub(crate) fn option(&self) -> String {
        let (key, value) = self.words();
        match self {
            Self::Shedlock { environment } if environment != Self::ENVIRONMENT => {
                format!("{key}={value}&environment={environment}")
            }
            _ => format!("{key}={value}"),
        }
    }

    fn words(&self) -> (&'static str, &'static str) {
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

    /// Where the other library looks for a lock of this name.
    pub(crate) fn key(&self, name: &str) -> String {
        self.before() + name
    }

    /// The lock whose key this is.
    pub(crate) fn name_in<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.before())
    }

    fn before(&self) -> String {
        match self {
            Self::PythonRedisLock => "lock:".into(),
            Self::Shedlock { environment } => format!("job-lock:{environment}:"),
            Self::Raw | Self::RedisPy | Self::Redsync | Self::NodeRedlock | Self::Rslock => String::new(),
        }
    }

    /// The list on which the other library waits for a lock to be given back.
    pub(crate) fn signal(&self, name: &str) -> Option<String> {
        matches!(self, Self::PythonRedisLock).then(|| format!("lock-signal:{name}"))
    }

    pub(crate) fn pace(&self) -> Pace {
        let pace =
            |pause, turn| Pace { pause: Duration::from_millis(pause), turn: Duration::from_millis(turn) };
        match self {
            Self::RedisPy | Self::Raw => pace(100, 35),
            Self::Redsync => pace(250, 80),
            Self::NodeRedlock => pace(300, 100),
            Self::Rslock => pace(200, 70),
            // Its waiters hear at once, and ours beside them.
            Self::PythonRedisLock => pace(10, 5),
            // It never waits, so there is nobody to leave a gap to.
            Self::Shedlock { .. } => pace(1000, 24 * 3600 * 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_where_the_others_look_for_them() {
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
        assert_eq!(Dialect::PythonRedisLock.signal("a").as_deref(), Some("lock-signal:a"));
        assert_eq!(Dialect::PythonRedisLock.name_in("a"), None);
    }
}
