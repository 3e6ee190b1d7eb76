//! Where things are in the tree, and how the nodes of a line are name in each dialect.

use fencepost_core::{LockName, Mode, Owner};

use crate::config::Dialect;
use crate::node_name::{RESERVED_NODE, encode};

/// The places of one chroot.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Absolute, without a slash at its end; empty for the root itself.
    chroot: String,
}

impl Layout {
    pub(crate) fn new(chroot: &str) -> Self {
        Self { chroot: chroot.trim_end_matches('/').to_owned() }
    }

    /// The node that has all locks below it.
    pub(crate) fn locks(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// The node whose children contend for this lock.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.chroot, encode(name.as_str()))
    }

    /// What says which storage this is.
    pub(crate) fn about(&self) -> String {
        format!("{}/{RESERVED_NODE}/about", self.chroot)
    }

    /// The node that has all kept cells below it.
    pub(crate) fn cells(&self) -> String {
        format!("{}/{RESERVED_NODE}/cells2", self.chroot)
    }

    /// The kept cells of format 1.
    pub(crate) fn old_cells(&self) -> String {
        format!("{}/{RESERVED_NODE}/cells", self.chroot)
    }

    /// The kept cell of this lock.
    pub(crate) fn cell(&self, name: &LockName) -> String {
        format!("{}/{}", self.cells(), encode(name.as_str()))
    }

    /// The node that has a node of every session below it.
    pub(crate) fn sessions(&self) -> String {
        format!("{}/{RESERVED_NODE}/sessions2", self.chroot)
    }

    /// Where clients of format 1 have the nodes of their sessions. They hold nothing without one.
    pub(crate) fn old_sessions(&self) -> String {
        format!("{}/{RESERVED_NODE}/sessions", self.chroot)
    }

    /// Where a session writes when it was renewed.
    pub(crate) fn session(&self, id: i64) -> String {
        format!("{}/{id:x}", self.sessions())
    }

    /// The node that has a node below it for every grant that was broken and does not know yet.
    pub(crate) fn break_notices(&self) -> String {
        format!("{}/{RESERVED_NODE}/broken", self.chroot)
    }

    /// What tells an owner that its grant was broken.
    pub(crate) fn break_notice(&self, owner: Owner) -> String {
        format!("{}/{}", self.break_notices(), owner.to_hex())
    }

    /// Every node that must be there, parents first.
    pub(crate) fn base_nodes(&self) -> Vec<String> {
        let slashes = self.chroot.match_indices('/').map(|(at, _)| at).skip(1);
        let mut nodes: Vec<String> = slashes.map(|at| self.chroot[..at].to_owned()).collect();
        nodes.extend((!self.chroot.is_empty()).then(|| self.chroot.clone()));
        nodes.push(format!("{}/{RESERVED_NODE}", self.chroot));
        nodes.extend([self.cells(), self.sessions(), self.break_notices()]);
        nodes
    }
}

/// What the node of this owner is name, up to the number that the server gives it.
pub(crate) fn stem(dialect: Dialect, owner: Owner, mode: Mode) -> String {
    let kind = match mode {
        Mode::Shared => "shared".to_owned(),
        Mode::Semaphore { permits } => format!("slots{permits}"),
        _ => String::new(),
    };
    let dashed = if kind.is_empty() { String::new() } else { format!("{kind}-") };
    match dialect {
        Dialect::Curator => format!("_c_{}-{dashed}lock-", uuid(owner)),
        Dialect::Kazoo if kind.is_empty() => format!("{}__lock__", owner.to_hex()),
        Dialect::Kazoo => format!("{}-{kind}__lock__", owner.to_hex()),
        Dialect::Plain => format!("{dashed}lock-"),
    }
}

/// An owner as others write their ids.
fn uuid(owner: Owner) -> String {
    let hex = owner.to_hex();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// One contender's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// What it is name, without its parent.
    pub(crate) name: String,
    /// The number that the server gave it.
    pub(crate) sequence: i32,
    /// How it wants the lock; others want it alone.
    pub(crate) mode: Mode,
    /// Whose it is, if its name says so.
    pub(crate) owner: Option<Owner>,
}

impl Node {
    /// The contender of this node, in whatever dialect; nothing if it is none.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let markers = ["lock-", "__lock__"].into_iter();
        let (kind, number) =
            markers.filter_map(|marker| split_last(name, marker)).max_by_key(|(kind, _)| kind.len())?;
        // Ten digits; a number that has wrapped around begins with a minus, which is one of the ten if there is room.
        let digits = number.strip_prefix('-').unwrap_or(number);
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || number.len() < 10 || digits.len() > 10 {
            return None;
        }
        let sequence = number.parse().ok()?;
        let (mode, rest) = split_kind(kind.trim_end_matches('-'));
        let id = rest.trim_end_matches('-').trim_start_matches("_c_").replace('-', "");
        Some(Self { name: name.to_owned(), sequence, mode, owner: Owner::from_hex(&id) })
    }
}

impl Node {
    /// The dialect in which it is named.
    pub(crate) fn dialect(&self) -> Dialect {
        match () {
            () if self.name.contains("__lock__") => Dialect::Kazoo,
            () if self.name.starts_with("_c_") => Dialect::Curator,
            () => Dialect::Plain,
        }
    }
}

fn split_last<'a>(text: &'a str, marker: &str) -> Option<(&'a str, &'a str)> {
    text.rfind(marker).map(|at| (&text[..at], &text[at + marker.len()..]))
}

/// How a node wants the lock, and what stands before the word that says so.
fn split_kind(text: &str) -> (Mode, &str) {
    let (rest, word) = text.rsplit_once('-').unwrap_or(("", text));
    if word == "shared" {
        return (Mode::Shared, rest);
    }
    let slots = word.strip_prefix("slots").and_then(|of| of.parse().ok()).filter(|of| *of > 0);
    slots.map_or((Mode::Exclusive, text), |of| (Mode::Semaphore { permits: of }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn places_below_a_chroot_and_without_one() {
        let layout = Layout::new("/apps/locks");
        assert_eq!(
            (layout.locks(), layout.lock(&name("a/b"))),
            ("/apps/locks", "/apps/locks/a%2Fb".to_owned())
        );
        assert_eq!(layout.base_nodes()[..3], ["/apps", "/apps/locks", "/apps/locks/_fencepost"]);
        let root = Layout::new("/");
        assert_eq!((root.locks(), root.lock(&name("a"))), ("/", "/a".to_owned()));
        assert_eq!(root.base_nodes()[0], "/_fencepost");
    }

    #[test]
    fn nodes_are_read_as_they_were_written() {
        let owner = Owner::from_bytes([0xa7; 16]);
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Semaphore { permits: 12 }] {
            for (dialect, said) in
                [(Dialect::Curator, Some(owner)), (Dialect::Kazoo, Some(owner)), (Dialect::Plain, None)]
            {
                for (number, sequence) in [("0000000007", 7), ("-2147483648", i32::MIN), ("-000000005", -5)] {
                    let name = format!("{}{number}", stem(dialect, owner, mode));
                    let node = Node::parse(&name).unwrap();
                    assert_eq!((node.sequence, node.mode, node.owner), (sequence, mode, said), "{name}");
                }
            }
        }
    }

    #[test]
    fn nodes_of_others_are_contenders_too() {
        for name in [
            "_c_0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-lock-0000000003",
            "_c_0f1e2d3c4b5a69788796a5b4c3d2e1f0-lock-0000000003",
            "0f1e2d3c4b5a69788796a5b4c3d2e1f0__lock__0000000003",
            "lock-0000000003",
            "x-slots-lock-0000000003",
        ] {
            let node = Node::parse(name).unwrap();
            assert_eq!((node.sequence, node.mode), (3, Mode::Exclusive), "{name}");
        }
        for name in
            ["", "lock-", "lock-3", "lease-0000000003", "clock_0000000003", "lock-9999999999", "ä-000000000"]
        {
            assert_eq!(Node::parse(name), None, "{name}");
        }
    }
}
