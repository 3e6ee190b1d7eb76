//! Selects the pending operations of the next flight, for backends that cannot execute every two operations together.

use std::collections::{HashMap, HashSet};

use crate::backend::{BackendInfo, Op};
use crate::name::LockName;
use crate::token::Owner;

/// The number of operations examined per operation that a flight may carry: a long queue for one lock must not make every
/// send slow.
const WINDOW: usize = 4;

impl BackendInfo {
    /// Selects the pending operations of the next flight: the engine's rule, for programs that execute flights without an
    /// engine. Operations beyond the end of the result are not selected.
    pub fn select_for_flight<'a>(&self, waiting: impl Iterator<Item = &'a Op>) -> Vec<bool> {
        match self.may_share {
            None => waiting.take(self.max_batch).map(|_| true).collect(),
            Some(may_share) => select(waiting, self.max_batch, may_share),
        }
    }
}

/// Selects up to `limit` operations, in order, so that each may share a flight with all before it: with those that are
/// selected, and with those that are not and must not be overtaken.
pub(super) fn select<'a>(
    waiting: impl Iterator<Item = &'a Op>,
    limit: usize,
    may_share: fn(&Op, &Op) -> bool,
) -> Vec<bool> {
    let mut by_name: HashMap<&LockName, Vec<&Op>> = HashMap::new();
    let mut owners: HashSet<Owner> = HashSet::new();
    let mut selected = 0;
    waiting
        .take(limit * WINDOW)
        .map_while(|op| {
            (selected < limit).then(|| {
                let is_first_of_its_owner = op.owner().is_none_or(|owner| owners.insert(owner));
                let mut fits = is_first_of_its_owner;
                for name in op.names() {
                    let earlier = by_name.entry(name).or_default();
                    fits &= earlier.iter().all(|earlier| may_share(earlier, op));
                    earlier.push(op);
                }
                selected += usize::from(fits);
                fits
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backend::OnBusy;
    use crate::grant::{Attempt, Mode, Rule, Want};

    fn attempt(names: &[&str]) -> Arc<Attempt> {
        let want = |name: &&str| Want { name: LockName::new(*name).unwrap(), mode: Mode::Exclusive };
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: names.iter().map(want).collect(),
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        })
    }

    fn ask(names: &[&str]) -> Op {
        Op::Acquire { attempt: attempt(names), on_busy: OnBusy::Wait }
    }

    fn check(name: &str) -> Op {
        Op::Check(attempt(&[name]))
    }

    fn checks_share(one: &Op, other: &Op) -> bool {
        matches!((one, other), (Op::Check(_), Op::Check(_)))
    }

    fn selected(ops: &[Op], limit: usize) -> Vec<bool> {
        select(ops.iter(), limit, checks_share)
    }

    #[test]
    fn operations_on_different_locks_leave_together_up_to_the_limit() {
        let ops = [ask(&["a"]), ask(&["b"]), ask(&["c"])];
        assert_eq!(selected(&ops, 8), [true, true, true]);
        assert_eq!(selected(&ops, 2), [true, true]);
    }

    #[test]
    fn what_may_not_share_a_flight_stays_behind() {
        assert_eq!(selected(&[ask(&["a"]), ask(&["a"]), ask(&["b"])], 8), [true, false, true]);
        assert_eq!(selected(&[check("a"), check("a")], 8), [true, true]);
    }

    #[test]
    fn what_was_left_behind_is_not_overtaken() {
        let ops = [ask(&["a"]), ask(&["a", "b"]), check("b"), check("a")];
        assert_eq!(selected(&ops, 8), [true, false, false, false]);
    }

    #[test]
    fn two_operations_of_one_owner_never_share_a_flight() {
        let check = Op::Check(attempt(&["a"]));
        assert_eq!(selected(&[check.clone(), check], 8), [true, false]);
    }
}
