//! Decodes pushes: `G OWNER TTL TOKEN CHOSEN ANY WANTS` granted, `T OWNER TTL 0 0 ANY WANTS` offered, `C OWNER` check, `L
//! OWNER` broken. They have all that is needed to release a lock that was granted to a ticket unknown to this client.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::{Attempt, Award, FencingToken, LostReason, Owner, Rule};
use fencepost_sql::codec;

/// Decodes one push.
pub(crate) fn wakeup(push: &str) -> Option<Wakeup> {
    let (kind, rest) = push.split_once(' ')?;
    let mut words = rest.splitn(6, ' ');
    let owner = Owner::from_hex(&words.next()?.replace('-', ""))?;
    match kind {
        "C" => return Some(Wakeup::Check { owner }),
        "L" => return Some(Wakeup::Lost { owner, reason: LostReason::Broken }),
        _ => {}
    }
    let ttl = Duration::from_millis(words.next()?.parse().ok()?);
    let token = FencingToken::new(words.next()?.parse().ok()?);
    let chosen = words.next()?.parse().ok()?;
    let rule = if words.next()? == "t" { Rule::Any } else { Rule::All };
    let wants = codec::wants_of(words.next()?).ok().filter(|wants| !wants.is_empty())?;
    let attempt = Arc::new(Attempt { owner, wants, rule, ttl, label: "".into(), meta: [].into() });
    match kind {
        "G" => {
            Some(Wakeup::Granted { attempt, award: Award { token, ttl, chosen, elapsed: Duration::ZERO } })
        }
        "T" => Some(Wakeup::Offered { attempt }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Mode;

    use super::*;

    const OWNER: &str = "00010203-0405-0607-0809-0a0b0c0d0e0f";

    #[test]
    fn a_push_contains_its_ticket() {
        let granted = wakeup(&format!("G {OWNER} 1500 77 0 f -1 a b"));
        let Some(Wakeup::Granted { attempt, award }) = granted else { panic!("{granted:?}") };
        assert_eq!((award.token.get(), award.ttl), (77, Duration::from_millis(1500)));
        assert_eq!((attempt.wants[0].name.as_str(), attempt.wants[0].mode), ("a b", Mode::Shared));
        let offered = wakeup(&format!("T {OWNER} 1500 0 0 t 0 a b\n3 c"));
        let Some(Wakeup::Offered { attempt }) = offered else { panic!("{offered:?}") };
        assert_eq!((attempt.rule, attempt.wants.len()), (Rule::Any, 2));
        assert_eq!(attempt.wants[1].mode, Mode::Semaphore { permits: 3 });
    }

    #[test]
    fn what_is_not_a_push_is_ignored() {
        assert!(matches!(wakeup(&format!("C {OWNER}")), Some(Wakeup::Check { .. })));
        assert!(matches!(wakeup(&format!("L {OWNER}")), Some(Wakeup::Lost { .. })));
        for garbage in ["", "G", "G x", "T none 1 0 0 t 0 a", "Z 00"] {
            assert!(wakeup(garbage).is_none(), "{garbage}");
        }
    }
}
