//! Which key is what: every attempt has a key of its own under the name of the lock, and whatever is not a contender lives
//! elsewhere.

use fencepost_contenders::EntryMeta;
use fencepost_core::{LockName, Mode, Owner, Want};

use crate::config::Layout;
use crate::proto::KeyValue;

/// Where everything is.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: String,
    pub(crate) layout: Layout,
}

/// A stretch of keys: from the first to before the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

/// What a key of a contender says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
}

impl Keys {
    pub(crate) fn new(namespace: &str, layout: Layout) -> Self {
        Self { namespace: namespace.to_owned(), layout }
    }

    /// Whether a name would be among our own keys, in layouts where locks are not below the namespace.
    pub(crate) fn is_ours(&self, name: &LockName) -> bool {
        let (name, namespace) = (name.as_str(), self.namespace.as_str());
        let is_within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self.layout {
            Layout::Own => false,
            // What is below its name is its line.
            Layout::Raw => is_within(name, namespace) || is_within(namespace, name),
            Layout::Single => is_within(name, namespace),
        }
    }

    /// What the storage says about itself.
    pub(crate) fn about(&self) -> Vec<u8> {
        format!("{}/about", self.namespace).into_bytes()
    }

    /// The cell of a lock.
    pub(crate) fn cell(&self, name: &LockName) -> Vec<u8> {
        format!("{}/cell/{}", self.namespace, encoded(name)).into_bytes()
    }

    /// All cells of locks whose names begin with this.
    pub(crate) fn cells(&self, prefix: &str) -> Stretch {
        Stretch::of(format!("{}/cell/{}", self.namespace, escaped(prefix)))
    }

    /// Returns the tombstone of an owner: while it exists, an acquire of this owner on this lease does nothing.
    pub(crate) fn left(&self, owner: Owner, lease: i64) -> Vec<u8> {
        format!("{}/left/{}/{lease:x}", self.namespace, owner.to_hex()).into_bytes()
    }

    fn line_of(&self, name: &LockName) -> String {
        match self.layout {
            Layout::Own => format!("{}/lock/{}/", self.namespace, encoded(name)),
            Layout::Raw => format!("{name}/"),
            Layout::Single => name.to_string(),
        }
    }

    /// All who contend for a lock.
    pub(crate) fn line(&self, name: &LockName) -> Stretch {
        match self.layout {
            Layout::Own | Layout::Raw => Stretch::of(self.line_of(name)),
            Layout::Single => Stretch::alone(name.as_str()),
        }
    }

    /// All who contend for locks whose names begin with this.
    pub(crate) fn lines(&self, prefix: &str) -> Stretch {
        if self.layout != Layout::Own {
            return Stretch::of(prefix);
        }
        Stretch::of(format!("{}/lock/{}", self.namespace, escaped(prefix)))
    }

    /// The key of one contender, whose seat is called like this.
    pub(crate) fn seat(&self, want: &Want, called: &str) -> Vec<u8> {
        let line = self.line_of(&want.name);
        let key = match self.layout {
            Layout::Own => format!("{line}{}/{called}", want.mode.to_word()),
            Layout::Raw => line + called,
            Layout::Single => line,
        };
        key.into_bytes()
    }

    /// The contenders for a lock that keep a try in this mode from succeeding, if that can be said by where they are.
    pub(crate) fn in_the_way(&self, want: &Want) -> Option<Stretch> {
        match want.mode {
            Mode::Shared => Some(Stretch::of(self.line_of(&want.name) + "x/")),
            Mode::Semaphore { .. } => None,
            _ => Some(self.line(&want.name)),
        }
    }

    /// The contenders for a lock that decide, by coming earlier, whether an attempt holds it.
    pub(crate) fn ahead_of(&self, want: &Want) -> Stretch {
        self.in_the_way(want).unwrap_or_else(|| self.line(&want.name))
    }

    /// The contenders for a lock who use it as something else.
    pub(crate) fn contradicting(&self, want: &Want) -> Vec<Stretch> {
        if self.layout != Layout::Own {
            return Vec::new();
        }
        let line = self.line_of(&want.name);
        match want.mode {
            Mode::Semaphore { .. } => {
                let all = Stretch::of(line.clone());
                let same = Stretch::of(format!("{line}{}/", want.mode.to_word()));
                vec![Stretch { from: all.from, to: same.from }, Stretch { from: same.to, to: all.to }]
            }
            _ => vec![Stretch::of(line + "n")],
        }
    }

    /// What a contender's key says. In the layouts of others every key is one that wants the lock alone.
    pub(crate) fn read(&self, key: &[u8]) -> Option<Seat> {
        let key = std::str::from_utf8(key).ok()?;
        let foreign = match self.layout {
            Layout::Own => None,
            Layout::Raw => Some(key.rsplit_once('/')?.0),
            Layout::Single => Some(key),
        };
        if let Some(name) = foreign {
            return Some(Seat { name: LockName::new(name).ok()?, mode: Mode::Exclusive });
        }
        let rest = key.strip_prefix(&self.namespace)?.strip_prefix("/lock/")?;
        let mut parts = rest.split('/');
        let name = LockName::new(decoded(parts.next()?)?).ok()?;
        Some(Seat { name, mode: parts.next().and_then(Mode::from_word).unwrap_or(Mode::Exclusive) })
    }

    /// Returns how the contender with this key wants its lock.
    pub(crate) fn mode_of(&self, key: &KeyValue) -> Mode {
        self.read(&key.key).map_or(Mode::Exclusive, |seat| seat.mode)
    }

    /// The lock whose cell this is.
    pub(crate) fn read_cell(&self, key: &[u8]) -> Option<LockName> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.namespace)?.strip_prefix("/cell/")?;
        LockName::new(decoded(rest)?).ok()
    }
}

impl Stretch {
    /// Nothing but this key.
    fn alone(key: &str) -> Self {
        Self { from: key.into(), to: [key.as_bytes(), &[0]].concat() }
    }

    fn of(prefix: impl Into<Vec<u8>>) -> Self {
        let from = prefix.into();
        let mut to = from.clone();
        while let Some(last) = to.pop() {
            if last < u8::MAX {
                to.push(last + 1);
                return Self { from, to };
            }
        }
        // Everything: etcd's way to say it.
        Self { from: if from.is_empty() { vec![0] } else { from }, to: vec![0] }
    }
}

/// Returns whether a key that was found in an attempt's seat is its own, although it is not known what created it. Others may
/// have had the seat before: its value tells.
pub(crate) fn is_own(key: &KeyValue, owner: Owner) -> bool {
    EntryMeta::from_bytes(&key.value).is_some_and(|entry_meta| entry_meta.owner == owner)
}

/// A name without the two characters that mean something in a key, so that no lock is inside another.
fn encoded(name: &LockName) -> String {
    escaped(name.as_str())
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}

fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        name.push(match code {
            "25" => '%',
            "2F" => '/',
            _ => return None,
        });
        name.push_str(rest);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(name: &str, mode: Mode) -> Want {
        Want { name: LockName::new(name).unwrap(), mode }
    }

    fn contains(stretch: &Stretch, key: &[u8]) -> bool {
        stretch.from.as_slice() <= key && key < stretch.to.as_slice()
    }

    /// Scenario 40, and names that look like parts of a key.
    #[test]
    fn no_lock_is_inside_another() {
        let keys = Keys::new("fencepost", Layout::Own);
        let names = ["a", "a/b", "a%2Fb", "a/x/0", "about", "%", "/", "\u{10ffff}", "a0", "a%25"];
        for name in names {
            let mine = want(name, Mode::Exclusive);
            let seat = keys.seat(&mine, "1f-0");
            assert_eq!(keys.read(&seat), Some(Seat { name: mine.name.clone(), mode: mine.mode }));
            for other in names {
                let line = keys.line(&want(other, Mode::Exclusive).name);
                assert_eq!(contains(&line, &seat), name == other, "{name:?} in {other:?}");
            }
            assert_eq!(keys.read_cell(&keys.cell(&mine.name)), Some(mine.name));
        }
    }

    #[test]
    fn who_contradicts_whom() {
        let keys = Keys::new("n", Layout::Own);
        let modes = [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Semaphore { permits: 1 },
            Mode::Semaphore { permits: 2 },
            Mode::Semaphore { permits: 10 },
            Mode::Semaphore { permits: 11 },
        ];
        for mine in modes {
            for there in modes {
                let seat = keys.seat(&want("a", there), "1f-0");
                let stretches = keys.contradicting(&want("a", mine));
                let found = stretches.iter().any(|stretch| contains(stretch, &seat));
                assert_eq!(found, !mine.agrees_with(there), "{mine} and {there}");
            }
        }
    }

    #[test]
    fn the_official_recipe_finds_our_keys() {
        let keys = Keys::new("n", Layout::Raw);
        let mine = want("jobs/a", Mode::Exclusive);
        let seat = keys.seat(&mine, "1f-0");
        assert_eq!(seat, b"jobs/a/1f-0");
        assert_eq!(keys.read(b"jobs/a/694d7c1f"), Some(Seat { name: mine.name.clone(), mode: mine.mode }));
        assert!(contains(&keys.line(&mine.name), &seat));
        let deep = Keys::new("team/a", Layout::Raw);
        for (name, is_ours) in
            [("team", true), ("team/a", true), ("team/a/x", true), ("tea", false), ("team/b", false)]
        {
            assert_eq!(deep.is_ours(&LockName::new(name).unwrap()), is_ours, "{name}");
        }
    }

    #[test]
    fn one_key_is_the_whole_line() {
        let keys = Keys::new("n", Layout::Single);
        let mine = want("jobs/a", Mode::Exclusive);
        assert_eq!(keys.seat(&mine, "1f-0"), b"jobs/a");
        assert!(contains(&keys.line(&mine.name), b"jobs/a"));
        assert!(!contains(&keys.line(&mine.name), b"jobs/ab"));
        assert!(keys.is_ours(&LockName::new("n/about").unwrap()) && !keys.is_ours(&mine.name));
    }
}
