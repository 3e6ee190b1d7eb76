//! Texts about locks, holders and scopes; nothing is printed here.

use std::time::Duration;

use fencepost::{HolderState, LockName, LockState, Mode, Scope, Severity};

use crate::durations::show;

/// How far a lock reaches.
pub(crate) fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Process => "this process",
        Scope::Host => "this host",
        Scope::Fleet => "all hosts that reach the backend",
        _ => "unknown",
    }
}

/// How a check of the doctor has ended, in a word.
pub(crate) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "fine",
        Severity::Warning => "warning",
        Severity::Problem => "problem",
    }
}

/// How a lock is held.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Shared => "shared".into(),
        Mode::Semaphore { permits } => format!("semaphore {permits}"),
        _ => "exclusive".into(),
    }
}

/// Returns whether a character could control a terminal or reverse the direction of text.
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes a text from another program safe for a terminal.
pub(crate) fn plain(text: &str) -> String {
    let escape = |c: char| {
        if is_hostile(c) { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(escape).collect()
}

/// How much of a long text is quoted.
const QUOTED_CHARS: usize = 60;

/// Makes a text safe for a terminal and cuts a long one: `aaaa… (600 bytes)`.
pub(crate) fn shortened(text: &str) -> String {
    match beginning(text) {
        Some(beginning) => format!("{}… ({} bytes)", plain(&beginning), text.len()),
        None => plain(text),
    }
}

/// Returns the beginning of a text that is too long to be quoted in full.
fn beginning(text: &str) -> Option<String> {
    (text.chars().count() > QUOTED_CHARS).then(|| text.chars().take(QUOTED_CHARS).collect())
}

/// A lock's name in quotes, cut if it is long.
pub(crate) fn quoted(name: &LockName) -> String {
    match beginning(name.as_str()) {
        Some(beginning) => format!("{beginning:?}… ({} bytes)", name.as_str().len()),
        None => format!("{name:?}"),
    }
}

/// The message of a waiter: `waiting for "backup": held by web-3:4711:deploy for 2m10s, ttl 21s left, 2 ahead of you`.
pub(crate) fn waiting(state: &LockState, own_label: &str, queued: Duration) -> String {
    let position = position(state, own_label, queued);
    let parts: Vec<String> = held_by(state).into_iter().chain([position]).collect();
    format!("waiting for {}: {}", quoted(&state.name), parts.join(", "))
}

/// The live line of a waiter, from its longest form to its shortest. `waited` is how long the run has waited.
pub(crate) fn waiting_live(
    state: &LockState,
    own_label: &str,
    queued: Duration,
    waited: &str,
) -> Vec<String> {
    let name = quoted(&state.name);
    let position = position(state, own_label, queued);
    let Some(holder) = state.holders.first() else {
        return vec![
            format!("fencepost: waiting for {name}: {position}, waited {waited}"),
            format!("{name}: {position}, {waited}"),
        ];
    };
    let (label, lease) = (label(holder), lease_left(holder));
    let all = held_by(state).unwrap_or_default();
    vec![
        format!("fencepost: waiting for {name}: {all}, {position}, waited {waited}"),
        format!("fencepost: {name} held by {label}{lease}, {position}, waited {waited}"),
        format!("{name}: held by {label}{lease}, {position}, {waited}"),
        format!("{waited}, {position}{lease}, held by {label}"),
    ]
}

/// The position of this run in the queue.
fn position(state: &LockState, own_label: &str, queued: Duration) -> String {
    match ahead(state, own_label, queued) {
        Some(0) => "you are next".into(),
        Some(ahead) => format!("{ahead} ahead of you"),
        None if state.holders.is_empty() && state.waiter_count == 0 => {
            "it is free, but the backend does not grant it now; `fencepost doctor` may say why".into()
        }
        None => format!("{} in the queue", state.waiter_count),
    }
}

/// The reason why the lock was not acquired.
pub(crate) fn busy(state: &LockState) -> String {
    match held_by(state) {
        Some(holder) => format!("{} is {holder}", quoted(&state.name)),
        None => format!("{} was not free; no client holds it now", quoted(&state.name)),
    }
}

/// `held by web-3:4711:deploy for 2m10s, ttl 21s left`, if it is held.
fn held_by(state: &LockState) -> Option<String> {
    let holder = state.holders.first()?;
    let others = match state.holders.len() - 1 {
        0 => String::new(),
        1 => " and 1 other".into(),
        others => format!(" and {others} others"),
    };
    let held_for = holder.held_for.map(|held_for| format!(" for {}", show(held_for))).unwrap_or_default();
    Some(format!("held by {}{held_for}{}{others}", label(holder), lease_left(holder)))
}

/// The label of a holder that is not a Fencepost client and stores nothing that could be its name.
const FOREIGN_LABEL: &str = "not a Fencepost client";

/// The label of a holder within a sentence: after "held by".
pub(crate) fn label(holder: &HolderState) -> String {
    if holder.token.is_none() && *holder.label == *FOREIGN_LABEL {
        return "a program that is not a Fencepost client".to_owned();
    }
    plain(&holder.label)
}

/// `, ttl 21s left`, as far as it is known.
fn lease_left(holder: &HolderState) -> String {
    match holder.expires_in {
        Some(HolderState::NO_EXPIRY) => ", no expiry".to_owned(),
        Some(left) => format!(", ttl {} left", show(left)),
        None => String::new(),
    }
}

/// Returns how many waiters are ahead of this run. Several waiters may have its label; its own ticket is the one that has
/// been in the queue for as long as it has.
pub(crate) fn ahead(state: &LockState, own_label: &str, queued: Duration) -> Option<usize> {
    let ours = state.waiters.iter().enumerate().filter(|(_, waiter)| *waiter.label == *own_label);
    ours.min_by_key(|(_, waiter)| waiter.waiting_for.unwrap_or_default().abs_diff(queued))
        .map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn held(labels: &[&str]) -> LockState {
        sample::lock("backup", labels.iter().map(|label| sample::holder(label, 1, Mode::Exclusive)))
    }

    fn with_queue(mut state: LockState, queue: &[(&str, u64)]) -> LockState {
        let waiter = |(label, seconds): &(&str, u64)| sample::waiter(label, Mode::Exclusive, *seconds);
        state.waiters = queue.iter().map(waiter).collect();
        state.waiter_count = queue.len();
        state
    }

    const QUEUED: Duration = Duration::from_secs(2);

    #[test]
    fn a_waiter_sees_the_holder_and_how_many_are_ahead() {
        let state = with_queue(held(&["web-3:4711:deploy"]), &[("a", 9), ("b", 8), ("me", 2)]);
        assert_eq!(
            waiting(&state, "me", QUEUED),
            "waiting for \"backup\": held by web-3:4711:deploy for 2m10s, ttl 21s left, 2 ahead of you"
        );
        let state = with_queue(held(&["x", "y", "z"]), &[("me", 2)]);
        assert_eq!(
            waiting(&state, "me", QUEUED),
            "waiting for \"backup\": held by x for 2m10s, ttl 21s left and 2 others, you are next"
        );
        let state = with_queue(held(&[]), &[("a", 9)]);
        assert_eq!(waiting(&state, "me", QUEUED), "waiting for \"backup\": 1 in the queue");
    }

    #[test]
    fn every_form_of_the_live_line_has_the_holder_the_ttl_the_position_and_the_wait() {
        let state = with_queue(held(&["web-3:4711:deploy"]), &[("a", 9), ("me", 2)]);
        let live = waiting_live(&state, "me", QUEUED, "2s of 30s");
        assert_eq!(
            live[0],
            "fencepost: waiting for \"backup\": held by web-3:4711:deploy for 2m10s, ttl 21s left, \
             1 ahead of you, waited 2s of 30s"
        );
        for form in &live {
            for part in ["web-3:4711:deploy", "ttl 21s left", "1 ahead of you", "2s of 30s"] {
                assert!(form.contains(part), "{part} is missing in {form}");
            }
        }
        let chars: Vec<usize> = live.iter().map(|form| form.chars().count()).collect();
        assert!(chars.is_sorted_by(|longer, shorter| longer > shorter), "{chars:?}");
        assert!(chars[2] < 80, "the name fits on a terminal of 80 columns");
    }

    #[test]
    fn among_equal_labels_the_one_that_waits_as_long_as_we_do_is_ours() {
        let state = with_queue(held(&["x"]), &[("me", 90), ("me", 60), ("me", 30)]);
        assert_eq!(ahead(&state, "me", Duration::from_secs(61)), Some(1));
        assert_eq!(ahead(&state, "me", Duration::from_secs(1)), Some(2));
        assert_eq!(ahead(&state, "you", Duration::from_secs(1)), None);
    }

    #[test]
    fn a_lock_that_was_not_acquired_is_reported_with_its_holder() {
        assert_eq!(busy(&held(&["x"])), "\"backup\" is held by x for 2m10s, ttl 21s left");
        assert_eq!(busy(&held(&[])), "\"backup\" was not free; no client holds it now");
        let mut foreign = held(&[FOREIGN_LABEL]);
        foreign.holders[0].token = None;
        assert_eq!(
            busy(&foreign),
            "\"backup\" is held by a program that is not a Fencepost client for 2m10s, ttl 21s left"
        );
    }

    #[test]
    fn a_label_cannot_write_to_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\nc\u{202e}"), "a\\u{1b}[31mb\\nc\\u{202e}");
        assert_eq!(plain("wéb-3:🔒"), "wéb-3:🔒");
    }

    #[test]
    fn a_long_text_is_cut_and_its_length_is_given() {
        assert_eq!(shortened("a\tb"), "a\\tb");
        assert_eq!(shortened(&"é".repeat(300)), format!("{}… (600 bytes)", "é".repeat(60)));
        assert_eq!(quoted(&LockName::new("backup").unwrap()), "\"backup\"");
        let long = LockName::new("x".repeat(512)).unwrap();
        assert_eq!(quoted(&long), format!("\"{}\"… (512 bytes)", "x".repeat(60)));
        let mut state = with_queue(held(&["web"]), &[("me", 2)]);
        state.name = long;
        for text in [busy(&state), waiting(&state, "me", QUEUED)] {
            assert!(text.contains("x\"… (512 bytes)") && text.len() < 200, "{text}");
        }
    }
}
