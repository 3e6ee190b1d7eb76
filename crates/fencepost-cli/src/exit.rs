//! The exit codes of fencepost, and their precedence.

use std::process::ExitCode;

use fencepost::{ErrorKind, Result};

use crate::stopping::OnLost;
use crate::supervise::Outcome;
use crate::terminal::Key;

/// The default exit code of "not acquired".
pub(crate) const NOT_ACQUIRED: u8 = 75;

/// How a command under the lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited.
    Exited(i32),
    /// A signal terminated it.
    Killed(i32),
}

/// Why fencepost exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Done,
    /// The doctor found a problem.
    Unwell,
    /// Its own failure, before a command was started.
    Failed,
    /// The lock was not acquired; the code was chosen by the user.
    NotAcquired(u8),
    /// A signal arrived before a command was started.
    Signalled(i32),
    /// The command cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
    /// The lock was lost while the command ran.
    Lost,
    /// The command was stopped because of `--max-run`.
    RanTooLong,
    /// The command ran under the lock the whole time.
    Child(Ended),
    /// The same, and a key has terminated it.
    Typed(Key),
}

impl Exit {
    /// Returns the exit after a command has ended and its lock was released: a lost lock takes precedence over everything
    /// else, unless it is ignored.
    pub(crate) fn after(outcome: Outcome, on_lost: OnLost, released: &Result<()>) -> Self {
        let found_lost = matches!(released, Err(error) if error.kind() == ErrorKind::Lost);
        if (outcome.lost || found_lost) && on_lost != OnLost::Ignore {
            return Self::Lost;
        }
        match outcome.typed {
            _ if outcome.ran_too_long => Self::RanTooLong,
            Some(key) => Self::Typed(key),
            None => Self::Child(outcome.ended),
        }
    }

    /// Returns the reason in a word, for programs.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unwell => "unwell",
            Self::Failed => "failed",
            Self::NotAcquired(_) => "not-acquired",
            Self::Signalled(_) => "signalled",
            Self::CannotExecute => "cannot-execute",
            Self::NotFound => "not-found",
            Self::Lost => "lost",
            Self::RanTooLong => "max-run",
            Self::Child(_) | Self::Typed(_) => "child",
        }
    }

    /// Returns the exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unwell => 1,
            Self::Failed => 125,
            Self::NotAcquired(code) => code,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
            Self::Lost => 76,
            Self::RanTooLong => 124,
            Self::Signalled(signal) | Self::Child(Ended::Killed(signal)) => low_byte(128 + signal),
            Self::Typed(key) => low_byte(128 + key.signal().as_raw()),
            Self::Child(Ended::Exited(code)) => low_byte(code),
        }
    }
}

fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

#[cfg(test)]
mod tests {
    use fencepost::Error;
    use rustix::process::Signal;

    use super::*;

    #[test]
    fn every_exit_has_its_code() {
        let codes = [
            (Exit::Done, 0),
            (Exit::Unwell, 1),
            (Exit::Failed, 125),
            (Exit::NotAcquired(NOT_ACQUIRED), 75),
            (Exit::NotAcquired(3), 3),
            (Exit::Signalled(15), 143),
            (Exit::CannotExecute, 126),
            (Exit::NotFound, 127),
            (Exit::Lost, 76),
            (Exit::RanTooLong, 124),
            (Exit::Child(Ended::Exited(7)), 7),
            (Exit::Child(Ended::Killed(9)), 137),
            (Exit::Typed(INTERRUPT), 130),
        ];
        for (exit, code) in codes {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }

    const INTERRUPT: Key = Key::ForAll(Signal::INT);
    const GOOD: Ended = Ended::Exited(0);
    const RAN: Outcome =
        Outcome { ended: GOOD, lost: false, ran_too_long: false, typed: None, asked_to_end: false };

    #[test]
    fn a_lost_lock_precedes_max_run_and_that_precedes_the_command() {
        let lost = Err(Error::new(ErrorKind::Lost, "gone"));
        let term = |outcome, released| Exit::after(outcome, OnLost::Term, released);
        assert_eq!(term(Outcome { lost: true, ran_too_long: true, ..RAN }, &Ok(())), Exit::Lost);
        assert_eq!(term(RAN, &lost), Exit::Lost);
        assert_eq!(term(Outcome { ran_too_long: true, ..RAN }, &Ok(())), Exit::RanTooLong);
        assert_eq!(term(RAN, &Ok(())), Exit::Child(GOOD));
    }

    #[test]
    fn a_key_is_reported_only_if_nothing_else_has_happened() {
        let typed = Outcome { ended: Ended::Killed(2), typed: Some(INTERRUPT), ..RAN };
        let after = |outcome| Exit::after(outcome, OnLost::Term, &Ok(()));
        assert_eq!(after(typed), Exit::Typed(INTERRUPT));
        assert_eq!(after(Outcome { lost: true, ..typed }), Exit::Lost);
        assert_eq!(after(Outcome { ran_too_long: true, ..typed }), Exit::RanTooLong);
    }

    #[test]
    fn an_ignored_loss_changes_nothing() {
        let lost = Err(Error::new(ErrorKind::Lost, "gone"));
        let ignore = |outcome, released| Exit::after(outcome, OnLost::Ignore, released);
        assert_eq!(ignore(Outcome { lost: true, ..RAN }, &Ok(())), Exit::Child(GOOD));
        assert_eq!(ignore(RAN, &lost), Exit::Child(GOOD));
    }

    #[test]
    fn a_release_that_fails_otherwise_does_not_change_the_exit() {
        let unknown = Err(Error::new(ErrorKind::OutcomeUnknown, "no answer"));
        assert_eq!(Exit::after(RAN, OnLost::Term, &unknown), Exit::Child(GOOD));
    }
}
