//! What a `console` block shows: commands with their output, and whether an output matches.

/// A command and the output that is shown below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step<'a> {
    /// The line in the block, from 1.
    pub(super) line: usize,
    /// The command, with its continuation lines.
    pub(super) command: String,
    pub(super) shown: Vec<&'a str>,
}

/// Returns the steps of a block. A command starts with `$ `; lines with `> ` continue it.
pub(super) fn steps(block: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in block.lines().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: index + 1, command: command.to_owned(), shown: Vec::new() });
            continue;
        }
        let Some(step) = steps.last_mut() else { continue };
        match line.strip_prefix("> ") {
            Some(more) if step.shown.is_empty() => step.command.extend(["\n", more]),
            _ => step.shown.push(line),
        }
    }
    steps
}

/// Returns whether the output is the shown one. A line `…` or `...` matches any number of lines, and within a line any text.
pub(super) fn matches(shown: &[&str], output: &[&str]) -> bool {
    match shown.split_first() {
        None => output.is_empty(),
        Some((line, rest)) if is_wildcard(line) => {
            (0..=output.len()).any(|skipped| matches(rest, &output[skipped..]))
        }
        Some((line, rest)) => {
            output.split_first().is_some_and(|(first, more)| line_matches(line, first) && matches(rest, more))
        }
    }
}

fn is_wildcard(line: &str) -> bool {
    matches!(line.trim(), "…" | "...")
}

fn line_matches(shown: &str, output: &str) -> bool {
    let shown = shown.trim_end().replace("...", "…");
    let mut rest = output.trim_end();
    let mut parts = shown.split('…').peekable();
    let first = parts.next().unwrap_or_default();
    let Some(after) = rest.strip_prefix(first) else { return false };
    if parts.peek().is_none() {
        return after.is_empty();
    }
    rest = after;
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Returns a message with the lines that are shown and the lines of the output.
pub(super) fn difference(step: &Step, output: &[&str]) -> String {
    let lines = |mark: char, lines: &[&str]| {
        lines.iter().map(|line| format!("\n    {mark} {line}")).collect::<Vec<_>>().concat()
    };
    let command = &step.command;
    format!("`{command}` prints something else than shown{}{}", lines('-', &step.shown), lines('+', output))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_followed_by_their_output() {
        let found = steps("$ a \\\n> b\nc\n\n$ d\n$ e\n> f");
        assert_eq!(
            found,
            [
                Step { line: 1, command: "a \\\nb".into(), shown: vec!["c", ""] },
                Step { line: 5, command: "d".into(), shown: vec![] },
                Step { line: 6, command: "e\nf".into(), shown: vec![] },
            ]
        );
    }

    #[test]
    fn text_without_an_ellipsis_matches_itself_only() {
        assert!(matches(&["a b", "c"], &["a b", "c  "]));
        assert!(matches(&[], &[]));
        for output in [&["a b"][..], &["a b", "d"], &["a b", "c", "d"], &["a bb", "c"], &[]] {
            assert!(!matches(&["a b", "c"], output), "{output:?}");
        }
    }

    #[test]
    fn an_ellipsis_in_a_line_matches_any_text() {
        for (shown, output) in [
            ("token …", "token 17"),
            ("held for …s, ttl ... left", "held for 2s, ttl 29s left"),
            ("…", "anything"),
            ("a…", "a"),
            ("…b…b", "abab"),
        ] {
            assert!(line_matches(shown, output), "{shown} {output}");
        }
        for (shown, output) in
            [("token …", "tokens"), ("…s left", "2s right"), ("a…a", "a"), ("a…b…c", "a c b")]
        {
            assert!(!line_matches(shown, output), "{shown} {output}");
        }
    }

    #[test]
    fn an_ellipsis_as_a_line_matches_any_number_of_lines() {
        for output in [&["a", "z"][..], &["a", "b", "z"], &["a", "z", "z"]] {
            assert!(matches(&["a", "…", "z"], output), "{output:?}");
        }
        assert!(!matches(&["a", "…", "z"], &["a", "b"]));
        assert!(matches(&["..."], &[]));
    }

    #[test]
    fn a_difference_shows_both() {
        let step = Step { line: 1, command: "echo b".into(), shown: vec!["a"] };
        assert_eq!(difference(&step, &["b"]), "`echo b` prints something else than shown\n    - a\n    + b");
    }
}
