//! Turns the commands of a round into flights that an engine could have sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Op;
use fencepost_core::{Attempt, FencingToken, Grant, LockName, Owner, Rule, Want};
use proptest::sample::Index;

use super::Machine;
use super::commands::{Command, Round, WhichGrant};
use super::step::{Ask, NAMES, Step};

/// Operations that one client sends together.
pub(super) struct Flight {
    pub(super) client: usize,
    pub(super) steps: Vec<Step>,
    pub(super) ops: Vec<Op>,
}

/// The largest number of operations of a round if entries are visible before the acquire is decided.
const MOST_ENTERING: usize = 4;

/// Returns whether this step is the only one that ends its grant, or all that do are breaks.
fn is_the_only_kind(step: &Step, ending: &mut BTreeMap<u64, bool>) -> bool {
    let is_break = matches!(step, Step::Break { .. });
    step.ends().is_none_or(|token| ending.insert(token, is_break).is_none_or(|other| other && is_break))
}

impl Machine {
    /// Builds the flights of a round, without what an engine would not have sent: a second operation of an attempt,
    /// operations that may not share a flight, and flights beyond those that a client may have in flight.
    ///
    /// Where grants are decided by entries, breaking one is two requests, the mark and the removal: a release between the
    /// two also reports that it ended the grant, so the two are not sent together.
    pub(super) fn plan(&mut self, at: usize, round: Round) -> Vec<Flight> {
        let flights = match round {
            Round::Flights(flights) => flights,
            Round::Pass(time) => {
                let step = Step::Pass(time);
                return vec![Flight {
                    client: at % self.clients.len(),
                    ops: vec![self.op(&step)],
                    steps: vec![step],
                }];
            }
        };
        let (mut unanswered, mut ending) = (BTreeSet::new(), BTreeMap::new());
        let ends_alone = self.has_entry_per_waiter;
        // An acquire that is visible before it is decided is two calls, and the orders of six such calls are too many to
        // follow.
        let mut room = if self.creates_entries_before_reading { MOST_ENTERING } else { usize::MAX };
        let mut planned: Vec<Flight> = Vec::new();
        for (client, commands) in flights {
            if planned.iter().filter(|flight| flight.client == client).count() == self.info.max_flights {
                continue;
            }
            let steps: Vec<Step> = commands
                .into_iter()
                .filter_map(|command| self.step(client, command))
                .filter(|step| step.alone_of().is_none_or(|id| unanswered.insert(id)))
                .filter(|step| !ends_alone || is_the_only_kind(step, &mut ending))
                .take(room)
                .collect();
            room -= steps.len().min(room);
            let ops: Vec<Op> = steps.iter().map(|step| self.op(step)).collect();
            let selected = self.info.select_for_flight(ops.iter());
            let boarding = steps.into_iter().zip(ops).zip(selected).filter(|(_, leaves)| *leaves);
            let (steps, ops) = boarding.map(|(operation, _)| operation).unzip();
            planned.push(Flight { client, steps, ops });
        }
        planned
    }

    /// Resolves a command with what is known by now; returns `None` if it makes no sense yet.
    fn step(&mut self, client: usize, command: Command) -> Option<Step> {
        let id = |of: Index| {
            let made: Vec<usize> = (0..self.asks.len()).filter(|id| self.makers[*id] == client).collect();
            (!made.is_empty()).then(|| *of.get(&made))
        };
        let any = |of: Index| (!self.asks.is_empty()).then(|| of.index(self.asks.len()));
        let token = |id: usize, grant: WhichGrant| {
            let awards = self.awards.get(&id)?;
            let award = match grant {
                WhichGrant::First => awards.first(),
                WhichGrant::Newest => awards.last(),
            };
            award.map(|award| award.token.get())
        };
        Some(match command {
            Command::Acquire { ask, on_busy } => {
                self.attempts.push(attempt(self.attempts.len(), &ask));
                self.makers.push(client);
                self.asks.push(ask);
                Step::Acquire { id: self.asks.len() - 1, on_busy }
            }
            Command::Resend { of, on_busy } => Step::Acquire { id: id(of)?, on_busy },
            Command::Check { of } => Step::Check(id(of)?),
            Command::Leave { of } => Step::Leave(id(of)?),
            Command::Renew { of, grant } => Step::Renew { id: id(of)?, token: token(id(of)?, grant)? },
            Command::Release { of, grant } => Step::Release { id: id(of)?, token: token(id(of)?, grant)? },
            Command::Break { of, grant, name } => Step::Break { name, token: token(any(of)?, grant)? },
            Command::Write { of, grant, name, value, keep } => {
                Step::Write { id: id(of)?, token: token(id(of)?, grant)?, name, value, keep }
            }
            Command::Read { name } => Step::Read { name },
        })
    }

    fn op(&self, step: &Step) -> Op {
        match step {
            Step::Acquire { id, on_busy } => {
                Op::Acquire { attempt: self.attempts[*id].clone(), on_busy: *on_busy }
            }
            Step::Check(id) => Op::Check(self.attempts[*id].clone()),
            Step::Leave(id) => Op::Leave(self.attempts[*id].clone()),
            Step::Renew { id, token } => Op::Renew(self.grant(*id, *token)),
            Step::Release { id, token } => Op::Release(self.grant(*id, *token)),
            Step::Break { name, token } => {
                Op::Break { name: lock_name(*name), token: FencingToken::new(*token) }
            }
            Step::Write { id, token, name, value, keep } => Op::WriteCell {
                grant: self.grant(*id, *token),
                name: lock_name(*name),
                bytes: [*value].into(),
                keep: *keep,
            },
            Step::Read { name } => Op::ReadCell(lock_name(*name)),
            // Any call that finds a lock free grants it to the first waiter, so an unrelated attempt asks for all names.
            Step::Pass(_) | Step::CreateEntry(_) => Op::Check(attempt(usize::MAX, &unrelated())),
        }
    }

    fn grant(&self, id: usize, token: u64) -> Grant {
        let known = self.awards.get(&id).into_iter().flatten().find(|award| award.token.get() == token);
        Grant { attempt: self.attempts[id].clone(), award: *known.expect("it was seen") }
    }
}

pub(super) fn lock_name(name: usize) -> LockName {
    LockName::new(NAMES[name]).expect("it is a name")
}

fn attempt(number: usize, ask: &Ask) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: ask.wants.iter().map(|name| Want { name: lock_name(*name), mode: ask.mode }).collect(),
        rule: ask.rule,
        ttl: ask.ttl,
        label: number.to_string().into(),
        meta: [].into(),
    })
}

fn unrelated() -> Ask {
    Ask {
        wants: (0..NAMES.len()).collect(),
        mode: fencepost_core::Mode::Exclusive,
        rule: Rule::All,
        ttl: Duration::from_secs(60),
    }
}
