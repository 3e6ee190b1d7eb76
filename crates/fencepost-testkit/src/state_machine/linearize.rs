//! Decides whether there is an order of the concurrent operations in which the model replies as the backend did.

use fencepost_core::Error;
use fencepost_core::backend::{LockState, Reply};

use super::Machine;
use super::model::World;
use super::step::Step;

/// The number of differences that are shown.
const SHOWN: usize = 12;

/// A step and its reply, unless it is only the first half of an operation.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) step: Step,
    pub(super) reply: Option<Result<Reply, Error>>,
    /// The calls that took effect before this one, one bit each.
    pub(super) behind: u32,
}

/// Returns the calls of one flight, which are numbered from `first`.
///
/// With `creates_entries_before_reading` the entry of an attempt is visible before its acquire is decided: that is a
/// separate call.
pub(super) fn calls_of(
    operations: impl Iterator<Item = (Step, Result<Reply, Error>)>,
    first: usize,
    is_ordered: bool,
    creates_entries_before_reading: bool,
) -> Vec<Call> {
    let mut calls = Vec::new();
    for (step, reply) in operations {
        let before = |calls: &Vec<Call>| (1 << (first + calls.len())) - (1 << first);
        let mut behind = if is_ordered { before(&calls) } else { 0 };
        if let (true, Step::Acquire { id, .. }) = (creates_entries_before_reading, &step) {
            calls.push(Call { step: Step::CreateEntry(*id), reply: None, behind });
            behind |= 1 << (first + calls.len() - 1);
        }
        calls.push(Call { step, reply: Some(reply), behind });
    }
    calls
}

impl Machine {
    /// Returns every world that the calls of one round may have led to and that explains what is observed afterwards.
    ///
    /// All orders are followed at once, call by call: orders that lead to the same state with the same calls done are
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
                if self.agrees(&mut world, &answer, call.reply.as_ref()) {
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

#[cfg(test)]
mod tests {
    use fencepost_core::backend::OnBusy;

    use super::*;

    fn behind(is_ordered: bool, creates_entries_before_reading: bool) -> Vec<u32> {
        let operations = [
            (Step::Read { name: 0 }, Ok(Reply::Cell(None))),
            (Step::Acquire { id: 0, on_busy: OnBusy::Return }, Ok(Reply::Busy)),
            (Step::Check(1), Ok(Reply::NoTicket)),
        ];
        let calls = calls_of(operations.into_iter(), 1, is_ordered, creates_entries_before_reading);
        calls.iter().map(|call| call.behind).collect()
    }

    #[test]
    fn calls_of_a_flight_are_in_order_if_the_backend_executes_them_so() {
        assert_eq!(behind(true, false), [0, 0b10, 0b110]);
        assert_eq!(behind(false, false), [0, 0, 0]);
    }

    #[test]
    fn an_acquire_is_decided_after_its_entry_was_seen() {
        assert_eq!(behind(true, true), [0, 0b10, 0b110, 0b1110]);
        assert_eq!(behind(false, true), [0, 0, 0b100, 0]);
    }
}
