//! `fencepost break`: take a lock away from its holder, after a look at who that is.

use std::io::{self, IsTerminal};

use fencepost::{Client, Error, ErrorKind, FencingToken, HolderState, LockName, LockState, Result};

use super::{failed, printed, reach, show};
use crate::args::Break;
use crate::durations;
use crate::exit::Exit;
use crate::output;
use crate::storage;
use crate::words::plain;

pub(crate) async fn break_lock(args: &Break) -> Result<Exit> {
    if !args.yes && !io::stdin().is_terminal() {
        return Err(Error::new(ErrorKind::BadConfig, "there is no terminal to ask on: nothing was broken")
            .with_hint(
                "give --yes, and in a script --token N, so that nobody else is broken than you mean",
            ));
    }
    let client = storage::connect_existing(args.storage.url.as_deref()).await?;
    let broken = break_on(&client, args).await;
    client.close().await;
    broken
}

async fn break_on(client: &Client, args: &Break) -> Result<Exit> {
    let name = &args.name;
    let state = client.inspect(name).await?;
    let Some(holder) = choose(&state, args.token.map(FencingToken::new))? else {
        output::remark(format_args!("nobody holds {name:?}"));
        return Ok(Exit::Done);
    };
    output::remark(show::describe(&state, &reach(client)).trim_end());
    output::remark(risk(holder));
    if !args.yes && !is_confirmed(name, holder)? {
        return Err(Error::new(ErrorKind::BadConfig, "that is not the lock's name: nothing was broken"));
    }
    let Some(token) = holder.token else { return Err(not_ours(name)) };
    // What was shown is what is broken: the backend refuses if the token has changed by now.
    client.break_lock(name, token).await.map_err(|error| match error.kind() {
        ErrorKind::Conflict | ErrorKind::Unreachable => error.context("nothing was broken"),
        _ => error,
    })?;
    printed(output::results(format_args!("broke {name:?}: {}\n", in_brief(holder))))
}

/// Which holder is meant; `None` if there is nothing to break.
fn choose(state: &LockState, token: Option<FencingToken>) -> Result<Option<&HolderState>> {
    let name = &state.name;
    let holders: Vec<String> = state.holders.iter().map(in_brief).collect();
    let all = || holders.join("; ");
    let refuse = |kind, text: String, hint: &str| Err(Error::new(kind, text).with_hint(hint));
    match (state.holders.as_slice(), token) {
        ([], None) => Ok(None),
        ([], Some(token)) => refuse(
            ErrorKind::Conflict,
            format!("nothing was broken: nobody holds {name:?} with token {token}, nor with another"),
            "it was released, or its lease ran out",
        ),
        ([holder], None) => Ok(Some(holder)),
        (several, None) => refuse(
            ErrorKind::BadConfig,
            format!("nothing was broken: {} hold {name:?}: {}", several.len(), all()),
            "say which one with --token N",
        ),
        (holders, Some(token)) => match holders.iter().find(|holder| holder.token == Some(token)) {
            Some(holder) => Ok(Some(holder)),
            None => refuse(
                ErrorKind::Conflict,
                format!("nothing was broken: {name:?} is not held with token {token}, but with: {}", all()),
                "look again who holds it now, before you break anything",
            ),
        },
    }
}

/// `token 7, held by web-3:4711:deploy for 2m10s`.
fn in_brief(holder: &HolderState) -> String {
    let HolderState { token, label, held_for, .. } = holder;
    let token = token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
    let held_for = held_for.map_or_else(|| "an unknown time".to_owned(), durations::show);
    format!("{token}, held by {} for {held_for}", plain(label))
}

fn not_ours(name: &LockName) -> Error {
    let text =
        format!("nothing was broken: the holder of {name:?} is not a Fencepost client and has no token");
    Error::new(ErrorKind::Unsupported, text).with_hint(format!(
        "`fencepost doctor {name}` shows its keys; remove them with the tools of the backend"
    ))
}

fn risk(holder: &HolderState) -> String {
    format!(
        "Breaking it does not stop the old holder: it learns of it within {}, a third of its ttl,\n\
         and what it has under way is stopped only by a fence that checks the token.",
        durations::show(holder.ttl.unwrap_or_default() / 3)
    )
}

/// Asks for the lock's name, which nobody types by accident.
fn is_confirmed(name: &LockName, holder: &HolderState) -> Result<bool> {
    output::question(format_args!("To break {}, type the name of the lock:", in_brief(holder)));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| failed("could not read the answer", error))?;
    if !answer.ends_with('\n') {
        // The input ended, and with it our line on the screen.
        output::remark("");
    }
    Ok(answer.trim_end_matches(['\r', '\n']) == name.as_str())
}

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;
    use crate::sample;

    fn held(tokens: &[u64]) -> LockState {
        let holder = |token: &u64| sample::holder(&format!("web-{token}\u{1b}[2J"), *token, Mode::Shared);
        sample::lock("a", tokens.iter().map(holder))
    }

    fn chosen(tokens: &[u64], token: Option<u64>) -> Result<Option<u64>> {
        let state = held(tokens);
        Ok(choose(&state, token.map(FencingToken::new))?
            .and_then(|holder| holder.token.map(FencingToken::get)))
    }

    #[test]
    fn the_only_holder_or_the_one_that_was_named_is_broken() {
        assert_eq!(chosen(&[], None).unwrap(), None);
        assert_eq!(chosen(&[7], None).unwrap(), Some(7));
        assert_eq!(chosen(&[7], Some(7)).unwrap(), Some(7));
        assert_eq!(chosen(&[7, 8], Some(8)).unwrap(), Some(8));
    }

    #[test]
    fn what_is_not_clear_is_refused_and_the_holders_are_listed() {
        let text = |tokens: &[u64], token| chosen(tokens, token).unwrap_err().to_string();
        assert!(text(&[], Some(7)).contains("nobody holds \"a\" with token 7"));
        assert_eq!(
            text(&[7, 8], None),
            "nothing was broken: 2 hold \"a\": token 7, held by web-7\\u{1b}[2J for 2m10s; \
             token 8, held by web-8\\u{1b}[2J for 2m10s"
        );
        assert!(text(&[7], Some(6)).contains("not held with token 6, but with: token 7, held by"));
    }
}
