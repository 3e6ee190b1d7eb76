//! A small scanner for Rust: distinguishes code from comments and literals, and finds words.

/// The kind of a piece of Rust text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Code,
    Comment,
    Literal,
}

/// Returns the text without its comments and literals; blanks take their place, so that lines keep their numbers.
pub(crate) fn code(text: &str) -> String {
    keep(text, &[Kind::Code])
}

/// Returns the text without its comments.
pub(crate) fn uncommented(text: &str) -> String {
    keep(text, &[Kind::Code, Kind::Literal])
}

/// Returns the comments of the text; blanks take the place of everything else, so that lines keep their numbers.
pub(crate) fn comments(text: &str) -> String {
    keep(text, &[Kind::Comment])
}

/// Returns code (as from [`code`]) without its modules and functions for tests.
pub(crate) fn shipped(code: &str) -> String {
    let mut rest = code;
    let mut kept = String::new();
    while let Some(start) = ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|mark| rest.find(mark)).min()
    {
        let (before, item) = rest.split_at(start);
        let (item, after) = item.split_at(item_len(item));
        kept += before;
        kept += &blank(item);
        rest = after;
    }
    kept + rest
}

/// Returns how many lines of a Rust file are neither tests nor empty at its end.
pub(crate) fn shipped_lines(text: &str) -> usize {
    let code = code(text);
    let (mut from, mut in_tests) = (0, 0);
    while let Some(start) = code[from..].find("#[cfg(test)]") {
        let item = &code[from + start..];
        let end = item_len(item);
        in_tests += 1 + item[..end].matches('\n').count();
        from += start + end;
    }
    text.lines().count() - in_tests
}

/// A function and how many lines it has.
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// The line on which it starts.
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// Returns the functions of code (as from [`code`]) that have a body.
pub(crate) fn functions(code: &str) -> impl Iterator<Item = Function<'_>> {
    code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(is_word)).filter_map(|(at, _)| {
        let item = &code[at..];
        let name = &item[3..];
        let name = &name[..word_len(name)];
        let body = &item[..item_len(item)];
        let line = 1 + code[..at].matches('\n').count();
        (!name.is_empty() && body.ends_with('}')).then(|| Function {
            name,
            line,
            lines: 1 + body.matches('\n').count(),
        })
    })
}

/// Returns, for each `impl` block of code (as from [`code`]), the type and how many functions it has.
pub(crate) fn impls(code: &str) -> impl Iterator<Item = (&str, usize)> {
    let blocks = code
        .match_indices("impl")
        .filter(|(at, _)| *at == 0 || code[..*at].ends_with('\n') && code[at + 4..].starts_with([' ', '<']));
    blocks.filter_map(|(at, _)| {
        let block = &code[at..];
        let block = &block[..item_len(block)];
        let (head, body) = block.split_once('{')?;
        let head = after_parameters(&head["impl".len()..]);
        let name = head.split_once(" for ").map_or(head, |(_, of)| of);
        let name = name.split(['<', ' ']).find(|word| !word.is_empty())?;
        let name = name.rsplit("::").next()?;
        let methods = body.lines().filter(|line| is_method(line)).count();
        Some((name, methods))
    })
}

/// Returns what follows the generic parameters at the start of a text.
fn after_parameters(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    });
    if text.starts_with('<') { &text[end.map_or(text.len(), |end| end + 1)..] } else { text }
}

/// Returns whether a line of an `impl` block starts one of its functions.
fn is_method(line: &str) -> bool {
    let is_inside = line.starts_with("    ") && !line.starts_with("     ");
    is_inside && line.split('(').next().is_some_and(|head| head.split(' ').any(|word| word == "fn"))
}

/// Returns the numbers of the lines that contain `word` as a whole word.
pub(crate) fn lines_with(text: &str, word: &str) -> Vec<usize> {
    let whole = |at: usize| {
        let before = text[..at].chars().next_back().is_some_and(is_word);
        let after = text[at + word.len()..].chars().next().is_some_and(is_word);
        !(before && word.starts_with(is_word) || after && word.ends_with(is_word))
    };
    let found = text.match_indices(word).map(|(at, _)| at).filter(|at| whole(*at));
    found.map(|at| 1 + text[..at].matches('\n').count()).collect()
}

/// Returns whether the character can be part of an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn keep(text: &str, kinds: &[Kind]) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (kind, len) = piece(rest);
        let (piece, after) = rest.split_at(len);
        if kinds.contains(&kind) {
            kept += piece;
        } else {
            kept += &blank(piece);
        }
        rest = after;
    }
    kept
}

fn blank(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { ' ' }).collect()
}

/// Returns the kind and the length of the first piece of a non-empty text.
fn piece(text: &str) -> (Kind, usize) {
    if text.starts_with("//") {
        return (Kind::Comment, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (Kind::Comment, block_comment_len(text));
    }
    match raw_string_len(text).or_else(|| string_len(text)).or_else(|| char_len(text)) {
        Some(len) => (Kind::Literal, len),
        None => (Kind::Code, word_len(text).max(text.chars().next().map_or(0, char::len_utf8))),
    }
}

fn word_len(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// Block comments nest.
fn block_comment_len(text: &str) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let Some(next) = text[at..].find("/*").into_iter().chain(text[at..].find("*/")).min() else {
            return text.len();
        };
        depth = if text[at + next..].starts_with("/*") { depth + 1 } else { depth - 1 };
        at += next + 2;
    }
    at
}

fn string_len(text: &str) -> Option<usize> {
    text.starts_with('"').then(|| 1 + closed_by('"', &text[1..]))
}

/// Returns the length up to and with the closing quote; escaped characters are skipped.
fn closed_by(quote: char, text: &str) -> usize {
    let mut escaped = false;
    let end = text.find(|c| {
        let closes = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    end.map_or(text.len(), |end| end + 1)
}

fn raw_string_len(text: &str) -> Option<usize> {
    let body = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let hashes = &body[..body.len() - body.trim_start_matches('#').len()];
    let body = body[hashes.len()..].strip_prefix('"')?;
    let end = format!("\"{hashes}");
    let opening = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| opening + at + end.len()))
}

/// Returns the length of a character literal; a lifetime is none.
fn char_len(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    let first = body.chars().next()?;
    if first == '\\' {
        return Some(1 + closed_by('\'', body));
    }
    body[first.len_utf8()..].starts_with('\'').then_some(2 + first.len_utf8())
}

/// Returns the length of the item that starts here: up to its closing brace, or its semicolon.
fn item_len(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(c, '}' | ';') {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text = "a(); // b()\n/* c /* d */\n e */ f(\"g\\\"h\", 'i', '\\'', b\"j\");\n";
        let scanned = code(text);
        assert_eq!(scanned.split_whitespace().collect::<Vec<_>>(), ["a();", "f(", ",", ",", ",", "b", ");"]);
        assert_eq!(scanned.lines().count(), text.lines().count());
        assert_eq!(lines_with(&scanned, "f"), [3]);
    }

    #[test]
    fn raw_strings_end_where_their_hashes_do() {
        assert_eq!(code("x(r#\"a \" b\"#, br\"c\\\", r#type)").replace(' ', ""), "x(,,r#type)");
    }

    #[test]
    fn a_lifetime_is_code_and_a_character_is_not() {
        assert_eq!(code("fn f<'a>(x: &'a str) { '\"'; 'é' }"), "fn f<'a>(x: &'a str) {    ;     }");
    }

    #[test]
    fn literals_can_be_kept() {
        assert_eq!(uncommented("x(\"a // b\") // c").trim_end(), "x(\"a // b\")");
    }

    #[test]
    fn an_unfinished_text_ends_the_scan() {
        for text in ["/* a", "\"a", "r#\"a\"", "'\\", "'", "/* a /* b */"] {
            assert_eq!(code(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn words_are_whole_words() {
        let text = "println!()\neprintln!()\nlet x = print;\n#[ignore]\n#[ignored]\n";
        assert_eq!(lines_with(text, "println!"), [1]);
        assert_eq!(lines_with(text, "print"), [3]);
        assert_eq!(lines_with(text, "#[ignore"), [4]);
    }

    #[test]
    fn lines_of_tests_are_not_counted() {
        assert_eq!(shipped_lines("a();\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nd();\n"), 2);
    }

    #[test]
    fn functions_have_a_length_and_types_have_methods() {
        let text = "impl<T> A<T> {\n    fn a(&self) {\n        b();\n    }\n\n    pub fn c() {}\n}\nimpl X for B {\n    fn d();\n}\n";
        let found: Vec<_> =
            functions(text).map(|function| (function.name, function.line, function.lines)).collect();
        assert_eq!(found, [("a", 2, 3), ("c", 6, 1)]);
        assert_eq!(impls(text).collect::<Vec<_>>(), [("A", 2), ("B", 1)]);
    }

    #[test]
    fn test_modules_are_not_shipped() {
        let text = "a();\n#[cfg(test)]\nmod tests { fn b() { c() } }\nd();\n#[cfg(test)]\nmod e;\nf();\n";
        let words: Vec<_> = shipped(text).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["a();", "d();", "f();"]);
    }
}
