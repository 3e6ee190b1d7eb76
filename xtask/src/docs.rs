//! `cargo xtask docs`: executes the `console` blocks of README and docs and compares what they print with what they show.
//!
//! ```text
//! console                 executed with bash, in a directory of its own; `…` matches anything
//! console redis           the same with a server, at $REDIS_URL (`etcd`: $ETCD_URL, `postgres`: $POSTGRES_URL,
//!                         `mysql`: $MYSQL_URL)
//! console no-run REASON   not executed
//! sh no-run REASON        not executed; a plain `sh` block is rejected
//! rust                    executed as a doctest of the facade, which must include the page
//! ```

mod blocks;
mod servers;
mod session;
mod transcript;

use std::path::{Path, PathBuf};

use crate::shell::{self, Failure, Outcome, cargo};
use crate::tidy::repo::{Complaint, Repo};
use blocks::{Block, Language};
use session::Session;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str =
    "[PAGE…]  execute the console blocks of README and docs, and compare their output";

/// The file whose doctests are the Rust blocks of the pages.
const DOCTESTS: &str = "crates/fencepost/src/lib.rs";

/// Executes the blocks of all pages, or of the named ones.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(option) = args.iter().find(|word| word.starts_with('-')) {
        return Err(Failure::Usage(format!("`docs` does not know `{option}`")));
    }
    let repo = Repo::load(&shell::root())?;
    if let Some(page) = args.iter().find(|page| repo.text(page).is_none()) {
        return Err(Failure::Usage(format!("there is no page `{page}`")));
    }
    let is_chosen =
        |path: &str| if args.is_empty() { is_page(path) } else { args.iter().any(|page| page == path) };
    let blocks: Vec<(&str, Block)> = repo
        .ending(".md")
        .filter(|(path, _)| is_chosen(path))
        .flat_map(|(path, text)| blocks::blocks(text).into_iter().map(move |block| (path, block)))
        .collect();
    let complaints = check(&repo, &blocks);
    for complaint in &complaints {
        println!("{complaint}");
    }
    let failed = execute(&blocks)? + complaints.len();
    match failed {
        0 => Ok(()),
        1 => Err(Failure::Failed("docs: one block is wrong".into())),
        count => Err(Failure::Failed(format!("docs: {count} blocks are wrong"))),
    }
}

fn is_page(path: &str) -> bool {
    let folders = ["docs/guides/", "docs/backends/", "docs/concepts/", "docs/reference/"];
    let is_top = path == "README.md" || path.strip_prefix("docs/").is_some_and(|name| !name.contains('/'));
    is_top || folders.iter().any(|folder| path.starts_with(folder))
}

/// Complains about blocks that no test executes, and that do not say why.
fn check(repo: &Repo, blocks: &[(&str, Block)]) -> Vec<Complaint> {
    let doctests = repo.text(DOCTESTS).unwrap_or_default();
    let wrong = blocks.iter().filter_map(|(path, block)| {
        let message = match &block.language {
            Language::Shell => {
                "a shell block is `console`, with `$ ` before commands, or `sh no-run REASON`".to_owned()
            }
            Language::NotRun { reason } if reason.is_empty() => "`no-run` needs a reason".to_owned(),
            Language::UnknownServer(name) => {
                format!("no server `{name}` can be started; known are redis, etcd, postgres and mysql")
            }
            Language::Rust if !doctests.contains(&format!("include_str!(\"../../../{path}\")")) => {
                format!("its Rust blocks are not executed: include it in {DOCTESTS}")
            }
            _ => return None,
        };
        Some(Complaint::new(path, block.line, message))
    });
    wrong.collect()
}

/// Executes the `console` blocks; returns how many are wrong.
fn execute(blocks: &[(&str, Block)]) -> Result<usize, Failure> {
    let consoles: Vec<_> = blocks
        .iter()
        .filter_map(|(path, block)| match &block.language {
            Language::Console { server } => Some((*path, block, *server)),
            _ => None,
        })
        .collect();
    if consoles.is_empty() {
        println!("docs: no blocks to execute");
        return Ok(0);
    }
    let programs = build()?;
    let mut wrong = 0;
    for (path, block, server) in &consoles {
        let differences = Session::start(&programs, *server)?.compare(&block.text)?;
        wrong += usize::from(!differences.is_empty());
        for (line, difference) in differences {
            println!("{path}:{}: {difference}", block.line + line);
        }
    }
    println!("docs: {} blocks executed, {wrong} wrong", consoles.len());
    Ok(wrong)
}

/// Builds the command; returns the directory that it is in.
fn build() -> Result<PathBuf, Failure> {
    shell::run(&mut cargo(["build", "--quiet", "-p", "fencepost-cli", "--all-features"]))?;
    Ok(Path::new(&shell::target_dir()).join("debug"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        let included = "#[doc = include_str!(\"../../../README.md\")]\n";
        let repo = Repo::of([(path, text), (DOCTESTS, included)]);
        let blocks: Vec<_> = blocks::blocks(text).into_iter().map(|block| (path, block)).collect();
        check(&repo, &blocks).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_block_that_is_not_executed_needs_a_reason() {
        assert_eq!(complaints("docs/a.md", "```sh no-run — takes root\napt-get update\n```\n").len(), 0);
        assert_eq!(complaints("docs/a.md", "```console no-run needs jq\n$ jq\n```\n").len(), 0);
        assert_eq!(
            complaints("docs/a.md", "\n```console no-run\n$ jq\n```\n"),
            ["docs/a.md:2: `no-run` needs a reason"]
        );
        for language in ["sh", "bash", "shell"] {
            assert_eq!(complaints("docs/a.md", &format!("```{language}\nls\n```\n")).len(), 1);
        }
        assert_eq!(complaints("docs/a.md", "```console oracle\n$ ls\n```\n").len(), 1);
    }

    #[test]
    fn a_page_with_rust_is_included_in_the_doctests() {
        let text = "```rust\nfn main() {}\n```\n";
        assert_eq!(complaints("README.md", text).len(), 0);
        assert_eq!(complaints("docs/a.md", text).len(), 1);
    }

    #[test]
    fn pages_are_the_docs_for_users() {
        for page in ["README.md", "docs/glossary.md", "docs/guides/cron.md"] {
            assert!(is_page(page), "{page}");
        }
        for page in ["CHANGELOG.md", "docs/decisions/0001-the-contract.md", "crates/a/README.md"] {
            assert!(!is_page(page), "{page}");
        }
    }
}
