//! Whether there is an order of the operations that were in the air together in which the model answers as the backend did.

use fencepost_core::Error;
use fencepost_core::backend::{LockState, Reply};

use super::Machine;
use super::model::World;
use super::step::Step;

/// How many differences are shown.
const SHOWN: usize = 12;

/// An operation and what it was answered.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) step: Step,
    pub(super) reply: Result<Reply, Error>,
    /// Those of the calls that took effect before it, a bit for each.
    pub(super) behind: u32,
}

impl Machine {
    /// Returns every world that the calls of one wave may have led to and that explains what is seen afterwards.
    ///
    /// All orders are followed at once, a call after the other: what leads to the same state with the same calls done is
    /// followed once.
    pub(super) fn linearize(&self, calls: &[Call], seen: &[LockState]) -> Result<Vec<World>, String> {
        let mut reached: Vec<(u32, World)> = self.worlds.iter().map(|world| (0, world.clone())).collect();
        for _ in calls {
            let (mut next, mut differences) = (Vec::new(), Vec::new());
            for (done, world) in &reached {
                self.follow(calls, *done, world, &mut next, &mut differences);
            }
            if next.is_empty() {
                return Err(listed(differences));
            }
            reached = next;
        }
        let (mut worlds, mut differences) = (Vec::new(), Vec::new());
        for (_, mut world) in reached {
            match self.explains(&mut world, seen) {
                Ok(()) => insert(&mut worlds, world),
                Err(difference) => differences.push(difference),
            }
        }
        if worlds.is_empty() { Err(listed(differences)) } else { Ok(worlds) }
    }

    /// Adds every state to `next` that one more call may lead to.
    fn follow(
        &self,
        calls: &[Call],
        done: u32,
        world: &World,
        next: &mut Vec<(u32, World)>,
        differences: &mut Vec<String>,
    ) {
        for (at, call) in calls.iter().enumerate() {
            let is_done = done & (1 << at) != 0;
            if is_done || done & call.behind != call.behind {
                continue;
            }
            for (mut world, answer) in world.after(&self.asks, &call.step) {
                if self.agrees(&mut world, &answer, &call.reply) {
                    insert(next, (done | 1 << at, world.normal(&self.asks)));
                } else {
                    differences.push(format!("{:?} should be answered {answer:?}", call.step));
                }
            }
        }
    }
}

fn insert<T: PartialEq>(set: &mut Vec<T>, item: T) {
    if !set.contains(&item) {
        set.push(item);
    }
}

fn listed(mut differences: Vec<String>) -> String {
    differences.sort();
    differences.dedup();
    differences.truncate(SHOWN);
    differences.join("\nor ")
}
