//! From the commands of a wave to flights that an engine could have sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Op;
use fencepost_core::{Attempt, FencingToken, Grant, LockName, Owner, Rule, Want};
use proptest::sample::Index;

use super::Machine;
use super::commands::{Command, Wave, WhichGrant};
use super::step::{Ask, NAMES, Step};

/// Operations that one client sends together.
pub(super) struct Flight {
    pub(super) client: usize,
    pub(super) steps: Vec<Step>,
    pub(super) ops: Vec<Op>,
}

/// How many operations a wave has at most where an attempt is seen before its acquire is decided.
const MOST_ENTERING: usize = 4;

/// Returns whether all that end the grant that this step ends are breaks, or it alone.
fn is_the_only_kind(step: &Step, ending: &mut BTreeMap<u64, bool>) -> bool {
    let is_break = matches!(step, Step::Break { .. });
    step.ends().is_none_or(|token| ending.insert(token, is_break).is_none_or(|other| other && is_break))
}

impl Machine {
    /// Makes the flights of a wave, and leaves out what an engine would not have sent at this time: a second operation of an
    /// attempt, what may not share a flight, and flights beyond those that a client may have in the air.
    ///
    /// Where grants go by entries, breaking one is two requests, the mark and the removal: a release between the two also
    /// reports that it ended the grant, so the two are not sent together.
    pub(super) fn plan(&mut self, at: usize, wave: Wave) -> Vec<Flight> {
        let flights = match wave {
            Wave::Flights(flights) => flights,
            Wave::Pass(time) => {
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
        // An acquire that is seen before it is decided is two calls, and the orders of six such are too many to follow.
        let mut room = if self.creates_entries_before_reading { MOST_ENTERING } else { usize::MAX };
        let mut planned: Vec<Flight> = Vec::new();
        for (client, commands) in flights {
            if planned.iter().filter(|flight| flight.client == client).count() == self.info.flights {
                continue;
            }
            let steps: Vec<Step> = commands
                .into_iter()
                .filter_map(|command| self.step(client, command))
                .filter(|step| step.alone_of().is_none_or(|who| unanswered.insert(who)))
                .filter(|step| !ends_alone || is_the_only_kind(step, &mut ending))
                .take(room)
                .collect();
            room -= steps.len().min(room);
            let ops: Vec<Op> = steps.iter().map(|step| self.op(step)).collect();
            let selected = self.info.select(ops.iter());
            let boarding = steps.into_iter().zip(ops).zip(selected).filter(|(_, leaves)| *leaves);
            let (steps, ops) = boarding.map(|(operation, _)| operation).unzip();
            planned.push(Flight { client, steps, ops });
        }
        planned
    }

    /// The command with what is known by now put in; none if it makes no sense yet.
    fn step(&mut self, client: usize, command: Command) -> Option<Step> {
        let who = |of: Index| {
            let made: Vec<usize> = (0..self.asks.len()).filter(|who| self.makers[*who] == client).collect();
            (!made.is_empty()).then(|| *of.get(&made))
        };
        let any = |of: Index| (!self.asks.is_empty()).then(|| of.index(self.asks.len()));
        let token = |who: usize, grant: WhichGrant| {
            let awards = self.awards.get(&who)?;
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
                Step::Acquire { who: self.asks.len() - 1, on_busy }
            }
            Command::Resend { of, on_busy } => Step::Acquire { who: who(of)?, on_busy },
            Command::Check { of } => Step::Check(who(of)?),
            Command::Leave { of } => Step::Leave(who(of)?),
            Command::Renew { of, grant } => Step::Renew { who: who(of)?, token: token(who(of)?, grant)? },
            Command::Release { of, grant } => Step::Release { who: who(of)?, token: token(who(of)?, grant)? },
            Command::Break { of, grant, name } => Step::Break { name, token: token(any(of)?, grant)? },
            Command::Write { of, grant, name, value, keep } => {
                Step::Write { who: who(of)?, token: token(who(of)?, grant)?, name, value, keep }
            }
            Command::Read { name } => Step::Read { name },
        })
    }

    fn op(&self, step: &Step) -> Op {
        match step {
            Step::Acquire { who, on_busy } => {
                Op::Acquire { attempt: self.attempts[*who].clone(), on_busy: *on_busy }
            }
            Step::Check(who) => Op::Check(self.attempts[*who].clone()),
            Step::Leave(who) => Op::Leave(self.attempts[*who].clone()),
            Step::Renew { who, token } => Op::Renew(self.grant(*who, *token)),
            Step::Release { who, token } => Op::Release(self.grant(*who, *token)),
            Step::Break { name, token } => {
                Op::Break { name: lock_name(*name), token: FencingToken::new(*token) }
            }
            Step::Write { who, token, name, value, keep } => Op::WriteCell {
                grant: self.grant(*who, *token),
                name: lock_name(*name),
                bytes: [*value].into(),
                keep: *keep,
            },
            Step::Read { name } => Op::ReadCell(lock_name(*name)),
            // Any call that finds a lock free gives it to the first in line: so a stranger asks for all of them.
            Step::Pass(_) | Step::Enter(_) => Op::Check(attempt(usize::MAX, &stranger())),
        }
    }

    fn grant(&self, who: usize, token: u64) -> Grant {
        let known = self.awards.get(&who).into_iter().flatten().find(|award| award.token.get() == token);
        Grant { attempt: self.attempts[who].clone(), award: *known.expect("it was seen") }
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

fn stranger() -> Ask {
    Ask {
        wants: (0..NAMES.len()).collect(),
        mode: fencepost_core::Mode::Exclusive,
        rule: Rule::All,
        ttl: Duration::from_secs(60),
    }
}
