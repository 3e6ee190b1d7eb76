//! Words that the glossary replaces do not come back: in comments, names, messages and docs.
//!
//! The table is kept here and not read from `docs/glossary.md`: many words of its "instead of" column (line, place, left) are
//! right in another sense, so they cannot be rejected as such. `cargo xtask words` counts the same words.

use super::markdown;
use super::repo::{Complaint, Repo, extension};

/// Words, and what to write instead.
pub(crate) struct Replaced {
    pub(crate) words: &'static [&'static str],
    instead: &'static str,
}

/// The words that are rejected; a phrase may have several words.
pub(crate) const REPLACED: [Replaced; 16] = [
    Replaced {
        words: &["whoever", "whomever", "whom"],
        instead: "the client, waiter, holder, caller or process that …",
    },
    Replaced { words: &["nobody"], instead: "no client, no waiter, no other process" },
    Replaced { words: &["somebody"], instead: "another client, a waiter, another process" },
    Replaced { words: &["anybody", "everybody"], instead: "any client, every client" },
    Replaced { words: &["those who"], instead: "the clients that, the waiters that" },
    Replaced { words: &["anew"], instead: "again" },
    Replaced { words: &["to be had"], instead: "available; \"could not be acquired\"" },
    Replaced { words: &["in line", "in the line"], instead: "in the queue" },
    Replaced {
        words: &["storages", "the storage", "a storage"],
        instead: "backend, or the name of the server",
    },
    Replaced { words: &["promise", "promises", "promised"], instead: "guarantee" },
    Replaced { words: &["heir", "heirs"], instead: "successor" },
    Replaced { words: &["stranger", "strangers"], instead: "foreign client, foreign key" },
    Replaced { words: &["ghost", "ghosts", "stray", "strays"], instead: "orphan" },
    Replaced { words: &["farewell", "bury", "buried"], instead: "tombstone" },
    Replaced { words: &["doubtful", "in doubt"], instead: "outcome unknown" },
    Replaced { words: &["whereabouts", "unheard of"], instead: "location; unused" },
];

/// Phrases in which a replaced word has another meaning.
const OTHER_MEANINGS: [&str; 5] =
    ["in line with", "the storage id", "the storage engine", "a storage id", "a storage engine"];

/// Files that quote replaced words: the glossary, this list, the tests of the counter; and what is generated, from test names
/// and from etcd's own texts.
pub(crate) const QUOTING: [&str; 5] = [
    "docs/glossary.md",
    "xtask/src/tidy/vocabulary.rs",
    "xtask/src/words.rs",
    crate::scenarios::PAGE,
    crate::proto::GENERATED,
];

/// Words of a wire format or of another program's language, and where they are used.
const FOREIGN: [(&str, &str); 1] = [("promise", ".js")];

/// Checks comments, names, messages and docs.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    repo.files()
        .filter(|(path, _)| is_checked(path))
        .flat_map(|(path, text)| complaints(path, text))
        .collect()
}

fn is_checked(path: &str) -> bool {
    let endings = ["rs", "md", "lua", "sql", "sh", "py", "js", "go", "java", "c"];
    endings.contains(&extension(path)) && !QUOTING.contains(&path)
}

fn complaints(path: &str, text: &str) -> Vec<Complaint> {
    let text = if extension(path) == "md" { markdown::without_code_words(text) } else { text.to_owned() };
    let lines = text.lines().enumerate();
    let found = lines
        .flat_map(|(index, line)| replaced_in(line).map(move |(word, instead)| (index + 1, word, instead)));
    let found = found.filter(|(_, word, _)| {
        !FOREIGN.iter().any(|(known, end)| word.starts_with(known) && path.ends_with(end))
    });
    found
        .map(|(line, word, instead)| {
            Complaint::new(path, line, format!("\"{word}\" is replaced: write {instead}"))
        })
        .collect()
}

/// Returns the replaced words in a line, with what to write instead.
pub(crate) fn replaced_in(line: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut line = line.to_lowercase();
    for phrase in OTHER_MEANINGS {
        line = line.replace(phrase, "");
    }
    REPLACED.iter().flat_map(move |replaced| {
        let found = replaced.words.iter().filter(|word| contains(&line, word));
        found.map(|word| (*word, replaced.instead)).collect::<Vec<_>>()
    })
}

/// Returns whether the line has the word, also as a part of an identifier in snake case.
fn contains(line: &str, word: &str) -> bool {
    let line = line.replace('_', " ");
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Repo::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_replaced_word_is_rejected_with_its_replacement() {
        assert_eq!(
            found("crates/a/src/lib.rs", "//! A lock.\n/// Nobody holds it.\n"),
            ["crates/a/src/lib.rs:2: \"nobody\" is replaced: write no client, no waiter, no other process"]
        );
    }

    #[test]
    fn comments_names_messages_and_docs_are_checked() {
        for (path, text) in [
            ("crates/a/src/lib.rs", "fn nobody_waits() {}"),
            ("crates/a/src/lib.rs", "let text = \"it stands in line\";"),
            ("crates/a/src/scripts/x.lua", "-- asked anew"),
            ("README.md", "All storages keep the same guarantees."),
            ("docs/guides/a.md", "```console\n$ x\nsomebody has it\n```"),
        ] {
            assert_eq!(found(path, text).len(), 1, "{text}");
        }
    }

    #[test]
    fn only_whole_words_count() {
        for text in
            ["inline", "// The new one.", "// compromised", "// in linear time", "// behind the storages2"]
        {
            assert_eq!(found("crates/a/src/lib.rs", text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn quotations_and_other_meanings_are_fine() {
        for (path, text) in [
            ("docs/glossary.md", "| backend | storages |"),
            ("CHANGELOG.md", "* `whereabouts` is `locate` now."),
            ("docs/a.md", "This is in line with the storage id."),
            ("crates/a/peers/a.js", "return promises.all()"),
            ("crates/a/Cargo.toml", "# nobody"),
        ] {
            assert_eq!(found(path, text), Vec::<String>::new(), "{text}");
        }
    }
}
