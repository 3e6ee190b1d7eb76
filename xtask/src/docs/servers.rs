//! Servers for blocks that ask for one: on a free port, without persistence, killed after the block.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::shell::Failure;

/// How often the port is tried, and how long to wait in between.
const TRIES: usize = 300;
const INTERVAL: Duration = Duration::from_millis(100);

/// A server that a block can ask for in its info string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Redis,
    Etcd,
    Postgres,
    Mysql,
}

/// A running server, and where the block finds it. Dropping it kills the server.
pub(super) struct Running {
    process: Child,
    pub(super) variable: &'static str,
    pub(super) url: String,
    /// Where the server's own programs find it.
    pub(super) others: Vec<(&'static str, String)>,
}

impl Server {
    /// Returns the server of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "redis" => Some(Self::Redis),
            "etcd" => Some(Self::Etcd),
            "postgres" => Some(Self::Postgres),
            "mysql" => Some(Self::Mysql),
            _ => None,
        }
    }

    /// Starts the server, and waits until it accepts connections.
    pub(super) fn start(self, directory: &Path) -> Result<Running, Failure> {
        let failed =
            |why: &dyn std::fmt::Display| Failure::Failed(format!("could not start {self:?}: {why}"));
        let port = free_port().map_err(|why| failed(&why))?;
        let (mut command, variable, url) = match self {
            Self::Redis => (redis(port), "REDIS_URL", format!("redis://127.0.0.1:{port}")),
            Self::Etcd => {
                let peer_port = free_port().map_err(|why| failed(&why))?;
                (etcd(port, peer_port), "ETCD_URL", format!("etcd://127.0.0.1:{port}"))
            }
            Self::Postgres => {
                let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
                (postgres(port), "POSTGRES_URL", url)
            }
            Self::Mysql => (mysql(port), "MYSQL_URL", format!("mysql://root@127.0.0.1:{port}/app")),
        };
        let others = match self {
            Self::Mysql => {
                vec![("MYSQL_HOST", "127.0.0.1".to_owned()), ("MYSQL_TCP_PORT", port.to_string())]
            }
            _ => Vec::new(),
        };
        let command =
            command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|why| failed(&why))?;
        let running = Running { process, variable, url, others };
        for _ in 0..TRIES {
            if self.is_ready(port) {
                return Ok(running);
            }
            #[expect(clippy::disallowed_methods, reason = "there is no event for a port that opens")]
            thread::sleep(INTERVAL);
        }
        Err(failed(&"it does not accept connections"))
    }
}

impl Server {
    fn is_ready(self, port: u16) -> bool {
        let is_open = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        // Databases listen before they accept logins.
        let accepts = |program: &str, option: &[&str]| {
            let mut command = Command::new(program);
            command.args(["--host=127.0.0.1", &format!("--port={port}")]).args(option);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        is_open
            && match self {
                Self::Redis | Self::Etcd => true,
                Self::Postgres => accepts("pg_isready", &["--quiet"]),
                Self::Mysql => accepts("mariadb", &["--user=root", "--database=app", "--execute=SELECT 1"]),
            }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A PostgreSQL that is killed leaves shared memory behind; on SIGINT it closes all connections and ends.
        let interrupt = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        if self.variable != "POSTGRES_URL" || interrupt.is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

fn redis(port: u16) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
    command
}

fn etcd(port: u16, peer_port: u16) -> Command {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    let mut command = Command::new("etcd");
    command.args(["--data-dir=etcd", "--name=docs"]);
    command.args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
    command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
    command.arg(format!("--initial-cluster=docs={peer}"));
    command
}

/// It refuses to run as root: then it runs as the account that its package creates.
fn postgres(port: u16) -> Command {
    let script = r#"
        bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
        mkdir postgres && cd postgres || exit
        if [ "$(id -u)" = 0 ]; then
            chown postgres . && set -- setpriv --reuid=postgres --regid=postgres --clear-groups --
        else
            set --
        fi
        "$@" "$bin/initdb" --pgdata=data --username=postgres --auth=trust --encoding=UTF8 --no-sync || exit
        exec "$@" "$bin/postgres" -D data -p "$PORT" -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off
    "#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("PORT", port.to_string()).env("LC_ALL", "C");
    command
}

/// It refuses to run as root, too.
fn mysql(port: u16) -> Command {
    let script = r#"
        mkdir mysql && cd mysql || exit
        set -- --no-defaults --datadir="$PWD/data" --skip-name-resolve
        if [ "$(id -u)" = 0 ]; then
            chown mysql . && set -- "$@" --user=mysql
        fi
        mariadb-install-db "$@" --auth-root-authentication-method=normal --skip-test-db || exit
        printf '%s;\n' "CREATE DATABASE app" "CREATE OR REPLACE USER root@'127.0.0.1'" \
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION" > init.sql
        exec mariadbd "$@" --port="$PORT" --bind-address=127.0.0.1 --socket=socket --tmpdir="$PWD" \
            --init-file="$PWD/init.sql" --innodb-flush-log-at-trx-commit=0
    "#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("PORT", port.to_string()).env("LC_ALL", "C");
    command
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
