//! The statements about the rows of a table. Identifiers are quoted; names, owners and times are parameters.

use fencepost_sql::table_lock::OwnerFormat;

use super::Table;
use super::catalogue::Found;
use super::time_columns::TimeColumn;
use crate::config::quoted;

/// Waits for a row that another transaction has locked no longer than this, so that no statement is executed late.
const LOCK_TIMEOUT: &str = "set_config('lock_timeout', '100ms', true)";
/// A grant that was reported must survive a crash of the server.
const DURABLE: &str = "CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') \
    THEN set_config('synchronous_commit', 'on', true) END";

/// The statements of one table.
#[derive(Clone, Debug)]
pub(super) struct Statements {
    /// Name, label, end of the mark, pattern of the attempt, latest time, ttl. Returns the owner column if it was acquired, the
    /// other holder and how long its lease lasts, the time, and whether it was late.
    pub(super) acquire: String,
    /// Name, pattern, ttl.
    pub(super) renew: String,
    /// Name, pattern. Returns whether the lease had not ended.
    pub(super) release: String,
    /// Name. Returns name, owner, what is left of the lease, and since when it is held.
    pub(super) find: String,
    /// Prefix, name, limit. Returns the same.
    pub(super) list: String,
}

/// The parts of statements: the table has the alias `r`.
struct Parts {
    table: String,
    name: String,
    owner: String,
    expires: Option<TimeColumn>,
    since: Option<TimeColumn>,
    format: OwnerFormat,
    is_deleted: bool,
    oid: i64,
}

impl Statements {
    pub(super) fn new(table: &Table, found: &Found) -> Self {
        let time = |column: &Option<String>, kind| {
            let column = format!("r.{}", quoted(column.as_ref()?));
            Some(TimeColumn { column, kind: kind?, is_utc: table.is_shedlock })
        };
        let parts = Parts {
            table: found.table.clone(),
            name: quoted(&table.name),
            owner: quoted(&table.owner),
            expires: time(&table.expires, found.shape.expires),
            since: time(&table.since, found.shape.since),
            format: found.shape.owner,
            is_deleted: !table.is_shedlock,
            oid: found.oid,
        };
        Self {
            acquire: parts.acquire(),
            renew: parts.renew(),
            release: parts.release(),
            find: parts.find(),
            list: parts.list(),
        }
    }
}

/// The bare name of a column `r."column"`.
fn bare(column: &TimeColumn) -> &str {
    column.column.trim_start_matches("r.")
}

impl Parts {
    fn is_held(&self) -> String {
        self.expires.as_ref().map_or_else(|| "true".to_owned(), TimeColumn::is_held)
    }

    fn left(&self) -> String {
        self.expires.as_ref().map_or_else(|| "NULL::bigint".to_owned(), TimeColumn::micros_left)
    }

    /// Returns whether the mark in the owner column is like a parameter.
    fn is_like(&self, parameter: &str) -> String {
        let length = self.format.mark_length();
        format!("coalesce(right(r.{}::text, {length}) LIKE {parameter}, false)", self.owner)
    }

    /// Returns the owner column of a grant at `t.us`.
    fn new_owner(&self) -> String {
        let (millis, micros) =
            ("lpad(to_hex(t.us / 1000), 12, '0')", "lpad(to_hex(t.us % 1000 * 4), 3, '0')");
        let dash = if self.format.is_dashed() { "-" } else { "" };
        let mark = format!(
            "substr({millis}, 1, 8) || '{dash}' || substr({millis}, 9) || '{dash}8' || {micros} || $3"
        );
        match self.format {
            OwnerFormat::Uuid => format!("({mark})::uuid"),
            OwnerFormat::Dashed { .. } | OwnerFormat::Plain => format!("$2 || {mark}"),
        }
    }

    fn acquire(&self) -> String {
        let Self { table, name, owner, oid, .. } = self;
        let (is_held, is_mine, left) = (self.is_held(), self.is_like("$4"), self.left());
        let (mut columns, mut values) = (format!("{name}, {owner}"), format!("$1, {}", self.new_owner()));
        let keep = |column: &str| {
            format!("{column} = CASE WHEN {is_mine} AND {is_held} THEN r.{column} ELSE excluded.{column} END")
        };
        let mut changes = keep(owner);
        if let Some(expires) = &self.expires {
            columns = format!("{columns}, {}", bare(expires));
            values = format!("{values}, {}", expires.ceiling("t.at + $6 * interval '1 microsecond'"));
            changes = format!("{changes}, {column} = excluded.{column}", column = bare(expires));
        }
        if let Some(since) = &self.since {
            columns = format!("{columns}, {}", bare(since));
            values = format!("{values}, {}", since.floor("t.at"));
            changes = format!("{changes}, {}", keep(bare(since)));
        }
        // A holder that is visible is enough: nothing is locked or written. Otherwise the attempts of Fencepost clients follow each other,
        // so that their times are in the order of their grants.
        format!(
            "WITH h AS MATERIALIZED (
    SELECT r.{owner}::text AS owner, {left} AS left_us FROM {table} AS r
    WHERE r.{name} = $1 AND {is_held} AND NOT {is_mine}
), w AS MATERIALIZED (
    SELECT {LOCK_TIMEOUT}, {DURABLE} WHERE NOT EXISTS (SELECT FROM h)
), l AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended($1, {oid})) IS NULL AS waited FROM w
), n AS MATERIALIZED (
    SELECT clock_timestamp() AS at FROM l
), t AS MATERIALIZED (
    SELECT at, (extract(epoch FROM at) * 1000000)::bigint AS us FROM n
), i AS (
    INSERT INTO {table} AS r ({columns}) SELECT {values} FROM t WHERE t.us <= $5
    ON CONFLICT ({name}) DO UPDATE SET {changes} WHERE NOT {is_held} OR {is_mine}
    RETURNING r.{owner}::text AS owner
)
SELECT (SELECT owner FROM i), h.owner, h.left_us, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    coalesce((SELECT us > $5 FROM t), false), EXISTS (SELECT FROM h)
FROM (SELECT true AS always) AS one LEFT JOIN h ON one.always"
        )
    }

    fn renew(&self) -> String {
        let Self { table, name, .. } = self;
        let (is_held, is_mine) = (self.is_held(), self.is_like("$2"));
        let Some(expires) = &self.expires else {
            return format!("SELECT true FROM {table} AS r WHERE r.{name} = $1 AND {is_mine} AND $3 >= 0");
        };
        let (column, end) =
            (bare(expires), expires.ceiling("clock_timestamp() + $3 * interval '1 microsecond'"));
        format!(
            "WITH w AS MATERIALIZED (SELECT {LOCK_TIMEOUT}, {DURABLE})
UPDATE {table} AS r SET {column} = {end} FROM w WHERE r.{name} = $1 AND {is_mine} AND {is_held} RETURNING true"
        )
    }

    fn release(&self) -> String {
        let Self { table, name, is_deleted, .. } = self;
        let (is_held, is_mine) = (self.is_held(), self.is_like("$2"));
        let with = format!("WITH w AS MATERIALIZED (SELECT {LOCK_TIMEOUT}, {DURABLE})");
        match &self.expires {
            Some(expires) if !is_deleted => format!(
                "{with}
UPDATE {table} AS r SET {column} = {now} FROM w WHERE r.{name} = $1 AND {is_mine} AND {is_held} RETURNING true",
                column = bare(expires),
                now = expires.ended()
            ),
            _ => format!("{with}\nDELETE FROM {table} AS r USING w WHERE r.{name} = $1 AND {is_mine} RETURNING {is_held}"),
        }
    }

    fn columns(&self) -> String {
        let since = self.since.as_ref().map(|since| format!("-({})", since.micros_left()));
        format!(
            "r.{}::text, r.{}::text, {}, {}",
            self.name,
            self.owner,
            self.left(),
            since.unwrap_or_else(|| "NULL::bigint".to_owned())
        )
    }

    fn find(&self) -> String {
        let Self { table, name, .. } = self;
        format!("SELECT {} FROM {table} AS r WHERE r.{name} = $1 AND {}", self.columns(), self.is_held())
    }

    fn list(&self) -> String {
        let Self { table, name, .. } = self;
        format!(
            "SELECT {} FROM {table} AS r WHERE starts_with(r.{name}::text, $1) AND r.{name}::text COLLATE \"C\" > $2 AND {}
ORDER BY r.{name}::text COLLATE \"C\" LIMIT $3",
            self.columns(),
            self.is_held()
        )
    }
}
