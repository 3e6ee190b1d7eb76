//! The location of a lock: the statements that read its rows, and what they contain now.

use fencepost_core::backend::{HolderState, LockState};
use fencepost_core::{Finding, LockName, Mode};

use crate::config::{literal, quoted};
use crate::lease::listing;
use crate::lease::state::ClientState;

/// Returns the statement for the rows of a lock in each table that has some, and always that of the lock itself.
pub(crate) async fn locate(state: &ClientState, name: &LockName) -> Vec<Finding> {
    match listing::states(state, std::slice::from_ref(name)).await {
        Ok(found) => found.first().map(|lock| findings(&state.namespace, name, lock)).unwrap_or_default(),
        Err(error) => vec![Finding::from_result("lock's row", Err(error))],
    }
}

fn findings(namespace: &str, name: &LockName, lock: &LockState) -> Vec<Finding> {
    let finding = |check: &str, table: &str, order: &str, what: String| {
        let statement = format!(
            "SELECT * FROM {}.{table} WHERE name = {}{order};",
            quoted(namespace),
            literal(name.as_str())
        );
        Finding::ok(check, format!("{}.{table}: {what}", quoted(namespace)))
            .with_advice(format!("to read it in psql: {statement}"))
    };
    let exclusive = lock.holders.iter().find(|holder| holder.mode == Mode::Exclusive);
    let mut findings = vec![finding(
        "lock's row",
        "locks",
        "",
        exclusive.map_or_else(|| "no exclusive holder".to_owned(), held_by),
    )];
    let shared: Vec<&HolderState> =
        lock.holders.iter().filter(|holder| holder.mode != Mode::Exclusive).collect();
    if let Some(first) = shared.first() {
        let more = if shared.len() > 1 { format!(", and {} more", shared.len() - 1) } else { String::new() };
        findings.push(finding("holders' rows", "holders", "", held_by(first) + &more));
    }
    if lock.waiter_count > 0 {
        let what = format!("{} in the queue", lock.waiter_count);
        findings.push(finding("queue's rows", "tickets", " ORDER BY seq", what));
    }
    if let Some(cell) = &lock.cell {
        let what = format!("{} bytes, written with token {}", cell.bytes.len(), cell.token);
        findings.push(finding("cell's row", "cells", "", what));
    }
    findings
}

fn held_by(holder: &HolderState) -> String {
    let token = holder.token.map(|token| format!(" with token {token}")).unwrap_or_default();
    format!("held by {:?}{token}", &*holder.label)
}

#[cfg(test)]
mod tests {
    use fencepost_core::FencingToken;

    use super::*;

    #[test]
    fn the_statement_names_exactly_the_rows_of_the_lock() {
        let name = LockName::new("it's \\ \"x\"").unwrap();
        let mut lock = LockState::new(name.clone());
        let found = findings("team-a", &name, &lock);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].found, "\"team-a\".locks: no exclusive holder");
        let statement = r#"SELECT * FROM "team-a".locks WHERE name = 'it''s \ "x"';"#;
        assert_eq!(found[0].advice, Some(format!("to read it in psql: {statement}")));

        let mut holder = HolderState::new(Mode::Shared, "ours");
        holder.token = Some(FencingToken::new(7));
        lock.holders = vec![holder.clone(), holder];
        lock.waiter_count = 2;
        let found: Vec<String> = findings("a", &name, &lock).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "lock's row: \"a\".locks: no exclusive holder",
                "holders' rows: \"a\".holders: held by \"ours\" with token 7, and 1 more",
                "queue's rows: \"a\".tickets: 2 in the queue",
            ]
        );
    }
}
