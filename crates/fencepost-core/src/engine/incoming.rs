//! What comes back to the engine: answers, and what the storage pushes. Each goes to the machine that it is about.

use std::sync::Arc;

use futures_util::stream::{BoxStream, Fuse, StreamExt};

use super::{Engine, Tag};
use crate::backend::{Reply, Wakeup};
use crate::clock::Moment;
use crate::error::Result;
use crate::flights::Landed;
use crate::grant::{Attempt, LostReason};
use crate::layers::Renewal;
use crate::releasing::Over;
use crate::token::Owner;
use crate::waiting::Asked;

impl Engine {
    pub(super) fn land(&mut self, landed: Landed<Tag>) {
        let now = self.clock.now();
        for (tag, reply) in landed.replies {
            self.deliver(tag, landed.sent, reply, now);
        }
    }

    fn deliver(&mut self, tag: Tag, sent: Moment, reply: Result<Reply>, now: Moment) {
        match tag {
            Tag::Attempt(id, owner, asked) => {
                if asked == Asked::Check {
                    self.ticket_checked(owner, sent, &reply, now);
                }
                let actions = self.waiting.replied(id, owner, asked, sent, reply, now);
                self.act(actions, now);
            }
            Tag::Renew(owner) => self.renewed(owner, sent, &reply, now),
            Tag::Release(owner) => {
                if let Some(Over { grant, told, outcome }) = self.releasing.replied(owner, reply, now) {
                    self.tell(told, outcome);
                    self.grant_is_over(&grant, now);
                }
            }
            Tag::Call(answer) => self.relay.tell(answer, reply),
        }
    }

    fn ticket_checked(&mut self, owner: Owner, sent: Moment, reply: &Result<Reply>, now: Moment) {
        match reply {
            Ok(Reply::Waiting { turn_in, .. }) => {
                if let Some((_, attempt)) = self.waiting.find(owner) {
                    self.keeper.renewed(owner, sent, attempt.ttl);
                    self.keeper.no_later_than(owner, now + *turn_in);
                }
            }
            Ok(_) => {}
            Err(_) => self.keeper.failed(owner, now),
        }
    }

    fn renewed(&mut self, owner: Owner, sent: Moment, reply: &Result<Reply>, now: Moment) {
        self.renewing.remove(&owner);
        match reply {
            Ok(Reply::Renewed { ttl }) => {
                let until = self.keeper.renewed(owner, sent, *ttl);
                if let (Some(until), Some(hold)) = (until, self.held.get(&owner))
                    && !hold.extend(until, now)
                {
                    self.keeper.forget(owner);
                }
            }
            // A renewal that was overtaken by a release finds nothing, rightly.
            Ok(_) if self.keeper.holds(owner) => {
                self.tell_of_renewal(owner, Renewal::NotHeld);
                self.lose(owner, LostReason::NotHeld);
            }
            Ok(_) => {}
            Err(error) => {
                self.tell_of_renewal(owner, Renewal::Failed(error));
                self.keeper.failed(owner, now);
            }
        }
    }

    /// If it is still to be renewed.
    fn tell_of_renewal(&self, owner: Owner, renewal: Renewal<'_>) {
        if self.keeper.holds(owner)
            && let Some(hold) = self.held.get(&owner)
        {
            hold.holding.renewal(renewal);
        }
    }

    pub(super) fn woken(&mut self, wakeup: &Wakeup) {
        let now = self.clock.now();
        match *wakeup {
            Wakeup::Granted { ref attempt, award } => {
                self.adopt_unknown(attempt, now);
                let actions = self.waiting.handed_over(attempt.owner, award, now);
                self.act(actions, now);
            }
            Wakeup::Offered { ref attempt } => {
                self.adopt_unknown(attempt, now);
                self.turn(attempt.owner, now);
            }
            Wakeup::Turn { owner } => self.turn(owner, now),
            Wakeup::Gone { owner, why } if self.keeper.holds(owner) => self.lose(owner, why),
            Wakeup::Gone { owner, why } => self.waiting.gone(owner, why, now),
            Wakeup::Recheck => self.keeper.hurry(now),
        }
    }

    fn turn(&mut self, owner: Owner, now: Moment) {
        self.keeper.no_later_than(owner, now);
        self.waiting.turn(owner);
    }

    /// Scenario 65: a storage that was set back, for example restored from a snapshot, may still have a ticket of which
    /// this client knows nothing. Left alone, the lock would stand idle until that lease ends.
    fn adopt_unknown(&mut self, attempt: &Arc<Attempt>, now: Moment) {
        let owner = attempt.owner;
        let is_known = self.waiting.find(owner).is_some()
            || self.held.contains_key(&owner)
            || self.releasing.grant(owner).is_some();
        if !is_known {
            let keep = self.waiting.adopt(attempt.clone(), now);
            self.act([keep], now);
        }
    }
}

/// The next push; a stream that has ended pushes no more.
pub(super) async fn next_wakeup(wakeups: &mut Fuse<BoxStream<'static, Wakeup>>) -> Wakeup {
    match wakeups.next().await {
        Some(wakeup) => wakeup,
        None => std::future::pending().await,
    }
}
