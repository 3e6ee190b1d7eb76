//! `psql`, which inspects servers.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{Certificates, programs};

/// Where `psql` connects to, and as which user.
pub(super) struct Login<'a> {
    pub(super) port: u16,
    pub(super) user: &'a str,
    pub(super) password: Option<&'a str>,
    /// Connects with TLS and the client's certificate.
    pub(super) tls: Option<&'a Certificates>,
}

impl Login<'_> {
    /// Runs statements, each in a transaction of its own unless they contain `BEGIN`, up to the first that fails. Returns the
    /// rows: a line each, with `|` between the columns.
    pub(super) fn run(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut psql = self.psql(database);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = psql.spawn().expect("psql can be started");
        let mut stdin = running.stdin.take().expect("it is piped");
        // Fails if it could not connect, which it says.
        let _ = stdin.write_all(sql.as_bytes());
        drop(stdin);
        programs::text_of(&running.wait_with_output().expect("psql can be waited for"))
    }

    fn psql(&self, database: &str) -> Command {
        let mut psql = Command::new(programs::program("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--no-password"]);
        psql.args(["--set=ON_ERROR_STOP=1", "--file=-"]);
        psql.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.to_string());
        psql.env("PGUSER", self.user).env("PGDATABASE", database).env("PGCONNECT_TIMEOUT", "5");
        psql.env("PGPASSWORD", self.password.unwrap_or_default());
        psql.env("PGSSLMODE", if self.tls.is_some() { "require" } else { "disable" });
        if let Some(made) = self.tls {
            psql.env("PGSSLCERT", &made.client_cert).env("PGSSLKEY", &made.client_key);
            psql.env("PGSSLROOTCERT", &made.ca);
        }
        psql
    }
}
