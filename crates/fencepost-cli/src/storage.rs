//! Which storage is meant, and the connection to it.

use std::fmt;
use std::fs;

use fencepost::{Client, Error, ErrorKind, Options, Result, Scope};

use crate::words;

const URL: &str = "FENCEPOST_URL";
pub(crate) const URL_FILE: &str = "FENCEPOST_URL_FILE";
const REQUIRE_SHARED: &str = "FENCEPOST_REQUIRE_SHARED";
/// One user on one host, with nothing to install.
const DEFAULT_URL: &str = "sqlite:";

/// Connects to the storage that the flag, the environment or the default names.
pub(crate) async fn connect(flag: Option<&str>) -> Result<Client> {
    connect_with(flag, Options::new()).await
}

/// The same for commands that only look: they make no storage where none is.
pub(crate) async fn connect_existing(flag: Option<&str>) -> Result<Client> {
    connect_with(flag, Options::new().only_existing()).await
}

async fn connect_with(flag: Option<&str>, options: Options) -> Result<Client> {
    let client = fencepost::connect_with(chosen(flag)?.url, options).await?;
    if must_be_shared() && client.info().scope != Scope::Fleet {
        client.close().await;
        return Err(not_shared(&client));
    }
    Ok(client)
}

/// Which storage is meant, and who said so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

/// Where the URL comes from.
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

/// The storage that the flag, the environment or the default names. Nothing is connected to.
pub(crate) fn chosen(flag: Option<&str>) -> Result<Chosen> {
    choose(flag, |name| std::env::var(name).ok(), |path| fs::read_to_string(path))
}

fn choose(
    flag: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<Chosen> {
    let chosen = |url: &str, origin| Ok(Chosen { url: url.to_owned(), origin });
    if let Some(flag) = flag {
        return chosen(flag, Origin::Flag);
    }
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    match (variable(URL), variable(URL_FILE)) {
        (Some(_), Some(_)) => {
            Err(Error::new(ErrorKind::BadConfig, format!("both {URL} and {URL_FILE} are set"))
                .with_hint("unset one of them, or give --url"))
        }
        (Some(url), None) => chosen(&url, Origin::Variable),
        (None, Some(path)) => chosen(&from_file(&path, read(&path))?, Origin::File(path)),
        (None, None) => chosen(DEFAULT_URL, Origin::Default),
    }
}

fn from_file(path: &str, text: std::io::Result<String>) -> Result<String> {
    let bad = |what: &str| Error::new(ErrorKind::BadConfig, format!("{what} {path:?}, named by {URL_FILE}"));
    let text = text.map_err(|error| bad("could not read").with_source(error))?;
    match text.trim() {
        "" => Err(bad("there is no URL in")),
        url => Ok(url.to_owned()),
    }
}

/// Whether a storage that reaches no further than one host is to be refused.
pub(crate) fn must_be_shared() -> bool {
    is_set(std::env::var(REQUIRE_SHARED).ok())
}

fn is_set(value: Option<String>) -> bool {
    value.is_some_and(|value| !matches!(value.as_str(), "" | "0" | "no" | "false"))
}

pub(crate) fn not_shared(client: &Client) -> Error {
    let info = client.info();
    let reach = words::scope(info.scope);
    Error::new(
        ErrorKind::BadConfig,
        format!("{REQUIRE_SHARED} is set, and a lock on {} reaches no further than {reach}", info.location),
    )
    .with_hint(format!("name a storage that all hosts share with --url or {URL}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Chosen> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        choose(flag, variable, |path| match path {
            "full" => Ok("sqlite:/from-file\n".into()),
            "empty" => Ok("\n".into()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        })
    }

    #[test]
    fn the_flag_goes_before_the_environment_and_that_before_the_default() {
        let expected = |url: &str, origin| Chosen { url: url.to_owned(), origin };
        let default = || expected("sqlite:", Origin::Default);
        assert_eq!(chosen(None, &[]).unwrap(), default());
        assert_eq!(chosen(None, &[(URL, "")]).unwrap(), default());
        assert_eq!(chosen(None, &[(URL, "sqlite:/b")]).unwrap(), expected("sqlite:/b", Origin::Variable));
        assert_eq!(
            chosen(None, &[(URL_FILE, "full")]).unwrap(),
            expected("sqlite:/from-file", Origin::File("full".into()))
        );
        assert_eq!(
            chosen(Some("sqlite:/a"), &[(URL, "sqlite:/b"), (URL_FILE, "full")]).unwrap(),
            expected("sqlite:/a", Origin::Flag)
        );
    }

    #[test]
    fn a_url_file_that_is_of_no_use_is_named() {
        assert!(
            chosen(None, &[(URL_FILE, "gone")]).unwrap_err().to_string().contains("could not read \"gone\"")
        );
        assert!(
            chosen(None, &[(URL_FILE, "empty")]).unwrap_err().to_string().contains("no URL in \"empty\"")
        );
        assert!(chosen(None, &[(URL_FILE, "full"), (URL, "x:")]).unwrap_err().to_string().contains("both"));
    }

    #[test]
    fn a_variable_that_says_no_is_not_set() {
        for no in [None, Some(""), Some("0"), Some("no"), Some("false")] {
            assert!(!is_set(no.map(str::to_owned)), "{no:?}");
        }
        assert!(is_set(Some("1".into())));
    }
}
