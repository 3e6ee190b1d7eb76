//! Expressions about a column with a time: the end of a lease, or its beginning.

use fencepost_sql::table_lock::Expiry;

/// A column with a time.
pub(super) struct TimeColumn {
    /// In quotes, with the alias of its table.
    pub(super) column: String,
    pub(super) kind: Expiry,
    /// Whether a time without zone is in UTC, and not in the zone of the session.
    pub(super) is_utc: bool,
}

/// The time of the server.
const NOW: &str = "clock_timestamp()";

impl TimeColumn {
    /// Returns a point in time as the column stores it. A time that it cannot store exactly becomes an earlier one.
    pub(super) fn floor(&self, time: &str) -> String {
        match self.kind {
            Expiry::Seconds => format!("floor(extract(epoch FROM {time}))::integer"),
            Expiry::Timestamp { .. } => self.local(&format!("{time} - {}", self.half_unit())),
        }
    }

    /// Returns a point in time as the column stores it. A time that it cannot store exactly becomes a later one, so that no lease
    /// is shorter than its holder believes.
    pub(super) fn ceiling(&self, time: &str) -> String {
        match self.kind {
            Expiry::Seconds => format!("ceil(extract(epoch FROM {time}))::integer"),
            Expiry::Timestamp { .. } => self.local(&format!("{time} + {}", self.half_unit())),
        }
    }

    /// Returns the value that ends a lease now.
    pub(super) fn ended(&self) -> String {
        self.floor(NOW)
    }

    /// The server rounds to the nearest value that the column can store.
    fn half_unit(&self) -> String {
        let micros = self.kind.unit().as_micros() / 2;
        format!("interval '{micros} microseconds'")
    }

    fn local(&self, time: &str) -> String {
        match self.kind {
            Expiry::Timestamp { zoned: false, .. } if self.is_utc => format!("timezone('UTC', {time})"),
            Expiry::Timestamp { zoned: false, .. } => format!("({time})::timestamp"),
            _ => format!("({time})"),
        }
    }

    /// Returns whether a lease with this end has not ended. Null has no end.
    pub(super) fn is_held(&self) -> String {
        let now = match self.kind {
            Expiry::Seconds => self.floor(NOW),
            Expiry::Timestamp { .. } => self.local(NOW),
        };
        format!("({column} IS NULL OR {column} > {now})", column = self.column)
    }

    /// Returns the microseconds from now until this time; null if it is never.
    pub(super) fn micros_left(&self) -> String {
        let column = &self.column;
        match self.kind {
            Expiry::Seconds => format!("(({column} - extract(epoch FROM {NOW})) * 1000000)::bigint"),
            Expiry::Timestamp { .. } => format!(
                "CASE WHEN isfinite({column}) THEN \
                 (least(extract(epoch FROM {column} - {}), 9e9) * 1000000)::bigint END",
                self.local(NOW)
            ),
        }
    }
}
