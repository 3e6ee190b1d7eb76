//! Inspecting, listing, diagnosing and breaking locks.

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{Client, ErrorKind, FencingToken, Guard, LostReason, Mode, Page, Severity, StorageId};

use super::{
    Bare, LONG_TTL, attempt, granted, hold, is_held, name, refused, spawn_waiter, supported, until_queued,
};
use crate::test_bench::TestBench;
use crate::wait;

async fn names(client: &Client, prefix: &str) -> Vec<String> {
    let page = client.list(prefix, Page::new(100)).await.expect("locks can be listed");
    assert_eq!(page.next, None);
    page.locks.into_iter().map(|lock| lock.name.as_str().to_owned()).collect()
}

/// `inspect` returns the holders and waiters of a lock with their labels and metadata.
pub async fn inspect_shows_holders_and_the_queue<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let lock = ours.lock("a").ttl(LONG_TTL).label("ours").meta("job", "17").meta("why", "test");
    let guard = hold(&lock).await;
    let waiter = spawn_waiter(theirs.lock("a").ttl(LONG_TTL).label("theirs").mode(Mode::Shared));
    until_queued(&theirs, "a", 1).await;
    let state = theirs.inspect("a").await.unwrap();
    assert_eq!((state.name.as_str(), state.holders.len(), state.waiter_count), ("a", 1, 1));
    let holder = &state.holders[0];
    assert_eq!((holder.token, holder.mode), (Some(guard.token()), Mode::Exclusive));
    assert_eq!((&*holder.label, guard.label()), ("ours", "ours"));
    assert_eq!(*holder.meta, [("job".into(), "17".into()), ("why".into(), "test".into())]);
    assert!(
        holder.ttl >= Some(LONG_TTL)
            && holder.expires_in <= holder.ttl
            && holder.expires_in > Some(LONG_TTL / 2)
    );
    assert!(holder.held_for.is_some_and(|held_for| held_for < LONG_TTL));
    assert_eq!((&*state.waiters[0].label, state.waiters[0].mode), ("theirs", Mode::Shared));
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    assert!(theirs.inspect("a").await.unwrap().is_idle());
}

/// An unused lock is idle, and reading it leaves nothing behind.
pub async fn reading_leaves_nothing_behind<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    assert!(client.inspect("never used").await.unwrap().is_idle());
    assert!(supported(client.read_cell("never used").await).is_none_or(|cell| cell.is_none()));
    let error = refused(client.break_lock("never used", FencingToken::new(1)).await);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(names(&client, "").await, Vec::<String>::new());
    assert!(bench.peek().await.is_empty());
}

/// `list` returns the locks in use, ordered by name, one page at a time.
pub async fn a_list_comes_in_pages<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let all: Vec<String> = (0..7).map(|number| format!("job/{number}")).collect();
    let mut guards: Vec<Guard> = Vec::new();
    for name in all.iter().rev() {
        guards.push(hold(&client.lock(name)).await);
    }
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = client.list("job/", Page::new(3).after(after)).await.unwrap();
        assert!(page.locks.len() <= 3);
        seen.extend(page.locks.iter().map(|lock| lock.name.as_str().to_owned()));
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (all, 3));
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(names(&client, "").await, Vec::<String>::new());
}

/// A prefix is matched literally, also if it contains characters of the backend's own patterns.
pub async fn a_prefix_is_matched_literally<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let all = ["A", "a", "a%", "a%b", "a*", "a/b", "a[b]", "a_b", "axb", "ä", "\u{10ffff}"];
    let mut guards = Vec::new();
    for name in all {
        guards.push(hold(&client.lock(name)).await);
    }
    assert_eq!(names(&client, "").await, all);
    assert_eq!(names(&client, "a%").await, ["a%", "a%b"]);
    assert_eq!(names(&client, "a_").await, ["a_b"]);
    assert_eq!(names(&client, "a*").await, ["a*"]);
    assert_eq!(names(&client, "a[").await, ["a[b]"]);
    assert_eq!(names(&client, "a/").await, ["a/b"]);
    assert_eq!(names(&client, "A").await, ["A"]);
    assert_eq!(names(&client, "ä").await, ["ä"]);
    assert_eq!(names(&client, "\u{10ffff}").await, ["\u{10ffff}"]);
    assert_eq!(names(&client, "'").await, Vec::<String>::new());
}

/// A lock that has waiters but no holder is listed too.
pub async fn a_list_shows_holders_and_waiters<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let a = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(client.lock_all(["a", "b"]).ttl(LONG_TTL));
    until_queued(&client, "b", 1).await;
    let page = client.list("", Page::new(10)).await.unwrap();
    let seen: Vec<_> =
        page.locks.iter().map(|lock| (lock.name.as_str(), lock.holders.len(), lock.waiter_count)).collect();
    assert_eq!(seen, [("a", 1, 1), ("b", 0, 1)]);
    a.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// Breaking removes the holder, which is notified, and grants the lock to its successor.
pub async fn a_broken_holder_is_notified<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let (ttl, reason) = if bench.notifies_holders() {
        (LONG_TTL, LostReason::Broken)
    } else {
        (bench.ttl(), LostReason::NotHeld)
    };
    let guard = hold(&ours.lock("a").ttl(ttl)).await;
    let waiter = spawn_waiter(theirs.lock("a").ttl(LONG_TTL));
    until_queued(&theirs, "a", 1).await;
    let token = theirs.inspect("a").await.unwrap().holders[0].token.unwrap();
    theirs.break_lock("a", token).await.unwrap();
    assert_eq!(wait::within_timeout("the holder is notified", guard.lost()).await, reason);
    assert!(!guard.is_valid());
    let next = granted(waiter).await;
    assert!(next.token() > token);
    assert_eq!(refused(guard.release().await).lost_reason(), Some(reason));
    assert!(next.is_valid());
    next.release().await.unwrap();
}

/// A break with the token of an earlier grant does not remove the present holder.
pub async fn break_is_refused_when_the_token_moved_on<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let old = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let token = old.token();
    old.release().await.unwrap();
    let error = refused(client.break_lock("a", token).await);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.hint().is_some());
    let next = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert_eq!(refused(client.break_lock("a", token).await).kind(), ErrorKind::Conflict);
    let future = FencingToken::new(next.token().get() + 1);
    assert_eq!(refused(client.break_lock("a", future).await).kind(), ErrorKind::Conflict);
    assert!(next.is_valid());
    assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(next.token()));
    next.release().await.unwrap();
}

/// A broken holder that receives no push is lost at its next renewal.
pub async fn a_broken_holder_without_pushes_is_lost_at_its_renewal<B: TestBench>(bench: &B) {
    let (deaf, proxy) = bench.proxied().await;
    proxy.lose_pushes();
    let guard = hold(&deaf.lock("a").ttl(bench.ttl())).await;
    bench.client().await.break_lock("a", guard.token()).await.unwrap();
    let reason = wait::within_timeout("the loss is detected", guard.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
}

/// Breaking one of several readers leaves the others.
pub async fn one_of_several_readers_is_broken<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let client = bench.client().await;
    let reading = client.lock("a").ttl(LONG_TTL).mode(Mode::Shared);
    let (one, two) = (hold(&reading).await, hold(&reading).await);
    let broken = Op::Break { name: name("a"), token: one.token() };
    assert_eq!(bare.execute(broken.clone()).await, Reply::Released);
    assert_eq!(bare.execute(broken).await, Reply::NotHeld);
    assert_eq!(one.lost().await, LostReason::Broken);
    assert!(two.is_valid());
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
    assert_eq!(bare.execute(Op::Check(attempt(&["a"], LONG_TTL))).await, Reply::NoTicket);
    bare.close().await;
}

/// A healthy backend has no problem, every finding that is not ok has an advice, no check is made twice, and the diagnosis
/// changes nothing.
pub async fn a_diagnosis_finds_no_problem_and_changes_nothing<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let mut findings = client.diagnose().await.unwrap();
    let mut checks: Vec<&str> = findings.iter().map(|finding| finding.check.as_str()).collect();
    checks.sort_unstable();
    assert!(checks.windows(2).all(|pair| pair[0] != pair[1]), "{checks:?}");
    findings.extend(client.locate("never used").await.unwrap());
    for finding in findings {
        assert_ne!(finding.severity, Severity::Problem, "{finding}");
        assert!(finding.severity == Severity::Ok || finding.advice.is_some(), "{finding} has no advice");
        assert!(!finding.check.is_empty() && !finding.found.is_empty(), "{finding:?}");
    }
    assert!(bench.peek().await.is_empty());
}

/// A read-only client creates nothing. Before the first lock it fails with `Missing` or finds no lock, and so does a second
/// one: the first has not created the state that the second would recognise. It recognises state that exists.
pub async fn a_read_only_client_creates_nothing<B: TestBench>(bench: &B) {
    let (Some(first), Some(second)) = (look(bench).await, look(bench).await) else { return };
    match (first, second) {
        (None, None) => {}
        (Some(first), Some(second)) => assert_ne!(first, second, "the first client has created something"),
        (first, second) => panic!("one saw {first:?}, the other {second:?}"),
    }
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let read_only_client =
        bench.read_only_client().await.expect("the bench has one").expect("the backend is initialised now");
    assert_eq!(read_only_client.info().storage_id, client.info().storage_id);
    assert!(is_held(&read_only_client, "a").await);
    read_only_client.close().await;
    guard.release().await.unwrap();
}

/// Connects a read-only client before the first lock: returns the storage id that it sees, if there is one.
async fn look<B: TestBench>(bench: &B) -> Option<Option<StorageId>> {
    match bench.read_only_client().await? {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
            Some(None)
        }
        Ok(read_only_client) => {
            assert!(names(&read_only_client, "").await.is_empty());
            let storage_id = read_only_client.info().storage_id;
            read_only_client.close().await;
            Some(Some(storage_id))
        }
    }
}
