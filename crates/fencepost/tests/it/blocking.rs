//! The same API without async: threads, no runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fencepost::blocking::{Client, Guard};
use fencepost::clock::ManualClock;
use fencepost::memory::Memory;
use fencepost::{Change, ErrorKind, Keep, LockName, LostReason, Mode, blocking};

const LONG: Duration = Duration::from_secs(600);

fn client(memory: &Memory) -> Client {
    memory.client().unwrap().into()
}

/// A counter that loses additions unless threads take turns.
fn count(clients: &[Client], rounds: u64) {
    let counter = AtomicU64::new(0);
    thread::scope(|threads| {
        for client in clients {
            threads.spawn(|| {
                for _ in 0..rounds {
                    client.lock("counter").run(|_| add_one(&counter)).unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), rounds * clients.len() as u64);
}

fn add_one(counter: &AtomicU64) {
    let seen = counter.load(Ordering::Relaxed);
    thread::yield_now();
    counter.store(seen + 1, Ordering::Relaxed);
}

#[test]
fn threads_take_turns_in_memory() {
    let memory = Memory::new();
    let one = client(&memory);
    count(&[one.clone(), one, client(&memory), client(&memory)], 50);
    assert!(memory.is_clean());
}

#[cfg(feature = "sqlite")]
#[test]
fn threads_take_turns_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/locks.db", folder.path().display());
    let clients = [(); 3].map(|()| blocking::connect(&url).unwrap());
    count(&clients, 30);
    clients.iter().for_each(Client::close);
}

/// A tokio task that has used up its budget is expected to yield, which a blocked thread cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_worker_of_tokio_can_call_it_many_times_without_a_pause() {
    let client = client(&Memory::new());
    let task = tokio::spawn(async move {
        for _ in 0..500 {
            client.lock("a").acquire().unwrap().release().unwrap();
        }
    });
    task.await.unwrap();
}

#[test]
fn it_works_inside_another_executor() {
    futures_executor::block_on(async {
        let client = client(&Memory::new());
        let ours = client.lock("a").run(Guard::token).unwrap();
        let theirs = client.as_async().lock("a").acquire().await.unwrap();
        assert!(theirs.token() > ours);
        Guard::from(theirs).release().unwrap();
    });
}

#[test]
fn a_busy_lock_is_not_waited_for_unless_told_so() {
    let client = client(&Memory::new());
    let lock = client.lock("a");
    let guard = lock.try_acquire().unwrap().unwrap();
    assert!(lock.try_acquire().unwrap().is_none());
    let error = lock.clone().wait(Duration::from_millis(5)).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    guard.release().unwrap();
    assert!(lock.try_acquire().unwrap().is_some());
}

#[test]
fn a_thread_that_ends_gives_its_lock_back() {
    let client = client(&Memory::new());
    let lock = client.lock("a").ttl(LONG);
    let holder = thread::spawn({
        let lock = lock.clone();
        move || {
            let _held = lock.acquire().unwrap();
        }
    });
    holder.join().unwrap();
    lock.acquire().unwrap().release().unwrap();
}

#[test]
fn work_that_panics_gives_the_lock_back() {
    let client = client(&Memory::new());
    let lock = client.lock("a").ttl(LONG);
    let worker = thread::spawn({
        let lock = lock.clone();
        move || lock.run(|_| panic!("as the test wants"))
    });
    assert!(worker.join().is_err());
    lock.acquire().unwrap().release().unwrap();
}

#[test]
fn a_lost_lock_wakes_the_thread_that_waits_for_it() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(clock.clone());
    let client = client(&memory);
    let guard = client.lock("a").ttl(LONG).acquire().unwrap();
    assert_eq!(guard.lost_within(Duration::from_millis(1)), None);
    let watcher = thread::spawn({
        let guard = guard.share();
        move || guard.lost()
    });
    memory.faults().cut();
    clock.advance(LONG);
    assert_eq!(watcher.join().unwrap(), LostReason::Expired);
    assert_eq!(guard.lost_within(Duration::ZERO), Some(LostReason::Expired));
    assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn work_that_outlives_its_lease_is_an_error() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(clock.clone());
    let ran = client(&memory).lock("a").ttl(LONG).run(|guard| {
        assert!(guard.is_valid());
        memory.faults().cut();
        clock.advance(LONG);
        memory.faults().heal();
    });
    assert_eq!(ran.unwrap_err().lost_reason(), Some(LostReason::Expired));
}

#[test]
fn work_whose_lock_was_broken_is_an_error() {
    let memory = Memory::with_clock(ManualClock::new());
    let (ours, theirs) = (client(&memory), client(&memory));
    let ran = ours.lock("a").run(|guard| {
        theirs.break_lock("a", guard.token()).unwrap();
    });
    assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn every_word_of_a_lock_arrives() {
    let client = client(&Memory::new());
    let lock = client.lock_all(["b", "a"]).mode(Mode::Shared).label("me").meta("build", "42");
    let guard = lock.ttl(LONG).max_hold(LONG).acquire().unwrap();
    assert_eq!(guard.names().map(LockName::as_str).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((guard.name().as_str(), guard.label(), guard.ttl()), ("a", "me", LONG));
    assert!(guard.is_valid() && guard.remaining() <= LONG);
    assert_eq!(guard.storage_id(), client.info().storage_id);
    guard.write_cell(*b"hello", Keep::WhileHeld).unwrap();
    assert_eq!(guard.read_cell().unwrap(), client.read_cell("a").unwrap());
    let state = client.inspect("a").unwrap();
    assert_eq!(state.holders[0].meta[0], ("build".to_owned(), "42".to_owned()));
    assert_eq!(state.holders[0].mode, Mode::Shared);
    let any = client.lock_any(["c", "d"]).into_async();
    let any = blocking::Lock::from(any).acquire().unwrap();
    assert_eq!(any.name().as_str(), "c");
    drop(any.into_async());
    client.close();
    assert_eq!(guard.lost(), LostReason::Closed);
    assert_eq!(client.inspect("a").unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_watch_is_an_iterator_that_ends_with_its_client() {
    let client = client(&Memory::new());
    let mut watch = client.watch("").every(LONG);
    let _held = client.lock("a").acquire().unwrap();
    assert!(matches!(watch.next(), Some(Ok(Change::Held { .. }))));
    let watcher = thread::spawn(move || watch.count());
    client.close();
    assert_eq!(watcher.join().unwrap(), 0);
}
