//! The rights that an account needs, as statements for `psql`.

use crate::config::{Config, Layout, quoted, quoted_table};
use crate::dialect::privileges;

/// Returns the statements, with comments.
pub(crate) fn rights_on(config: &Config) -> String {
    let (location, database) = (config.location(), quoted(&config.database));
    let body = match &config.layout {
        Layout::Lease => schema(config),
        Layout::Advisory { .. } => advisory(config),
        Layout::Shedlock { table } => foreign_table(table, true),
        Layout::Table { table, .. } => foreign_table(table, false),
    };
    let (permits, owned) = match config.layout {
        Layout::Lease => ("acquire and break every lock of the namespace", "schema"),
        Layout::Advisory { .. } => ("acquire every lock of the namespace", "schema"),
        Layout::Shedlock { .. } | Layout::Table { .. } => {
            ("acquire and break every lock of the table", "table")
        }
    };
    format!(
        "\
-- Rights for locks in {location}
--
-- Run in psql, in this database, as the owner of the {owned} or a superuser; replace ACCOUNT and PASSWORD.
-- An account with these rights can {permits}.
CREATE ROLE \"ACCOUNT\" LOGIN PASSWORD 'PASSWORD';
GRANT CONNECT ON DATABASE {database} TO \"ACCOUNT\";
{body}"
    )
}

/// Returns the grants on a table of another program.
fn foreign_table(table: &str, is_shedlock: bool) -> String {
    let usage = |(schema, _)| format!("GRANT USAGE ON SCHEMA {} TO \"ACCOUNT\";\n", quoted(schema));
    let usage = table.split_once('.').map(usage).unwrap_or_default();
    let privileges = privileges(is_shedlock).join(", ");
    format!("{usage}GRANT {privileges} ON {} TO \"ACCOUNT\";\n", quoted_table(table))
}

/// Returns the grants on Fencepost's own schema, and how to create it.
fn schema(config: &Config) -> String {
    let (schema, database) = (quoted(&config.namespace), quoted(&config.database));
    let namespace = &config.namespace;
    let option = if namespace == Config::DEFAULT_NAMESPACE {
        String::new()
    } else {
        format!(" --namespace {namespace}")
    };
    format!(
        "\
GRANT USAGE ON SCHEMA {schema} TO \"ACCOUNT\";
GRANT SELECT, UPDATE ON {schema}.storage TO \"ACCOUNT\";
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.locks, {schema}.holders, {schema}.tickets, {schema}.tombstones, {schema}.cells TO \"ACCOUNT\";
GRANT USAGE ON SEQUENCE {schema}.positions TO \"ACCOUNT\";
GRANT USAGE, UPDATE ON SEQUENCE {schema}.lock_in_tokens TO \"ACCOUNT\";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO \"ACCOUNT\";

-- The schema has to exist before: `fencepost schema postgres{option}` prints the statements that create it.
-- Or let the first client create it, which then owns it and needs no other grant:
-- GRANT CREATE ON DATABASE {database} TO \"ACCOUNT\";

-- Only for `fencepost doctor`, which otherwise does not see the transactions of other accounts:
GRANT pg_read_all_stats TO \"ACCOUNT\";
"
    )
}

/// Returns the grants on what `mode=advisory` stores beside the server's locks.
fn advisory(config: &Config) -> String {
    let schema = quoted(&config.namespace);
    format!(
        "\
GRANT USAGE ON SCHEMA {schema} TO \"ACCOUNT\";
GRANT SELECT, UPDATE ON {schema}.advisory_storage TO \"ACCOUNT\";
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.advisory_sessions TO \"ACCOUNT\";
GRANT USAGE, SELECT, UPDATE ON SEQUENCE {schema}.advisory_tokens TO \"ACCOUNT\";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO \"ACCOUNT\";

-- The schema has to exist before: `fencepost schema --url URL` prints the statements that create it.
-- Or let the first client create it, which then owns it: GRANT CREATE ON DATABASE {} TO \"ACCOUNT\";

-- Only for `fencepost list`, which otherwise does not see how much of the ttl is left to locks of other accounts:
GRANT pg_read_all_stats TO \"ACCOUNT\";
-- Only to break locks of other accounts, which terminates their sessions:
-- GRANT pg_signal_backend TO \"ACCOUNT\";
",
        quoted(&config.database)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn statements(url: &str) -> Vec<String> {
        let text = rights_on(&parse(url).unwrap());
        assert!(!text.contains("ann") && !text.contains("hunter2"), "{text}");
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("--"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn grants_are_on_the_schema_of_the_namespace() {
        let statements = statements("postgres://ann:hunter2@h/jobs?namespace=team-a");
        assert_eq!(statements[1], "GRANT CONNECT ON DATABASE \"jobs\" TO \"ACCOUNT\";");
        assert_eq!(statements[2], "GRANT USAGE ON SCHEMA \"team-a\" TO \"ACCOUNT\";");
        assert_eq!(statements.len(), 9, "{statements:?}");
        let text = rights_on(&parse("postgres://ann:hunter2@h/jobs?namespace=team-a").unwrap());
        assert!(text.contains("`fencepost schema postgres --namespace team-a`"), "{text}");
    }

    #[test]
    fn tables_of_other_programs_need_grants_on_them() {
        let shedlock = statements("postgres://ann:hunter2@h/jobs?dialect=shedlock&table=app.shedlock");
        assert_eq!(shedlock[2], "GRANT USAGE ON SCHEMA \"app\" TO \"ACCOUNT\";");
        assert_eq!(shedlock[3], "GRANT SELECT, INSERT, UPDATE ON \"app\".\"shedlock\" TO \"ACCOUNT\";");
        let table = statements("postgres://ann:hunter2@h/jobs?dialect=table&table=t&name=n&owner=o");
        assert_eq!(table[2], "GRANT SELECT, INSERT, UPDATE, DELETE ON \"t\" TO \"ACCOUNT\";");
        assert_eq!(table.len(), 3, "{table:?}");
    }

    #[test]
    fn breaking_an_advisory_lock_of_another_account_needs_one_more_grant() {
        let url = "postgres://ann:hunter2@h/jobs?mode=advisory";
        assert_eq!(statements(url).len(), 8);
        let text = rights_on(&parse(url).unwrap());
        assert!(text.contains("\n-- GRANT pg_signal_backend TO \"ACCOUNT\";\n"), "{text}");
    }
}
