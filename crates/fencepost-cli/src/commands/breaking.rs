//! `fencepost break`: removes a holder, after its state and the consequences were shown.

mod holder_kind;
mod removal;

use std::io::{self, IsTerminal};

use fencepost::{
    Client, Error, ErrorKind, FencingToken, HolderState, LockName, LockState, Result, shell_quote,
};

use self::holder_kind::HolderKind;
use self::removal::removal;
use super::{failed, printed, reach, show};
use crate::args::Break;
use crate::backend;
use crate::durations;
use crate::exit::Exit;
use crate::json;
use crate::output;
use crate::words::{label, quoted};

pub(crate) async fn break_lock(args: &Break) -> Result<Exit> {
    if !args.yes && !io::stdin().is_terminal() {
        return Err(Error::new(
            ErrorKind::BadConfig,
            "there is no terminal to ask for confirmation: nothing was broken",
        )
        .with_hint("give --yes, and in a script --token N, so that no other holder is broken"));
    }
    let client = backend::connect_existing(args.backend.url.as_deref()).await?;
    let broken = break_on(&client, args).await;
    client.close().await;
    broken
}

async fn break_on(client: &Client, args: &Break) -> Result<Exit> {
    let name = &args.name;
    let state = client.inspect(name).await?;
    let Some(holder) = choose(&state, args.token.map(FencingToken::new))? else {
        output::remark(format_args!("no client holds {}", quoted(name)));
        return if args.json { print_json(name, None) } else { Ok(Exit::Done) };
    };
    let kind = HolderKind::of(holder);
    output::remark(show::describe(&state, &reach(client)).trim_end());
    let Some(token) = holder.token else { return Err(without_token(client, name, holder).await) };
    output::remark(kind.consequences(holder));
    if !args.yes && !is_confirmed(name, holder)? {
        return Err(Error::new(ErrorKind::BadConfig, "that is not the lock's name: nothing was broken"));
    }
    // The holder that was shown is broken and no other: the backend rejects a token that is no longer current.
    match client.break_lock(name, token).await {
        Ok(()) if args.json => print_json(name, Some(holder)),
        Ok(()) => printed(output::results(format_args!("broke {}: {}\n", quoted(name), in_brief(holder)))),
        Err(error) if error.kind() == ErrorKind::Conflict && kind == HolderKind::Foreign => {
            let error = error.context("nothing was broken");
            Err(match by_hand(client, name, holder).await {
                Some(hint) => error.with_hint(hint),
                None => error,
            })
        }
        Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Unreachable) => {
            Err(error.context("nothing was broken"))
        }
        Err(error) => Err(error),
    }
}

/// Prints the holder that was broken; `None` if the lock was free.
fn print_json(name: &LockName, broken: Option<&HolderState>) -> Result<Exit> {
    printed(output::results(json::line(&json::BreakResult::new(name, broken)) + "\n"))
}

/// Returns the holder that is meant; `None` if there is nothing to break.
fn choose(state: &LockState, token: Option<FencingToken>) -> Result<Option<&HolderState>> {
    let name = quoted(&state.name);
    let holders: Vec<String> = state.holders.iter().map(in_brief).collect();
    let all = || holders.join("; ");
    let reject = |kind, text: String, hint: &str| Err(Error::new(kind, text).with_hint(hint));
    match (state.holders.as_slice(), token) {
        ([], None) => Ok(None),
        ([], Some(token)) => reject(
            ErrorKind::Conflict,
            format!("nothing was broken: no client holds {name}, with token {token} or another"),
            "it was released, or its lease has expired",
        ),
        ([holder], None) => Ok(Some(holder)),
        (several, None) => reject(
            ErrorKind::BadConfig,
            format!("nothing was broken: {} clients hold {name}: {}", several.len(), all()),
            "choose one with --token N",
        ),
        (holders, Some(token)) => match holders.iter().find(|holder| holder.token == Some(token)) {
            Some(holder) => Ok(Some(holder)),
            None => reject(
                ErrorKind::Conflict,
                format!("nothing was broken: {name} is not held with token {token}, but with: {}", all()),
                &format!("`fencepost show {}` prints the current holders", shell_quote(state.name.as_str())),
            ),
        },
    }
}

/// `token 7, held by web-3:4711:deploy for 2m10s`.
fn in_brief(holder: &HolderState) -> String {
    let HolderState { token, held_for, .. } = holder;
    let token = token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
    let held_for = held_for.map_or_else(|| "an unknown time".to_owned(), durations::show);
    format!("{token}, held by {} for {held_for}", label(holder))
}

/// Returns the error for a holder that only its own program, or an administrator, can remove.
async fn without_token(client: &Client, name: &LockName, holder: &HolderState) -> Error {
    let text = format!(
        "nothing was broken: the holder of {} is not a Fencepost client and has no token",
        quoted(name)
    );
    let hint = by_hand(client, name, holder).await;
    Error::new(ErrorKind::Unsupported, text).with_hint(hint.unwrap_or_else(|| {
        let name = shell_quote(name.as_str());
        format!(
            "`fencepost doctor {name}` shows where the lock is; end it there with the tools of the backend"
        )
    }))
}

/// Returns how to remove the entry of a foreign holder with the backend's own tools.
async fn by_hand(client: &Client, name: &LockName, holder: &HolderState) -> Option<String> {
    let findings = client.locate(name).await.ok()?;
    removal(&client.info().location, holder, &findings).map(|command| {
        format!("if that program no longer runs, or must lose the lock, remove its entry by hand: {command}")
    })
}

/// Asks for the name of the lock: it is not typed by accident.
fn is_confirmed(name: &LockName, holder: &HolderState) -> Result<bool> {
    output::question(format_args!("To break {}, type the name of the lock:", in_brief(holder)));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| failed("could not read the answer", error))?;
    if !answer.ends_with('\n') {
        // The input ended within the line.
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
    fn the_only_holder_or_the_one_with_the_token_is_broken() {
        assert_eq!(chosen(&[], None).unwrap(), None);
        assert_eq!(chosen(&[7], None).unwrap(), Some(7));
        assert_eq!(chosen(&[7], Some(7)).unwrap(), Some(7));
        assert_eq!(chosen(&[7, 8], Some(8)).unwrap(), Some(8));
    }

    #[test]
    fn an_ambiguous_request_is_rejected_with_a_list_of_the_holders() {
        let text = |tokens: &[u64], token| chosen(tokens, token).unwrap_err().to_string();
        assert!(text(&[], Some(7)).contains("no client holds \"a\", with token 7 or another"));
        assert_eq!(
            text(&[7, 8], None),
            "nothing was broken: 2 clients hold \"a\": token 7, held by web-7\\u{1b}[2J for 2m10s; \
             token 8, held by web-8\\u{1b}[2J for 2m10s"
        );
        assert!(text(&[7], Some(6)).contains("not held with token 6, but with: token 7, held by"));
    }
}
