//! The rights that an account needs for named locks, as statements that an administrator can paste.

use std::fmt::Write;

use super::schema::TABLES;
use crate::config::Config;
use crate::rights::quoted;

/// Returns the statements for the account of the URL, or for one to be named.
pub(crate) fn rights_on(config: &Config) -> String {
    let account = format!("{}@'%'", quoted(config.account.user.as_deref().unwrap_or("ACCOUNT")));
    let database = config.database.replace('`', "``");
    let mut text = format!(
        "-- Rights for locks in {}\n\
         --\n\
         -- Replace PASSWORD, and % by the hosts of the clients. An account that exists keeps its password.\n\
         CREATE USER IF NOT EXISTS {account} IDENTIFIED BY 'PASSWORD';\n\n\
         -- CREATE is needed once, for the first client: `fencepost schema` with this URL prints the tables for an administrator.\n",
        config.location()
    );
    for kind in TABLES {
        let table = config.named_table(kind);
        let _ = writeln!(text, "GRANT CREATE, SELECT, INSERT, DELETE ON `{database}`.{table} TO {account};");
    }
    let _ = write!(
        text,
        "\n-- Only to see which clients of other accounts wait, and to break their locks:\n\
         -- GRANT PROCESS, CONNECTION ADMIN ON *.* TO {account};\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn both_tables_are_granted_and_no_password_is_shown() {
        let text = rights_on(&parse("mysql://it's:hunter2@h/app?mode=named").unwrap());
        assert_eq!(text.matches("\nGRANT ").count(), 2, "{text}");
        let grant =
            "GRANT CREATE, SELECT, INSERT, DELETE ON `app`.`fencepost_named_sessions` TO 'it''s'@'%';";
        assert!(text.contains(grant) && !text.contains("hunter2"), "{text}");
    }
}
