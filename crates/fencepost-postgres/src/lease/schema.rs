//! The tables and functions of a namespace: their text, and creating them on first use.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use fencepost_net::storage_id;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::config::{Config, literal, quoted};
use crate::error::{call_failed, is_without_schema};

/// The version of tables and functions. A client uses only its own.
const VERSION: u64 = 1;

/// The table with the version and the id.
const TABLE: &str = "storage";

const PARTS: [&str; 4] = [
    include_str!("../schema/tables.sql"),
    include_str!("../schema/rules.sql"),
    include_str!("../schema/operations.sql"),
    include_str!("../schema/flight.sql"),
];

/// Returns the statements that create the namespace, in one transaction. They do nothing if it exists.
pub(crate) fn text(namespace: &str) -> String {
    let schema = quoted(namespace);
    let body = PARTS.concat().replace("@schema@", &schema);
    // The advisory lock keeps clients that start at the same time from creating it twice.
    format!(
        "BEGIN;\n\
         SET LOCAL search_path = pg_catalog, pg_temp;\n\
         SELECT pg_advisory_xact_lock(hashtextextended('fencepost schema ' || {literal}, 0));\n\
         DO $create$ BEGIN IF to_regclass({table}) IS NULL THEN\n\
         IF to_regnamespace({quoted}) IS NULL THEN CREATE SCHEMA {schema}; END IF;\n\
         SET LOCAL search_path = {schema}, pg_temp;\n\
         EXECUTE $fencepost$\n{body}\n$fencepost$;\n\
         INSERT INTO storage (version, storage_id, floor) VALUES ({VERSION}, gen_random_uuid(), 0);\n\
         END IF; END $create$;\n\
         COMMIT;\n",
        literal = literal(namespace),
        quoted = literal(&schema),
        table = literal(&format!("{schema}.storage")),
    )
}

/// Returns the statements for an administrator, with a comment.
pub(crate) fn printed(config: &Config) -> String {
    let namespace = &config.namespace;
    format!(
        "-- The tables and functions of Fencepost in the schema {schema}, version {VERSION}, for PostgreSQL 13 or newer.\n\
         -- Run it in psql, as an account that may create schemas in the database; the account owns them. It does nothing if\n\
         -- they exist. `fencepost rights` prints the grants for accounts that use the locks.\n{text}",
        schema = quoted(namespace),
        text = text(namespace),
    )
}

/// Returns the id of the stored locks. Creates the namespace if it does not exist, unless `only_existing`.
pub(crate) async fn prepare(client: &Client, config: &Config, only_existing: bool) -> Result<StorageId> {
    if let Some(id) = read(client, config, TABLE, VERSION).await? {
        return Ok(id);
    }
    let (location, namespace) = (config.location(), &config.namespace);
    if only_existing {
        let message = format!("{location} has no schema {namespace:?} with the tables of Fencepost");
        return Err(Error::new(ErrorKind::Missing, message)
            .with_hint("the first client that acquires a lock creates it"));
    }
    client.batch_execute(&text(namespace)).await.map_err(|error| not_created(&error, config))?;
    read(client, config, TABLE, VERSION).await?.ok_or_else(|| foreign(config))
}

/// Reads the version and the id from this table of the namespace; `None` if it does not exist.
pub(crate) async fn read(
    client: &Client,
    config: &Config,
    table: &str,
    known: u64,
) -> Result<Option<StorageId>> {
    let sql = format!(
        "SELECT version::bigint, storage_id::pg_catalog.text FROM {}.{table}",
        quoted(&config.namespace)
    );
    let rows = match client.query_typed(&sql, &[]).await {
        Ok(rows) => rows,
        Err(error) => {
            return match error.code() {
                _ if is_without_schema(&error) => Ok(None),
                Some(
                    &SqlState::UNDEFINED_COLUMN
                    | &SqlState::CANNOT_COERCE
                    | &SqlState::INVALID_TEXT_REPRESENTATION
                    | &SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
                ) => Err(foreign(config)),
                _ => Err(call_failed(&config.location(), &error)),
            };
        }
    };
    let Some(row) = rows.first() else { return Err(foreign(config)) };
    let version: Option<i64> = row.try_get(0).ok();
    let id: Option<String> = row.try_get(1).ok();
    let id = id.map(|id| id.replace('-', ""));
    let version = version.and_then(|version| u64::try_from(version).ok());
    let elsewhere = "another schema: ?namespace=NAME";
    storage_id(&config.location(), (version, id.as_deref()), known, elsewhere).map(Some)
}

/// Returns the error for a namespace that another program uses.
pub(crate) fn foreign(config: &Config) -> Error {
    let message =
        format!("the schema {:?} of {} has tables of another program", config.namespace, config.location());
    Error::new(ErrorKind::Backend, message).with_hint("use another schema: ?namespace=NAME")
}

/// Returns whether a table, type, sequence or function of this name exists already.
pub(crate) fn is_taken(error: &tokio_postgres::Error) -> bool {
    let taken = [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT, SqlState::DUPLICATE_FUNCTION];
    error.code().is_some_and(|code| taken.contains(code))
}

fn not_created(error: &tokio_postgres::Error, config: &Config) -> Error {
    match error.code() {
        _ if is_taken(error) => foreign(config),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let message =
                format!("the account may not create the schema {:?} of Fencepost", config.namespace);
            Error::new(ErrorKind::Denied, message).with_hint(
                "let an administrator run what `fencepost schema` and `fencepost rights` print: both take this URL",
            )
        }
        _ => call_failed(&config.location(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_quoted() {
        let text = text("a\"b'c");
        assert!(text.contains("to_regnamespace('\"a\"\"b''c\"') IS NULL THEN CREATE SCHEMA \"a\"\"b'c\";"));
        assert!(text.contains("to_regclass('\"a\"\"b''c\".storage')"));
        assert!(!text.contains("@schema@"));
    }
}
