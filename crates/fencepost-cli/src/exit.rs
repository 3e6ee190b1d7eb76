//! What the command's exit code means, and which meaning goes first.

use std::process::ExitCode;

use fencepost::{ErrorKind, Result};

/// The exit code of "not acquired", unless told otherwise.
pub(crate) const NOT_ACQUIRED: u8 = 75;

/// How a command under the lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited by itself.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
}

/// Why fencepost exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what it was asked.
    Done,
    /// Its own failure, before a command was started.
    Failed,
    /// The lock was not acquired; the code was chosen by the user.
    NotAcquired(u8),
    /// A signal came before a command was started.
    Signalled(i32),
    /// The command cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
    /// The lock was lost while the command ran.
    Lost,
    /// The command ran under the lock the whole time.
    Child(Ended),
}

impl Exit {
    /// The exit after a command has ended and its lock was released: a lost lock goes before a good command.
    pub(crate) fn after(ended: Ended, stopped_for_the_lock: bool, released: &Result<()>) -> Self {
        let found_lost = matches!(released, Err(error) if error.kind() == ErrorKind::Lost);
        if stopped_for_the_lock || found_lost { Self::Lost } else { Self::Child(ended) }
    }

    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 125,
            Self::NotAcquired(code) => code,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
            Self::Lost => 76,
            Self::Signalled(signal) | Self::Child(Ended::Killed(signal)) => low_byte(128 + signal),
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

    use super::*;

    #[test]
    fn every_meaning_has_its_code() {
        let codes = [
            (Exit::Done, 0),
            (Exit::Failed, 125),
            (Exit::NotAcquired(NOT_ACQUIRED), 75),
            (Exit::NotAcquired(3), 3),
            (Exit::Signalled(15), 143),
            (Exit::CannotExecute, 126),
            (Exit::NotFound, 127),
            (Exit::Lost, 76),
            (Exit::Child(Ended::Exited(7)), 7),
            (Exit::Child(Ended::Killed(9)), 137),
        ];
        for (exit, code) in codes {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }

    #[test]
    fn a_lost_lock_goes_before_a_good_command() {
        let good = Ended::Exited(0);
        let lost = Err(Error::new(ErrorKind::Lost, "gone"));
        assert_eq!(Exit::after(good, true, &Ok(())), Exit::Lost);
        assert_eq!(Exit::after(good, false, &lost), Exit::Lost);
        assert_eq!(Exit::after(good, false, &Ok(())), Exit::Child(good));
    }

    #[test]
    fn a_release_that_fails_otherwise_does_not_spoil_a_good_command() {
        let unknown = Err(Error::new(ErrorKind::OutcomeUnknown, "no answer"));
        let good = Ended::Exited(0);
        assert_eq!(Exit::after(good, false, &unknown), Exit::Child(good));
    }
}
