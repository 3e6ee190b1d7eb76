//! The account with which a client logs in to a server.

use std::fmt;

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// User and password as far as a URL has them. Without both, the client does not log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The user's name. Some servers have passwords without users.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// User and password, for servers on which each account has both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let account = Account { user: Some("ann".into()), password: Some(Secret("hunter2".into())) };
        let shown = format!("{account:?}");
        assert!(shown.contains("ann") && shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    }
}
