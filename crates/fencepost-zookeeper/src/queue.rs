//! The queue of a lock, from the children of its node: who holds and who waits. Pure decisions.

use fencepost_contenders::holder_count;
use fencepost_core::{Attempt, Mode, Owner, Result, Rule};

use crate::layout::Node;

/// The children of one lock's node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// The contenders, in queue order.
    nodes: Vec<Node>,
    /// The children that are not contenders.
    non_contenders: Vec<String>,
}

/// The position of one contender in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Its node does not exist.
    Missing,
    /// It holds the lock.
    Holds,
    /// It waits; the deletion of this node may make it a holder.
    Behind(String),
    /// It waits; the deletion of any node ahead of it may make it a holder.
    BehindMany,
}

impl Queue {
    /// Returns the queue that these children of a lock's node form.
    pub(crate) fn from_children<'a>(children: impl IntoIterator<Item = &'a String>) -> Self {
        let (mut nodes, mut non_contenders) = (Vec::new(), Vec::new());
        for child in children {
            match Node::parse(child) {
                Some(node) => nodes.push(node),
                None => non_contenders.push(child.clone()),
            }
        }
        // Sequence numbers wrap around, so only their differences order them; a queue is far shorter than half of their
        // range.
        if let Some(origin) = nodes.first().map(|node| node.sequence) {
            nodes.sort_by_key(|node| node.sequence.wrapping_sub(origin));
        }
        Self { nodes, non_contenders }
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn non_contenders(&self) -> &[String] {
        &self.non_contenders
    }

    /// Returns how many contenders at the front hold the lock.
    pub(crate) fn holder_count(&self) -> usize {
        holder_count(self.nodes.iter().map(|node| node.mode))
    }

    /// Returns the contenders ahead of this node.
    pub(crate) fn ahead_of(&self, name: &str) -> &[Node] {
        let at = self.nodes.iter().position(|node| node.name == name);
        &self.nodes[..at.unwrap_or(0)]
    }

    /// Returns the node of this owner, if its name contains the owner.
    pub(crate) fn find(&self, owner: Owner) -> Option<&Node> {
        self.nodes.iter().find(|node| node.owner == Some(owner))
    }

    pub(crate) fn position(&self, name: &str) -> Position {
        let Some(at) = self.nodes.iter().position(|node| node.name == name) else {
            return Position::Missing;
        };
        if at < self.holder_count() {
            return Position::Holds;
        }
        let before = &self.nodes[..at];
        let blocker = match self.nodes[at].mode {
            // A reader waits for the last writer ahead of it.
            Mode::Shared => before.iter().rfind(|node| node.mode != Mode::Shared),
            Mode::Semaphore { .. } => None,
            _ => before.last(),
        };
        blocker.map_or(Position::BehindMany, |node| Position::Behind(node.name.clone()))
    }
}

/// The position of an attempt in all of its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptPosition {
    /// It holds its locks; under [`Rule::Any`] the lock of this want.
    Holds(usize),
    /// It waits: its position for each want that it does not hold.
    Waits(Vec<(usize, Position)>),
    /// One of its nodes does not exist.
    Missing,
}

/// Returns the position of an attempt from its nodes and queues, one for each want. An empty path belongs to a lock
/// that was not chosen.
pub(crate) fn attempt_position(attempt: &Attempt, nodes: &[String], queues: &[Queue]) -> AttemptPosition {
    let all = nodes.iter().zip(queues).enumerate().filter(|(_, (node, _))| !node.is_empty());
    let positions: Vec<(usize, Position)> =
        all.map(|(at, (node, queue))| (at, queue.position(last_segment(node)))).collect();
    if positions.is_empty() || positions.iter().any(|(_, position)| *position == Position::Missing) {
        return AttemptPosition::Missing;
    }
    let mut holds = positions.iter().filter(|(_, position)| *position == Position::Holds);
    match attempt.rule {
        Rule::Any => {
            if let Some((at, _)) = holds.next() {
                return AttemptPosition::Holds(*at);
            }
        }
        Rule::All => {
            if holds.count() == positions.len() {
                return AttemptPosition::Holds(0);
            }
        }
    }
    AttemptPosition::Waits(
        positions.into_iter().filter(|(_, position)| *position != Position::Holds).collect(),
    )
}

/// Rejects an attempt whose mode contradicts the contenders ahead of it.
pub(crate) fn check_modes(attempt: &Attempt, nodes: &[String], queues: &[Queue]) -> Result<()> {
    for ((want, node), queue) in attempt.wants.iter().zip(nodes).zip(queues) {
        want.agree(queue.ahead_of(last_segment(node)).iter().map(|node| node.mode))?;
    }
    Ok(())
}

/// Returns the last segment of a path: the node's own name.
pub(crate) fn last_segment(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(children: &[&str]) -> Queue {
        let children: Vec<String> = children.iter().map(|child| (*child).to_owned()).collect();
        Queue::from_children(&children)
    }

    fn order(queue: &Queue) -> Vec<i32> {
        queue.nodes().iter().map(|node| node.sequence).collect()
    }

    #[test]
    fn the_queue_is_in_sequence_order_in_all_dialects() {
        let queue = queue(&[
            "_c_ffffffff-ffff-ffff-ffff-ffffffffffff-lock-0000000002",
            "not a contender",
            "00000000000000000000000000000000__lock__0000000003",
            "lock-0000000001",
        ]);
        assert_eq!(order(&queue), [1, 2, 3]);
    }

    #[test]
    fn numbers_wrap_around() {
        let wrapped = ["lock--2147483648", "lock-2147483647", "lock--2147483647", "lock-2147483646"];
        for turn in 0..wrapped.len() {
            let mut children = wrapped;
            children.rotate_left(turn);
            assert_eq!(order(&queue(&children)), [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1]);
        }
    }

    #[test]
    fn an_exclusive_waiter_waits_for_the_node_ahead_of_it() {
        let queue = queue(&["lock-0000000001", "lock-0000000002", "lock-0000000003"]);
        assert_eq!(queue.position("lock-0000000001"), Position::Holds);
        assert_eq!(queue.position("lock-0000000003"), Position::Behind("lock-0000000002".into()));
        assert_eq!(queue.position("lock-0000000004"), Position::Missing);
        assert_eq!(queue.ahead_of("lock-0000000003").len(), 2);
    }

    #[test]
    fn readers_wait_for_the_last_writer_ahead_of_them() {
        let queue = queue(&[
            "shared-lock-0000000001",
            "lock-0000000002",
            "lock-0000000003",
            "shared-lock-0000000004",
            "shared-lock-0000000005",
        ]);
        assert_eq!(queue.position("shared-lock-0000000001"), Position::Holds);
        assert_eq!(queue.position("lock-0000000002"), Position::Behind("shared-lock-0000000001".into()));
        assert_eq!(queue.position("shared-lock-0000000005"), Position::Behind("lock-0000000003".into()));
    }

    #[test]
    fn any_holder_may_free_a_permit() {
        let queue = queue(&["slots2-lock-0000000001", "slots2-lock-0000000002", "slots2-lock-0000000003"]);
        assert_eq!(queue.position("slots2-lock-0000000002"), Position::Holds);
        assert_eq!(queue.position("slots2-lock-0000000003"), Position::BehindMany);
    }
}
