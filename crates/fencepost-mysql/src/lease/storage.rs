//! Opens the tables of a namespace: creates them on first use, and checks that they are those of this version.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use fencepost_sql::{Row, cell_columns, holder_columns, ticket_columns};

use crate::config::Config;
use crate::error::Failure;
use crate::lease::flight::READ_TIMEOUT;
use crate::lease::layout::creating;
use crate::literal::Sql;
use crate::session::{Rows, Session};

/// The format of the tables that this version reads and writes.
pub(crate) const FORMAT: u64 = 1;

/// The tables of a namespace as they were found.
pub(crate) struct Opened {
    pub(crate) storage_id: StorageId,
    /// Whether the server is a node of a Galera cluster.
    pub(crate) is_galera: bool,
}

/// Whether to create tables that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Create,
    Fail,
}

/// Opens the tables.
pub(crate) async fn open(config: &Config, session: &mut Session, if_missing: IfMissing) -> Result<Opened> {
    let mut opening = Opening { config, session };
    let found = match opening.read().await? {
        Some(found) => found,
        None if if_missing == IfMissing::Fail => return Err(opening.missing()),
        None => {
            opening.create().await?;
            opening.read().await?.ok_or_else(|| opening.missing())?
        }
    };
    opening.check().await?;
    if if_missing == IfMissing::Create {
        opening.check_engine().await?;
    }
    Ok(found)
}

struct Opening<'a> {
    config: &'a Config,
    session: &'a mut Session,
}

impl Opening<'_> {
    async fn run(&mut self, sql: &str) -> std::result::Result<Vec<Rows>, Failure> {
        self.session.run(sql, READ_TIMEOUT).await
    }

    fn failed(&self, failure: Failure) -> Error {
        failure.into_error(&self.config.location())
    }

    /// Reads format and id; `None` if the tables do not exist, or not all of them.
    async fn read(&mut self) -> Result<Option<Opened>> {
        let storage = self.config.tables().storage;
        let sql = format!(
            "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'; SELECT format, LOWER(HEX(storage_id)) FROM {storage} WHERE id = 1"
        );
        let sets = match self.run(&sql).await {
            Ok(sets) => sets,
            Err(failure) if failure.is_missing_table() => return Ok(None),
            Err(failure) if failure.is_unknown_column() => return Err(self.foreign(&storage)),
            Err(failure) => return Err(self.failed(failure)),
        };
        let [galera, stored] = <[Rows; 2]>::try_from(sets).unwrap_or_default();
        let Some(row) = stored.first() else { return Ok(None) };
        let format = row.integer(0).map_err(|_| self.foreign(&storage))?;
        let format = u64::try_from(format).ok();
        let location = self.config.location();
        let elsewhere = "another namespace: ?namespace=NAME";
        let id = row.text(1)?;
        let storage_id = fencepost_net::storage_id(&location, (format, Some(&id)), FORMAT, elsewhere)?;
        let is_galera = galera.first().is_some_and(|row| row.text(1).is_ok_and(|value| value == "ON"));
        Ok(Some(Opened { storage_id, is_galera }))
    }

    /// Creates the tables. Several clients may do it at once.
    async fn create(&mut self) -> Result<()> {
        for statement in creating(&self.config.namespace) {
            let created = self.run(&statement).await;
            created.map_err(|failure| {
                let error = self.failed(failure);
                if error.kind() == ErrorKind::Denied {
                    return error.context("the account may not create the tables of Fencepost").with_hint(
                        "let an administrator run what `fencepost schema` and `fencepost rights` print: both take this URL",
                    );
                }
                error
            })?;
        }
        // All columns before the row that says that everything is there.
        self.check().await?;
        let mut sql = Sql::default();
        sql.text("INSERT IGNORE INTO ").text(&self.config.tables().storage);
        sql.text(" (id, format, storage_id) VALUES (1, ").number(FORMAT).text(", ");
        sql.bytes(&StorageId::random().to_bytes()).text(")");
        self.run(sql.as_str()).await.map(drop).map_err(|failure| self.failed(failure))
    }

    /// Checks that all tables have their columns, and that they may be read.
    async fn check(&mut self) -> Result<()> {
        let tables = self.config.tables();
        let columns = [
            "name, is_plain, version",
            holder_columns!(),
            ticket_columns!(),
            cell_columns!(),
            "owner, until_ns",
            "client, owner, token, ttl_ns, chosen, until_ns",
            "id",
            "id, format, storage_id",
        ];
        let selects = columns.iter().zip(tables.all());
        let selects = selects.map(|(columns, table)| format!("SELECT {columns} FROM {table} LIMIT 0"));
        match self.run(&selects.collect::<Vec<_>>().join("; ")).await {
            Ok(_) => Ok(()),
            Err(Failure::Rejected { error, at }) if error.code == 1054 || error.code == 1146 => {
                Err(self.foreign(tables.all().get(at).copied().unwrap_or_default()))
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Checks that the tables have transactions. A server can be configured to replace the engine that a statement names.
    async fn check_engine(&mut self) -> Result<()> {
        let names = self.config.tables().all().map(|table| table.replace('`', "'")).join(", ");
        let sql = format!(
            "SELECT TABLE_NAME FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({names}) AND NOT (ENGINE <=> 'InnoDB')"
        );
        let sets = self.run(&sql).await.map_err(|failure| self.failed(failure))?;
        let Some(row) = sets.iter().flatten().next() else { return Ok(()) };
        let (table, location) = (row.text(0)?, self.config.location());
        let text = format!("the table {table} in {location} is not stored by InnoDB: it has no transactions");
        Err(Error::new(ErrorKind::Unsupported, text)
            .with_hint(format!("stop all clients, then ALTER TABLE {table} ENGINE = InnoDB")))
    }

    fn missing(&self) -> Error {
        let (location, namespace) = (self.config.location(), &self.config.namespace);
        Error::new(ErrorKind::Missing, format!("{location} has no tables {namespace}_… of Fencepost"))
            .with_hint("the first client that acquires a lock creates them")
    }

    fn foreign(&self, table: &str) -> Error {
        let location = self.config.location();
        let text = format!("{location} has tables of another program, or of another version: {table}");
        Error::new(ErrorKind::Backend, text).with_hint("use another namespace: ?namespace=NAME")
    }
}
