//! The waiting line, one situation each.

use super::*;
use crate::grant::{Mode, Rule, Want};
use crate::name::LockName;
use crate::token::FencingToken;

const TTL: Duration = Duration::from_secs(12);
const ID: AttemptId = 7;

fn at(seconds: u64) -> Moment {
    Moment::START + Duration::from_secs(1000 + seconds)
}

fn granted(token: u64) -> Reply {
    Reply::Granted(award(token))
}

fn award(token: u64) -> Award {
    Award { token: FencingToken::new(token), ttl: TTL, chosen: 0, spent: Duration::ZERO }
}

fn still_waiting() -> Reply {
    Reply::Waiting { turn_in: TTL }
}

fn failure(kind: ErrorKind) -> Result<Reply> {
    Err(Error::new(kind, "told to fail"))
}

/// An attempt that began at second 0; its caller is called "caller".
fn started(queue: Queue, until: Moment) -> (Waiting<&'static str>, Owner) {
    let attempt = Arc::new(Attempt {
        owner: Owner::random(),
        wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
        rule: Rule::All,
        ttl: TTL,
        label: "test".into(),
        meta: [].into(),
    });
    let owner = attempt.owner;
    let mut waiting = Waiting::default();
    let ask = waiting.start(ID, attempt, queue, until, "caller", at(0));
    assert_eq!(brief(&[ask]), "ask");
    (waiting, owner)
}

/// One that stands in line since second 0.
fn in_line() -> (Waiting<&'static str>, Owner) {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(0));
    assert_eq!(brief(&actions), "keep ticket");
    (waiting, owner)
}

/// The actions in words.
fn brief(actions: &[Action<&'static str>]) -> String {
    let words = actions.iter().map(|action| match action {
        Action::Ask(..) => "ask".into(),
        Action::Leave(..) => "leave".into(),
        Action::GiveBack(grant) => format!("give back {}", grant.award.token),
        Action::KeepTicket(_, _, Duration::ZERO) => "look now".into(),
        Action::KeepTicket(..) => "keep ticket".into(),
        Action::DropTicket(_) => "drop ticket".into(),
        Action::Finish(caller, verdict) => format!("tell {caller} {}", verdict_in_words(verdict)),
    });
    words.collect::<Vec<String>>().join(", ")
}

fn verdict_in_words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Granted { counted_from, .. } => {
            format!("granted from {}", counted_from.since(at(0)).as_secs())
        }
        Verdict::Busy => "busy".into(),
        Verdict::WaitedOut => "waited out".into(),
        Verdict::Failed(error) => format!("failed {:?}", error.kind()),
    }
}

fn current_owner(waiting: &Waiting<&'static str>) -> Owner {
    waiting.entries.get(ID).unwrap().attempt.owner
}

#[test]
fn a_grant_counts_from_its_sending() {
    let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
    waiting.sent(ID, at(1));
    let actions = waiting.replied(ID, owner, Asked::Ask, at(1), Ok(granted(1)), at(3));
    assert_eq!(brief(&actions), "tell caller granted from 1");
    assert!(waiting.is_empty());
    assert_eq!(waiting.next(), Moment::NEVER);
}

/// Scenario 11: stopped between sending and reading for longer than the lease.
#[test]
fn a_grant_that_is_read_too_late_is_given_back() {
    let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(granted(1)), at(12));
    assert_eq!(brief(&actions), "give back 1, tell caller failed Lost");
    assert!(waiting.is_empty());
}

/// Scenario 12: the validity counts from the send that succeeded.
#[test]
fn a_grant_after_a_resend_counts_from_the_resend() {
    let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
    let lost = failure(ErrorKind::OutcomeUnknown);
    assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(0), lost, at(2))), "");
    assert_eq!(waiting.next(), at(3));
    assert_eq!(brief(&waiting.tick(at(3))), "ask");
    let actions = waiting.replied(ID, owner, Asked::Ask, at(3), Ok(granted(1)), at(4));
    assert_eq!(brief(&actions), "tell caller granted from 3");
}

#[test]
fn an_unknown_outcome_is_undone_after_the_last_send() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    for send in 1..SENDS {
        let lost = failure(ErrorKind::OutcomeUnknown);
        assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(0), lost, at(0))), "");
        assert_eq!(brief(&waiting.tick(waiting.next())), "ask", "send {send}");
    }
    let lost = failure(ErrorKind::OutcomeUnknown);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), lost, at(0));
    assert_eq!(brief(&actions), "leave, tell caller failed OutcomeUnknown");
    let actions = waiting.replied(ID, owner, Asked::Leave, at(0), Ok(Reply::Left), at(0));
    assert_eq!(brief(&actions), "");
    assert!(waiting.is_empty());
}

#[test]
fn what_had_no_effect_needs_no_undoing() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::Unreachable), at(0));
    assert_eq!(brief(&actions), "tell caller failed Unreachable");
    assert!(waiting.is_empty());
}

/// Scenario 66: the storage refuses for the time being. The attempt is repeated, and there is nothing to undo.
#[test]
fn a_refusal_for_the_time_being_is_waited_out() {
    let refused = || Err(Error::new(ErrorKind::Unreachable, "not now").transient());
    let (mut waiting, owner) = started(Queue::Join, at(60));
    for second in 0..10 {
        let actions = waiting.replied(ID, owner, Asked::Ask, at(second), refused(), at(second));
        assert_eq!(brief(&actions), "");
        assert_eq!(waiting.next(), at(second + 1));
        assert_eq!(brief(&waiting.tick(at(second + 1))), "ask");
    }
    // They do not count as sends whose outcome is unknown.
    let lost = failure(ErrorKind::OutcomeUnknown);
    assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(10), lost, at(10))), "");
    assert_eq!(brief(&waiting.tick(at(11))), "ask");
    let actions = waiting.replied(ID, owner, Asked::Ask, at(11), Ok(still_waiting()), at(11));
    assert_eq!(brief(&actions), "keep ticket");
    assert_eq!(brief(&waiting.tick(at(60))), "drop ticket, leave, tell caller waited out");
}

/// A waiter whose ticket has ended, and that asks again, is not thrown out if the storage is away just then.
#[test]
fn a_waiter_that_asks_again_outlasts_an_absence() {
    let (mut waiting, owner) = in_line();
    let actions = waiting.replied(ID, owner, Asked::Check, at(4), Ok(Reply::NoTicket), at(4));
    assert_eq!(brief(&actions), "drop ticket, ask");
    let owner = current_owner(&waiting);
    for second in 4..10 {
        let away = failure(ErrorKind::Unreachable);
        assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(second), away, at(second))), "");
        assert_eq!(brief(&waiting.tick(at(second + 1))), "ask");
    }
    let actions = waiting.replied(ID, owner, Asked::Ask, at(10), Ok(granted(3)), at(10));
    assert_eq!(brief(&actions), "tell caller granted from 10");
}

/// Scenario 66: a try is refused at once, and a wait that ends during the refusal reports what the storage said.
#[test]
fn a_refusal_that_lasts_is_told() {
    let refused = || Err(Error::new(ErrorKind::Unreachable, "not now").transient());
    let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), refused(), at(0));
    assert_eq!(brief(&actions), "tell caller failed Unreachable");
    for is_under_way in [false, true] {
        let (mut waiting, owner) = started(Queue::Join, at(3));
        waiting.replied(ID, owner, Asked::Ask, at(0), refused(), at(0));
        if is_under_way {
            assert_eq!(brief(&waiting.tick(at(1))), "ask");
        }
        assert_eq!(brief(&waiting.tick(at(3))), "tell caller failed Unreachable");
        waiting.replied(ID, owner, Asked::Ask, at(3), refused(), at(3));
        assert!(waiting.is_empty());
    }
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    waiting.replied(ID, owner, Asked::Ask, at(0), refused(), at(0));
    assert_eq!(brief(&waiting.abandon(ID, at(1))), "");
    assert!(waiting.is_empty());
}

/// Scenario 50: the first send may still arrive when the second was answered.
#[test]
fn busy_after_an_unknown_send_is_undone() {
    let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
    waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(0));
    waiting.tick(waiting.next());
    let actions = waiting.replied(ID, owner, Asked::Ask, at(1), Ok(Reply::Busy), at(1));
    assert_eq!(brief(&actions), "leave, tell caller busy");
}

#[test]
fn a_handed_over_grant_counts_from_the_newest_heartbeat() {
    let (mut waiting, owner) = in_line();
    for sent in [4, 8] {
        assert_eq!(
            brief(&waiting.replied(ID, owner, Asked::Check, at(sent), Ok(still_waiting()), at(sent))),
            ""
        );
    }
    // An answer that was overtaken does not make it older again.
    waiting.replied(ID, owner, Asked::Check, at(6), Ok(still_waiting()), at(9));
    let actions = waiting.handed_over(owner, award(1), at(11));
    assert_eq!(brief(&actions), "drop ticket, tell caller granted from 8");
    assert_eq!(brief(&waiting.handed_over(owner, award(1), at(11))), "");
}

#[test]
fn a_push_may_come_before_the_answer_that_says_wait() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    let actions = waiting.handed_over(owner, award(1), at(2));
    assert_eq!(brief(&actions), "tell caller granted from 0");
    assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(3))), "");
}

#[test]
fn a_push_that_says_gone_may_come_before_the_answer_that_grants() {
    for (queue, end) in [
        (Queue::Join, "give back 1, drop ticket, ask"),
        (Queue::Never, "give back 1, tell caller failed Lost"),
    ] {
        let (mut waiting, owner) = started(queue, Moment::NEVER);
        waiting.gone(owner, LostReason::Broken, at(1));
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(granted(1)), at(2));
        assert_eq!(brief(&actions), end);
    }
}

#[test]
fn what_is_granted_to_a_later_request_is_not_what_was_gone() {
    let (mut waiting, owner) = in_line();
    waiting.gone(owner, LostReason::Broken, at(1));
    let actions = waiting.replied(ID, owner, Asked::Check, at(2), Ok(granted(1)), at(3));
    assert_eq!(brief(&actions), "drop ticket, tell caller granted from 2");
}

#[test]
fn a_turn_may_come_before_the_answer_that_says_wait() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    waiting.turn(owner);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(1));
    assert_eq!(brief(&actions), "look now");
}

/// The push is not believed, but it is not forgotten: the answer that says wait was given before it.
#[test]
fn a_doubtful_push_before_the_answer_that_says_wait_is_looked_into() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(5));
    waiting.tick(at(6));
    assert_eq!(brief(&waiting.handed_over(owner, award(1), at(6))), "");
    let actions = waiting.replied(ID, owner, Asked::Ask, at(6), Ok(still_waiting()), at(7));
    assert_eq!(brief(&actions), "look now");
}

/// Scenario 45: a waiter that was stopped reads a grant whose lease has ended.
#[test]
fn a_grant_that_is_handed_over_too_late_is_given_back_and_asked_for_anew() {
    let (mut waiting, owner) = in_line();
    let actions = waiting.handed_over(owner, award(1), at(12));
    assert_eq!(brief(&actions), "drop ticket, give back 1, drop ticket, ask");
    assert_ne!(current_owner(&waiting), owner);
}

/// The first send joined the line and was granted, but its answer got lost: the lease has run since before the
/// second send, which does not count as its beginning.
#[test]
fn a_push_proves_nothing_while_an_earlier_send_is_in_doubt() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(5));
    assert_eq!(brief(&waiting.tick(at(6))), "ask");
    waiting.sent(ID, at(6));
    assert_eq!(brief(&waiting.handed_over(owner, award(1), at(6))), "");
    let actions = waiting.replied(ID, owner, Asked::Ask, at(6), Ok(granted(1)), at(7));
    assert_eq!(brief(&actions), "tell caller granted from 6");
}

/// The grant of the first send came to its end unseen, the second send joined the line again, and only then the
/// push of the first grant arrives.
#[test]
fn a_push_of_a_grant_that_has_ended_is_not_believed() {
    let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
    waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(12));
    assert_eq!(brief(&waiting.tick(at(13))), "ask");
    waiting.replied(ID, owner, Asked::Ask, at(13), Ok(still_waiting()), at(13));
    assert_eq!(brief(&waiting.handed_over(owner, award(1), at(14))), "look now");
    let actions = waiting.replied(ID, owner, Asked::Check, at(14), Ok(granted(2)), at(14));
    assert_eq!(brief(&actions), "drop ticket, tell caller granted from 14");
}

#[test]
fn whoever_waits_out_leaves_the_line() {
    let (mut waiting, owner) = started(Queue::Join, at(5));
    waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(0));
    assert_eq!(waiting.next(), at(5));
    assert_eq!(brief(&waiting.tick(at(5))), "drop ticket, leave, tell caller waited out");
    waiting.replied(ID, owner, Asked::Leave, at(5), Ok(Reply::Left), at(5));
    assert!(waiting.is_empty());
}

#[test]
fn whoever_waits_out_before_an_answer_is_told_at_once_and_undone_after_it() {
    let (mut waiting, owner) = started(Queue::Join, at(5));
    assert_eq!(brief(&waiting.tick(at(5))), "tell caller waited out");
    assert_eq!(waiting.next(), Moment::NEVER);
    let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(granted(1)), at(6));
    assert_eq!(brief(&actions), "give back 1");
    assert!(waiting.is_empty());
}

#[test]
fn a_caller_that_goes_while_it_asks_is_undone_by_the_answer() {
    for (reply, undone) in [
        (Ok(granted(1)), "give back 1"),
        (Ok(still_waiting()), "drop ticket, leave"),
        (Ok(Reply::Busy), ""),
        (failure(ErrorKind::OutcomeUnknown), "leave"),
        (failure(ErrorKind::Unreachable), ""),
    ] {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        assert_eq!(brief(&waiting.abandon(ID, at(1))), "");
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), reply, at(2));
        assert_eq!(brief(&actions), undone);
    }
}

#[test]
fn a_grant_that_comes_while_the_line_is_left_is_given_back() {
    let (mut waiting, owner) = in_line();
    assert_eq!(brief(&waiting.abandon(ID, at(1))), "drop ticket, leave");
    assert_eq!(brief(&waiting.handed_over(owner, award(1), at(1))), "");
    let had = Ok(Reply::HadBeenGranted(award(1)));
    assert_eq!(brief(&waiting.replied(ID, owner, Asked::Leave, at(1), had, at(1))), "give back 1");
    assert!(waiting.is_empty());
}

#[test]
fn a_leaving_is_repeated_until_whatever_became_of_the_ticket_has_ended() {
    let (mut waiting, owner) = in_line();
    waiting.abandon(ID, at(0));
    let mut leavings = 1;
    let mut now = at(0);
    while !waiting.is_empty() {
        let lost = failure(ErrorKind::Unreachable);
        waiting.replied(ID, owner, Asked::Leave, now, lost, now);
        if !waiting.is_empty() {
            now = waiting.next();
            assert_eq!(brief(&waiting.tick(now)), "leave");
            leavings += 1;
        }
    }
    assert_eq!((leavings, now), (25, at(24)));
}

#[test]
fn a_ticket_that_is_gone_is_asked_for_anew() {
    let (mut waiting, owner) = in_line();
    let actions = waiting.replied(ID, owner, Asked::Check, at(4), Ok(Reply::NoTicket), at(4));
    assert_eq!(brief(&actions), "drop ticket, ask");
    assert_ne!(current_owner(&waiting), owner);
    // What still comes for the old owner is of no interest.
    assert_eq!(brief(&waiting.handed_over(owner, award(1), at(4))), "");
}

#[test]
fn a_check_that_fails_for_a_while_keeps_the_place() {
    let (mut waiting, owner) = in_line();
    for kind in [ErrorKind::Unreachable, ErrorKind::OutcomeUnknown] {
        assert_eq!(brief(&waiting.replied(ID, owner, Asked::Check, at(4), failure(kind), at(4))), "");
    }
    let denied = failure(ErrorKind::Denied);
    let actions = waiting.replied(ID, owner, Asked::Check, at(5), denied, at(5));
    assert_eq!(brief(&actions), "drop ticket, leave, tell caller failed Denied");
}

/// A ticket of which nothing is known but that the storage keeps it for this client.
fn adopted() -> (Waiting<&'static str>, AttemptId, Owner) {
    let (known, owner) = in_line();
    let ticket = known.find(owner).unwrap().1.clone();
    let mut waiting = Waiting::default();
    assert_eq!(brief(&[waiting.adopt(ticket, at(0))]), "look now");
    let (id, _) = waiting.find(owner).unwrap();
    (waiting, id, owner)
}

#[test]
fn an_unknown_ticket_that_was_granted_is_given_back() {
    let (mut waiting, _, owner) = adopted();
    assert_eq!(brief(&waiting.handed_over(owner, award(5), at(0))), "drop ticket, give back 5");
    assert!(waiting.is_empty());
    let (mut waiting, id, owner) = adopted();
    let actions = waiting.replied(id, owner, Asked::Check, at(0), Ok(granted(5)), at(1));
    assert_eq!(brief(&actions), "drop ticket, give back 5");
    assert!(waiting.is_empty());
}

#[test]
fn an_unknown_ticket_leaves_the_line() {
    for reply in [Ok(still_waiting()), failure(ErrorKind::Unreachable)] {
        let (mut waiting, id, owner) = adopted();
        let actions = waiting.replied(id, owner, Asked::Check, at(0), reply, at(1));
        assert_eq!(brief(&actions), "drop ticket, leave");
        assert_eq!(brief(&waiting.replied(id, owner, Asked::Leave, at(1), Ok(Reply::Left), at(1))), "");
        assert!(waiting.is_empty());
    }
}

#[test]
fn an_unknown_ticket_that_the_storage_does_not_have_is_forgotten() {
    let (mut waiting, id, owner) = adopted();
    let actions = waiting.replied(id, owner, Asked::Check, at(0), Ok(Reply::NoTicket), at(1));
    assert_eq!(brief(&actions), "drop ticket");
    assert!(waiting.is_empty());
}
