//! `cargo xtask interop` runs this: the peers that are named, or all, one after the other.

use std::process::ExitCode;

use fencepost_interop::{Peer, run};

fn main() -> ExitCode {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = named.iter().find(|name| Peer::ALL.iter().all(|peer| peer.name() != *name)) {
        eprintln!("error: there is no peer `{unknown}`; known are {}", Peer::ALL.map(Peer::name).join(", "));
        return ExitCode::from(2);
    }
    let mut is_fair = true;
    for peer in
        Peer::ALL.into_iter().filter(|peer| named.is_empty() || named.iter().any(|name| name == peer.name()))
    {
        let shares = run(peer);
        println!("{}: {shares}", peer.name());
        is_fair &= shares.is_fair();
    }
    if is_fair {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: one side had less than a tenth of the turns, or none for two tenths of a run");
    ExitCode::FAILURE
}
