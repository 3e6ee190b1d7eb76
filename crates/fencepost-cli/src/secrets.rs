//! Keeps passwords out of what is printed.

/// How the options of a URL end that are secret, such as `sentinel_password=`.
pub(crate) const SECRET_OPTION: &str = "password=";

/// Replaces the passwords in everything that looks like a URL.
pub(crate) fn without_secrets(text: &str) -> String {
    let text = without_secret_options(text);
    let mut rest = text.as_str();
    let mut out = String::new();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || c == '/' || c == '\'').unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                out.push_str("***");
                &after[at..]
            }
            None => after,
        };
    }
    out + rest
}

fn without_secret_options(text: &str) -> String {
    let mut parts = text.split(SECRET_OPTION);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || c == '&' || c == '\'').unwrap_or(part.len());
        out.extend([SECRET_OPTION, "***", &part[end..]]);
    }
    out
}

/// Returns what a URL connects to, without user, password and options.
pub(crate) fn location(url: &str) -> String {
    let (address, options) = url.split_once(['?', '#']).unwrap_or((url, ""));
    match address.split_once("://") {
        // A password may contain any character: everything before the last `@` can be part of it.
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
        assert_eq!(without_secrets("see https://example.com/a@b"), "see https://example.com/a@b");
        assert_eq!(without_secrets("a://x:y@h b://z@h"), "a://***@h b://***@h");
        let sentinel = "'redis+sentinel://u:p@h/main?sentinel_password=a:b@c/d&replicas=1' found";
        let expected = "'redis+sentinel://***@h/main?sentinel_password=***&replicas=1' found";
        assert_eq!(without_secrets(sentinel), expected);
    }

    #[test]
    fn a_location_has_no_user_and_no_options() {
        assert_eq!(location("redis://u:p@h:6379/0?tls_ca=/a@b"), "redis://h:6379/0");
        assert_eq!(location("redis://u:p/w@h"), "redis://h");
        assert_eq!(location("redis://u:p?w@h"), "redis://…");
        assert_eq!(location("etcd://a:1,b:2"), "etcd://a:1,b:2");
        assert_eq!(location("sqlite:/var/lib/locks.db"), "sqlite:/var/lib/locks.db");
    }
}
