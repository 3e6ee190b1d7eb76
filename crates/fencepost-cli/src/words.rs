//! How locks, holders and scopes are put into words: texts without printing.

use std::time::Duration;

use fencepost::{HolderState, LockState, Mode, Scope, Severity};

use crate::durations::show;

/// How far a lock reaches.
pub(crate) fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Process => "this process",
        Scope::Host => "this host",
        Scope::Fleet => "all hosts that reach the storage",
        _ => "unknown",
    }
}

/// Whether something is as it should be.
pub(crate) fn verdict(verdict: Severity) -> &'static str {
    match verdict {
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

/// Whether a character could do something to a terminal, or turn the text round.
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes a text that somebody else wrote safe for a terminal.
pub(crate) fn plain(text: &str) -> String {
    let escape = |c: char| {
        if is_hostile(c) { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(escape).collect()
}

/// What a waiter is told: `waiting for "backup": held by web-3:4711:deploy for 2m10s, ttl 21s left, 2 ahead of you`.
pub(crate) fn waiting(state: &LockState, own_label: &str, waited: Duration) -> String {
    let mut parts = Vec::new();
    parts.extend(held_by(state));
    parts.push(match place(state, own_label, waited) {
        Some(0) => "you are next".into(),
        Some(ahead) => format!("{ahead} ahead of you"),
        None if parts.is_empty() && state.waiter_count == 0 => {
            "it is free, but the storage does not grant it now; `fencepost doctor` may say why".into()
        }
        None => format!("{} in line", state.waiter_count),
    });
    format!("waiting for {:?}: {}", state.name, parts.join(", "))
}

/// What is said when the lock was not acquired.
pub(crate) fn busy(state: &LockState) -> String {
    match held_by(state) {
        Some(holder) => format!("{:?} is {holder}", state.name),
        None => format!("{:?} was taken by somebody else", state.name),
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
    Some(format!("held by {}{others}", in_brief(holder)))
}

fn in_brief(holder: &HolderState) -> String {
    let held_for = holder.held_for.map(|held_for| format!(" for {}", show(held_for))).unwrap_or_default();
    let lease = match holder.expires_in {
        Some(HolderState::NO_EXPIRY) => ", no expiry".to_owned(),
        Some(left) => format!(", ttl {} left", show(left)),
        None => String::new(),
    };
    format!("{}{held_for}{lease}", plain(&holder.label))
}

/// How many stand before us. A label may stand in line several times; ours is the one that waits as long as we do.
pub(crate) fn place(state: &LockState, own_label: &str, waited: Duration) -> Option<usize> {
    let ours = state.waiters.iter().enumerate().filter(|(_, waiter)| *waiter.label == *own_label);
    ours.min_by_key(|(_, waiter)| waiter.waiting_for.unwrap_or_default().abs_diff(waited))
        .map(|(place, _)| place)
}

/// How the options of a URL end that are secret, such as `sentinel_password=`.
pub(crate) const SECRET_OPTION: &str = "password=";

/// Takes the passwords out of everything that looks like a URL.
pub(crate) fn without_secrets(text: &str) -> String {
    let text = without_secret_options(text);
    let mut rest = text.as_str();
    let mut out = String::new();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || c == '/' || c == '\'').unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                out.push_str("***");
                &after[at..]
            }
            None => after,
        };
    }
    out + rest
}

fn without_secret_options(text: &str) -> String {
    let mut parts = text.split(SECRET_OPTION);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || c == '&' || c == '\'').unwrap_or(part.len());
        out.extend([SECRET_OPTION, "***", &part[end..]]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn held(labels: &[&str]) -> LockState {
        sample::lock("backup", labels.iter().map(|label| sample::holder(label, 1, Mode::Exclusive)))
    }

    fn with_line(mut state: LockState, line: &[(&str, u64)]) -> LockState {
        let waiter = |(label, seconds): &(&str, u64)| sample::waiter(label, Mode::Exclusive, *seconds);
        state.waiters = line.iter().map(waiter).collect();
        state.waiter_count = line.len();
        state
    }

    #[test]
    fn a_waiter_is_told_for_whom_and_how_many_are_ahead() {
        let state = with_line(held(&["web-3:4711:deploy"]), &[("a", 9), ("b", 8), ("me", 2)]);
        assert_eq!(
            waiting(&state, "me", Duration::from_secs(2)),
            "waiting for \"backup\": held by web-3:4711:deploy for 2m10s, ttl 21s left, 2 ahead of you"
        );
        let state = with_line(held(&["x", "y", "z"]), &[("me", 2)]);
        assert_eq!(
            waiting(&state, "me", Duration::from_secs(2)),
            "waiting for \"backup\": held by x for 2m10s, ttl 21s left and 2 others, you are next"
        );
        let state = with_line(held(&[]), &[("a", 9)]);
        assert_eq!(waiting(&state, "me", Duration::from_secs(2)), "waiting for \"backup\": 1 in line");
    }

    #[test]
    fn among_equal_labels_the_one_that_waits_as_long_as_we_do_is_ours() {
        let state = with_line(held(&["x"]), &[("me", 90), ("me", 60), ("me", 30)]);
        assert_eq!(place(&state, "me", Duration::from_secs(61)), Some(1));
        assert_eq!(place(&state, "me", Duration::from_secs(1)), Some(2));
        assert_eq!(place(&state, "you", Duration::from_secs(1)), None);
    }

    #[test]
    fn who_is_not_served_is_told_who_holds_it() {
        assert_eq!(busy(&held(&["x"])), "\"backup\" is held by x for 2m10s, ttl 21s left");
        assert_eq!(busy(&held(&[])), "\"backup\" was taken by somebody else");
    }

    #[test]
    fn a_label_cannot_write_to_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\nc\u{202e}"), "a\\u{1b}[31mb\\nc\\u{202e}");
        assert_eq!(plain("wéb-3:🔒"), "wéb-3:🔒");
    }

    #[test]
    fn passwords_are_taken_out_of_urls() {
        assert_eq!(without_secrets("'redis://u:p@ss@h/0' found"), "'redis://***@h/0' found");
        assert_eq!(without_secrets("see https://example.com/a@b"), "see https://example.com/a@b");
        assert_eq!(without_secrets("a://x:y@h b://z@h"), "a://***@h b://***@h");
        let sentinel = "'redis+sentinel://u:p@h/main?sentinel_password=a:b@c/d&replicas=1' found";
        let expected = "'redis+sentinel://***@h/main?sentinel_password=***&replicas=1' found";
        assert_eq!(without_secrets(sentinel), expected);
    }
}
