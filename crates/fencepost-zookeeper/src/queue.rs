//! Whose turn it is: the line of a lock from the children of its node. Pure decisions.

use fencepost_contenders::holder_count;
use fencepost_core::{Attempt, Mode, Owner, Result, Rule};

use crate::paths::Node;

/// The children of one lock's node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// The contenders, in the order in which they came.
    nodes: Vec<Node>,
    /// What is no contender.
    others: Vec<String>,
}

/// How one contender stands in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is not there.
    Gone,
    /// It holds the lock.
    Holds,
    /// It waits, and it may be its turn when this one has left.
    Behind(String),
    /// It waits, and it may be its turn when any of those before it has left.
    BehindMany,
}

impl Queue {
    /// The line that these children of a lock's node make.
    pub(crate) fn of<'a>(children: impl IntoIterator<Item = &'a String>) -> Self {
        let (mut nodes, mut others) = (Vec::new(), Vec::new());
        for child in children {
            match Node::parse(child) {
                Some(node) => nodes.push(node),
                None => others.push(child.clone()),
            }
        }
        // Numbers wrap around, so only differences say who came first; the line is far shorter than half of all numbers.
        if let Some(origin) = nodes.first().map(|node| node.sequence) {
            nodes.sort_by_key(|node| node.sequence.wrapping_sub(origin));
        }
        Self { nodes, others }
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The children that are no contenders.
    pub(crate) fn others(&self) -> &[String] {
        &self.others
    }

    /// How many of the first hold the lock.
    pub(crate) fn holding(&self) -> usize {
        holder_count(self.nodes.iter().map(|node| node.mode))
    }

    /// Those that came before this node.
    pub(crate) fn before(&self, called: &str) -> &[Node] {
        let at = self.nodes.iter().position(|node| node.called == called);
        &self.nodes[..at.unwrap_or(0)]
    }

    /// The node of this owner, if names say whose they are.
    pub(crate) fn find(&self, owner: Owner) -> Option<&Node> {
        self.nodes.iter().find(|node| node.owner == Some(owner))
    }

    pub(crate) fn standing(&self, called: &str) -> Standing {
        let Some(at) = self.nodes.iter().position(|node| node.called == called) else {
            return Standing::Gone;
        };
        if at < self.holding() {
            return Standing::Holds;
        }
        let before = &self.nodes[..at];
        let blocker = match self.nodes[at].mode {
            // A reader waits for the last writer before it.
            Mode::Shared => before.iter().rfind(|node| node.mode != Mode::Shared),
            Mode::Semaphore { .. } => None,
            _ => before.last(),
        };
        blocker.map_or(Standing::BehindMany, |node| Standing::Behind(node.called.clone()))
    }
}

/// How an attempt stands in all of its lines together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It holds what it wants; under [`Rule::Any`] this one of its wants.
    Holds(usize),
    /// It waits: how it stands for each want that it does not have.
    Waits(Vec<(usize, Standing)>),
    /// One of its nodes is not there.
    Gone,
}

/// How the attempt stands whose nodes these are, one for each want and its line; a node without a name was given up.
pub(crate) fn verdict(attempt: &Attempt, nodes: &[String], lines: &[Queue]) -> Verdict {
    let all = nodes.iter().zip(lines).enumerate().filter(|(_, (node, _))| !node.is_empty());
    let standings: Vec<(usize, Standing)> =
        all.map(|(at, (node, line))| (at, line.standing(last_of(node)))).collect();
    if standings.is_empty() || standings.iter().any(|(_, standing)| *standing == Standing::Gone) {
        return Verdict::Gone;
    }
    let mut holds = standings.iter().filter(|(_, standing)| *standing == Standing::Holds);
    match attempt.rule {
        Rule::Any => {
            if let Some((at, _)) = holds.next() {
                return Verdict::Holds(*at);
            }
        }
        Rule::All => {
            if holds.count() == standings.len() {
                return Verdict::Holds(0);
            }
        }
    }
    Verdict::Waits(standings.into_iter().filter(|(_, standing)| *standing != Standing::Holds).collect())
}

/// Refuses an attempt that contradicts those who were there before.
pub(crate) fn agree(attempt: &Attempt, nodes: &[String], lines: &[Queue]) -> Result<()> {
    for ((want, node), line) in attempt.wants.iter().zip(nodes).zip(lines) {
        want.agree(line.before(last_of(node)).iter().map(|node| node.mode))?;
    }
    Ok(())
}

/// What a node is called below its parent.
pub(crate) fn last_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(children: &[&str]) -> Queue {
        let children: Vec<String> = children.iter().map(|child| (*child).to_owned()).collect();
        Queue::of(&children)
    }

    fn order(queue: &Queue) -> Vec<i32> {
        queue.nodes().iter().map(|node| node.sequence).collect()
    }

    #[test]
    fn the_line_is_in_the_order_of_the_numbers_whatever_the_dialect() {
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
    fn whoever_is_alone_waits_for_the_one_before_it() {
        let queue = queue(&["lock-0000000001", "lock-0000000002", "lock-0000000003"]);
        assert_eq!(queue.standing("lock-0000000001"), Standing::Holds);
        assert_eq!(queue.standing("lock-0000000003"), Standing::Behind("lock-0000000002".into()));
        assert_eq!(queue.standing("lock-0000000004"), Standing::Gone);
        assert_eq!(queue.before("lock-0000000003").len(), 2);
    }

    #[test]
    fn readers_wait_for_the_last_writer_before_them() {
        let queue = queue(&[
            "shared-lock-0000000001",
            "lock-0000000002",
            "lock-0000000003",
            "shared-lock-0000000004",
            "shared-lock-0000000005",
        ]);
        assert_eq!(queue.standing("shared-lock-0000000001"), Standing::Holds);
        assert_eq!(queue.standing("lock-0000000002"), Standing::Behind("shared-lock-0000000001".into()));
        assert_eq!(queue.standing("shared-lock-0000000005"), Standing::Behind("lock-0000000003".into()));
    }

    #[test]
    fn a_slot_may_become_free_by_anybody() {
        let queue = queue(&["slots2-lock-0000000001", "slots2-lock-0000000002", "slots2-lock-0000000003"]);
        assert_eq!(queue.standing("slots2-lock-0000000002"), Standing::Holds);
        assert_eq!(queue.standing("slots2-lock-0000000003"), Standing::BehindMany);
    }
}
