//! Run by `cargo xtask interop`: the named peers, or all, one after the other. With `--long-turns` it only reports how many
//! turns each side had.

use std::process::ExitCode;

use fencepost_interop::{Peer, Run, run};

fn main() -> ExitCode {
    let (options, named): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word == "--long-turns");
    let is_long = !options.is_empty();
    let length = if is_long { Run::LONG_TURNS } else { Run::SHORT_TURNS };
    if let Some(unknown) = named.iter().find(|name| Peer::ALL.iter().all(|peer| peer.name() != *name)) {
        eprintln!("error: there is no peer `{unknown}`; known are {}", Peer::ALL.map(Peer::name).join(", "));
        return ExitCode::from(2);
    }
    let mut is_fair = true;
    for peer in
        Peer::ALL.into_iter().filter(|peer| named.is_empty() || named.iter().any(|name| name == peer.name()))
    {
        if is_long && peer.shares_one_queue() {
            println!("{}: one line, however long a turn is", peer.name());
            continue;
        }
        let shares = run(peer, length);
        println!("{}: {shares}", peer.name());
        is_fair &= is_long || shares.is_fair();
    }
    if is_fair {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: one side had less than a tenth of the turns, or none for two tenths of a run");
    ExitCode::FAILURE
}
