//! The layout of the chroot: the paths of all nodes, and the names of contenders' nodes in each dialect.

use fencepost_core::{LockName, Mode, Owner};

use crate::config::Dialect;
use crate::node_name::{RESERVED_NODE, encode};

/// The paths of the nodes of one chroot.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Absolute, without a trailing slash; empty for the root.
    chroot: String,
}

impl Layout {
    pub(crate) fn new(chroot: &str) -> Self {
        Self { chroot: chroot.trim_end_matches('/').to_owned() }
    }

    /// Returns the parent of all lock nodes.
    pub(crate) fn locks(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// Returns the node of this lock, the parent of its contenders.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.chroot, encode(name.as_str()))
    }

    /// Returns the node with format and storage id.
    pub(crate) fn about(&self) -> String {
        format!("{}/{RESERVED_NODE}/about", self.chroot)
    }

    /// Returns the parent of all persistent cells.
    pub(crate) fn cells(&self) -> String {
        format!("{}/{RESERVED_NODE}/cells2", self.chroot)
    }

    /// Returns the parent of the persistent cells of format 1.
    pub(crate) fn format_1_cells(&self) -> String {
        format!("{}/{RESERVED_NODE}/cells", self.chroot)
    }

    /// Returns the node of this lock's persistent cell.
    pub(crate) fn cell(&self, name: &LockName) -> String {
        format!("{}/{}", self.cells(), encode(name.as_str()))
    }

    /// Returns the parent of the session nodes.
    pub(crate) fn sessions(&self) -> String {
        format!("{}/{RESERVED_NODE}/sessions2", self.chroot)
    }

    /// Returns the parent of the session nodes of format 1. Clients of format 1 hold nothing without such a node.
    pub(crate) fn format_1_sessions(&self) -> String {
        format!("{}/{RESERVED_NODE}/sessions", self.chroot)
    }

    /// Returns the node of this session, whose mtime is the last renewal.
    pub(crate) fn session(&self, id: i64) -> String {
        format!("{}/{id:x}", self.sessions())
    }

    /// Returns the parent of the notices for owners whose grants were broken.
    pub(crate) fn break_notices(&self) -> String {
        format!("{}/{RESERVED_NODE}/broken", self.chroot)
    }

    /// Returns the notice that tells this owner that its grant was broken.
    pub(crate) fn break_notice(&self, owner: Owner) -> String {
        format!("{}/{}", self.break_notices(), owner.to_hex())
    }

    /// Returns all base nodes, parents first.
    pub(crate) fn base_nodes(&self) -> Vec<String> {
        let slashes = self.chroot.match_indices('/').map(|(at, _)| at).skip(1);
        let mut nodes: Vec<String> = slashes.map(|at| self.chroot[..at].to_owned()).collect();
        nodes.extend((!self.chroot.is_empty()).then(|| self.chroot.clone()));
        nodes.push(format!("{}/{RESERVED_NODE}", self.chroot));
        nodes.extend([self.cells(), self.sessions(), self.break_notices()]);
        nodes
    }
}

/// Returns the name of this owner's node without the sequence number, which the server appends.
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

/// Returns an owner in the notation of a UUID, as Curator writes its ids.
fn uuid(owner: Owner) -> String {
    let hex = owner.to_hex();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The node of one contender, holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its name, without the parent.
    pub(crate) name: String,
    /// The sequence number that the server appended.
    pub(crate) sequence: i32,
    /// The requested mode; always exclusive for foreign clients.
    pub(crate) mode: Mode,
    /// The owner, if the name contains it.
    pub(crate) owner: Option<Owner>,
}

impl Node {
    /// Parses the name of a contender's node in any dialect. Returns `None` if the node is not a contender.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let markers = ["lock-", "__lock__"].into_iter();
        let (kind, number) =
            markers.filter_map(|marker| split_last(name, marker)).max_by_key(|(kind, _)| kind.len())?;
        // Ten digits. A number that has wrapped around begins with a minus, which is one of the ten characters if there
        // is room.
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

    /// Returns the dialect of the node's name.
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

/// Splits a name into its prefix and the mode given by its last word.
fn split_kind(text: &str) -> (Mode, &str) {
    let (rest, word) = text.rsplit_once('-').unwrap_or(("", text));
    if word == "shared" {
        return (Mode::Shared, rest);
    }
    let permits = word.strip_prefix("slots").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    permits.map_or((Mode::Exclusive, text), |permits| (Mode::Semaphore { permits }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn paths_below_a_chroot_and_below_the_root() {
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
    fn node_names_are_parsed_as_they_were_written() {
        let owner = Owner::from_bytes([0xa7; 16]);
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Semaphore { permits: 12 }] {
            for (dialect, expected_owner) in
                [(Dialect::Curator, Some(owner)), (Dialect::Kazoo, Some(owner)), (Dialect::Plain, None)]
            {
                for (number, sequence) in [("0000000007", 7), ("-2147483648", i32::MIN), ("-000000005", -5)] {
                    let name = format!("{}{number}", stem(dialect, owner, mode));
                    let node = Node::parse(&name).unwrap();
                    assert_eq!(
                        (node.sequence, node.mode, node.owner),
                        (sequence, mode, expected_owner),
                        "{name}"
                    );
                }
            }
        }
    }

    #[test]
    fn nodes_of_foreign_clients_are_contenders_too() {
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
