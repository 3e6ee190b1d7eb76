//! Releases on their way: a state machine without I/O. A release without a verdict is sent again until the lease has
//! ended by itself.

use crate::backend::Reply;
use crate::clock::Moment;
use crate::diary::{Diary, Due};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, LostReason};
use crate::token::Owner;

/// A release that is over.
#[derive(Debug)]
pub struct Over<T> {
    /// What was given back.
    pub grant: Grant,
    /// Who wants to know how it went.
    pub told: Option<T>,
    /// How it went.
    pub outcome: Result<()>,
}

#[derive(Debug)]
struct Release<T> {
    grant: Grant,
    told: Option<T>,
    /// After this the lease has ended by itself.
    give_up: Moment,
    /// A send of it may have had its effect without our knowing.
    unknown: bool,
    /// When to send it again; never while it is under way.
    again: Moment,
}

impl<T> Due for Release<T> {
    fn due(&self) -> Moment {
        self.again
    }
}

/// The releases that are not over.
#[derive(Debug)]
pub struct Releasing<T> {
    releases: Diary<Owner, Release<T>>,
}

impl<T> Default for Releasing<T> {
    fn default() -> Self {
        Self { releases: Diary::default() }
    }
}

impl<T> Releasing<T> {
    /// Begins a release, which is to be sent now.
    pub fn start(&mut self, grant: Grant, told: Option<T>, now: Moment) {
        let give_up = now + grant.award.ttl;
        let release = Release { grant, told, give_up, unknown: false, again: Moment::NEVER };
        self.releases.insert(release.grant.attempt.owner, release);
    }

    /// The grant of a release that is not over.
    pub fn grant(&self, owner: Owner) -> Option<&Grant> {
        self.releases.get(owner).map(|release| &release.grant)
    }

    /// The answer of the storage; what there is to tell if that is the end of it.
    pub fn replied(&mut self, owner: Owner, reply: Result<Reply>, now: Moment) -> Option<Over<T>> {
        let release = self.releases.get(owner)?;
        let outcome = match reply {
            Ok(Reply::NotHeld) if release.unknown => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "the release of {} was sent twice and the second found it gone",
                    release.grant.attempt.describe()
                ),
            )),
            Ok(Reply::NotHeld) => Err(Error::lost(&release.grant.attempt.describe(), LostReason::NotHeld)),
            Ok(_) => Ok(()),
            Err(error) => {
                let again = now + release.grant.award.ttl / 12;
                let retryable = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown);
                if retryable && again < release.give_up {
                    let unknown = error.kind() == ErrorKind::OutcomeUnknown;
                    self.releases.change(owner, |release| {
                        release.unknown |= unknown;
                        release.again = again;
                    });
                    return None;
                }
                Err(error.while_doing(format_args!("could not release {}", release.grant.attempt.describe())))
            }
        };
        let Release { grant, told, .. } = self.releases.remove(owner)?;
        Some(Over { grant, told, outcome })
    }

    /// When to call [`Releasing::tick`] next.
    pub fn next(&self) -> Moment {
        self.releases.next()
    }

    /// The releases that are to be sent again.
    pub fn tick(&mut self, now: Moment) -> Vec<Owner> {
        let mut due = Vec::new();
        while let Some(owner) = self.releases.first_due(now) {
            self.releases.change(owner, |release| release.again = Moment::NEVER);
            due.push(owner);
        }
        due
    }

    /// Whether every release is over.
    pub fn is_empty(&self) -> bool {
        self.releases.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::grant::{Attempt, Award, Mode, Rule, Want};
    use crate::name::LockName;
    use crate::token::FencingToken;

    fn started(now: Moment) -> (Releasing<()>, Owner) {
        let attempt = Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(12),
            label: "test".into(),
            meta: [].into(),
        };
        let owner = attempt.owner;
        let award = Award { token: FencingToken::new(1), ttl: attempt.ttl, chosen: 0, spent: Duration::ZERO };
        let mut releasing = Releasing::default();
        releasing.start(Grant { attempt: Arc::new(attempt), award }, Some(()), now);
        (releasing, owner)
    }

    fn kind(over: Option<Over<()>>) -> ErrorKind {
        over.unwrap().outcome.unwrap_err().kind()
    }

    #[test]
    fn not_held_at_first_is_lost() {
        let (mut releasing, owner) = started(Moment::START);
        let over = releasing.replied(owner, Ok(Reply::NotHeld), Moment::START);
        assert_eq!(kind(over), ErrorKind::Lost);
        assert!(releasing.is_empty());
    }

    #[test]
    fn not_held_after_a_lost_reply_is_unknown() {
        let (mut releasing, owner) = started(Moment::START);
        let cut = Err(Error::new(ErrorKind::OutcomeUnknown, "cut"));
        assert!(releasing.replied(owner, cut, Moment::START).is_none());
        assert_eq!(releasing.tick(releasing.next()), [owner]);
        let over = releasing.replied(owner, Ok(Reply::NotHeld), Moment::START);
        assert_eq!(kind(over), ErrorKind::OutcomeUnknown);
    }

    #[test]
    fn is_sent_until_the_lease_has_ended_by_itself() {
        let (mut releasing, owner) = started(Moment::START);
        let mut now = Moment::START;
        let mut sends = 1;
        let over = loop {
            let down = Err(Error::new(ErrorKind::Unreachable, "down"));
            if let Some(over) = releasing.replied(owner, down, now) {
                break over;
            }
            now = releasing.next();
            sends += releasing.tick(now).len();
        };
        assert_eq!(sends, 12);
        assert_eq!(kind(Some(over)), ErrorKind::Unreachable);
    }
}
