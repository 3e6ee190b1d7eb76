//! The fenced code blocks of a Markdown page.

use super::servers::Server;

/// A code block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The line of its opening fence.
    pub(super) line: usize,
    pub(super) language: Language,
    /// The lines between the fences, without the indentation of the fence.
    pub(super) text: String,
}

/// What the info string of a block asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// Commands with their output, to be executed.
    Console { server: Option<Server> },
    /// A `console` block with a server that cannot be started.
    UnknownServer(String),
    /// Commands that are not executed, for this reason.
    NotRun { reason: String },
    /// Commands without output, and without a reason not to execute them.
    Shell,
    /// Code that is compiled as a doctest.
    Rust,
    /// Anything else.
    Other,
}

/// Returns the code blocks of a page.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(fence) = Fence::open(line) else { continue };
        let inside = lines.by_ref().take_while(|(_, line)| !fence.is_closed_by(line));
        let text: Vec<&str> = inside.map(|(_, line)| fence.unindented(line)).collect();
        blocks.push(Block { line: index + 1, language: language(fence.info), text: text.join("\n") });
    }
    blocks
}

struct Fence<'a> {
    indentation: usize,
    mark: &'a str,
    info: &'a str,
}

impl<'a> Fence<'a> {
    fn open(line: &'a str) -> Option<Self> {
        let text = line.trim_start();
        let tick = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let (mark, info) = text.split_at(text.len() - text.trim_start_matches(tick).len());
        (mark.len() >= 3).then(|| Self { indentation: line.len() - text.len(), mark, info: info.trim() })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let text = line.trim();
        text.starts_with(self.mark) && text.trim_matches(self.mark.chars().next().unwrap_or('`')).is_empty()
    }

    fn unindented<'b>(&self, line: &'b str) -> &'b str {
        let blanks = line.len() - line.trim_start().len();
        &line[blanks.min(self.indentation)..]
    }
}

fn language(info: &str) -> Language {
    let (language, rest) = info.split_once(char::is_whitespace).unwrap_or((info, ""));
    let rest = rest.trim();
    let not_run = || {
        let reason =
            rest.strip_prefix("no-run")?.trim_matches(|c: char| c.is_whitespace() || "—–-:".contains(c));
        Some(Language::NotRun { reason: reason.to_owned() })
    };
    match language {
        "console" => not_run().unwrap_or_else(|| match (rest, Server::named(rest)) {
            ("", _) => Language::Console { server: None },
            (_, Some(server)) => Language::Console { server: Some(server) },
            (name, None) => Language::UnknownServer(name.to_owned()),
        }),
        "sh" | "bash" | "shell" => not_run().unwrap_or(Language::Shell),
        _ if language.split(',').next() == Some("rust") => Language::Rust,
        _ => Language::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_line_a_language_and_a_text() {
        let page = "a\n```console\n$ b\n\nc\n```\n\n1. d\n   ~~~sh no-run — e\n   f\n   ~~~\n````rust,no_run\n```\n````\n```\ng\n```";
        let found = blocks(page);
        let block = |line, language, text: &str| Block { line, language, text: text.into() };
        assert_eq!(
            found,
            [
                block(2, Language::Console { server: None }, "$ b\n\nc"),
                block(9, Language::NotRun { reason: "e".into() }, "f"),
                block(12, Language::Rust, "```"),
                block(15, Language::Other, "g"),
            ]
        );
    }

    #[test]
    fn a_console_block_may_ask_for_a_server() {
        assert_eq!(language("console redis"), Language::Console { server: Some(Server::Redis) });
        assert_eq!(language("console oracle"), Language::UnknownServer("oracle".into()));
    }

    #[test]
    fn a_block_that_is_not_closed_ends_with_the_page() {
        assert_eq!(blocks("```console\n$ a")[0].text, "$ a");
    }
}
