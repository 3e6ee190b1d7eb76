//! Snapshots and the changes between them, and that the changes are complete.

use proptest::prelude::*;

use super::*;
use crate::grant::Mode;
use crate::token::FencingToken;

const SECOND: Duration = Duration::from_secs(1);

fn holder(token: u64) -> HolderState {
    HolderState {
        token: Some(FencingToken::new(token)),
        mode: Mode::Shared,
        label: format!("holder {token}").into(),
        meta: [].into(),
        ttl: Some(30 * SECOND),
        expires_in: Some(20 * SECOND),
        held_for: Some(5 * SECOND),
    }
}

/// A lock in brief: its holders, the number of waiters, its cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Brief {
    tokens: Vec<u64>,
    waiters: usize,
    cell: Option<u8>,
}

type Briefs = BTreeMap<String, Brief>;

fn cell(byte: u8) -> Cell {
    Cell { token: FencingToken::new(1), bytes: [byte].into() }
}

fn seen(locks: &Briefs) -> LocksByName {
    let state = |(name, brief): (&String, &Brief)| {
        let name = LockName::new(name).unwrap();
        let holders = brief.tokens.iter().copied().map(holder).collect();
        let cell = brief.cell.map(cell);
        (name.clone(), LockState { name, holders, waiters: Vec::new(), waiter_count: brief.waiters, cell })
    };
    locks.iter().map(state).collect()
}

fn snapshot(locks: &[(&str, &[u64], usize, Option<u8>)]) -> Briefs {
    let brief = |(name, tokens, waiters, cell): &(&str, &[u64], usize, Option<u8>)| {
        ((*name).to_owned(), Brief { tokens: tokens.to_vec(), waiters: *waiters, cell: *cell })
    };
    locks.iter().map(brief).collect()
}

fn in_words(change: &Change) -> String {
    match change {
        Change::Held { name, holder } => format!("{name} held {}", holder.token.unwrap()),
        Change::Ended { name, holder, .. } => format!("{name} ended {}", holder.token.unwrap()),
        Change::Waiters { name, count } => format!("{name} line {count}"),
        Change::Cell { name, cell } => {
            format!("{name} cell {:?}", cell.as_ref().map(|cell| cell.bytes.to_vec()))
        }
    }
}

fn told(old: &Briefs, new: &Briefs) -> Vec<String> {
    differences(&seen(old), &seen(new), SECOND).iter().map(in_words).collect()
}

#[test]
fn only_changes_are_reported() {
    let nothing = snapshot(&[]);
    let held = snapshot(&[("a", &[7], 0, None)]);
    let table = [
        (&nothing, nothing.clone(), vec![]),
        (&nothing, held.clone(), vec!["a held 7"]),
        (&held, held.clone(), vec![]),
        (&held, nothing.clone(), vec!["a ended 7"]),
        (&held, snapshot(&[("a", &[8], 0, None)]), vec!["a ended 7", "a held 8"]),
        (&held, snapshot(&[("a", &[7], 2, None)]), vec!["a line 2"]),
        (&held, snapshot(&[("a", &[7, 9], 0, None)]), vec!["a held 9"]),
        (&held, snapshot(&[("a", &[7], 0, Some(1))]), vec!["a cell Some([1])"]),
        (&held, snapshot(&[("b", &[7], 0, None)]), vec!["a ended 7", "b held 7"]),
    ];
    for (old, new, changes) in table {
        assert_eq!(told(old, &new), changes, "{old:?} → {new:?}");
    }
}

#[test]
fn everything_about_a_lock_that_disappears_is_reported() {
    let full = snapshot(&[("a", &[7, 8], 3, Some(1))]);
    assert_eq!(told(&snapshot(&[]), &full), ["a held 7", "a held 8", "a line 3", "a cell Some([1])"]);
    assert_eq!(told(&full, &snapshot(&[])), ["a ended 7", "a ended 8", "a line 0", "a cell None"]);
}

#[test]
fn a_lease_with_time_left_did_not_expire() {
    let (old, new) = (seen(&snapshot(&[("a", &[7], 0, None)])), LocksByName::new());
    for (elapsed, left) in
        [(SECOND, 19 * SECOND), (20 * SECOND, Duration::ZERO), (60 * SECOND, Duration::ZERO)]
    {
        match &differences(&old, &new, elapsed)[..] {
            [Change::Ended { lease_left, holder, .. }] => {
                assert_eq!((*lease_left, holder.held_for), (left, Some(5 * SECOND)));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Applies the changes, as a watcher would.
fn apply(mut locks: Briefs, changes: &[Change]) -> Briefs {
    for change in changes {
        let (Change::Held { name, .. }
        | Change::Ended { name, .. }
        | Change::Waiters { name, .. }
        | Change::Cell { name, .. }) = change;
        let brief = locks.entry(name.as_str().to_owned()).or_default();
        match change {
            Change::Held { holder, .. } => brief.tokens.push(holder.token.unwrap().get()),
            Change::Ended { holder, .. } => {
                brief.tokens.retain(|token| *token != holder.token.unwrap().get());
            }
            Change::Waiters { count, .. } => brief.waiters = *count,
            Change::Cell { cell, .. } => brief.cell = cell.as_ref().map(|cell| cell.bytes[0]),
        }
    }
    locks.retain(|_, brief| *brief != Brief::default());
    for brief in locks.values_mut() {
        brief.tokens.sort_unstable();
    }
    locks
}

fn any_snapshot() -> impl Strategy<Value = Briefs> {
    let tokens = proptest::collection::btree_set(0..6u64, 0..4);
    let brief = (tokens, 0..3usize, proptest::option::of(0..2u8));
    let brief = brief.prop_map(|(tokens, waiters, cell)| Brief {
        tokens: tokens.into_iter().collect(),
        waiters,
        cell,
    });
    proptest::collection::btree_map("[a-d]", brief, 0..4).prop_map(|locks| apply(locks, &[]))
}

proptest! {
    #[test]
    fn changes_lead_from_the_old_snapshot_to_the_new(old in any_snapshot(), new in any_snapshot()) {
        let changes = differences(&seen(&old), &seen(&new), SECOND);
        prop_assert_eq!(apply(old, &changes), new);
    }

    #[test]
    fn a_new_holder_is_reported_after_the_end_of_the_last_one(
        old in any_snapshot(), new in any_snapshot()
    ) {
        let changes = differences(&seen(&old), &seen(&new), SECOND);
        let mut held_before = std::collections::BTreeSet::new();
        for change in &changes {
            match change {
                Change::Held { name, .. } => { held_before.insert(name.clone()); }
                Change::Ended { name, .. } => prop_assert!(!held_before.contains(name)),
                _ => {}
            }
        }
    }
}
