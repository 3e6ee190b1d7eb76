//! The network address of a server.

use std::fmt;
use std::net::IpAddr;

/// A server's host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Address {
    /// Formats several addresses as in a URL.
    pub fn list(addresses: &[Self]) -> String {
        addresses.iter().map(Self::to_string).collect::<Vec<_>>().join(",")
    }

    /// Whether a connection to it stays on this host.
    pub fn is_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Parses `HOST` or `HOST:PORT`, where an IPv6 address is in brackets.
    pub(crate) fn parse(text: &str, default_port: u16) -> Option<(&str, u16)> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                (host, if port.is_empty() { "" } else { port.strip_prefix(':')? })
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let port = if port.is_empty() { default_port } else { port.parse().ok()? };
        Some((host, port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        let addresses = [
            ("h", Some(("h", 7))),
            ("h:1", Some(("h", 1))),
            ("h:", Some(("h", 7))),
            ("[::1]", Some(("::1", 7))),
            ("[::1]:1", Some(("::1", 1))),
            ("[::1", None),
            ("[::1]1", None),
            ("::1", None),
            ("h:-1", None),
            ("h:65536", None),
        ];
        for (text, expected) in addresses {
            assert_eq!(Address::parse(text, 7), expected, "{text}");
        }
    }

    #[test]
    fn loopback_addresses_are_local() {
        let is_local = |host: &str| Address { host: host.into(), port: 7 }.is_local();
        assert!(["localhost", "127.0.0.1", "127.1.2.3", "::1"].into_iter().all(is_local));
        assert!(!["h", "10.0.0.1", "::2", "localhost.example"].into_iter().any(is_local));
    }

    #[test]
    fn addresses_are_formatted_as_in_a_url() {
        let addresses = ["::1", "h"].map(|host| Address { host: host.into(), port: 7 });
        assert_eq!(Address::list(&addresses), "[::1]:7,h:7");
    }
}
