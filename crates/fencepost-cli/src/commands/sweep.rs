//! `fencepost sweep`: removes what has expired and what is no longer used, now.

use fencepost::Result;

use super::{printed, reach};
use crate::args::Sweep;
use crate::exit::Exit;
use crate::{backend, json, output};

pub(crate) async fn sweep(args: &Sweep) -> Result<Exit> {
    let client = backend::connect_existing(args.backend.url.as_deref()).await?;
    let swept = client.sweep().await;
    client.close().await;
    let removed = swept?;
    if args.json {
        return printed(output::results(json::line(&json::Swept { removed }) + "\n"));
    }
    output::remark(format_args!("scope: {}", reach(&client)));
    printed(output::results(match removed {
        Some(1) => "removed 1 unused name\n".to_owned(),
        Some(count) => format!("removed {count} unused names\n"),
        None => format!("nothing to sweep on {}\n", client.info().scheme),
    }))
}
