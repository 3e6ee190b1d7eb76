//! Creates what mode=named stores, on first use.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use fencepost_sql::Row;

use crate::config::Config;
use crate::lease::flight::READ_TIMEOUT;
use crate::literal::Sql;
use crate::session::{Rows, Session};

/// The format of the tables; a client rejects every other one.
const FORMAT: u64 = 1;

/// The kinds of tables, in the order in which they are created.
pub(super) const TABLES: [&str; 2] = ["named_sessions", "named_storage"];

/// The columns of each table.
const COLUMNS: [&str; 2] = [
    "id, connection, session, lock_key, name, granted, since_us, ttl_ms, label, meta",
    "id, format, storage_id",
];

impl Config {
    /// Returns the table of this kind, quoted.
    pub(crate) fn named_table(&self, kind: &str) -> String {
        format!("`{}_{kind}`", self.namespace)
    }
}

/// Returns the statements that create the tables and mark them as complete.
pub(crate) fn statements(config: &Config) -> String {
    let text = include_str!("schema.sql").to_owned();
    let schema = TABLES
        .iter()
        .fold(text, |text, kind| text.replace(&format!("{{{kind}}}"), &config.named_table(kind)));
    let storage = config.named_table("named_storage");
    format!(
        "{schema}\nINSERT IGNORE INTO {storage} (id, format, storage_id) VALUES (1, {FORMAT}, UNHEX(REPLACE(UUID(), '-', '')));\n"
    )
}

/// Reads the storage id. Creates the tables if they do not exist, unless the client connects to existing ones only.
pub(super) async fn read_or_create(
    config: &Config,
    session: &mut Session,
    only_existing: bool,
) -> Result<StorageId> {
    if let Some(id) = read(config, session).await? {
        return Ok(id);
    }
    let missing = || {
        let text = format!("{} has no tables {}_named_… of Fencepost", config.location(), config.namespace);
        Error::new(ErrorKind::Missing, text).with_hint("the first client that acquires a lock creates them")
    };
    if only_existing {
        return Err(missing());
    }
    let created = session.run(&statements(config), READ_TIMEOUT).await;
    created.map_err(|failure| {
        if failure.is_unknown_column() {
            return foreign(config);
        }
        let error = failure.into_error(&config.location());
        if error.kind() == ErrorKind::Denied {
            return error.with_hint(
                "let an administrator create the tables: `fencepost schema` with this URL prints them",
            );
        }
        error
    })?;
    read(config, session).await?.ok_or_else(missing)
}

/// Reads format and id, and checks that both tables have their columns. `None` if they do not exist.
async fn read(config: &Config, session: &mut Session) -> Result<Option<StorageId>> {
    let tables = TABLES.map(|kind| config.named_table(kind));
    let mut sql = Sql::default();
    for (table, columns) in tables.iter().zip(COLUMNS) {
        sql.text("SELECT ").text(columns).text(" FROM ").text(table).text(" LIMIT 0; ");
    }
    sql.text("SELECT format, LOWER(HEX(storage_id)) FROM ").text(&tables[1]).text(" WHERE id = 1");
    let sets = match session.run(sql.as_str(), READ_TIMEOUT).await {
        Ok(sets) => sets,
        Err(failure) if failure.is_missing_table() => return Ok(None),
        Err(failure) if failure.is_unknown_column() => return Err(foreign(config)),
        Err(failure) => return Err(failure.into_error(&config.location())),
    };
    let stored: Rows = sets.into_iter().next_back().unwrap_or_default();
    let Some(row) = stored.first() else { return Ok(None) };
    let (Ok(format), Ok(id)) = (row.integer(0), row.text(1)) else { return Err(foreign(config)) };
    let format = u64::try_from(format).ok();
    let elsewhere = "another namespace: ?namespace=NAME";
    fencepost_net::storage_id(&config.location(), (format, Some(&id)), FORMAT, elsewhere).map(Some)
}

/// Returns the error for a table that another program uses.
fn foreign(config: &Config) -> Error {
    let text =
        format!("a table {}_named_… in {} is not one of Fencepost", config.namespace, config.location());
    Error::new(ErrorKind::Backend, text)
        .with_hint("if another program uses it, use another namespace: ?namespace=NAME")
}
