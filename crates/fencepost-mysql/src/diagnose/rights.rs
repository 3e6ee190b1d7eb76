//! The rights of the account on the tables.

use fencepost_core::{ErrorKind, Finding, Result};

use crate::sessions::Sessions;

/// Checks the rights on tables: each with one of its columns, and the rights that are needed, with commas in between.
pub(crate) async fn rights(sessions: &Sessions, tables: &[(&str, &str, &str)]) -> Finding {
    for &(table, column, needed) in tables {
        for right in needed.split(", ") {
            match check(sessions, (table, column), right).await {
                Ok(None) => {}
                Ok(Some(finding)) => return finding,
                Err(error) => return Finding::from_result("rights", Err(error)),
            }
        }
    }
    Finding::ok("rights", "all that locks need")
}

/// Checks a right without using it: to explain a statement takes the rights of executing it.
async fn check(sessions: &Sessions, (table, column): (&str, &str), right: &str) -> Result<Option<Finding>> {
    let statement = match right {
        "SELECT" => format!("SELECT {column} FROM {table}"),
        "INSERT" => format!("INSERT INTO {table} ({column}) VALUES (1)"),
        "UPDATE" => format!("UPDATE {table} SET {column} = {column}"),
        _ => format!("DELETE FROM {table}"),
    };
    let Err(error) = sessions.query(&format!("EXPLAIN {statement}")).await else { return Ok(None) };
    if error.is_transient() || error.kind() == ErrorKind::Unsupported {
        return Ok(Some(Finding::ok("rights", format!("not checked: {error}"))));
    }
    if error.kind() != ErrorKind::Denied {
        return Err(error);
    }
    let missing = Finding::problem("rights", format!("missing: {right} on {table}"));
    Ok(Some(missing.with_advice("`fencepost rights` prints the statements that grant all of them")))
}
