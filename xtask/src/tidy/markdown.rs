//! A parser for the part of Markdown that the checks need: code words, links and headings outside code blocks.

/// A piece of a text, with the number of its line.
pub(crate) type Found = (usize, String);

/// Returns what is in backticks.
pub(crate) fn code_words(text: &str) -> Vec<Found> {
    prose(text)
        .flat_map(|(number, line)| split_code(line).1.into_iter().map(move |word| (number, word)))
        .collect()
}

/// Returns the targets of links and images, and of reference definitions (`[name]: target`).
pub(crate) fn links(text: &str) -> Vec<Found> {
    prose(text)
        .flat_map(|(number, line)| {
            targets(&split_code(line).0).into_iter().map(move |target| (number, target))
        })
        .collect()
}

/// Returns the text without what is in backticks; lines keep their numbers, and code blocks are kept.
pub(crate) fn without_code_words(text: &str) -> String {
    let mut prose = prose(text).peekable();
    let lines = text.lines().enumerate().map(|(index, line)| {
        let is_prose = prose.next_if(|(number, _)| *number == index + 1).is_some();
        if is_prose { split_code(line).0 } else { line.to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the headings of the second level.
pub(crate) fn headings(text: &str) -> Vec<Found> {
    let found = prose(text).filter_map(|(number, line)| Some((number, line.strip_prefix("## ")?)));
    found.map(|(number, heading)| (number, heading.trim().to_owned())).collect()
}

/// Returns the numbered lines outside fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, None) => return Some((index + 1, line)),
            (None, Some(_)) => fence = mark,
            (Some(open), _) if mark == Some(open) => fence = None,
            (Some(_), _) => {}
        }
        None
    })
}

/// Returns the line without its code, and the code: what is between two runs of as many backticks.
fn split_code(line: &str) -> (String, Vec<String>) {
    let (mut plain, mut words, mut rest) = (String::new(), Vec::new(), line);
    while let Some(start) = rest.find('`') {
        let opening = &rest[start..];
        let ticks = &opening[..opening.len() - opening.trim_start_matches('`').len()];
        let Some((word, after)) = opening[ticks.len()..].split_once(ticks) else {
            break;
        };
        plain += &rest[..start];
        words.push(word.trim().to_owned());
        rest = after;
    }
    (plain + rest, words)
}

fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined = line.trim_start().strip_prefix('[').filter(|name| !name.starts_with('^'));
    let defined = defined.and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline.chain(defined).filter_map(bare).collect()
}

/// Returns a target without its title and its angle brackets.
fn bare(target: &str) -> Option<String> {
    let target = target.trim();
    let bracketed = target.strip_prefix('<').and_then(|rest| rest.split('>').next());
    bracketed.or_else(|| target.split_whitespace().next()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(found: Vec<Found>) -> Vec<String> {
        found.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn code_words_stand_in_backticks_outside_blocks() {
        let text = "a `b` and `` c`d ``\n```rust\nlet `e`\n```\n`f\n~~~\n```\n`g`\n~~~\n`h`";
        assert_eq!(code_words(text), [(1, "b".into()), (1, "c`d".into()), (10, "h".into())]);
    }

    #[test]
    fn code_words_are_removed_from_prose_only() {
        let text = "a `b` c\n```sh\nx `y`\n```\n`d` e";
        assert_eq!(without_code_words(text), "a  c\n```sh\nx `y`\n```\n e");
    }

    #[test]
    fn links_are_found_in_every_spelling() {
        let text = "[a](one.md) ![b](two.png \"title\") [c](<three four.md>)\n[d]: five.md#x\n[^1]: a note\n`[e](no.md)`\n";
        assert_eq!(texts(links(text)), ["one.md", "two.png", "three four.md", "five.md#x"]);
    }

    #[test]
    fn headings_of_other_levels_are_left_out() {
        let text = "# Title\n## One \n### Deep\n```sh\n## not this\n```\n## Two\n";
        assert_eq!(headings(text), [(2, "One".into()), (7, "Two".into())]);
    }
}
