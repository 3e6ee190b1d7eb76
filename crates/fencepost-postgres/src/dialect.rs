//! `dialect=shedlock` and `dialect=table`: locks in a table of another program, so that its locks and Fencepost's exclude each
//! other. The table is neither created nor altered.

mod catalogue;
mod diagnose;
mod rows;
mod statements;
mod time_columns;

use std::sync::Arc;

use fencepost_core::Result;
use fencepost_core::backend::Backend;
use fencepost_core::clock::Clock;
use fencepost_sql::table_lock::{Expiry, TableBackend, TableInfo};

use crate::config::{Config, Layout, quoted_table};
use crate::lease::pool::Pool;
use crate::link::Link;
pub(crate) use diagnose::privileges;
use rows::PostgresRows;
use statements::Statements;

/// The columns of `ShedLock`'s table.
const SHEDLOCK: [&str; 4] = ["name", "locked_by", "lock_until", "locked_at"];

/// The table that the URL names.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// As in the URL.
    identifier: String,
    name: String,
    owner: String,
    expires: Option<String>,
    since: Option<String>,
    is_shedlock: bool,
}

impl Table {
    /// Returns the table of a layout that has one.
    fn of(layout: &Layout) -> Option<Self> {
        match layout {
            Layout::Shedlock { table } => {
                let [name, owner, expires, since] = SHEDLOCK.map(str::to_owned);
                let (identifier, expires, since) = (table.clone(), Some(expires), Some(since));
                Some(Self { identifier, name, owner, expires, since, is_shedlock: true })
            }
            Layout::Table { table, name, owner, expires } => {
                let (identifier, name) = (table.clone(), name.clone());
                let (owner, expires) = (owner.clone(), expires.clone());
                Some(Self { identifier, name, owner, expires, since: None, is_shedlock: false })
            }
            Layout::Lease | Layout::Advisory { .. } => None,
        }
    }

    /// Returns the option that selects it.
    fn option(&self) -> &'static str {
        if self.is_shedlock { "dialect=shedlock" } else { "dialect=table" }
    }

    /// Returns the statement that creates such a table: for `ShedLock`, that of its documentation.
    fn create(&self) -> String {
        let table = quoted_table(&self.identifier);
        if self.is_shedlock {
            return format!(
                "CREATE TABLE {table} (name VARCHAR(64) NOT NULL PRIMARY KEY, lock_until TIMESTAMP NOT NULL, \
                 locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)"
            );
        }
        let quoted = crate::config::quoted;
        let expires = self.expires.as_ref();
        let expires = expires.map(|column| format!(", {} timestamptz NOT NULL", quoted(column)));
        let (name, owner) = (quoted(&self.name), quoted(&self.owner));
        format!(
            "CREATE TABLE {table} ({name} text NOT NULL PRIMARY KEY, {owner} text NOT NULL{})",
            expires.unwrap_or_default()
        )
    }
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(config: Config) -> Result<Arc<dyn Backend>> {
    let table = Table::of(&config.layout).ok_or_else(|| fencepost_net::bad("the URL names no table"))?;
    let link = Link::new(config)?;
    let client = link.open(None).await?;
    let sent = Clock::system().now();
    let found = catalogue::read(&client, &table, link.location()).await?;
    let info = TableInfo {
        scheme: "postgres",
        location: link.location().to_owned(),
        option: table.option(),
        storage_id: found.storage_id,
        max_name: found.shape.max_name,
        owner: found.shape.owner,
        has_expiry: found.shape.expires.is_some(),
        min_ttl: found.shape.expires.map_or(MIN_TTL, Expiry::min_ttl),
    };
    let statements = Statements::new(&table, &found);
    let pool = Pool::new(link, Vec::new());
    pool.add(client).await?;
    let server_time = found.server_time;
    let rows = PostgresRows { pool: Arc::new(pool), info, table, found, statements };
    Ok(Arc::new(TableBackend::new(rows, server_time, sent)))
}

/// The shortest ttl if the table has no end of leases.
const MIN_TTL: std::time::Duration = std::time::Duration::from_millis(100);
