//! Decides whether a world of the model explains what was observed of the backend.

use std::time::Duration;

use fencepost_core::backend::{LockState, Reply};
use fencepost_core::{Award, Error, ErrorKind, FencingToken, Rule};

use super::Machine;
use super::model::World;
use super::step::{self, ExpectedReply, NAMES};

impl Machine {
    /// Returns whether this world explains the observed locks. Records the tokens that are observed for the first time.
    pub(super) fn explains(&self, world: &mut World, seen: &[LockState]) -> Result<(), String> {
        let newest = world.newest;
        for (name, state) in seen.iter().enumerate() {
            self.explains_lock(world, name, state, &newest)
                .map_err(|what| format!("on {}: {what}", NAMES[name]))?;
        }
        Ok(())
    }

    fn explains_lock(
        &self,
        world: &mut World,
        name: usize,
        state: &LockState,
        newest: &[u64; NAMES.len()],
    ) -> Result<(), String> {
        let mut expected: Vec<_> = world.on(name).map(|grant| (grant.id, grant.nth, grant.until)).collect();
        for holder in &state.holders {
            let id = number(&holder.label);
            let Some(at) = expected.iter().position(|(expected, ..)| *expected == id) else {
                return Err(format!("{id} should not hold it"));
            };
            let (_, nth, until) = expected.swap_remove(at);
            let left = until.checked_sub(world.now).unwrap_or_default();
            if self.clock.is_some() && holder.expires_in != Some(left) {
                return Err(format!("{id} should have {left:?} left, not {:?}", holder.expires_in));
            }
            if holder.mode != self.asks[id].mode || holder.ttl != Some(self.asks[id].ttl) {
                return Err(format!("{id} holds it in another way than it wanted: {holder:?}"));
            }
            let token = holder.token.expect("a Fencepost holder has a token").get();
            match world.tokens.get(&(id, nth)) {
                Some(known) if *known != token => {
                    return Err(format!("the token of {id} changed to {token}"));
                }
                None if token <= newest[name] => {
                    return Err(format!("the token of {id} does not rise: {token}"));
                }
                _ => {}
            }
            world.tokens.insert((id, nth), token);
            world.newest[name] = world.newest[name].max(token);
        }
        if !expected.is_empty() {
            return Err(format!("these should hold it too: {expected:?}"));
        }
        let queue: Vec<usize> = state.waiters.iter().map(|waiter| number(&waiter.label)).collect();
        let expected = world.line_of(&self.asks, name);
        if queue != expected || state.waiter_count != expected.len() {
            return Err(format!("{expected:?} should be queued, not {queue:?}"));
        }
        explains_cell(world, world.cells[name].as_ref(), state.cell.as_ref())
    }

    /// Returns whether this world gives the same reply. Records the token of a grant that is observed for the first time.
    pub(super) fn agrees(
        &self,
        world: &mut World,
        expected: &ExpectedReply,
        reply: Option<&Result<Reply, Error>>,
    ) -> bool {
        let Some(reply) = reply else { return *expected == ExpectedReply::Nothing };
        match (expected, reply) {
            (ExpectedReply::Conflict, Err(error)) => error.kind() == ErrorKind::Conflict,
            (_, Err(_)) => false,
            (expected, Ok(reply)) => match (expected, reply) {
                (ExpectedReply::Granted(grant), Reply::Granted(award))
                | (ExpectedReply::AlreadyGranted(grant), Reply::AlreadyGranted(award)) => {
                    self.is_awarded(world, grant, award)
                }
                (ExpectedReply::Waiting, Reply::Waiting { check_after }) => !check_after.is_zero(),
                (ExpectedReply::Renewed, Reply::Renewed { ttl }) => {
                    self.asks.iter().any(|ask| ask.ttl == *ttl)
                }
                (ExpectedReply::Cell(cell), Reply::Cell(seen)) => {
                    explains_cell(world, cell.as_ref(), seen.as_ref()).is_ok()
                }
                (ExpectedReply::Busy, Reply::Busy)
                | (ExpectedReply::NoTicket, Reply::NoTicket)
                | (ExpectedReply::Left, Reply::Left)
                | (ExpectedReply::Released, Reply::Released)
                | (ExpectedReply::NotHeld, Reply::NotHeld)
                | (ExpectedReply::Written, Reply::Written) => true,
                _ => false,
            },
        }
    }

    /// Returns whether this is the award, ignoring how much of its lease has elapsed. A new token is larger than all that
    /// were observed before the round; those of one round have no order, as readers may be granted together.
    fn is_awarded(&self, world: &mut World, grant: &step::Grant, award: &Award) -> bool {
        let token = award.token.get();
        if !world.tokens.contains_key(&(grant.id, grant.nth)) {
            if grant.names.iter().any(|name| token <= world.newest[*name]) {
                return false;
            }
            world.tokens.insert((grant.id, grant.nth), token);
        }
        Award { elapsed: Duration::ZERO, ..*award } == self.award(world, grant)
    }

    pub(super) fn award(&self, world: &World, grant: &step::Grant) -> Award {
        let ask = &self.asks[grant.id];
        let chosen = match ask.rule {
            Rule::All => 0,
            Rule::Any => ask.wants.iter().position(|name| *name == grant.names[0]).unwrap_or(usize::MAX),
        };
        let token = world.tokens.get(&(grant.id, grant.nth)).copied().unwrap_or_default();
        Award { token: FencingToken::new(token), ttl: ask.ttl, chosen, elapsed: Duration::ZERO }
    }
}

fn explains_cell(
    world: &World,
    expected: Option<&step::Cell>,
    seen: Option<&fencepost_core::Cell>,
) -> Result<(), String> {
    let seen = seen.map(|cell| (cell.token.get(), cell.bytes.to_vec()));
    let expected =
        expected.map(|cell| (world.tokens.get(&cell.by).copied().unwrap_or_default(), vec![cell.value]));
    if seen == expected { Ok(()) } else { Err(format!("the cell should be {expected:?}, not {seen:?}")) }
}

fn number(label: &str) -> usize {
    label.parse().unwrap_or(usize::MAX)
}
