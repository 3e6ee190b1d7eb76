//! `fencepost list`: the locks and their holders.

mod table;

use std::io::{self, IsTerminal};

use fencepost::clock::wall_time;
use fencepost::{Client, ListPage, LockState, Page, Result};
use rustix::termios::tcgetwinsize;

pub(super) use self::table::command;
use self::table::table;
use super::{printed, reach};
use crate::args::List;
use crate::colors::Palette;
use crate::exit::Exit;
use crate::output;
use crate::{backend, json};

const PAGE: usize = 500;

pub(crate) async fn list(args: &List) -> Result<Exit> {
    let client = backend::connect_existing(args.backend.url.as_deref()).await?;
    let locks = all_locks(&client, &args.prefix).await?;
    let outcome = if args.json {
        output::results(as_json(&locks, &client))
    } else {
        output::remark(format_args!("scope: {}", reach(&client)));
        if locks.is_empty() {
            output::remark("no locks");
        }
        output::results(table(&locks, wall_time(), terminal_width(), Palette::stdout()))
    };
    client.close().await;
    printed(outcome)
}

async fn all_locks(client: &Client, prefix: &str) -> Result<Vec<LockState>> {
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

/// Returns the number of columns if stdout is a terminal that knows it.
fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    let size = if stdout.is_terminal() { tcgetwinsize(&stdout).ok()? } else { return None };
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
