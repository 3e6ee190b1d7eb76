//! ARCHITECTURE.md stays short, and every code word in it exists.

use super::markdown;
use super::repo::{Complaint, Repo, extension};
use super::scan;
use crate::commands;
use std::collections::HashSet;

const PAGE: &str = "ARCHITECTURE.md";
const LONGEST: usize = 250;
const FILE_ENDINGS: [&str; 5] = [".rs", ".md", ".sql", ".toml", ".lua"];

/// Checks the page.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    let Some(text) = repo.text(PAGE) else {
        return vec![Complaint::new(PAGE, 1, "is missing")];
    };
    let known = known_words(repo);
    let words = markdown::code_words(text).into_iter();
    let wrong =
        words.filter_map(|(line, word)| Some(Complaint::new(PAGE, line, wrong(repo, &known, &word)?)));
    wrong.chain(too_long(text)).collect()
}

fn too_long(text: &str) -> Option<Complaint> {
    let lines = text.lines().count();
    (lines > LONGEST)
        .then(|| Complaint::new(PAGE, LONGEST + 1, format!("{lines} lines are more than {LONGEST}")))
}

/// The form of a code word, and so where it has to exist.
#[derive(Debug, PartialEq, Eq)]
enum Word<'a> {
    Command(&'a str),
    Path(&'a str),
    Identifiers(Vec<&'a str>),
    Other,
}

fn classify(word: &str) -> Word<'_> {
    if let Some(rest) = word.strip_prefix("cargo xtask") {
        return rest.split_whitespace().next().map_or(Word::Other, Word::Command);
    }
    if word.contains(char::is_whitespace) || word.contains("://") {
        return Word::Other;
    }
    if word.contains('/') || FILE_ENDINGS.iter().any(|ending| word.ends_with(ending)) {
        return path(word);
    }
    identifiers(word)
}

/// An absolute path (`/etc`, `~/x`) and a fraction (`ttl/3`) are no paths of the repository.
fn path(word: &str) -> Word<'_> {
    let fraction = word.rsplit('/').next().is_some_and(|last| last.parse::<u64>().is_ok());
    if fraction || word.starts_with(['/', '~', '$']) { Word::Other } else { Word::Path(word) }
}

/// `&Guard`, `Client::connect(url)`, `Vec<Op>`, `fencepost-core`: the names up to the first bracket.
fn identifiers(word: &str) -> Word<'_> {
    let word = word.trim_start_matches('&');
    let head = word.split(['(', '<', '!', '[', '{', '?']).next().unwrap_or(word).trim_end_matches(':');
    let names: Vec<&str> = head.split("::").flat_map(|part| part.split('.')).collect();
    if names.iter().all(|name| is_name(name)) { Word::Identifiers(names) } else { Word::Other }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic()) && text.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c == '-' || scan::is_word(c)
}

/// Returns the complaint about a word, if there is one.
fn wrong(repo: &Repo, known: &HashSet<String>, word: &str) -> Option<String> {
    match classify(word) {
        Word::Command(name) if commands::find(name).is_none() => {
            Some(format!("there is no `cargo xtask {name}`"))
        }
        Word::Path(path) => {
            let missing = expanded(path).into_iter().find(|path| !path_exists(repo, path))?;
            Some(format!("there is no file or folder `{missing}`"))
        }
        Word::Identifiers(names) => {
            let missing = names.into_iter().find(|name| !known.contains(*name))?;
            Some(format!("no source contains `{missing}`"))
        }
        _ => None,
    }
}

/// Returns every word of the sources, with its hyphens and without; comments and our own literals do not count.
fn known_words(repo: &Repo) -> HashSet<String> {
    let mut known = HashSet::new();
    for (path, text) in repo.files() {
        let text = match extension(path) {
            "rs" if path.starts_with("xtask/") => scan::code(text),
            "rs" => scan::uncommented(text),
            "toml" | "sql" => text.to_owned(),
            _ => continue,
        };
        known.extend(text.split(|c| !is_name_char(c)).map(str::to_owned));
        known.extend(text.split(|c| !scan::is_word(c)).map(str::to_owned));
    }
    known
}

/// Expands `a/{b,c}.rs` to two paths.
fn expanded(path: &str) -> Vec<String> {
    let braces = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match braces {
        Some((before, (list, after))) => {
            list.split(',').map(|item| format!("{before}{}{after}", item.trim())).collect()
        }
        None => vec![path.to_owned()],
    }
}

/// Returns whether the path is the end of some file's path, or of a folder's; `*` and `<x>` stand for any name.
fn path_exists(repo: &Repo, path: &str) -> bool {
    let wanted: Vec<&str> = path.trim_start_matches("./").trim_end_matches('/').split('/').collect();
    repo.files().any(|(file, _)| {
        let parts: Vec<&str> = file.split('/').collect();
        parts
            .windows(wanted.len())
            .any(|window| window.iter().zip(&wanted).all(|(part, want)| fits(part, want)))
    })
}

fn fits(part: &str, want: &str) -> bool {
    let wild = want.split_once('*').or_else(|| {
        let (before, rest) = want.split_once('<')?;
        Some((before, rest.split_once('>')?.1))
    });
    match wild {
        Some((before, after)) => {
            part.len() >= before.len() + after.len() && part.starts_with(before) && part.ends_with(after)
        }
        None => part == want,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: (&str, &str) = (
        "crates/fencepost-core/src/backend.rs",
        "//! Mentions Phantom.\npub trait Backend { fn execute(&self); }\nenum Op { Acquire }\nconst E: &str = \"FENCEPOST_X\";\n",
    );
    const MANIFEST: (&str, &str) =
        ("crates/fencepost-core/Cargo.toml", "[package]\nname = \"fencepost-core\"\n");

    fn complaints(text: &str) -> Vec<String> {
        check(&Repo::of([(PAGE, text), SOURCE, MANIFEST])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn words_that_exist_are_fine() {
        let text = "`Backend`, `Backend::execute()`, `&Op`, `Op::Acquire`, `fencepost-core`, `FENCEPOST_X`,\n\
                    `crates/fencepost-core/`, `backend.rs`, `src/{backend}.rs`, `crates/*/Cargo.toml`, `fencepost-<x>/src`,\n\
                    `cargo xtask tidy`, `cargo test --workspace`, `ttl/3`, `redis://`, `/etc`, `0.37`, `--wait`, `→`\n";
        assert_eq!(complaints(text), Vec::<String>::new());
    }

    #[test]
    fn words_that_do_not_exist_are_refused_at_their_line() {
        for word in ["Phantom", "Op::Vanish", "Gone::Acquire", "execute_all()", "fencepost-cor"] {
            let found = complaints(&format!("\n`{word}`\n"));
            assert!(
                found.len() == 1 && found[0].starts_with("ARCHITECTURE.md:2: no source contains"),
                "{word}: {found:?}"
            );
        }
        for word in ["core/src/engine.rs", "end.rs", "docs/", "src/{backend,lock}.rs", "*.sql"] {
            let found = complaints(&format!("`{word}`\n"));
            assert!(found.len() == 1 && found[0].contains("there is no file"), "{word}: {found:?}");
        }
        assert_eq!(
            complaints("`cargo xtask juggle`"),
            ["ARCHITECTURE.md:1: there is no `cargo xtask juggle`"]
        );
    }

    #[test]
    fn the_page_stays_short() {
        assert_eq!(complaints(&"line\n".repeat(250)), Vec::<String>::new());
        assert_eq!(complaints(&"line\n".repeat(251)), ["ARCHITECTURE.md:251: 251 lines are more than 250"]);
    }

    #[test]
    fn a_page_that_is_not_there_is_refused() {
        assert_eq!(check(&Repo::of([SOURCE])), [Complaint::new(PAGE, 1, "is missing")]);
    }
}
