//! What a decision needs, and that it changes nothing until it has it.

use super::*;

impl Scene {
    /// Returns what a decision needs.
    fn needs(&mut self, op: &Op) -> Needs {
        let before = self.snapshot();
        let needs = self.decide(OURS, op).expect_err("it is decided");
        assert_eq!(self.snapshot(), before, "something has changed");
        needs
    }

    /// A holder of `name` and this many waiters, of which only the first `fetched` are fetched.
    fn crowded(waiters: usize, fetched: usize) -> (Self, Grant, Vec<Arc<Attempt>>) {
        let mut scene = Self::new();
        let grant = scene.hold(OURS, &exclusive(&["a"]));
        let waiters: Vec<_> = (0..waiters).map(|_| exclusive(&["a"])).collect();
        for waiter in &waiters {
            scene.join(THEIRS, waiter);
        }
        scene.write();
        scene.fetch(&name("a"), fetched);
        (scene, grant, waiters)
    }
}

fn records(names: &[&str]) -> Needs {
    Needs::Records(names.iter().map(|text| name(text)).collect())
}

#[test]
fn an_operation_needs_the_records_that_it_names() {
    let mut scene = Scene::new();
    let op = Op::Acquire { attempt: exclusive(&["a", "b", "c"]), on_busy: OnBusy::Wait };
    scene.fetch(&name("b"), 0);
    assert_eq!(scene.needs(&op), records(&["a", "c"]));
    for missing in ["a", "c"] {
        scene.fetch(&name(missing), 0);
    }
    assert!(matches!(scene.decide(OURS, &op), Ok(Ok(Reply::Granted(_)))));
}

#[test]
fn a_hand_over_needs_the_other_records_of_the_ticket() {
    let mut scene = Scene::new();
    let (other, b) = (scene.hold(OURS, &exclusive(&["a", "c"])), scene.hold(OURS, &exclusive(&["b"])));
    let all = exclusive(&["a", "b", "c"]);
    scene.join(THEIRS, &all);
    scene.execute(OURS, &Op::Release(other)).unwrap();
    scene.write();
    scene.fetch(&name("b"), 1);
    assert_eq!(scene.needs(&Op::Release(b.clone())), records(&["a", "c"]));
    assert_eq!(scene.execute(OURS, &Op::Release(b)).unwrap(), Reply::Released);
    assert_eq!((scene.holders("a"), scene.holders("c")), (vec![all.owner], vec![all.owner]));
}

#[test]
fn a_ticket_that_is_blocked_here_needs_no_other_record() {
    let mut scene = Scene::new();
    scene.hold(OURS, &exclusive(&["a"]));
    let b = scene.hold(OURS, &attempt(&["b"], Mode::Shared, TTL));
    scene.hold(OURS, &attempt(&["b"], Mode::Shared, TTL));
    scene.join(THEIRS, &exclusive(&["a", "b"]));
    scene.write();
    scene.fetch(&name("b"), usize::MAX);
    assert!(matches!(scene.decide(OURS, &Op::Release(b)), Ok(Ok(Reply::Released))));
}

#[test]
fn an_exclusive_release_needs_two_waiters_of_any_number() {
    let (mut scene, grant, waiters) = Scene::crowded(100, 2);
    let decision = scene.decide(OURS, &Op::Release(grant));
    assert!(matches!(decision, Ok(Ok(Reply::Released))), "{decision:?}");
    assert_eq!(scene.holders("a"), [waiters[0].owner]);
    assert_eq!(scene.table.changed().len(), 3);
}

#[test]
fn a_record_is_needed_as_a_whole_when_the_first_waiters_cannot_be_reached() {
    let (mut scene, grant, _) = Scene::crowded(10, 4);
    scene.lost.insert(THEIRS);
    assert_eq!(scene.needs(&Op::Release(grant.clone())), records(&["a"]));
    let grant = Op::Release(grant);
    assert_eq!(scene.execute(OURS, &grant).unwrap(), Reply::Released);
    assert!(scene.holders("a").is_empty());
}

#[test]
fn a_record_is_needed_as_a_whole_when_the_first_waiters_have_expired() {
    let (mut scene, grant, _) = Scene::crowded(10, 4);
    let last = attempt(&["a"], Mode::Exclusive, LONGER);
    scene.execute(OURS, &Op::Renew(grant.clone())).unwrap();
    scene.fetch(&name("a"), usize::MAX);
    scene.join(THEIRS, &last);
    scene.write();
    scene.fetch(&name("a"), 4);
    scene.now = scene.now + TTL;
    assert_eq!(scene.needs(&Op::Release(grant.clone())), records(&["a"]));
    scene.execute(OURS, &Op::Release(grant)).unwrap();
    assert_eq!(scene.holders("a"), [last.owner]);
}

/// FIFO over several names: an earlier position in another queue may be one that was not fetched.
#[test]
fn a_position_in_another_queue_is_compared_with_every_position_before_it() {
    let mut scene = Scene::new();
    let a = scene.hold(OURS, &exclusive(&["a"]));
    let b = scene.hold(OURS, &exclusive(&["b"]));
    let (dead, first, both) = (exclusive(&["b"]), exclusive(&["b"]), exclusive(&["a", "b"]));
    for (client, waiter) in [(ClientId(3), &dead), (THEIRS, &first), (THEIRS, &both)] {
        scene.join(client, waiter);
    }
    scene.lost.insert(ClientId(3));
    // The lock is free, and its first waiter has not been granted yet.
    scene.table.forget_holders(&name("b"));
    scene.write();
    scene.fetch(&name("a"), 1);
    scene.fetch(&name("b"), 1);
    assert_eq!(scene.needs(&Op::Release(a.clone())), records(&["b"]));
    scene.execute(OURS, &Op::Release(a)).unwrap();
    assert!(scene.holders("a").is_empty(), "it has overtaken a waiter");
    scene.execute(OURS, &Op::Release(b)).unwrap();
    assert_eq!(scene.holders("b"), [first.owner]);
}

#[test]
fn an_owner_that_may_wait_behind_the_fetched_part_is_looked_up() {
    let (mut scene, _, waiters) = Scene::crowded(2 * FIRST_WAITERS, FIRST_WAITERS);
    let later = waiters[FIRST_WAITERS].clone();
    let check = Op::Check(later.clone());
    assert_eq!(scene.needs(&check), Needs::Ticket(name("a"), later.owner));
    let ticket = scene.rows[&name("a")].1[FIRST_WAITERS].clone();
    scene.table.insert_ticket(later.owner, Some(ticket));
    assert!(matches!(scene.decide(OURS, &check), Ok(Ok(Reply::Waiting { .. }))));
    // One in the fetched part is not.
    let second = Op::Check(waiters[1].clone());
    assert!(matches!(scene.decide(OURS, &second), Ok(Ok(Reply::Waiting { .. }))));
}

#[test]
fn an_owner_that_was_looked_up_and_not_found_joins_the_queue() {
    let (mut scene, ..) = Scene::crowded(2 * FIRST_WAITERS, FIRST_WAITERS);
    let new = exclusive(&["a"]);
    let op = Op::Acquire { attempt: new.clone(), on_busy: OnBusy::Wait };
    assert_eq!(scene.needs(&op), Needs::Ticket(name("a"), new.owner));
    scene.table.insert_ticket(new.owner, None);
    assert!(matches!(scene.decide(OURS, &op), Ok(Ok(Reply::Waiting { .. }))));
    // Another process may add it in between.
    scene.write();
    scene.fetch(&name("a"), FIRST_WAITERS);
    assert_eq!(scene.needs(&op), Needs::Ticket(name("a"), new.owner));
}

#[test]
fn a_leave_that_needs_more_writes_no_tombstone() {
    let (mut scene, _, waiters) = Scene::crowded(2 * FIRST_WAITERS, FIRST_WAITERS);
    assert_eq!(
        scene.needs(&Op::Leave(waiters[FIRST_WAITERS].clone())),
        Needs::Ticket(name("a"), waiters[FIRST_WAITERS].owner)
    );
    assert_eq!(scene.table.tombstone_count(), 0);
}

#[test]
fn a_decision_without_numbers_needs_them() {
    let (mut scene, grant, _) = Scene::crowded(2, 2);
    let op = Op::Release(grant);
    let before = scene.snapshot();
    let (now, reachable) = (scene.now, |_| true);
    let mut context = Context {
        client: OURS,
        now,
        wall: Duration::ZERO,
        numbers: &mut std::iter::empty(),
        reachable: &reachable,
    };
    let decision = scene.table.decide(&op, &mut context);
    assert!(matches!(decision, Err(Needs::Numbers)), "{decision:?}");
    assert_eq!(scene.snapshot(), before);
}

#[test]
fn a_table_that_is_the_data_itself_needs_nothing() {
    let mut scene = Scene::new();
    scene.table = LockTable::default();
    let grant = scene.hold(OURS, &exclusive(&["a", "b"]));
    scene.join(THEIRS, &exclusive(&["b", "c"]));
    assert!(matches!(scene.decide(OURS, &Op::Release(grant)), Ok(Ok(Reply::Released))));
    scene.now = scene.now + TTL;
    scene.ask(OURS, LockTable::sweep_all).unwrap();
    assert_eq!(scene.table.records().len(), 0);
}
