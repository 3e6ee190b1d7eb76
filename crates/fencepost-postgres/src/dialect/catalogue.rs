//! Reads what the table is like, from the catalogue of the server.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use fencepost_sql::table_lock::{Column, ColumnType, Shape, TableLayout};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::Table;
use crate::config::{quoted, quoted_table};
use crate::error::call_failed;

/// The columns of a table, its kind and its identity. `starts_with` compares bytes, but `=` and unique indexes use the collation.
const COLUMNS: &str = "
SELECT c.relkind::text, n.nspname::text, c.relname::text, c.oid::bigint,
    md5(concat_ws(' ', current_database(), n.nspname, c.relname, c.oid)),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    a.attname::text, t.typname::text, a.atttypmod, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
    EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
    coalesce(NOT l.collisdeterministic, false)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
WHERE c.oid = pg_catalog.to_regclass($1) ORDER BY a.attnum";

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) shape: Shape,
    /// The table with its schema, in quotes.
    pub(super) table: String,
    pub(super) oid: i64,
    pub(super) storage_id: StorageId,
    /// The time of the server, in microseconds since 1970.
    pub(super) server_time: u64,
}

/// Reads the columns of the table, and checks that it can hold locks.
pub(super) async fn read(client: &Client, table: &Table, location: &str) -> Result<Found> {
    let wanted = quoted_table(&table.identifier);
    let rows = client.query_typed(COLUMNS, &[(&wanted, Type::TEXT)]).await;
    let rows = rows.map_err(|error| call_failed(location, &error))?;
    let create = table.create();
    let layout = TableLayout {
        table: &table.identifier,
        name: &table.name,
        owner: &table.owner,
        expires: table.expires.as_deref(),
        since: table.since.as_deref(),
        create: &create,
    };
    let Some(first) = rows.first() else { return Err(layout.missing(location)) };
    found(first, &rows, &layout).map_err(|error| call_failed(location, &error))?
}

fn found(
    first: &Row,
    rows: &[Row],
    layout: &TableLayout<'_>,
) -> std::result::Result<Result<Found>, tokio_postgres::Error> {
    let (schema, name): (&str, &str) = (first.try_get(1)?, first.try_get(2)?);
    // Ordinary and partitioned tables.
    if !["r", "p"].contains(&first.try_get::<_, &str>(0)?) {
        let message = format!("{schema}.{name} is not a table");
        return Ok(Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("a view has no unique key; use the table itself")));
    }
    let columns: Vec<Column> = rows.iter().map(column).collect::<std::result::Result<_, _>>()?;
    let storage_id = StorageId::from_hex(first.try_get(4)?).unwrap_or_else(|| StorageId::from_bytes([0; 16]));
    let (oid, server_time) = (first.try_get(3)?, first.try_get::<_, i64>(5)?);
    Ok(Shape::of(layout, &columns).map(|shape| Found {
        shape,
        table: format!("{}.{}", quoted(schema), quoted(name)),
        oid,
        storage_id,
        server_time: fencepost_sql::codec::unsigned(server_time),
    }))
}

fn column(row: &Row) -> std::result::Result<Column, tokio_postgres::Error> {
    let (type_name, modifier): (&str, i32) = (row.try_get(7)?, row.try_get(8)?);
    // The modifier of a text type counts a header of four bytes; -1 is none.
    let max = usize::try_from(modifier - 4).ok();
    let digits = u32::try_from(modifier).unwrap_or(6);
    let kind = match type_name {
        "text" => ColumnType::Text { max: None },
        "varchar" => ColumnType::Text { max },
        "uuid" => ColumnType::Uuid,
        "timestamp" => ColumnType::Timestamp { zoned: false, digits },
        "timestamptz" => ColumnType::Timestamp { zoned: true, digits },
        "int4" => ColumnType::Seconds,
        other => ColumnType::Other(other.to_owned()),
    };
    Ok(Column {
        name: row.try_get(6)?,
        kind,
        is_required: row.try_get(9)?,
        is_unique: row.try_get(10)?,
        folds: row.try_get(11)?,
    })
}
