//! `fencepost list`: who holds what.

use fencepost::{Client, ListPage, LockState, Page, Result};

use super::{printed, reach};
use crate::args::List;
use crate::durations::{show, show_lease};
use crate::exit::Exit;
use crate::output;
use crate::words::{mode, plain};
use crate::{backend, json};

const PAGE: usize = 500;
const TITLES: [&str; 7] = ["NAME", "MODE", "HOLDER", "TOKEN", "HELD FOR", "TTL LEFT", "WAITING"];

pub(crate) async fn list(args: &List) -> Result<Exit> {
    let client = backend::connect_existing(args.storage.url.as_deref()).await?;
    let locks = everything(&client, &args.prefix).await?;
    let outcome = if args.json {
        output::results(as_json(&locks, &client))
    } else {
        output::remark(format_args!("scope: {}", reach(&client)));
        if locks.is_empty() {
            output::remark("no locks");
        }
        output::results(table(&locks))
    };
    client.close().await;
    printed(outcome)
}

async fn everything(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let ListPage { locks, next } = client.list(prefix, Page::new(PAGE).after(after)).await?;
        all.extend(locks);
        if next.is_none() {
            return Ok(all);
        }
        after = next;
    }
}

fn as_json(locks: &[LockState], client: &Client) -> String {
    let scope = client.info().scope;
    let lines: Vec<String> = locks.iter().map(|state| json::line(&json::Lock::new(state, scope))).collect();
    if lines.is_empty() { "[]\n".into() } else { format!("[\n{}\n]\n", lines.join(",\n")) }
}

/// An aligned table with a row for every holder.
fn table(locks: &[LockState]) -> String {
    if locks.is_empty() {
        return String::new();
    }
    let mut rows = vec![TITLES.map(str::to_owned)];
    rows.extend(locks.iter().flat_map(rows_of));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; TITLES.len()] = std::array::from_fn(width);
    rows.iter().map(|row| line(row, &widths)).collect()
}

fn rows_of(state: &LockState) -> Vec<[String; TITLES.len()]> {
    let name = plain(state.name.as_str());
    let waiting = state.waiter_count.to_string();
    if state.holders.is_empty() {
        let nothing = || "-".to_owned();
        return vec![[name, nothing(), nothing(), nothing(), nothing(), nothing(), waiting]];
    }
    let row = |holder: &fencepost::HolderState| {
        [
            name.clone(),
            mode(holder.mode),
            plain(&holder.label),
            known(holder.token.map(|token| token.to_string())),
            known(holder.held_for.map(show)),
            known(holder.expires_in.map(show_lease)),
            waiting.clone(),
        ]
    };
    state.holders.iter().map(row).collect()
}

/// What the backend does not record about holders that are not Fencepost clients.
fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| "unknown".to_owned())
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;
    use crate::sample;

    fn lock(name: &str, holders: &[(&str, u64)]) -> LockState {
        let holder = |(label, token): &(&str, u64)| sample::holder(label, *token, Mode::Shared);
        let mut state = sample::lock(name, holders.iter().map(holder));
        state.waiter_count = 2;
        state
    }

    #[test]
    fn columns_are_aligned_and_every_holder_has_a_row() {
        let locks = [lock("a", &[("web-3:4711:deploy", 7), ("x", 12)]), lock("invoice/42", &[])];
        assert_eq!(
            table(&locks),
            "NAME        MODE    HOLDER             TOKEN  HELD FOR  TTL LEFT  WAITING\n\
             a           shared  web-3:4711:deploy  7      2m10s     21s       2\n\
             a           shared  x                  12     2m10s     21s       2\n\
             invoice/42  -       -                  -      -         -         2\n"
        );
        assert_eq!(table(&[]), "");
    }
}
