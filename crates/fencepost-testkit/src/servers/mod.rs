//! Real servers for tests: on 127.0.0.1, on free ports, each in a temporary directory of its own, and killed when the
//! process that started them ends, however it ends.

mod certificates;
pub mod etcd;
mod fillable_disk;
mod hanging_disk;
pub mod mariadb;
mod movable_clock;
mod ports;
pub mod postgres;
mod preload;
pub mod redis;
mod start;
mod supervisor;
pub mod zookeeper;

use std::path::Path;

pub use certificates::{Certificates, TlsClients};
pub use ports::free_port;

/// A database server that one test has for itself, and may break.
pub trait OwnServer {
    /// Kills it; its data is kept.
    fn kill(&self);
    /// Shuts it down as a restart of its service does.
    fn stop(&self);
    /// Starts it again, with its data.
    fn restart(&self);
    /// Stops its processes; its connections stay open.
    fn pause(&self);
    /// Continues its processes.
    fn resume(&self);
    /// Sets its wall clock this many seconds ahead of the machine's.
    fn shift_clock(&self, seconds: i64);
    /// Fills its disk: no file grows from now on.
    fn fill_disk(&self);
    /// Gives the disk space again.
    fn clear_disk(&self);
}

macro_rules! own_servers {
    ($($server:ty),*) => { $(own_servers! { $server: kill stop restart pause resume fill_disk clear_disk })* };
    ($server:ty: $($method:ident)*) => {
        impl OwnServer for $server {
            $(fn $method(&self) {
                <$server>::$method(self);
            })*

            fn shift_clock(&self, seconds: i64) {
                <$server>::shift_clock(self, seconds);
            }
        }
    };
}
own_servers!(mariadb::MariadbServer, postgres::PostgresServer);

/// Panics unless the program is on the `PATH`.
#[track_caller]
fn require(program: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    assert!(found, "{program} is not installed: `cargo xtask test` installs it");
}

/// Panics unless the file exists.
#[track_caller]
fn require_file(file: &Path) {
    assert!(file.is_file(), "{} is not installed: `cargo xtask test` installs it", file.display());
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "no-such-server is not installed: `cargo xtask test` installs it")]
    fn a_missing_program_is_a_failure_that_says_how_to_install_it() {
        super::require("no-such-server");
    }

    #[test]
    #[should_panic(expected = "/no/such.jar is not installed: `cargo xtask test` installs it")]
    fn a_missing_file_is_a_failure_that_says_how_to_install_it() {
        super::require_file("/no/such.jar".as_ref());
    }
}
