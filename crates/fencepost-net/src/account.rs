//! Who we are on a server.

use std::fmt;

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Who we are on a server. Without user and password we are nobody in particular.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Some storages have passwords without users.
    pub user: Option<String>,
    /// What proves it.
    pub password: Option<Secret>,
}

/// Who we are, on servers where everybody has both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// As whom.
    pub user: String,
    /// What proves it.
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
