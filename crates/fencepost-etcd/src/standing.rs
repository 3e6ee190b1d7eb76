//! What becomes of an attempt that stands in its lines: it holds, or it waits for those before it.

use std::sync::Arc;

use fencepost_contenders::holding;
use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Mode, Rule, Want};

use crate::home::Home;
use crate::proto::KeyValue;
use crate::watching::held;

/// Who stands before somebody in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nobody who would keep it from holding.
    Nobody,
    /// This key is the last before it.
    This(Vec<u8>),
    /// Enough of them.
    Somebody,
}

impl Home {
    /// Lets an attempt wait in this process until the key of its lock is gone.
    pub(crate) fn wait_for_the_key(&self, attempt: &Arc<Attempt>, seen: i64, asked: Moment) -> Reply {
        let mut state = self.state();
        let state = &mut *state;
        if state.has_departed(attempt.owner, asked) {
            // It has left while it came.
            return Reply::Busy;
        }
        state.places.wait(attempt, asked);
        for want in &attempt.wants {
            let line = self.keys.line(&want.name);
            // The key may have ended by the very transaction that found it.
            state.watches.line(&self.link, attempt.owner, &want.name, (line, seen), false);
        }
        self.pass_on(state, attempt);
        Reply::Waiting { turn_in: attempt.ttl }
    }

    /// Who is before the key of this revision, given what was found of its line.
    pub(crate) fn before(&self, want: &Want, line: &[KeyValue], revision: i64) -> Before {
        let ahead = line.iter().filter(|key| key.create_revision < revision);
        if !matches!(want.mode, Mode::Slots { .. }) {
            return ahead
                .max_by_key(|key| key.create_revision)
                .map_or(Before::Nobody, |key| Before::This(key.key.clone()));
        }
        let modes = ahead.map(|key| self.keys.read(&key.key).map_or(Mode::Exclusive, |seat| seat.mode));
        let modes: Vec<Mode> = modes.collect();
        let mine = modes.len();
        let holds = holding(modes.into_iter().chain([want.mode])) > mine;
        if holds { Before::Nobody } else { Before::Somebody }
    }

    /// An attempt stands in its lines, made by `revision`: it holds, or it waits for something to happen after `seen`.
    pub(crate) fn stands(
        &self,
        attempt: &Arc<Attempt>,
        lines: &[Before],
        revision: i64,
        seen: i64,
        asked: Moment,
    ) -> Reply {
        let is_free = |line: &Before| *line == Before::Nobody;
        let chosen = match attempt.rule {
            Rule::All => lines.iter().all(is_free).then_some(0),
            Rule::Any => lines.iter().position(is_free),
        };
        let mut state = self.state();
        let state = &mut *state;
        let Some(place) = state.keep(attempt.owner, asked) else {
            return Reply::NoTicket;
        };
        if place.entry.revision.is_some_and(|known| known > revision) {
            // It has come again since.
            return Reply::Waiting { turn_in: attempt.ttl };
        }
        place.entry.revision = Some(revision);
        // Whoever has chosen already stands in no other line.
        let chosen = place.entry.held.or(chosen);
        if let Some(chosen) = chosen {
            place.entry.held = Some(chosen);
            let lease = place.entry.proven_lease();
            let lease = state.leases.get(lease);
            let award = Self::award(lease, attempt.ttl, revision, chosen, asked);
            let called = state.seats.called(attempt.owner);
            let held = held(attempt, chosen).iter().map(|want| self.keys.seat(want, called));
            state.watches.arrived(&self.link, attempt.owner, &held.collect::<Vec<_>>());
            state.watches.later(attempt.owner, asked);
            self.granted.notify_one();
            return Reply::Granted(award);
        }
        let owner = attempt.owner;
        for (want, line) in attempt.wants.iter().zip(lines) {
            // What was found may have ended by the very transaction that found it.
            match line {
                Before::Nobody => {}
                Before::This(key) => state.watches.ahead(&self.link, owner, key.clone(), seen),
                Before::Somebody => {
                    let line = self.keys.line(&want.name);
                    state.watches.line(&self.link, owner, &want.name, (line, seen), true);
                }
            }
            let seat = self.keys.seat(want, state.seats.called(owner));
            state.watches.own(&self.link, owner, seat, seen);
        }
        Reply::Waiting { turn_in: attempt.ttl }
    }
}
