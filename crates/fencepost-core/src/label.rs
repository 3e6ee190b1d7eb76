//! The default label of a client: host:pid:user.

use std::fs;

/// Returns the default label. The user is the account's name, or its number if it has none.
pub(crate) fn default_label() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}:{}", std::process::id(), user())
}

/// Services and containers often run without `USER`. The name is then read from the file, and not through the system's name
/// service: that could block on a directory server.
fn user() -> String {
    let variable = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    ["USER", "LOGNAME"].iter().find_map(variable).unwrap_or_else(|| {
        let id = rustix::process::getuid().as_raw();
        let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
        account_name(id, &accounts).map_or_else(|| id.to_string(), str::to_owned)
    })
}

/// Returns the name of an account: the first field of the line whose third field is its number.
fn account_name(id: u32, accounts: &str) -> Option<&str> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
        (!name.is_empty() && number.parse() == Ok(id)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_number() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\n# comment\n\nweb:x:1000:1000::/:\nalias:x:1000:1000::/:\n";
        assert_eq!(account_name(0, accounts), Some("root"));
        assert_eq!(account_name(1000, accounts), Some("web"));
        assert_eq!(account_name(7, accounts), None);
        assert_eq!(account_name(0, ""), None);
    }
}
