//! The backend that a command uses: where its URL comes from, and the connection to it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;

use fencepost::{Client, Error, ErrorKind, Options, Result, Scope};

use crate::words;

const URL: &str = "FENCEPOST_URL";
pub(crate) const URL_FILE: &str = "FENCEPOST_URL_FILE";
const REQUIRE_SHARED: &str = "FENCEPOST_REQUIRE_SHARED";
/// One user on one host, without a server.
const DEFAULT_URL: &str = "sqlite:";

/// Connects to the backend for a command that only reads: a backend that does not exist is not created.
pub(crate) async fn connect_existing(flag: Option<&str>) -> Result<Client> {
    chosen(flag)?.connect_with(Options::new().only_existing()).await
}

/// The URL of the backend, and its origin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

impl Chosen {
    /// Connects to the backend; host names are resolved each time.
    pub(crate) async fn connect(&self) -> Result<Client> {
        self.connect_with(Options::new()).await
    }

    async fn connect_with(&self, options: Options) -> Result<Client> {
        let must_be_shared = must_be_shared()?;
        let client = fencepost::connect_with(&self.url, options).await?;
        if must_be_shared && client.info().scope != Scope::Fleet {
            client.close().await;
            return Err(not_shared(&client));
        }
        Ok(client)
    }
}

/// The origin of the URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Variable,
    /// The file at this path.
    File(String),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("from --url"),
            Self::Variable => write!(f, "from the variable {URL}"),
            Self::File(path) => write!(f, "from the file {path:?}, named by {URL_FILE}"),
            Self::Default => write!(f, "the default, {DEFAULT_URL}"),
        }
    }
}

/// Returns the backend that the flag, the environment or the default names, without connecting to it.
///
/// # Errors
/// If the environment contradicts itself, or if a variable is set to nothing: an unset secret must not silently become a
/// lock that every host has for itself.
pub(crate) fn chosen(flag: Option<&str>) -> Result<Chosen> {
    choose(flag, |name| std::env::var_os(name), |path| fs::read_to_string(path))
}

fn choose(
    flag: Option<&str>,
    variable: impl Fn(&str) -> Option<OsString>,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<Chosen> {
    let chosen = |url: &str, origin| Ok(Chosen { url: url.to_owned(), origin });
    if let Some(flag) = flag {
        return chosen(flag, Origin::Flag);
    }
    let variable = |name, what| variable(name).map(|value| filled(name, what, value)).transpose();
    match (variable(URL, "the URL of the backend")?, variable(URL_FILE, "the path of a file with the URL")?) {
        (Some(_), Some(_)) => {
            Err(Error::new(ErrorKind::BadConfig, format!("both {URL} and {URL_FILE} are set"))
                .with_hint("unset one of them, or give --url"))
        }
        (Some(url), None) => chosen(&url, Origin::Variable),
        (None, Some(path)) => chosen(&url_in_file(&path, read(&path))?, Origin::File(path)),
        (None, None) => chosen(DEFAULT_URL, Origin::Default),
    }
}

/// Returns the value of a variable that is set; `what` says what belongs in it.
fn filled(name: &str, what: &str, value: OsString) -> Result<String> {
    let bad = |wrong: &str| {
        Error::new(ErrorKind::BadConfig, format!("{name} is set but {wrong}"))
            .with_hint(format!("set it to {what}, or unset it for the default, {DEFAULT_URL}"))
    };
    match value.into_string() {
        Ok(value) if value.trim().is_empty() => Err(bad("empty")),
        Ok(value) => Ok(value),
        Err(_) => Err(bad("not valid UTF-8")),
    }
}

fn url_in_file(path: &str, text: std::io::Result<String>) -> Result<String> {
    let bad = |what: &str| Error::new(ErrorKind::BadConfig, format!("{what} {path:?}, named by {URL_FILE}"));
    let text = text.map_err(|error| bad("could not read").with_source(error))?;
    match text.trim() {
        "" => Err(bad("there is no URL in").with_hint(format!(
            "write the URL of the backend into the file, or unset {URL_FILE} for the default, {DEFAULT_URL}"
        ))),
        url => Ok(url.to_owned()),
    }
}

/// Returns whether a backend whose locks reach no further than one host must be rejected.
///
/// # Errors
/// If the variable is set to nothing: a value that was not filled in must not silently permit locks of one host.
pub(crate) fn must_be_shared() -> Result<bool> {
    is_on(std::env::var_os(REQUIRE_SHARED).as_deref())
}

fn is_on(value: Option<&OsStr>) -> Result<bool> {
    match value.map(OsStr::to_string_lossy) {
        None => Ok(false),
        Some(value) if value.trim().is_empty() => Err(Error::new(
            ErrorKind::BadConfig,
            format!("{REQUIRE_SHARED} is set but empty"),
        )
        .with_hint(
            "set it to 1 to reject backends whose locks reach no further than one host, or to 0, or unset it",
        )),
        Some(value) => Ok(!matches!(value.trim(), "0" | "no" | "false")),
    }
}

pub(crate) fn not_shared(client: &Client) -> Error {
    let info = client.info();
    let reach = words::scope(info.scope);
    Error::new(
        ErrorKind::BadConfig,
        format!("{REQUIRE_SHARED} is set, and a lock on {} reaches no further than {reach}", info.location),
    )
    .with_hint(format!("name a backend that all hosts share with --url or {URL}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Chosen> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        choose(flag, variable, |path| match path {
            "full" => Ok("sqlite:/from-file\n".into()),
            "empty" => Ok(String::new()),
            "blank" => Ok(" \n\t\n".into()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        })
    }

    #[test]
    fn the_flag_goes_before_the_environment_and_that_before_the_default() {
        let expected = |url: &str, origin| Chosen { url: url.to_owned(), origin };
        assert_eq!(chosen(None, &[]).unwrap(), expected("sqlite:", Origin::Default));
        assert_eq!(chosen(None, &[(URL, "sqlite:/b")]).unwrap(), expected("sqlite:/b", Origin::Variable));
        assert_eq!(
            chosen(None, &[(URL_FILE, "full")]).unwrap(),
            expected("sqlite:/from-file", Origin::File("full".into()))
        );
        assert_eq!(
            chosen(Some("sqlite:/a"), &[(URL, ""), (URL_FILE, "full")]).unwrap(),
            expected("sqlite:/a", Origin::Flag)
        );
    }

    #[test]
    fn a_variable_that_is_set_but_empty_is_rejected() {
        let error = |variables: &[(&str, &str)]| chosen(None, variables).unwrap_err();
        for empty in ["", " ", "\n"] {
            assert_eq!(error(&[(URL, empty)]).to_string(), "FENCEPOST_URL is set but empty");
            assert_eq!(error(&[(URL_FILE, empty)]).to_string(), "FENCEPOST_URL_FILE is set but empty");
            assert_eq!(error(&[(URL, empty), (URL_FILE, "full")]).kind(), ErrorKind::BadConfig);
        }
        assert!(error(&[(URL, "")]).hint().unwrap().contains("unset it"));
    }

    #[test]
    fn a_url_file_without_a_url_is_named() {
        let text = |variables: &[(&str, &str)]| chosen(None, variables).unwrap_err().to_string();
        assert!(text(&[(URL_FILE, "gone")]).contains("could not read \"gone\""));
        assert!(text(&[(URL_FILE, "empty")]).contains("no URL in \"empty\", named by FENCEPOST_URL_FILE"));
        assert!(text(&[(URL_FILE, "blank")]).contains("no URL in \"blank\""));
        assert!(text(&[(URL_FILE, "full"), (URL, "x:")]).contains("both"));
    }

    #[test]
    fn a_variable_that_says_no_is_off_and_an_empty_one_is_an_error() {
        let is_on = |value: Option<&str>| is_on(value.map(OsStr::new));
        for no in [None, Some("0"), Some("no"), Some("false"), Some("0\n")] {
            assert!(!is_on(no).unwrap(), "{no:?}");
        }
        for yes in ["1", "yes", "true", "on"] {
            assert!(is_on(Some(yes)).unwrap(), "{yes}");
        }
        for empty in ["", " ", "\n"] {
            let error = is_on(Some(empty)).unwrap_err();
            assert_eq!(error.to_string(), "FENCEPOST_REQUIRE_SHARED is set but empty");
            assert_eq!(error.kind(), ErrorKind::BadConfig);
        }
    }
}
