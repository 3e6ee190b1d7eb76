//! Keeps passwords out of what is printed.
//!
//! A password in a URL may contain any character: the parser of URLs takes everything before the last `@` for the account.
//! Where it is not certain that a part is no password, it is replaced, too.

const MASK: &str = "***";
/// Part of the keys of options whose value is a secret, such as `sentinel_password`.
const SECRET_KEY: &str = "pass";

/// Replaces the passwords in a text of several words. A password with a blank is replaced only in part: an argument of the
/// command line belongs through [`without_secrets_of`].
pub(crate) fn without_secrets(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| {
            let end = word.trim_end();
            masked(end) + &word[end.len()..]
        })
        .collect()
}

/// Replaces the passwords in a text that may quote these arguments of the command line.
pub(crate) fn without_secrets_of(arguments: impl Iterator<Item = String>, text: &str) -> String {
    let quoted = arguments.fold(text.to_owned(), |text, argument| {
        let value = argument.split_once('=').map_or("", |(_, value)| value);
        [argument.as_str(), value]
            .into_iter()
            .filter(|part| part.contains("://"))
            .fold(text, |text, part| text.replace(part, &masked(part)))
    });
    without_secrets(&quoted)
}

/// Replaces the passwords in a single argument or word.
pub(crate) fn masked(argument: &str) -> String {
    let option = secret_option(argument);
    let (scheme, rest) = argument.split_once("://").unwrap_or((argument, ""));
    let start = argument.len() - rest.len();
    match (rest.rfind('@').map(|at| start + at), option) {
        (None, None) => argument.to_owned(),
        (None, Some(value)) => format!("{}{MASK}", &argument[..value]),
        (Some(_), Some(value)) if value <= start => format!("{}{MASK}", &argument[..value]),
        (Some(at), None) => format!("{scheme}://{MASK}{}", &argument[at..]),
        (Some(at), Some(value)) if at < value => {
            format!("{scheme}://{MASK}{}{MASK}", &argument[at..value])
        }
        // Either the `@` is part of the option's value, or what looks like an option is part of the password.
        (Some(_), Some(_)) => format!("{scheme}://{MASK}"),
    }
}

/// Returns where the value of the first option begins whose key says that it is a secret. An `&` that is not encoded does
/// not end a password: everything from there on counts as the value.
fn secret_option(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let ends = lower.match_indices(SECRET_KEY).filter_map(|(at, _)| {
        let key_end = at + lower[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-')?;
        lower[key_end..].starts_with('=').then_some(key_end + 1)
    });
    ends.min()
}

/// Returns whether there is a password before the host or among the options, where the parser of URLs would find it.
pub(crate) fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
    secret_option(options).is_some()
        || address.rsplit_once('@').is_some_and(|(account, _)| account.contains(':'))
}

/// Returns what a URL connects to, without user, password and options.
pub(crate) fn location(url: &str) -> String {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    match address.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://{host}"),
            None if options.contains('@') => format!("{scheme}://…"),
            None => address.to_owned(),
        },
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_taken_out_of_urls() {
        assert_eq!(without_secrets("'redis://u:p@ss@h/0' found"), "'redis://***@h/0' found");
        assert_eq!(without_secrets("see https://example.com/a@b\n"), "see https://***@b\n");
        assert_eq!(without_secrets("see  https://example.com/a b@c"), "see  https://example.com/a b@c");
        assert_eq!(without_secrets("a://x:y@h b://z@h"), "a://***@h b://***@h");
        let sentinel = "redis+sentinel://u:p@h/main?sentinel_password=ab&replicas=1 found";
        let expected = "redis+sentinel://***@h/main?sentinel_password=*** found";
        assert_eq!(without_secrets(sentinel), expected);
    }

    #[test]
    fn any_character_may_be_part_of_a_password() {
        for password in
            ["pa/geheim", "pa'geheim", "pa geheim", "pa@geheim", "pa?geheim", "pa://geheim", "pass=geheim"]
        {
            for url in [
                format!("redis://u:{password}@h:6379/0"),
                format!("redis+sentinel://h/main?sentinel_password={password}"),
                format!("redis+sentinel://h/main?sentinel_PASSWORD={password}&a=geheim"),
                format!("redis+sentinel://u:{password}@h/main?sentinel_password={password}"),
                format!("?sentinel_password={password}"),
            ] {
                assert!(!masked(&url).contains("geheim"), "{url} -> {}", masked(&url));
                let arguments = [url.clone(), format!("--url={url}")];
                let text = format!("error: '{url}' found\n");
                let text = without_secrets_of(arguments.into_iter(), &text);
                assert!(!url.contains("://") || !text.contains("geheim"), "{url} -> {text}");
            }
        }
        assert_eq!(masked("redis://u:pa/ss@h:6379/0"), "redis://***@h:6379/0");
        assert_eq!(masked("redis://h:6379/0?tls_ca=/ca"), "redis://h:6379/0?tls_ca=/ca");
        assert_eq!(masked("sentinel_password=geheim://a@b"), "sentinel_password=***");
        assert_eq!(masked("compass"), "compass");
    }

    #[test]
    fn a_password_is_recognised_by_its_position() {
        for with in [
            "redis://u:p@h",
            "redis://:p@h/0",
            "redis://u:p/w@h",
            "redis://u:p@a,b/x",
            "etcds://u:p@a,b,c?tls_ca=/a",
            "zk://u:p@a:2181,b/locks",
            "redis+sentinel://h/main?replicas=1&sentinel_password=p",
        ] {
            assert!(has_password(with), "{with}");
        }
        for without in [
            "etcd://a:1,b:2",
            "zk://a:1/locks",
            "redis://h:6379/0",
            "redis://u@h",
            "redis://h:6379/0?tls_ca=/a@b",
            "sqlite:/a:b@c",
            "sqlite:",
        ] {
            assert!(!has_password(without), "{without}");
        }
    }

    #[test]
    fn a_location_has_no_user_and_no_options() {
        assert_eq!(location("redis://u:p@h:6379/0?tls_ca=/a@b"), "redis://h:6379/0");
        assert_eq!(location("redis://u:p/w@h"), "redis://h");
        assert_eq!(location("redis://u:p#w@h"), "redis://h");
        assert_eq!(location("redis://u:p?w@h"), "redis://…");
        assert_eq!(location("etcd://a:1,b:2"), "etcd://a:1,b:2");
        assert_eq!(location("sqlite:/var/lib/locks.db"), "sqlite:/var/lib/locks.db");
    }
}
