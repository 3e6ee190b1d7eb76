//! `cargo xtask words [REV]`: how often words that the glossary replaces occur in comments, by crate.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::shell::{self, Failure, Outcome};
use crate::tidy::repo::Repo;
use crate::tidy::{scan, vocabulary};

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "[REV]  count replaced words in comment lines, by crate; now or in a revision";

/// The lines of a crate that have a comment, and those of them with a replaced word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    comments: usize,
    replaced: usize,
}

/// Prints a table in Markdown, and the words that were found.
pub(crate) fn run(args: &[String]) -> Outcome {
    let root = shell::root();
    let repo = match args {
        [] => Repo::load(&root)?,
        [revision] => Repo::load_revision(&root, revision)?,
        [_, word, ..] => {
            return Err(Failure::Usage(format!("`words` takes one revision, but got `{word}` too")));
        }
    };
    print!("{}", report(&repo));
    Ok(())
}

fn report(repo: &Repo) -> String {
    let (counts, words) = count(repo);
    let mut total = Count::default();
    let mut text = "| crate | comment lines | with a replaced word |\n|---|---|---|\n".to_owned();
    for (name, count) in counts {
        total.comments += count.comments;
        total.replaced += count.replaced;
        let _ = writeln!(text, "| {name} | {} | {} |", count.comments, count.replaced);
    }
    let _ = writeln!(text, "| together | {} | {} |", total.comments, total.replaced);
    let found = words.iter().map(|(word, times)| format!("{word} {times}")).collect::<Vec<_>>();
    let _ = writeln!(text, "\n{}", if found.is_empty() { "none".to_owned() } else { found.join(", ") });
    text
}

/// Returns the counts of each crate, and how many comment lines have each word.
fn count(repo: &Repo) -> (BTreeMap<&str, Count>, BTreeMap<&'static str, usize>) {
    let (mut counts, mut words): (BTreeMap<&str, Count>, BTreeMap<_, usize>) = Default::default();
    for (path, text) in repo.ending(".rs").filter(|(path, _)| !vocabulary::QUOTING.contains(path)) {
        let name = path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or(path);
        let count = counts.entry(name).or_default();
        for line in scan::comments(text).lines().filter(|line| !line.trim().is_empty()) {
            let found: Vec<&str> = vocabulary::replaced_in(line).map(|(word, _)| word).collect();
            count.comments += 1;
            count.replaced += usize::from(!found.is_empty());
            for word in found {
                *words.entry(word).or_default() += 1;
            }
        }
    }
    (counts, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_lines_are_counted_by_crate() {
        let text = "//! Nobody and somebody.\n// A queue.\nfn nobody() {} // anew\nlet x = \"whoever\";\n";
        let repo = Repo::of([("crates/fencepost-core/src/a.rs", text), ("xtask/src/b.rs", "// Fine.\n")]);
        let (counts, words) = count(&repo);
        assert_eq!(counts["fencepost-core"], Count { comments: 3, replaced: 2 });
        assert_eq!(counts["xtask"], Count { comments: 1, replaced: 0 });
        assert_eq!(words, BTreeMap::from([("anew", 1), ("nobody", 1), ("somebody", 1)]));
        assert!(report(&repo).contains("| together | 4 | 2 |\n\nanew 1, nobody 1, somebody 1\n"));
    }
}
