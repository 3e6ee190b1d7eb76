//! The kinds of holders, and what breaking does to each.

use fencepost::HolderState;

use crate::durations::show;
use crate::environment::COMMAND_META;
use crate::words::shortened;

const ONLY_A_FENCE: &str = "What it has in flight is stopped only by a fence that checks the token.";

/// What kind of client holds a lock, as far as its entry says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HolderKind {
    /// A Fencepost client that has recorded a command: `fencepost run`, or any other with metadata of that key.
    WithCommand(String),
    /// A Fencepost client without a command: a program that uses the library, or `fencepost hold`.
    Client,
    /// A program that is not Fencepost.
    Foreign,
}

impl HolderKind {
    pub(super) fn of(holder: &HolderState) -> Self {
        // Every Fencepost client stores its ttl.
        if holder.token.is_none() || holder.ttl.is_none() {
            return Self::Foreign;
        }
        let command = holder.meta.iter().find(|(key, _)| key == COMMAND_META);
        command.map_or(Self::Client, |(_, command)| Self::WithCommand(shortened(command)))
    }

    /// Says what happens to this holder when it is broken.
    pub(super) fn consequences(&self, holder: &HolderState) -> String {
        let within = show(holder.ttl.unwrap_or_default() / 3);
        match self {
            Self::WithCommand(command) => format!(
                "The holder is a Fencepost client. It says that it runs the command {command}. It is notified at once, or\n\
                 learns of it at its next renewal, within {within}. If it is `fencepost run`, it then stops the command with\n\
                 TERM and KILL (not with --on-lost ignore) and exits with 76; any other program is not stopped.\n\
                 {ONLY_A_FENCE}"
            ),
            Self::Client => format!(
                "The holder is a Fencepost client without a command. It is notified at once, or learns of it at its next\n\
                 renewal, within {within}. `fencepost hold` then exits with 76; a program that uses the library is not\n\
                 stopped, and learns of it through `Guard::lost`. {ONLY_A_FENCE}"
            ),
            Self::Foreign => {
                "The holder is not a Fencepost client. Breaking removes its entry, but does not stop it: it is not notified,\n\
                 and continues as if it held the lock."
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;
    use crate::sample;

    fn foreign(label: &str) -> HolderState {
        HolderState::new(Mode::Exclusive, label)
    }

    #[test]
    fn a_holder_is_recognised_by_what_it_stores() {
        let mut holder = sample::holder("web", 7, Mode::Exclusive);
        assert_eq!(HolderKind::of(&holder), HolderKind::Client);
        holder.meta = [(COMMAND_META.to_owned(), "backup\u{1b}".to_owned())].into();
        assert_eq!(HolderKind::of(&holder), HolderKind::WithCommand("backup\\u{1b}".into()));
        holder.ttl = None;
        assert_eq!(HolderKind::of(&holder), HolderKind::Foreign);
        assert_eq!(HolderKind::of(&foreign("x")), HolderKind::Foreign);
    }
}
