//! One client's backend: takes flights apart and puts the answers together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{
    Backend, BackendInfo, ListPage, LockState, Op, Page, Queue, Reply, Scope, Wakeup,
};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Attempt, Error, ErrorKind, Finding, Grant, LockName, Mode, Options, Result, Rule};
use fencepost_net::{Account, Encryption};
use futures_util::StreamExt;
use futures_util::future::{join, join_all, join3};
use futures_util::stream::{self, BoxStream};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::about::introduce;
use crate::config::{self, Config, Layout};
use crate::enter::{Step, TOGETHER};
use crate::error::unreachable;
use crate::examine::{examine, whereabouts};
use crate::home::{Home, State, UnderWay};
use crate::keys::Keys;
use crate::leases::{Lease, Promise, seconds};
use crate::link::{Link, Setup};
use crate::question::not_too_many_names;
use crate::resting;
use crate::rounds::{chunks, rounds};
use crate::watching;

/// How many flights may be under way at once.
const FLIGHTS: usize = 2;

pub(crate) struct EtcdBackend {
    home: Arc<Home>,
    config: Config,
    /// Until the engine listens.
    pushes: Mutex<Option<UnboundedReceiver<Wakeup>>>,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(url: &str, options: &Options) -> Result<Arc<dyn Backend>> {
    let config = config::parse(url)?;
    let location = config.location();
    let encryption = config.tls.as_ref().map(Encryption::new).transpose()?;
    let account = config.login.as_ref().map_or_else(Account::default, |login| Account {
        user: Some(login.user.clone()),
        password: Some(login.password.clone()),
    });
    let setup = Setup {
        members: config.members.clone(),
        account,
        encryption: encryption.map(|encryption| encryption.speaking("h2")),
        location: location.clone(),
    };
    let (tell, events) = mpsc::unbounded_channel();
    let link = Link::open(setup, tell).await?;
    let keys = Keys::new(&config.namespace, config.layout);
    let storage_id = introduce(&link, &keys, options.wants_existing()).await?;
    let (push, pushes) = mpsc::unbounded_channel();
    let home = Arc::new(Home {
        keys,
        location,
        storage_id,
        link,
        clock: Clock::system(),
        state: Mutex::new(State::default()),
        push,
        leasing: tokio::sync::Mutex::new(()),
        granted: Arc::default(),
        resting: Arc::default(),
    });
    tokio::spawn(watching::listen(Arc::downgrade(&home), events));
    tokio::spawn(watching::watch_what_lasts(Arc::downgrade(&home)));
    if home.keys.layout == Layout::Single {
        tokio::spawn(resting::end_rests(Arc::downgrade(&home)));
    }
    Ok(Arc::new(EtcdBackend { home, config, pushes: Mutex::new(Some(pushes)) }))
}

/// What becomes of one operation.
type Answered = (usize, Result<Reply>);

impl EtcdBackend {
    async fn round(&self, ops: &[Op], round: &[usize], began: Moment, asked: Moment) -> Vec<Answered> {
        let (mut steps, mut checks, mut renewals, mut singles) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut late = Vec::new();
        for at in round {
            match &ops[*at] {
                // The engine has given it up long ago, and may have undone what it thought was sent.
                Op::Acquire { attempt, .. } if asked.since(began) > attempt.ttl => {
                    late.push((
                        *at,
                        Err(unreachable(&self.home.location).with_source("its turn came too late")),
                    ));
                }
                Op::Acquire { attempt, queue } => steps.push((*at, Coming::Come(attempt, *queue))),
                Op::Release(grant) => steps.push((*at, Coming::Go(grant))),
                Op::Check(attempt) => checks.push((*at, attempt)),
                Op::Renew(grant) => renewals.push((*at, grant)),
                _ => singles.push(*at),
            }
        }
        let looking = join(self.check(&checks, asked), self.renew(&renewals, asked));
        let singles = join_all(singles.into_iter().map(async |at| (at, self.single(&ops[at], asked).await)));
        let (coming, (checked, renewed), singles) =
            join3(self.come_and_go(steps, asked), looking, singles).await;
        [late, coming, checked, renewed, singles].into_iter().flatten().collect()
    }

    async fn single(&self, op: &Op, asked: Moment) -> Result<Reply> {
        match op {
            Op::Leave(attempt) => self.home.leave(attempt, asked).await,
            Op::ReadCell(name) => self.home.read_cell(name).await,
            Op::WriteCell { grant, name, bytes, keep } => {
                self.home.write_cell(grant, name, bytes, *keep).await
            }
            Op::Break { name, token } => self.home.break_lock(name, *token).await,
            Op::Acquire { .. } | Op::Check(_) | Op::Renew(_) | Op::Release(_) => Ok(Reply::NoTicket),
        }
    }

    async fn check(&self, checks: &[(usize, &Arc<Attempt>)], asked: Moment) -> Vec<Answered> {
        let mut answers = Vec::with_capacity(checks.len());
        let mut in_line = Vec::new();
        for (at, attempt) in checks {
            let (waits_here, may_come, is_there) = {
                let mut state = self.home.state();
                let waits = state.places.is_waiting(attempt.owner, asked);
                // Before anything is waited for: whoever sweeps meanwhile must see that somebody cares.
                let is_there = state.keep(attempt.owner, asked).is_some();
                (waits, waits && state.places.has_room(attempt), is_there)
            };
            if may_come {
                let coming = vec![(*at, Coming::Come(attempt, Queue::Join))];
                let came = self.come_and_go(coming, asked).await;
                let was_answered = came.iter().all(|(_, reply)| reply.is_ok());
                answers.extend(came);
                let mut state = self.home.state();
                if state.places.is_waiting(attempt.owner, asked) {
                    // It could not come after all, and is still the next.
                    state.places.to_front(attempt.owner);
                    // Or was the next until just now, and has not asked; whoever failed asks again by itself.
                    if was_answered {
                        self.home.pass_on(&state, attempt);
                    }
                } else {
                    // Several may have left at once, and only the first was told.
                    self.home.wake_next(&state, attempt);
                }
            } else if waits_here {
                self.home.pass_on(&self.home.state(), attempt);
                answers.push((*at, Ok(Reply::Waiting { turn_in: attempt.ttl })));
            } else if is_there {
                in_line.push((*at, Arc::clone(attempt)));
            } else if self.home.state().under_way.contains(&attempt.owner) {
                answers.push((*at, Ok(Reply::Waiting { turn_in: attempt.ttl })));
            } else {
                let buried = self.home.bury_if_doubtful(attempt).await;
                answers.push((*at, buried.map(|()| Reply::NoTicket)));
            }
        }
        let attempts: Vec<Arc<Attempt>> = in_line.iter().map(|(_, attempt)| attempt.clone()).collect();
        let replies = self.home.check(&attempts, asked).await;
        for ((at, attempt), reply) in in_line.into_iter().zip(replies) {
            // It asks anew as somebody else, once nothing of it can arrive any more.
            answers.push(match reply {
                Ok(Reply::NoTicket) if self.home.state().under_way.contains(&attempt.owner) => {
                    (at, Ok(Reply::Waiting { turn_in: attempt.ttl }))
                }
                Ok(Reply::NoTicket) => {
                    (at, self.home.bury_if_doubtful(&attempt).await.map(|()| Reply::NoTicket))
                }
                reply => (at, reply),
            });
        }
        answers
    }

    async fn renew(&self, renewals: &[(usize, &Grant)], asked: Moment) -> Vec<Answered> {
        let grants: Vec<&Grant> = renewals.iter().map(|(_, grant)| *grant).collect();
        let replies = self.home.renew(&grants, asked).await;
        renewals.iter().map(|(at, _)| *at).zip(replies).collect()
    }

    /// Those who come and go, in as few transactions as possible.
    async fn come_and_go(&self, coming: Vec<(usize, Coming<'_>)>, asked: Moment) -> Vec<Answered> {
        let mut answers = Vec::with_capacity(coming.len());
        let mut steps: Vec<(usize, Step)> = Vec::new();
        let (mut known, mut lapsed, mut open, mut inside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (at, coming) in coming {
            match coming {
                Coming::Go(grant) => steps.push((at, Step::Go(grant.clone()))),
                Coming::Come(attempt, queue) => match self.at_the_door(attempt, queue, asked) {
                    Err(error) => answers.push((at, Err(error))),
                    Ok(Door::Answer(reply)) => answers.push((at, Ok(reply))),
                    Ok(Door::Known) => known.push((at, attempt, queue)),
                    Ok(Door::Lapsed) => lapsed.push((at, attempt, queue)),
                    Ok(Door::Open) => open.push((at, attempt, queue)),
                    Ok(Door::FromInside) => inside.push((at, attempt, queue)),
                },
            }
        }
        let attempts: Vec<Arc<Attempt>> = known.iter().map(|(_, attempt, _)| Arc::clone(attempt)).collect();
        for (again, reply) in known.into_iter().zip(self.home.check(&attempts, asked).await) {
            match reply {
                // What was sent before has not arrived, or its lease has ended: it comes anew.
                Ok(Reply::NoTicket) => open.push(again),
                reply => answers.push((again.0, reply)),
            }
        }
        for again in lapsed {
            match self.home.clear_away(again.1).await {
                Ok(()) => open.push(again),
                Err(error) => answers.push((again.0, Err(error))),
            }
        }
        let mut under_way = UnderWay::new(&self.home);
        for set_out in [&mut open, &mut inside] {
            set_out.retain(|(at, attempt, _)| {
                let comes = under_way.take_along(attempt.owner);
                if !comes {
                    answers.push((*at, self.home.refused(attempt, asked)));
                }
                comes
            });
        }
        let leases = self.leases_for(open.iter().chain(&inside).map(|(_, attempt, _)| attempt.ttl)).await;
        for inside in inside {
            match self.still_waits_inside(inside.1, asked) {
                Ok(()) => open.push(inside),
                Err(reply) => answers.push((inside.0, Ok(reply))),
            }
        }
        let mut rare = Vec::new();
        for (at, attempt, queue) in open {
            match &leases[&seconds(attempt.ttl)] {
                Err(error) => answers.push((at, Err(error.duplicate()))),
                Ok((lease, promise)) => {
                    let (attempt, lease, promise) = (attempt.clone(), *lease, *promise);
                    let is_rare = is_rare(&attempt, queue);
                    let step = Step::Come { attempt, queue, lease, promise };
                    if is_rare { rare.push((at, step)) } else { steps.push((at, step)) }
                }
            }
        }
        // In the order in which they were sent: whoever goes makes room for whoever comes after it.
        steps.sort_unstable_by_key(|(at, _)| *at);
        let common = join_all(chunks(steps).into_iter().map(async |chunk: Vec<(usize, Step)>| {
            let (numbers, steps): (Vec<usize>, Vec<Step>) = chunk.into_iter().unzip();
            let came = self.home.come_and_go(&steps, asked).await;
            let mut answers = Vec::with_capacity(numbers.len());
            for ((at, step), came) in numbers.into_iter().zip(&steps).zip(came) {
                answers.push((at, self.home.after(step, came, asked).await));
            }
            answers
        }));
        let rare = join_all(
            rare.into_iter().map(async |(at, step)| (at, self.home.come_rarely(&step, asked).await)),
        );
        let (common, rare) = join(common, rare).await;
        answers.extend(common.into_iter().flatten().chain(rare));
        answers
    }

    /// Two flights may bring somebody who waits in this process, and the other may have been faster: it may even have gone
    /// again, and is not to come a second time.
    fn still_waits_inside(&self, attempt: &Attempt, asked: Moment) -> Result<(), Reply> {
        let mut state = self.home.state();
        if state.places.is_waiting(attempt.owner, asked) {
            return Ok(());
        }
        let stands = state.keep(attempt.owner, asked).is_some();
        Err(if stands { Reply::Waiting { turn_in: attempt.ttl } } else { Reply::NoTicket })
    }

    /// A lease for each of these.
    async fn leases_for(&self, ttls: impl Iterator<Item = Duration>) -> HashMap<i64, Result<Leased>> {
        let ttls: HashMap<i64, Duration> = ttls.map(|ttl| (seconds(ttl), ttl)).collect();
        let leases = ttls.into_iter().map(async |(seconds, ttl)| (seconds, self.home.lease_for(ttl).await));
        join_all(leases).await.into_iter().collect()
    }

    /// What can be said before anybody comes: it may have come before, or wait in this process.
    fn at_the_door(&self, attempt: &Arc<Attempt>, queue: Queue, asked: Moment) -> Result<Door> {
        self.home.can_be_taken(attempt)?;
        not_too_many_names(attempt)?;
        let mut state = self.home.state();
        if state.has_departed(attempt.owner, asked) {
            return Ok(Door::Answer(Reply::Busy));
        }
        match state.places.get(attempt.owner) {
            Some(place) if !place.entry.lapsed => return Ok(Door::Known),
            // Whatever of it may still arrive is defeated before anybody goes on.
            Some(_) if state.doubts.has(attempt.owner) => return Err(self.home.forgotten(attempt)),
            Some(_) => return Ok(Door::Lapsed),
            None => {}
        }
        let rests = attempt.wants.iter().any(|want| state.rests.rests(&want.name, asked));
        if queue == Queue::Join && (rests || !state.places.has_room(attempt)) {
            if rests {
                // It will ask at the end of the rest, whatever happens until then.
                state.watches.asks(attempt);
            }
            state.places.wait(attempt, asked);
            return Ok(Door::Answer(Reply::Waiting { turn_in: attempt.ttl }));
        }
        let is_inside = state.places.is_waiting(attempt.owner, asked);
        Ok(if is_inside { Door::FromInside } else { Door::Open })
    }
}

/// A lease, and what is promised of it.
type Leased = (Lease, Option<Promise>);

enum Coming<'a> {
    Come(&'a Arc<Attempt>, Queue),
    Go(&'a Grant),
}

enum Door {
    Answer(Reply),
    Known,
    /// What it had is being cleared away.
    Lapsed,
    Open,
    /// It may come, and has waited in this process until now.
    FromInside,
}

/// Whether an attempt has to read the lines before it enters.
fn is_rare(attempt: &Attempt, queue: Queue) -> bool {
    let is_any = attempt.rule == Rule::Any && attempt.wants.len() > 1;
    let is_slot = attempt.wants.iter().any(|want| matches!(want.mode, Mode::Slots { .. }));
    is_any || (is_slot && queue == Queue::Never)
}

#[async_trait]
impl Backend for EtcdBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            scheme: "etcd",
            location: self.home.location.clone(),
            scope: Scope::Fleet,
            storage_id: self.home.storage_id,
            min_ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(24 * 3600),
            flights: FLIGHTS,
            batch: TOGETHER,
            may_share: None,
        }
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
        let began = self.home.clock.now();
        for round in rounds(&ops) {
            let asked = self.home.clock.now();
            let round = self.round(&ops, &round, began, asked);
            let (answers, ()) = Box::pin(join(round, self.home.sweep(asked))).await;
            for (at, reply) in answers {
                replies[at] = Some(reply);
            }
        }
        let unanswered = || Err(Error::new(ErrorKind::OutcomeUnknown, "an operation was not answered"));
        replies.into_iter().map(|reply| reply.unwrap_or_else(unanswered)).collect()
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        match self.pushes.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(pushes) => {
                stream::unfold(pushes, async |mut pushes| Some((pushes.recv().await?, pushes))).boxed()
            }
            None => stream::empty().boxed(),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.home.lock_state(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.home.list(prefix, &page).await
    }

    async fn examine(&self) -> Vec<Finding> {
        examine(&self.home, &self.config).await
    }

    async fn warnings(&self) -> Vec<Finding> {
        Finding::worth_a_word(self.examine().await)
    }

    async fn whereabouts(&self, name: &LockName) -> Vec<Finding> {
        whereabouts(&self.home, name).await
    }

    async fn close(&self) {
        self.home.revoke_all().await;
    }
}
