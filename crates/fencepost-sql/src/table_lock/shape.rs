//! Checks that a table can hold locks: its columns, their types, and the unique key.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};

use super::owner::OwnerFormat;

/// The type of a column, as far as locks are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Text of at most this many characters.
    Text {
        /// The limit, if there is one.
        max: Option<usize>,
    },
    /// A UUID.
    Uuid,
    /// A date with time.
    Timestamp {
        /// Whether it is a point in time, and not a local time.
        zoned: bool,
        /// The digits after the seconds.
        digits: u32,
    },
    /// A whole number of 32 bits, which can only be seconds since 1970.
    Seconds,
    /// Any other type.
    Other(String),
}

/// A column of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: ColumnType,
    /// Whether every new row needs a value for it.
    pub is_required: bool,
    /// Whether it alone is a primary key or has a unique index.
    pub is_unique: bool,
    /// Whether different texts can be equal for it: upper and lower case, trailing spaces.
    pub folds: bool,
}

/// The columns that the URL names.
#[derive(Clone, Copy, Debug)]
pub struct TableLayout<'a> {
    /// The table, for messages.
    pub table: &'a str,
    /// The column with the lock's name.
    pub name: &'a str,
    /// The column with the owner.
    pub owner: &'a str,
    /// The column with the end of the lease.
    pub expires: Option<&'a str>,
    /// The column with the time of the grant.
    pub since: Option<&'a str>,
    /// The statement that creates such a table.
    pub create: &'a str,
}

/// How the end of a lease is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// In a date with time.
    Timestamp {
        /// Whether it is a point in time, and not a local time.
        zoned: bool,
        /// The digits after the seconds.
        digits: u32,
    },
    /// In whole seconds since 1970.
    Seconds,
}

impl Expiry {
    /// Returns the difference between two values that follow each other.
    pub fn unit(self) -> Duration {
        match self {
            Self::Timestamp { digits, .. } => Duration::from_micros(10_u64.pow(6_u32.saturating_sub(digits))),
            Self::Seconds => Duration::from_secs(1),
        }
    }

    /// Returns the shortest ttl that is kept: a lease in whole seconds may last for one more.
    pub fn min_ttl(self) -> Duration {
        self.unit().max(Duration::from_millis(100))
    }
}

/// How locks are stored in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The longest name, in characters.
    pub max_name: Option<usize>,
    /// The owner column.
    pub owner: OwnerFormat,
    /// The end of the lease.
    pub expires: Option<Expiry>,
    /// The time of the grant.
    pub since: Option<Expiry>,
}

impl Shape {
    /// Checks the columns of a table.
    ///
    /// # Errors
    /// If a column does not exist, has a type that is not supported, or if the name is not unique. The hint says what to do.
    pub fn of(layout: &TableLayout<'_>, columns: &[Column]) -> Result<Self> {
        let name = layout.column(columns, layout.name)?;
        let ColumnType::Text { max: max_name } = name.kind else {
            return Err(layout.unsupported(name, "text", "a text column"));
        };
        if name.folds {
            let hint = format!("give {:?} a collation that tells upper and lower case apart", layout.name);
            let message =
                format!("column {:?} of table {} takes different names for equal", layout.name, layout.table);
            return Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint));
        }
        if !name.is_unique {
            let message = format!("column {:?} of table {} is not a primary key", layout.name, layout.table);
            let hint =
                format!("without one, two clients can hold a lock; such a table is: {}", layout.create);
            return Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint));
        }
        let owner = layout.owner_format(columns)?;
        let timed = |column: Option<&str>| column.map(|column| layout.expiry(columns, column)).transpose();
        let shape = Self { max_name, owner, expires: timed(layout.expires)?, since: timed(layout.since)? };
        let used = [Some(layout.name), Some(layout.owner), layout.expires, layout.since];
        match columns.iter().find(|column| column.is_required && !used.contains(&Some(column.name.as_str())))
        {
            None => Ok(shape),
            Some(column) => {
                let message = format!("table {} needs a value for column {:?}", layout.table, column.name);
                Err(Error::new(ErrorKind::Unsupported, message)
                    .with_hint("Fencepost does not know which: give the column a default"))
            }
        }
    }
}

impl TableLayout<'_> {
    /// Returns the error for a table that does not exist.
    pub fn missing(&self, location: &str) -> Error {
        let message = format!("{location} has no table {}", self.table);
        Error::new(ErrorKind::Missing, message).with_hint(format!("it is not created: {}", self.create))
    }

    fn column<'a>(&self, columns: &'a [Column], name: &str) -> Result<&'a Column> {
        columns.iter().find(|column| column.name == name).ok_or_else(|| {
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            let message = format!("table {} has no column {name:?}, but {}", self.table, names.join(", "));
            Error::new(ErrorKind::Unsupported, message).with_hint(format!("such a table is: {}", self.create))
        })
    }

    fn owner_format(&self, columns: &[Column]) -> Result<OwnerFormat> {
        let owner = self.column(columns, self.owner)?;
        match owner.kind {
            ColumnType::Uuid => Ok(OwnerFormat::Uuid),
            ColumnType::Text { max } => OwnerFormat::for_text(max).ok_or_else(|| {
                let message = format!("column {:?} of table {} is too short", self.owner, self.table);
                Error::new(ErrorKind::Unsupported, message).with_hint("an owner has 32 characters or more")
            }),
            _ => Err(self.unsupported(owner, "text or uuid", "a column of one of these types")),
        }
    }

    fn expiry(&self, columns: &[Column], name: &str) -> Result<Expiry> {
        let column = self.column(columns, name)?;
        match column.kind {
            ColumnType::Timestamp { zoned, digits } => Ok(Expiry::Timestamp { zoned, digits }),
            ColumnType::Seconds => Ok(Expiry::Seconds),
            _ => Err(self.unsupported(
                column,
                "a timestamp, or an integer of 32 bits with seconds since 1970",
                "one: for a larger integer it is not known whether it counts seconds or less",
            )),
        }
    }

    fn unsupported(&self, column: &Column, supported: &str, hint: &str) -> Error {
        let kind = match &column.kind {
            ColumnType::Other(kind) => kind.clone(),
            other => format!("{other:?}").to_lowercase(),
        };
        let message =
            format!("column {:?} of table {} has type {kind}, not {supported}", column.name, self.table);
        Error::new(ErrorKind::Unsupported, message).with_hint(format!("locks need {hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: TableLayout<'_> = TableLayout {
        table: "locks",
        name: "n",
        owner: "o",
        expires: Some("e"),
        since: None,
        create: "CREATE TABLE locks (…)",
    };

    fn column(name: &str, kind: ColumnType) -> Column {
        Column { name: name.into(), kind, is_required: true, is_unique: name == "n", folds: false }
    }

    fn columns() -> Vec<Column> {
        let timestamp = ColumnType::Timestamp { zoned: true, digits: 3 };
        vec![
            column("n", ColumnType::Text { max: Some(64) }),
            column("o", ColumnType::Uuid),
            column("e", timestamp),
        ]
    }

    #[test]
    fn a_table_with_the_columns_can_hold_locks() {
        let expiry = Expiry::Timestamp { zoned: true, digits: 3 };
        let (max_name, owner) = (Some(64), OwnerFormat::Uuid);
        let shape = Shape { max_name, owner, expires: Some(expiry), since: None };
        assert_eq!(Shape::of(&LAYOUT, &columns()).unwrap(), shape);
        assert_eq!(expiry.unit(), Duration::from_millis(1));
        assert_eq!(Expiry::Seconds.min_ttl(), Duration::from_secs(1));
    }

    #[test]
    fn each_defect_of_a_table_has_an_error() {
        type Damage = fn(&mut Vec<Column>);
        let other = || ColumnType::Other("bigint".into());
        let defects: [(&str, Damage); 9] = [
            ("has no column \"n\"", |columns| drop(columns.remove(0))),
            ("has no column \"e\"", |columns| drop(columns.remove(2))),
            ("\"n\" of table locks has type uuid", |columns| columns[0].kind = ColumnType::Uuid),
            ("takes different names for equal", |columns| columns[0].folds = true),
            ("is not a primary key", |columns| columns[0].is_unique = false),
            ("\"o\" of table locks is too short", |columns| {
                columns[1].kind = ColumnType::Text { max: Some(31) }
            }),
            ("\"o\" of table locks has type seconds", |columns| columns[1].kind = ColumnType::Seconds),
            ("\"e\" of table locks has type bigint", |columns| {
                columns[2].kind = ColumnType::Other("bigint".into());
            }),
            ("needs a value for column \"more\"", |columns| columns.push(column("more", ColumnType::Uuid))),
        ];
        for (expected, damage) in defects {
            let mut columns = columns();
            damage(&mut columns);
            let error = Shape::of(&LAYOUT, &columns).unwrap_err();
            assert!(error.to_string().contains(expected), "{error} is not {expected}");
            assert!(error.hint().is_some(), "{error}");
        }
        let mut optional = columns();
        optional.push(Column { is_required: false, ..column("more", other()) });
        assert!(Shape::of(&LAYOUT, &optional).is_ok());
    }
}
