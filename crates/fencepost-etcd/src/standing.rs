//! What becomes of an attempt that stands in its lines: it holds, or it waits for those before it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_contenders::holder_count;
use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Award, FencingToken, Mode, Rule, Want};

use crate::client_state::{ClientState, State, held};
use crate::proto::KeyValue;
use crate::store::Store;

/// What stands before an attempt in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing that would keep it from holding.
    Free,
    /// This key is the last before it.
    Key(Vec<u8>),
    /// Enough keys to keep it from holding.
    Blocked,
}

impl Store {
    /// Returns what is before the key of this revision, given what was found of its line.
    pub(crate) fn before(&self, want: &Want, line: &[KeyValue], revision: i64) -> Before {
        let ahead = line.iter().filter(|key| key.create_revision < revision);
        if !matches!(want.mode, Mode::Semaphore { .. }) {
            return ahead
                .max_by_key(|key| key.create_revision)
                .map_or(Before::Free, |key| Before::Key(key.key.clone()));
        }
        let modes: Vec<Mode> = ahead.map(|key| self.keys.mode_of(key)).collect();
        let mine = modes.len();
        let holds = holder_count(modes.into_iter().chain([want.mode])) > mine;
        if holds { Before::Free } else { Before::Blocked }
    }
}

impl ClientState {
    /// Lets an attempt wait in this process until the key of its lock is gone.
    pub(crate) fn wait_for_the_key(&self, attempt: &Arc<Attempt>, seen: i64, asked: Moment) -> Reply {
        let mut state = self.state();
        let state = &mut *state;
        if state.places.get(attempt.owner).is_some() {
            // A request of it may still arrive: its next check finds no ticket, and it asks again as another owner.
            return Reply::Waiting { check_after: Duration::ZERO };
        }
        state.places.wait_locally(attempt, asked);
        for want in &attempt.wants {
            let line = self.store.keys.line(&want.name);
            // The key may have ended by the very transaction that found it.
            state.watches.line(&self.store.link, attempt.owner, &want.name, (line, seen), false);
        }
        self.pass_on(state, attempt);
        Reply::Waiting { check_after: attempt.ttl }
    }

    /// Records that an attempt stands in its lines, with keys created by `revision`: it holds, or it waits for something to
    /// happen after `seen`. Returns nothing if it has ended.
    pub(crate) fn stands(
        &self,
        attempt: &Arc<Attempt>,
        lines: &[Before],
        revision: i64,
        seen: i64,
        asked: Moment,
    ) -> Option<Reply> {
        let is_free = |line: &Before| *line == Before::Free;
        let chosen = match attempt.rule {
            Rule::All => lines.iter().all(is_free).then_some(0),
            Rule::Any => lines.iter().position(is_free),
        };
        let mut state = self.state();
        let entry = &mut state.live(attempt.owner)?.entry;
        if !entry.found(revision, chosen) {
            return None;
        }
        let (held, lease) = (entry.held, entry.proven_lease());
        let Some(chosen) = held else {
            self.waits(&mut state, attempt, lines, seen);
            return Some(Reply::Waiting { check_after: attempt.ttl });
        };
        let award = state.award(lease, attempt.ttl, revision, chosen, asked);
        self.holds(&mut state, attempt, chosen, asked);
        Some(Reply::Granted(award))
    }

    fn holds(&self, state: &mut State, attempt: &Attempt, chosen: usize, asked: Moment) {
        let owner = attempt.owner;
        let seats = held(attempt, chosen).iter().map(|want| state.seat(&self.store, want, owner));
        let seats: Vec<Vec<u8>> = seats.collect();
        state.watches.arrived(&self.store.link, owner, &seats);
        state.watches.later(owner, asked);
        self.granted.notify_one();
    }

    fn waits(&self, state: &mut State, attempt: &Attempt, lines: &[Before], seen: i64) {
        let (owner, link) = (attempt.owner, &self.store.link);
        for (want, line) in attempt.wants.iter().zip(lines) {
            // What was found may have ended by the very transaction that found it.
            match line {
                Before::Free => {}
                Before::Key(key) => state.watches.ahead(link, owner, key.clone(), seen),
                Before::Blocked => {
                    let stretch = self.store.keys.line(&want.name);
                    state.watches.line(link, owner, &want.name, (stretch, seen), true);
                }
            }
            let seat = state.seat(&self.store, want, owner);
            state.watches.own(link, owner, seat, seen);
        }
    }

    /// Wakes waiters that may share what an attempt holds now.
    pub(crate) fn let_others_in(&self, attempt: &Attempt, chosen: usize) {
        for want in held(attempt, chosen).iter().filter(|want| want.mode != Mode::Exclusive) {
            self.wake_line(&want.name);
        }
    }
}

impl State {
    /// Returns what an attempt is awarded whose keys were created by this revision: what is left of its lease.
    fn award(&self, lease: i64, ttl: Duration, revision: i64, chosen: usize, asked: Moment) -> Award {
        let (ttl, confirmed) =
            self.leases.get(lease).map_or((ttl, Moment::START), |it| (it.ttl, it.confirmed));
        let token = FencingToken::new(revision.unsigned_abs());
        Award { token, ttl, chosen, elapsed: asked.since(confirmed) }
    }
}
