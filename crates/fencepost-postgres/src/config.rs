//! The parsed `postgres://` URL: servers, credentials, and where and how the locks are stored.

mod identifier;
#[cfg(test)]
mod tests;

use std::time::Duration;

use fencepost_core::Result;
use fencepost_net::{Address, CONNECT_TIMEOUT, Secret, Tls, Url, bad};

pub(crate) use identifier::{literal, quoted, quoted_table};

const DEFAULT_PORT: u16 = 5432;

const OPTIONS: [&str; 22] = [
    "namespace",
    "mode",
    "key",
    "dialect",
    "table",
    "name",
    "owner",
    "expires",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "tls_insecure",
    "application_name",
    "connect_timeout",
    "target_session_attrs",
    "channel_binding",
    "connections",
];

/// The options of one layout, and the option that selects it.
const LAYOUT_OPTIONS: [(&str, &str); 6] = [
    ("key", "mode=advisory"),
    ("connections", "mode=advisory"),
    ("table", "dialect=shedlock or dialect=table"),
    ("name", "dialect=table"),
    ("owner", "dialect=table"),
    ("expires", "dialect=table"),
];

/// How the 64-bit key of an advisory lock is derived from the lock's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// The first 8 bytes of the SHA-256.
    #[default]
    Sha256,
    /// The name is the key: `42`, or two 32-bit numbers: `1,2`.
    Raw,
    /// As `DistributedLock.Postgres` (madelson) derives it.
    Madelson,
    /// As Symfony's `PostgreSqlStore` derives it.
    Crc32,
    /// The server's `hashtext(name)`.
    Hashtext,
    /// The server's `hashtextextended(name, 0)`.
    Hashtextextended,
    /// As `tooz` (`OpenStack`) derives it.
    Tooz,
}

impl KeyRule {
    const ALL: [(&str, Self); 7] = [
        ("sha256", Self::Sha256),
        ("raw", Self::Raw),
        ("madelson", Self::Madelson),
        ("crc32", Self::Crc32),
        ("hashtext", Self::Hashtext),
        ("hashtextextended", Self::Hashtextextended),
        ("tooz", Self::Tooz),
    ];

    /// Returns its value of the URL option `key`.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, rule)| *rule == self).map_or("sha256", |(word, _)| word)
    }
}

/// Where and how the locks are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Leases in Fencepost's own tables.
    Lease,
    /// The server's advisory locks. At most this many connections wait or hold.
    Advisory { key: KeyRule, connections: usize },
    /// The table of `ShedLock`.
    Shedlock { table: String },
    /// A table of another program: its columns with the lock's name, the owner, and, if it has one, the end of the lease.
    Table { table: String, name: String, owner: String, expires: Option<String> },
}

impl Layout {
    /// Returns the options of the URL that select it, without those that have their default.
    fn words(&self) -> Vec<String> {
        match self {
            Self::Lease => Vec::new(),
            Self::Advisory { key, .. } => {
                let key = (*key != KeyRule::default()).then(|| format!("key={}", key.word()));
                ["mode=advisory".to_owned()].into_iter().chain(key).collect()
            }
            Self::Shedlock { table } => {
                let table = (table != Config::SHEDLOCK_TABLE).then(|| format!("table={table}"));
                ["dialect=shedlock".to_owned()].into_iter().chain(table).collect()
            }
            Self::Table { table, .. } => vec!["dialect=table".to_owned(), format!("table={table}")],
        }
    }
}

/// Whether the password exchange is bound to the TLS connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChannelBinding {
    Disabled,
    #[default]
    Preferred,
    Required,
}

/// The parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) hosts: Vec<Address>,
    pub(crate) user: String,
    pub(crate) password: Option<Secret>,
    pub(crate) database: String,
    pub(crate) tls: Option<Tls>,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) connect_timeout: Duration,
    pub(crate) application_name: String,
    /// The schema that contains Fencepost's tables and functions.
    pub(crate) namespace: String,
    pub(crate) layout: Layout,
}

impl Config {
    pub(crate) const DEFAULT_NAMESPACE: &str = "fencepost";
    const SHEDLOCK_TABLE: &str = "shedlock";
    const APPLICATION_NAME: &str = "fencepost";
    /// How many connections wait for or hold advisory locks, unless the URL says otherwise.
    const ADVISORY_CONNECTIONS: usize = 32;

    /// Returns the URL without user and password.
    pub(crate) fn location(&self) -> String {
        let namespace = Some(&self.namespace).filter(|namespace| *namespace != Self::DEFAULT_NAMESPACE);
        let mut options: Vec<String> =
            namespace.map(|namespace| format!("namespace={namespace}")).into_iter().collect();
        options.extend(self.layout.words());
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("postgres://{}/{}{query}", Address::list(&self.hosts), self.database)
    }
}

/// Parses a URL. Errors name the invalid part, but never one that may contain a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let example = "postgres://USER:PASSWORD@HOST/DATABASE, or postgres://USER:PASSWORD@HOST,HOST/DATABASE";
    let url = Url::parse("PostgreSQL", example, url)?;
    if !["postgres", "postgresql"].contains(&url.scheme.as_str()) {
        return Err(url.unknown_scheme(&["postgres", "postgresql"], "postgres:// and postgresql://"));
    }
    let hosts = url.hosts(DEFAULT_PORT)?;
    let user = url.account.user.clone().ok_or_else(|| {
        bad("the PostgreSQL URL has no user").with_hint("write postgres://USER:PASSWORD@HOST/DATABASE")
    })?;
    let database = match url.path.as_slice() {
        [] => user.clone(),
        [database] => database.clone(),
        _ => {
            let hint = "write postgres://USER:PASSWORD@HOST/DATABASE, and %2F for a slash in its name";
            return Err(bad("the PostgreSQL URL names more than a database").with_hint(hint));
        }
    };
    let mut config = Config {
        hosts,
        user,
        password: url.account.password.clone(),
        database,
        tls: tls(&url)?,
        channel_binding: ChannelBinding::default(),
        connect_timeout: CONNECT_TIMEOUT,
        application_name: Config::APPLICATION_NAME.into(),
        namespace: Config::DEFAULT_NAMESPACE.into(),
        layout: layout(&url)?,
    };
    for (key, value) in url.options() {
        config.set(&url, key, value)?;
    }
    Ok(config)
}

impl Config {
    /// Sets an option that is not about TLS or the layout.
    fn set(&mut self, url: &Url, key: &str, value: &str) -> Result<()> {
        match key {
            "namespace" => self.namespace = identifier::checked_namespace(value)?,
            "application_name" if !value.contains(|char: char| char.is_control() || !char.is_ascii()) => {
                value.clone_into(&mut self.application_name);
            }
            "application_name" => return Err(bad("option \"application_name\" is not ASCII text")),
            "connect_timeout" => {
                let seconds = value.parse().map_err(|_| {
                    bad("option \"connect_timeout\" is not a number of seconds")
                        .with_hint(format!("a server has {CONNECT_TIMEOUT:?} without it, and never more"))
                })?;
                if seconds > 0 {
                    self.connect_timeout = Duration::from_secs(seconds).min(CONNECT_TIMEOUT);
                }
            }
            "target_session_attrs" => match value {
                "any" | "read-write" | "primary" => {}
                _ => {
                    let accepted = ["any", "read-write", "primary"];
                    return Err(url.unknown_value((key, value), &accepted, "the primary: locks are written"));
                }
            },
            "channel_binding" => {
                self.channel_binding = match value {
                    "disable" => ChannelBinding::Disabled,
                    "prefer" => ChannelBinding::Preferred,
                    "require" if self.tls.is_some() => ChannelBinding::Required,
                    "require" => {
                        return Err(bad("option \"channel_binding\" requires TLS").with_hint(TLS_HINT));
                    }
                    _ => {
                        let accepted = ["disable", "prefer", "require"];
                        return Err(url.unknown_value((key, value), &accepted, "prefer"));
                    }
                }
            }
            _ if OPTIONS.contains(&key) => {}
            _ => return Err(url.unknown_option(key, &OPTIONS)),
        }
        Ok(())
    }
}

const TLS_HINT: &str = "add sslmode=require for TLS";

/// Reads the options about encryption: those of all backends, and those that libpq has.
fn tls(url: &Url) -> Result<Option<Tls>> {
    let mut is_on = false;
    for (key, value) in url.options().filter(|(key, _)| *key == "sslmode") {
        is_on = match value {
            "disable" => false,
            "require" | "verify-full" => true,
            "allow" | "prefer" => {
                return Err(bad("the sslmode may silently do without encryption")
                    .with_hint("choose: sslmode=disable, or sslmode=require, which verifies certificates"));
            }
            "verify-ca" => {
                return Err(bad("sslmode=verify-ca is not supported").with_hint(
                    "use sslmode=verify-full; if the certificate has another name than the host, \
                     add tls_server_name=NAME",
                ));
            }
            _ => {
                let accepted = ["disable", "require", "verify-full"];
                return Err(url.unknown_value((key, value), &accepted, "no TLS"));
            }
        };
    }
    let mut tls = url.tls(is_on, TLS_HINT)?;
    for (key, value) in url.options() {
        if !["sslrootcert", "sslcert", "sslkey"].contains(&key) {
            continue;
        }
        let Some(tls) = &mut tls else {
            return Err(bad(format!("option {key:?} requires TLS")).with_hint(TLS_HINT));
        };
        match key {
            // As in libpq, the system's store.
            "sslrootcert" if value == "system" => {}
            "sslrootcert" => tls.ca = Some(value.into()),
            "sslcert" => tls.identity.get_or_insert_default().0 = value.into(),
            _ => tls.identity.get_or_insert_default().1 = value.into(),
        }
    }
    Ok(tls)
}

/// Reads the options that say where and how the locks are stored.
fn layout(url: &Url) -> Result<Layout> {
    let last = |wanted: &str| url.options().filter(|(key, _)| *key == wanted).last().map(|(_, value)| value);
    let identifier = |key| last(key).map(|value| identifier::checked_identifier(key, value)).transpose();
    let required = |key: &'static str| {
        identifier(key)?.ok_or_else(|| {
            bad(format!("dialect=table needs the option {key:?}")).with_hint(
                "for example ?dialect=table&table=locks&name=lock_name&owner=owner_id&expires=expires_at",
            )
        })
    };
    let (layout, own): (_, &[&str]) = match (last("mode"), last("dialect")) {
        (None | Some("lease"), None) => (Layout::Lease, &[]),
        (Some("advisory"), None) => {
            let layout = Layout::Advisory { key: key_rule(url)?, connections: connections(url)? };
            (layout, &["key", "connections"])
        }
        (None | Some("lease"), Some("shedlock")) => {
            let table = identifier("table")?.unwrap_or_else(|| Config::SHEDLOCK_TABLE.into());
            (Layout::Shedlock { table }, &["table"])
        }
        (None | Some("lease"), Some("table")) => {
            let (table, name, owner) = (required("table")?, required("name")?, required("owner")?);
            let layout = Layout::Table { table, name, owner, expires: identifier("expires")? };
            (layout, &["table", "name", "owner", "expires"])
        }
        (Some("advisory"), Some(_)) => {
            return Err(bad("option \"dialect\" is about tables, and mode=advisory has none")
                .with_hint("to share advisory locks with other programs, use key=…"));
        }
        (None | Some("lease"), Some(dialect)) => {
            let default = "Fencepost's own tables";
            return Err(url.unknown_value(("dialect", dialect), &["shedlock", "table"], default));
        }
        (Some(mode), _) => {
            return Err(url.unknown_value(("mode", mode), &["lease", "advisory"], "lease"));
        }
    };
    for (key, selected_by) in LAYOUT_OPTIONS {
        if last(key).is_some() && !own.contains(&key) {
            return Err(bad(format!("option {key:?} needs {selected_by}")));
        }
    }
    Ok(layout)
}

fn key_rule(url: &Url) -> Result<KeyRule> {
    let mut rule = KeyRule::default();
    for (key, value) in url.options().filter(|(key, _)| *key == "key") {
        let found = KeyRule::ALL.iter().find(|(word, _)| *word == value);
        let unknown = || {
            url.unknown_value((key, value), &KeyRule::ALL.map(|(word, _)| word), KeyRule::default().word())
        };
        rule = found.ok_or_else(unknown)?.1;
    }
    Ok(rule)
}

fn connections(url: &Url) -> Result<usize> {
    let mut connections = Config::ADVISORY_CONNECTIONS;
    for (_, value) in url.options().filter(|(key, _)| *key == "connections") {
        let number = value.parse().ok().filter(|number| (1..=1000).contains(number));
        connections = number.ok_or_else(|| {
            bad("option \"connections\" is not a number from 1 to 1000")
                .with_hint("each lock that is held or waited for has a connection of its own")
        })?;
    }
    Ok(connections)
}
