//! Texts as words of a shell, for advice that can be pasted.

/// The text as one word of a shell.
///
/// ```
/// use fencepost_core::shell_quote;
///
/// assert_eq!(shell_quote("/a/b.db"), "/a/b.db");
/// assert_eq!(shell_quote("it's"), r"'it'\''s'");
/// ```
pub fn shell_quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,".contains(c);
    let is_plain = !text.is_empty() && text.chars().all(plain);
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_word_to_the_shell() {
        assert_eq!(shell_quote("/a/b.db"), "/a/b.db");
        assert_eq!(shell_quote("/a b/it's"), r"'/a b/it'\''s'");
        assert_eq!(shell_quote("/a/$(reboot)"), "'/a/$(reboot)'");
        assert_eq!(shell_quote(""), "''");
    }
}
