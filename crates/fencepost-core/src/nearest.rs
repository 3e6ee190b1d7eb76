//! Suggestions in error messages: the nearest known word to a misspelt one.

/// Returns the word of `known` with the smallest edit distance to `word`, or `None` if none is close enough to be suggested.
///
/// Letter case does not count, and two neighbouring letters that changed places count as one edit. At most two edits or a
/// third of the word's length are accepted, whichever is more, and never more than half of it. The first of several
/// equally near words is returned.
#[doc(hidden)]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = lowercase(word);
    let limit = (word.len() / 3).max(2).min(word.len() / 2);
    known
        .into_iter()
        .map(|candidate| (candidate, lowercase(candidate)))
        // Also bounds the work for a very long word.
        .filter(|(_, letters)| letters.len().abs_diff(word.len()) <= limit)
        .map(|(candidate, letters)| (distance(&word, &letters), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns `; did you mean "KNOWN"?` with the [`nearest`] known word, or an empty string: the end of an error message.
#[doc(hidden)]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |known| format!("; did you mean {known:?}?"))
}

/// Whether a text from a URL has the form of a keyword (1 to 32 ASCII letters, digits, `_` or `-`), so that an error message
/// may quote it. Any other text may be a part of a secret.
#[doc(hidden)]
pub fn is_keyword(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=32).contains(&text.len()) && text.bytes().all(is_allowed)
}

fn lowercase(word: &str) -> Vec<char> {
    word.chars().flat_map(char::to_lowercase).collect()
}

/// Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn one word into the other
/// (optimal string alignment), computed with the last three rows of the table.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut before_last = vec![0; to.len() + 1];
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1; to.len() + 1];
        for (j, b) in to.iter().enumerate() {
            let substituted = last[j] + usize::from(a != b);
            row[j + 1] = substituted.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: [&str; 6] = ["tls_ca", "tls_cert", "tls_key", "dialect", "layout", "db"];

    #[test]
    fn a_misspelt_word_finds_the_nearest_known_one() {
        for (word, expected) in [
            ("tls_cs", "tls_ca"),
            ("tlsca", "tls_ca"),
            ("TLS_CA", "tls_ca"),
            ("tls_crt", "tls_cert"),
            ("tls-key", "tls_key"),
            ("dialetc", "dialect"),
            ("layuot", "layout"),
            ("bd", "db"),
        ] {
            assert_eq!(nearest(word, OPTIONS), Some(expected), "{word}");
        }
    }

    #[test]
    fn a_word_that_resembles_none_finds_none() {
        for word in ["foo", "", "x", "timeout", "d", &"tls_ca".repeat(1000)] {
            assert_eq!(nearest(word, OPTIONS), None, "{word}");
        }
        assert_eq!(nearest("run", []), None);
    }

    #[test]
    fn the_first_of_equally_near_words_is_suggested() {
        assert_eq!(nearest("lisk", ["list", "link"]), Some("list"));
    }

    #[test]
    fn a_suggestion_ends_the_message() {
        assert_eq!(did_you_mean("tls_cs", OPTIONS), "; did you mean \"tls_ca\"?");
        assert_eq!(did_you_mean("foo", OPTIONS), "");
    }

    #[test]
    fn only_a_short_ascii_word_is_a_keyword() {
        for keyword in ["a", "tls_ca", "redis-py", &"x".repeat(32)] {
            assert!(is_keyword(keyword), "{keyword}");
        }
        for other in ["", "a b", "p@ss", "a.b", "ä", "%41", "a\n", &"x".repeat(33)] {
            assert!(!is_keyword(other), "{other}");
        }
    }

    #[test]
    fn the_distance_counts_insertions_deletions_substitutions_and_swaps() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("show", "shwo", 1),
            ("ca", "abc", 3),
        ] {
            assert_eq!(distance(&lowercase(from), &lowercase(to)), expected, "{from} → {to}");
        }
    }
}
