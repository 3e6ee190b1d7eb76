//! What the parts of one client share: its sessions, its places in line, and whom it tells of news.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_contenders::Places;
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{
    Attempt, Award, Error, ErrorKind, Finding, LockName, LostReason, Owner, Result, StorageId,
};
use tokio::sync::OnceCell;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::about;
use crate::containers::Containers;
use crate::session::Session;
use crate::setup::Setup;
use crate::tender;

/// For how long it is waited that an owner reads that its grant was broken.
const READ: Duration = Duration::from_millis(250);

/// How many locks are remembered of which something was noticed.
const MOST_REMARKS: usize = 256;

/// The nodes of one attempt.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Whose nodes they are.
    pub(crate) session: Arc<Session>,
    /// One for each want, with its parent; none of them while it is not known whether they were made. What was given up
    /// under [`fencepost_core::Rule::Any`] is empty.
    pub(crate) nodes: Vec<String>,
    /// What it was awarded, if it was.
    pub(crate) award: Option<Award>,
    /// What its token is or will be, if that is known.
    pub(crate) token: Option<u64>,
    /// The nodes that are watched for it: those that it waits for, and its own.
    pub(crate) watched: Vec<String>,
    /// From when on its nodes are to be removed by whoever looks after the session. Nobody keeps it any more then.
    pub(crate) unwanted: Option<Moment>,
    /// Somebody is just making its nodes: nobody else makes, looks for or removes any.
    pub(crate) coming: bool,
    /// Somebody is just removing the nodes that it does not want any more, because it got another: that they are missing is no
    /// news to anybody else.
    pub(crate) choosing: bool,
}

/// What this client has in the lines, and what it has left.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) places: Places<Entry>,
    /// Who has left, until when that is remembered.
    departed: HashMap<Owner, Moment>,
    /// Grants that are not watched yet, by session, with the time of their grant.
    pub(crate) unwatched: HashMap<i64, Vec<(Owner, Moment)>>,
    /// The nodes that are watched by session, and who waits for each to go. However many come and leave again behind one
    /// that stays, it is watched once.
    pub(crate) blockers: HashMap<(i64, String), HashSet<Owner>>,
    /// The lines that are watched as a whole, by session.
    pub(crate) lines_watched: HashSet<(i64, LockName)>,
    /// The locks' nodes that this client made.
    pub(crate) containers: Containers,
}

impl Book {
    /// Remembers that this owner has left, for as long as a request of it may be late.
    pub(crate) fn depart(&mut self, attempt: &Attempt, now: Moment) {
        self.departed.retain(|_, until| *until > now);
        self.departed.insert(attempt.owner, now + attempt.ttl * 2);
    }

    pub(crate) fn has_departed(&self, owner: Owner, now: Moment) -> bool {
        self.departed.get(&owner).is_some_and(|until| *until > now)
    }

    /// The entry of this owner, which somebody cares for now; nothing if nobody has for too long.
    pub(crate) fn keep(&mut self, owner: Owner, now: Moment) -> Option<&mut Entry> {
        let place = self.places.get(owner)?;
        if place.entry.unwanted.is_some() || place.kept + place.attempt.ttl < now {
            return None;
        }
        self.places.keep(owner, now).map(|place| &mut place.entry)
    }
}

type Slot = Arc<OnceCell<Arc<Session>>>;

/// What the parts of one client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) clock: Clock,
    sessions: Mutex<HashMap<Duration, Slot>>,
    book: Mutex<Book>,
    tasks: Mutex<JoinSet<()>>,
    /// What tells owners that their grants were broken by us; it goes when they have read it, or with us.
    told: Mutex<Vec<String>>,
    /// What was noticed about locks, until it is asked for.
    remarks: Mutex<HashMap<LockName, Finding>>,
    push: UnboundedSender<Wakeup>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(setup: Setup, push: UnboundedSender<Wakeup>) -> Self {
        Self {
            setup,
            clock: Clock::system(),
            sessions: Mutex::default(),
            book: Mutex::default(),
            tasks: Mutex::default(),
            told: Mutex::default(),
            remarks: Mutex::default(),
            push,
        }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    pub(crate) fn push(&self, wakeup: Wakeup) {
        // Nobody listens before the engine does, and after it has ended.
        let _ = self.push.send(wakeup);
    }

    /// Lets something run that ends with this client.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Which storage this is. Makes the session in which nothing is held, and what must be there.
    pub(crate) async fn storage_id(self: &Arc<Self>, existing: bool) -> Result<StorageId> {
        let client = self.setup.connect_to_look().await?;
        about::storage_id(&self.setup, &client, existing).await
    }

    /// The session in which nothing is held, connected.
    pub(crate) async fn looking(self: &Arc<Self>) -> Result<Arc<Session>> {
        self.session(Duration::ZERO).await
    }

    /// The session for leases of this length, connected. It is opened if there is none.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        if let Some(session) = self.open_session(ttl) {
            match session.connected(&self.setup, &self.clock).await {
                Ok(()) => return Ok(session),
                // It came back only to hear that it has ended: the next one is not to blame.
                Err(_) if session.is_over() => {}
                Err(away) => return Err(away),
            }
            drop(self.open_session(ttl));
        }
        let slot = lock(&self.sessions).entry(ttl).or_default().clone();
        let session = slot.get_or_try_init(|| self.begin(ttl)).await?.clone();
        session.touch(self.clock.now());
        Ok(session)
    }

    /// The session for leases of this length, if there is one that is not over.
    fn open_session(&self, ttl: Duration) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.get(&ttl)?.get()?.clone();
        if session.is_over() {
            sessions.remove(&ttl);
            return None;
        }
        session.touch(self.clock.now());
        Some(session)
    }

    async fn begin(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let session = Arc::new(Session::open(&self.setup, ttl, &self.clock).await?);
        session.touch(self.clock.now());
        if !ttl.is_zero() {
            self.spawn(tender::tend(Arc::downgrade(self), Arc::downgrade(&session), session.states()));
            if self.setup.range.has_followers {
                let (pause, clock) = (self.setup.range.pause(ttl), self.clock.clone());
                self.spawn(tender::keep_probing(Arc::downgrade(&session), pause, clock));
            }
        }
        Ok(session)
    }

    /// Gives up a session that nobody has used for its whole time and in which nothing is left.
    pub(crate) fn give_up_idle(&self, session: &Arc<Session>) -> bool {
        let mut sessions = lock(&self.sessions);
        let is_used = self.book().places.iter().any(|(_, place)| Arc::ptr_eq(&place.entry.session, session));
        let is_idle = session.used() + session.timeout() < self.clock.now();
        // The slot, and whoever asks.
        let is_held = Arc::strong_count(session) > 2;
        let gives_up = is_idle && !is_used && !is_held;
        if gives_up {
            sessions.remove(&session.ttl);
        }
        gives_up
    }

    /// The session is over, and everything in it.
    pub(crate) fn session_is_over(&self, session: &Arc<Session>, why: LostReason) {
        let mut sessions = lock(&self.sessions);
        if sessions
            .get(&session.ttl)
            .and_then(|slot| slot.get())
            .is_some_and(|there| Arc::ptr_eq(there, session))
        {
            sessions.remove(&session.ttl);
        }
        drop(sessions);
        let mut book = self.book();
        let places = book.places.iter().filter(|(_, place)| Arc::ptr_eq(&place.entry.session, session));
        let lost: Vec<(Owner, bool)> =
            places.map(|(owner, place)| (owner, place.entry.award.is_some())).collect();
        book.unwatched.remove(&session.id);
        for (owner, was_granted) in lost {
            self.forget(&mut book, owner);
            self.push(if was_granted { Wakeup::Gone { owner, why } } else { Wakeup::Turn { owner } });
        }
    }

    /// Forgets a place whose nodes are gone, and lets those move up who waited for it in this process.
    pub(crate) fn forget(&self, book: &mut Book, owner: Owner) {
        if let Some(place) = book.places.remove(owner) {
            for node in place.entry.watched {
                if let Some(waiting) = book.blockers.get_mut(&(place.entry.session.id, node)) {
                    waiting.remove(&owner);
                }
            }
            self.move_up(book, &place.attempt);
        }
    }

    /// Forgets a place whose nodes these were. The same owner may have come anew meanwhile, and has others then.
    pub(crate) fn forget_with(&self, owner: Owner, nodes: &[String]) {
        self.forget_if(owner, |entry| !entry.coming && entry.nodes == nodes);
    }

    pub(crate) fn forget_if(&self, owner: Owner, is_it: impl Fn(&Entry) -> bool) {
        let mut book = self.book();
        if book.places.get(owner).is_some_and(|place| is_it(&place.entry)) {
            self.forget(&mut book, owner);
        }
    }

    /// Tells those who waited in this process behind an attempt that has left.
    pub(crate) fn move_up(&self, book: &Book, left: &Attempt) {
        for owner in book.places.next_after(left) {
            self.push(Wakeup::Turn { owner });
        }
    }

    /// Lets whoever looks after the session remove these nodes as soon as it can.
    pub(crate) fn unwant(&self, owner: Owner) {
        let now = self.clock.now();
        if let Some(place) = self.book().places.get_mut(owner) {
            place.entry.unwanted = Some(place.entry.unwanted.map_or(now, |since| since.min(now)));
            place.entry.session.chores.notify_one();
        }
    }

    /// Remembers that an owner is told of its loss by this node.
    pub(crate) fn tell(&self, node: &str) {
        lock(&self.told).push(node.to_owned());
    }

    /// Remembers what was noticed about a lock.
    pub(crate) fn remark(&self, name: &LockName, finding: Finding) {
        let mut remarks = lock(&self.remarks);
        // A program that never asks does not pay for it.
        if remarks.len() < MOST_REMARKS {
            remarks.insert(name.clone(), finding);
        }
    }

    /// Returns what was noticed about a lock, and forgets it.
    pub(crate) fn take_remark(&self, name: &LockName) -> Option<Finding> {
        lock(&self.remarks).remove(name)
    }

    /// Waits until those who were told have read it, but not for long: they may be dead.
    pub(crate) async fn until_read(&self) {
        let told = std::mem::take(&mut *lock(&self.told));
        let looking = lock(&self.sessions).get(&Duration::ZERO).and_then(|slot| slot.get().cloned());
        let Some(session) = looking.filter(|_| !told.is_empty()) else { return };
        let read = async {
            for node in told {
                while let Ok((Some(_), watcher)) = session.client.check_and_watch_stat(&node).await {
                    watcher.changed().await;
                }
            }
        };
        tokio::select! {
            () = read => {}
            _ = self.clock.sleep_until(self.clock.now() + READ) => {}
        }
    }

    /// All sessions, which are no longer used then, and everything that ran for them has ended.
    pub(crate) fn take_sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.tasks).abort_all();
        *self.book() = Book::default();
        let slots: Vec<Slot> = lock(&self.sessions).drain().map(|(_, slot)| slot).collect();
        slots.into_iter().filter_map(|slot| slot.get().cloned()).collect()
    }

    /// The node of this lock that has all contenders below it.
    pub(crate) fn line(&self, name: &LockName) -> String {
        self.setup.paths.lock(name)
    }

    /// What it means that nodes which were just made have vanished.
    pub(crate) fn vanished(&self) -> Error {
        Error::new(ErrorKind::Unreachable, format!("somebody removed our node in {}", self.setup.location))
    }
}
