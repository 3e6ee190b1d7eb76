//! The rules, one situation each.

mod needs;

use std::collections::{BTreeSet, HashSet};
use std::ops::RangeFrom;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::backend::{Keep, OnBusy};
use crate::error::ErrorKind;
use crate::grant::{Attempt, Grant, Mode, Rule, Want};

const TTL: Duration = Duration::from_secs(10);
const LONGER: Duration = Duration::from_secs(30);
const OURS: ClientId = ClientId(1);
const THEIRS: ClientId = ClientId(2);

/// A table of copies of rows, the rows, and the time.
struct Scene {
    table: LockTable,
    rows: HashMap<LockName, (LockRecord, Vec<Ticket>)>,
    numbers: RangeFrom<u64>,
    lost: HashSet<ClientId>,
    now: StorageTime,
}

impl Scene {
    fn new() -> Self {
        Self {
            table: LockTable::of_rows(),
            rows: HashMap::new(),
            numbers: 1..,
            lost: HashSet::new(),
            now: StorageTime::from_nanos(0) + LONGER,
        }
    }

    fn ask<T>(&mut self, client: ClientId, ask: impl FnOnce(&mut LockTable, &mut Context<'_>) -> T) -> T {
        let Self { table, numbers, lost, now, .. } = self;
        let reachable = |client| !lost.contains(&client);
        let mut context = Context { client, now: *now, wall: Duration::ZERO, numbers, reachable: &reachable };
        ask(table, &mut context)
    }

    fn decide(&mut self, client: ClientId, op: &Op) -> Decision<Result<Reply>> {
        self.ask(client, |table, context| table.decide(op, context))
    }

    /// Fetches whole records until there is a decision.
    fn execute(&mut self, client: ClientId, op: &Op) -> Result<Reply> {
        loop {
            match self.decide(client, op) {
                Ok(reply) => return reply,
                Err(Needs::Records(names)) => {
                    for name in &names {
                        self.fetch(name, usize::MAX);
                    }
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// Fetches a record with its first waiters only.
    fn fetch(&mut self, name: &LockName, waiters: usize) {
        let (mut record, mut tickets) = self.rows.get(name).cloned().unwrap_or_default();
        record.unknown_from = tickets.get(waiters).map(|ticket| ticket.seq);
        tickets.truncate(waiters);
        record.queue = tickets.iter().map(|ticket| (ticket.seq, ticket.attempt.owner)).collect();
        self.table.insert(name.clone(), record, tickets);
    }

    fn sweep(&mut self, text: &str) {
        let decision = self.ask(OURS, |table, context| table.sweep(&name(text), context));
        assert_eq!(decision, Ok(()));
    }

    fn acquire(&mut self, client: ClientId, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Reply {
        self.execute(client, &Op::Acquire { attempt: attempt.clone(), on_busy }).unwrap()
    }

    fn hold(&mut self, client: ClientId, attempt: &Arc<Attempt>) -> Grant {
        match self.acquire(client, attempt, OnBusy::Return) {
            Reply::Granted(award) => Grant { attempt: attempt.clone(), award },
            other => panic!("not granted: {other:?}"),
        }
    }

    fn join(&mut self, client: ClientId, attempt: &Arc<Attempt>) -> Duration {
        match self.acquire(client, attempt, OnBusy::Wait) {
            Reply::Waiting { check_after } => check_after,
            other => panic!("not in record: {other:?}"),
        }
    }

    /// Writes every record and forgets it, as when another process has written.
    fn write(&mut self) {
        let ticket = |owner: &Owner| self.table.tickets()[owner].clone();
        let write = |(name, record): (&LockName, &LockRecord)| {
            (name.clone(), (record.clone(), record.queue.values().map(ticket).collect()))
        };
        self.rows = self.table.records().map(write).collect();
        self.table.forget_records();
    }

    /// Everything that a decision can change.
    fn snapshot(&self) -> String {
        let mut records: Vec<_> = self.table.records().map(|record| format!("{record:?}")).collect();
        records.sort();
        let mut tickets: Vec<_> = self.table.tickets().values().map(|ticket| format!("{ticket:?}")).collect();
        tickets.sort();
        format!(
            "{records:?} {tickets:?} {:?} {:?} {:?}",
            self.table.changed(),
            self.table.pushes,
            self.table.tombstones
        )
    }

    fn holders(&self, text: &str) -> Vec<Owner> {
        let record = self.table.record(&name(text));
        record.map(|record| record.holders.iter().map(|holder| holder.owner).collect()).unwrap_or_default()
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn attempt(names: &[&str], mode: Mode, ttl: Duration) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(|text| Want { name: name(text), mode }).collect(),
        rule: Rule::All,
        ttl,
        label: "test".into(),
        meta: [].into(),
    })
}

fn exclusive(names: &[&str]) -> Arc<Attempt> {
    attempt(names, Mode::Exclusive, TTL)
}

#[test]
fn a_hand_over_pushes_to_the_first_waiter_only() {
    let mut scene = Scene::new();
    let (first, second) = (exclusive(&["a"]), exclusive(&["a"]));
    let grant = scene.hold(OURS, &exclusive(&["a"]));
    scene.join(THEIRS, &first);
    scene.join(OURS, &second);
    assert!(scene.table.pushes.is_empty());
    assert_eq!(scene.execute(OURS, &Op::Release(grant)).unwrap(), Reply::Released);
    let pushes = scene.table.take_pushes();
    assert!(
        matches!(pushes[..], [(THEIRS, Wakeup::Granted { ref attempt, .. })] if attempt.owner == first.owner),
        "{pushes:?}"
    );
}

#[test]
fn a_waiter_that_asks_gets_a_reply_and_no_push() {
    let mut scene = Scene::new();
    let waiter = exclusive(&["a"]);
    scene.hold(OURS, &exclusive(&["a"]));
    scene.join(THEIRS, &waiter);
    scene.now = scene.now + TTL;
    let reply = scene.execute(THEIRS, &Op::Check(waiter)).unwrap();
    assert!(matches!(reply, Reply::Granted(_)));
    assert!(scene.table.pushes.is_empty());
}

#[test]
fn a_waiter_that_cannot_be_reached_is_passed_over_and_keeps_its_position() {
    let mut scene = Scene::new();
    let (lost, next) = (exclusive(&["a"]), exclusive(&["a"]));
    let grant = scene.hold(OURS, &exclusive(&["a"]));
    scene.join(THEIRS, &lost);
    scene.join(OURS, &next);
    scene.lost.insert(THEIRS);
    scene.execute(OURS, &Op::Release(grant)).unwrap();
    assert_eq!(scene.holders("a"), [next.owner]);
    // It is reachable again, and first as before.
    scene.join(OURS, &exclusive(&["a"]));
    scene.lost.clear();
    assert!(matches!(scene.execute(THEIRS, &Op::Check(lost.clone())), Ok(Reply::Waiting { .. })));
    let Ok(Reply::Granted(award)) = scene.execute(OURS, &Op::Check(next.clone())) else { panic!("it holds") };
    scene.execute(OURS, &Op::Release(Grant { attempt: next, award })).unwrap();
    assert_eq!(scene.holders("a"), [lost.owner]);
}

#[test]
fn a_release_with_the_token_of_an_earlier_grant_touches_nothing() {
    let mut scene = Scene::new();
    let twice = exclusive(&["a"]);
    let old = scene.hold(OURS, &twice);
    scene.now = scene.now + TTL;
    let new = scene.hold(OURS, &twice);
    assert_eq!(scene.execute(OURS, &Op::Release(old)).unwrap(), Reply::NotHeld);
    assert_eq!(scene.holders("a"), [twice.owner]);
    assert_eq!(scene.execute(OURS, &Op::Release(new)).unwrap(), Reply::Released);
}

#[test]
fn a_waiter_checks_again_when_the_lease_ahead_can_have_ended() {
    let mut scene = Scene::new();
    scene.hold(OURS, &attempt(&["a"], Mode::Exclusive, LONGER));
    assert_eq!(scene.join(OURS, &exclusive(&["a"])), LONGER);
    scene.now = scene.now + TTL / 2;
    // The ticket ahead expires before the holder's lease.
    assert_eq!(scene.join(OURS, &exclusive(&["a"])), LONGER.checked_sub(TTL / 2).unwrap());
}

#[test]
fn a_semaphore_is_checked_when_its_first_permit_can_be_free() {
    let mut scene = Scene::new();
    let two = Mode::Semaphore { permits: 2 };
    scene.hold(OURS, &attempt(&["a"], two, LONGER));
    scene.hold(OURS, &attempt(&["a"], two, TTL));
    assert_eq!(scene.join(OURS, &attempt(&["a"], two, LONGER)), TTL);
    // Behind another waiter it is that waiter's ticket that counts.
    assert_eq!(scene.join(OURS, &attempt(&["a"], two, LONGER)), LONGER);
}

#[test]
fn a_writer_checks_again_when_all_readers_can_have_expired() {
    let mut scene = Scene::new();
    scene.hold(OURS, &attempt(&["a"], Mode::Shared, LONGER));
    scene.hold(OURS, &attempt(&["a"], Mode::Shared, TTL));
    assert_eq!(scene.join(OURS, &exclusive(&["a"])), LONGER);
}

#[test]
fn several_names_are_granted_when_the_last_of_them_is_free() {
    let mut scene = Scene::new();
    let (a, b) = (scene.hold(OURS, &exclusive(&["a"])), scene.hold(OURS, &exclusive(&["b"])));
    let both = exclusive(&["a", "b"]);
    scene.join(THEIRS, &both);
    scene.execute(OURS, &Op::Release(a)).unwrap();
    assert!(scene.holders("a").is_empty());
    assert_eq!(scene.acquire(OURS, &exclusive(&["a"]), OnBusy::Return), Reply::Busy);
    scene.execute(OURS, &Op::Release(b)).unwrap();
    assert_eq!((scene.holders("a"), scene.holders("b")), (vec![both.owner], vec![both.owner]));
}

#[test]
fn a_waiter_for_any_leaves_queues_that_are_not_fetched_yet() {
    let mut scene = Scene::new();
    let a = scene.hold(OURS, &exclusive(&["a"]));
    let b = scene.hold(OURS, &exclusive(&["b"]));
    let mut any = Arc::into_inner(exclusive(&["a", "b"])).unwrap();
    any.rule = Rule::Any;
    let any = Arc::new(any);
    scene.join(THEIRS, &any);
    scene.write();
    scene.execute(OURS, &Op::Release(a)).unwrap();
    assert_eq!(scene.holders("a"), [any.owner]);
    assert!(scene.table.tickets().is_empty(), "it waits although it was granted");
    scene.execute(OURS, &Op::Release(b)).unwrap();
    assert!(scene.holders("b").is_empty());
}

#[test]
fn a_change_is_reported_once() {
    let mut scene = Scene::new();
    let a = name("a");
    let (holder, waiter) = (exclusive(&["a"]), exclusive(&["a"]));
    let grant = scene.hold(OURS, &holder);
    assert_eq!(scene.table.changed(), BTreeSet::from([RowKey::Holder(&a, holder.owner)]));
    scene.table.forget_changes();
    scene.join(OURS, &waiter);
    let position = RowKey::Ticket(&a, 2, waiter.owner);
    assert_eq!(scene.table.changed(), BTreeSet::from([position]));
    scene.table.forget_changes();
    scene.execute(OURS, &Op::Release(grant)).unwrap();
    let handed_over = [RowKey::Holder(&a, holder.owner), RowKey::Holder(&a, waiter.owner), position];
    assert_eq!(scene.table.changed(), BTreeSet::from(handed_over));
    scene.table.forget_changes();
    scene.execute(OURS, &Op::ReadCell(name("a"))).unwrap();
    assert!(scene.table.changed().is_empty());
}

#[test]
fn a_swept_record_is_empty() {
    let mut scene = Scene::new();
    let grant = scene.hold(OURS, &exclusive(&["a"]));
    let keep = Keep::For(LONGER);
    let cell = Op::WriteCell { grant, name: name("a"), bytes: [1].into(), keep };
    assert_eq!(scene.execute(OURS, &cell).unwrap(), Reply::Written);
    scene.execute(OURS, &Op::Leave(exclusive(&["b"]))).unwrap();
    scene.now = scene.now + TTL;
    scene.sweep("a");
    assert!(scene.holders("a").is_empty());
    scene.table.tidy(scene.now);
    assert_eq!((scene.table.records().len(), scene.table.tombstone_count()), (1, 0));
    scene.now = scene.now + LONGER;
    scene.sweep("a");
    scene.table.tidy(scene.now);
    assert_eq!(scene.table.records().len(), 0);
}

#[test]
fn a_rejected_mode_changes_nothing() {
    let mut scene = Scene::new();
    scene.hold(OURS, &attempt(&["b"], Mode::Semaphore { permits: 2 }, TTL));
    scene.table.forget_changes();
    let op = Op::Acquire { attempt: exclusive(&["a", "b"]), on_busy: OnBusy::Wait };
    let error = scene.execute(OURS, &op).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("semaphore of 2"));
    assert!(scene.table.changed().is_empty() && scene.table.tickets().is_empty());
}

#[test]
fn a_sweep_removes_what_has_expired_behind_a_live_first_waiter() {
    let mut scene = Scene::new();
    scene.hold(OURS, &attempt(&["a"], Mode::Exclusive, LONGER));
    let (head, dead) = (attempt(&["a"], Mode::Exclusive, LONGER), attempt(&["a"], Mode::Exclusive, TTL));
    for waiter in [&head, &dead] {
        assert!(matches!(scene.acquire(OURS, waiter, OnBusy::Wait), Reply::Waiting { .. }));
    }
    scene.now = scene.now + TTL;
    scene.sweep("a");
    assert_eq!(scene.table.tickets().keys().collect::<Vec<_>>(), [&head.owner]);
}
