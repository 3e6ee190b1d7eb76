//! Errors about a part of a URL: which part, the nearest known word, and which words are known.

use fencepost_core::{Error, ErrorKind, did_you_mean, is_keyword};

use super::Url;

/// Characters that end a part of a URL, as they are written in a user, a password or a value.
const ENCODED: &str = "within a user, password or value write %3F for ?, %26 for & and %40 for @";

/// Returns the error for an invalid URL.
pub fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadConfig, message)
}

impl Url {
    /// Returns the error for a scheme that is not one of `known`. `hint` lists them with their meaning.
    pub fn unknown_scheme(&self, known: &[&str], hint: &str) -> Error {
        let (server, scheme) = (self.server, &self.scheme);
        let message = if scheme.split('+').all(is_keyword) {
            let suggestion = did_you_mean(scheme, known.iter().copied());
            format!("unknown scheme {scheme:?} of the {server} URL{suggestion}")
        } else {
            format!("the scheme of the {server} URL is malformed")
        };
        bad(message).with_hint(format!("known schemes: {hint}"))
    }

    /// Returns the error for an option whose key is not one of `known`. It names the key unless that may be a part of a
    /// password, and never the value.
    pub fn unknown_option(&self, key: &str, known: &[&str]) -> Error {
        let server = self.server;
        let listed = format!("known options: {}", known.join(", "));
        if !is_keyword(key) {
            let message = format!("the key of an option in the {server} URL is malformed");
            return bad(message).with_hint(format!("{listed}; {ENCODED}"));
        }
        if !self.is_quotable(|(other, _)| other == key) {
            return bad(format!("unknown option in the {server} URL"))
                .with_hint(format!("{listed}; {ENCODED}"));
        }
        let suggestion = did_you_mean(key, known.iter().copied());
        bad(format!("unknown option {key:?} in the {server} URL{suggestion}")).with_hint(listed)
    }

    /// Returns the error for an option whose value is not one of `accepted`. `default` says what applies without the option.
    /// The value is shown: not for options whose value is a secret.
    pub fn unknown_value(&self, option: (&str, &str), accepted: &[&str], default: &str) -> Error {
        let ((key, value), server) = (option, self.server);
        let hint = format!("accepted values: {}; without the option: {default}", accepted.join(", "));
        let message = if is_keyword(value) && self.is_quotable(|other| other == option) {
            let suggestion = did_you_mean(value, accepted.iter().copied());
            format!("unknown value {value:?} of option {key:?} in the {server} URL{suggestion}")
        } else {
            format!("unknown value of option {key:?} in the {server} URL")
        };
        bad(message).with_hint(hint)
    }

    fn is_quotable(&self, is_meant: impl Fn((&str, &str)) -> bool) -> bool {
        self.all_options().position(is_meant).is_some_and(|index| index < self.quotable_options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["layout", "tls_ca", "sentinel_password"];

    fn url(text: &str) -> Url {
        Url::parse("Redis", "redis://HOST", text).unwrap()
    }

    fn unknown_option(text: &str) -> Error {
        let url = url(text);
        let (key, _) = url.all_options().find(|(key, _)| !KNOWN.contains(key)).unwrap();
        url.unknown_option(key, &KNOWN)
    }

    #[test]
    fn an_unknown_option_is_named() {
        let error = unknown_option("redis://h?foo=hunter2");
        assert_eq!(error.to_string(), "unknown option \"foo\" in the Redis URL");
        assert_eq!(error.hint(), Some("known options: layout, tls_ca, sentinel_password"));
        assert_eq!(error.kind(), ErrorKind::BadConfig);
    }

    #[test]
    fn a_misspelt_option_is_answered_with_the_nearest() {
        let error = unknown_option("redis://h?layout=raw&tls_cs=hunter2");
        assert_eq!(error.to_string(), "unknown option \"tls_cs\" in the Redis URL; did you mean \"tls_ca\"?");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }

    #[test]
    fn a_key_that_does_not_look_like_one_is_not_shown() {
        for key in ["hunter2.", "hunter2%20", "hünter2", "", &"hunter2".repeat(5)] {
            let error = unknown_option(&format!("redis://h?{key}=1"));
            assert_eq!(error.to_string(), "the key of an option in the Redis URL is malformed");
            assert!(!format!("{error:?}").contains("nter2"), "{error:?}");
        }
    }

    #[test]
    fn the_rest_of_a_password_is_not_mistaken_for_an_option() {
        for url in [
            "redis://:p?hunter2@h",
            "redis://:p?hunter2&q@h",
            "redis://:p?hunter2=q@h",
            "redis://:p@q?hunter2&r@h",
            "redis+sentinel://h/main?sentinel_password=p&hunter2",
            "redis+sentinel://h/main?sentinel_password=p&hunter2=q",
        ] {
            let error = unknown_option(url);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("%26 for &")), "{error:?}");
        }
    }

    #[test]
    fn an_unknown_value_is_answered_with_the_accepted_ones() {
        let unknown_value = |text: &str| {
            let url = url(text);
            let option = url.all_options().next().unwrap();
            url.unknown_value(option, &["raw", "single"], "Fencepost's own")
        };
        let error = unknown_value("redis://h?layout=singel");
        assert_eq!(
            error.to_string(),
            "unknown value \"singel\" of option \"layout\" in the Redis URL; did you mean \"single\"?"
        );
        assert_eq!(error.hint(), Some("accepted values: raw, single; without the option: Fencepost's own"));
        for hidden in ["redis://h?layout=hunter2%20", "redis://h?layout=hunter2&x@y", "redis://h?layout"] {
            let error = unknown_value(hidden);
            assert_eq!(error.to_string(), "unknown value of option \"layout\" in the Redis URL");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn an_unknown_scheme_is_answered_with_the_nearest() {
        let unknown_scheme =
            |text: &str| url(text).unknown_scheme(&["redis", "redis+cluster"], "redis:// and more");
        let error = unknown_scheme("redis+clutser://h");
        assert_eq!(
            error.to_string(),
            "unknown scheme \"redis+clutser\" of the Redis URL; did you mean \"redis+cluster\"?"
        );
        assert_eq!(error.hint(), Some("known schemes: redis:// and more"));
        let error = unknown_scheme("u:hunter2@h://h");
        assert_eq!(error.to_string(), "the scheme of the Redis URL is malformed");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}
