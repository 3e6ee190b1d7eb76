//! The others: which libraries they are, what starts them, and where `cargo xtask` has put what they need.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::counter::{Counter, THEIRS};
use crate::ours::Workers;
use crate::{EACH, NAME};

/// A library that takes the same locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `redis` of Python.
    RedisPy,
    /// `python-redis-lock`.
    PythonRedisLock,
    /// `rslock` of Rust.
    Rslock,
    /// `redlock` of Node.
    NodeRedlock,
    /// `redsync` of Go.
    Redsync,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::RedisPy, Self::PythonRedisLock, Self::Rslock, Self::NodeRedlock, Self::Redsync];

    /// What it is called in our URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::Rslock => "rslock",
            Self::NodeRedlock => "node-redlock",
            Self::Redsync => "redsync",
        }
    }

    /// The option of a URL that names it.
    pub(crate) fn option(self) -> String {
        format!("dialect={}", self.name())
    }

    /// What starts one worker, if it is a process.
    fn program(self) -> Option<(PathBuf, Option<PathBuf>)> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let python = || prepared("python/bin/python");
        match self {
            Self::RedisPy => Some((python(), Some(sources.join("redis_py.py")))),
            Self::PythonRedisLock => Some((python(), Some(sources.join("python_redis_lock.py")))),
            Self::NodeRedlock => Some(("node".into(), Some(prepared("node/node_redlock.js")))),
            Self::Redsync => Some((prepared("redsync"), None)),
            Self::Rslock => None,
        }
    }
}

/// What `cargo xtask` has prepared.
fn prepared(what: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace is above");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let path = root.join(target).join("interop").join(what);
    assert!(
        path.exists(),
        "{} is missing: `cargo xtask test --only redis` makes what Python needs, `cargo xtask interop` the rest",
        path.display()
    );
    path
}

/// The other side's workers.
pub(crate) enum Running {
    Threads(Workers),
    Processes(Processes),
}

/// Processes that end with this.
pub(crate) struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Most have ended; if a run fails, the others would wait for its start for ever.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    pub(crate) fn join(self) {
        match self {
            Self::Threads(workers) => workers.join(),
            Self::Processes(mut processes) => {
                for child in &mut processes.0 {
                    let status = child.wait().expect("it can be waited for");
                    assert!(status.success(), "a peer ended with {status}");
                }
            }
        }
    }
}

/// Starts the other side's workers.
pub(crate) fn start(peer: Peer, port: u16, counter: &Counter) -> Running {
    let Some((program, script)) = peer.program() else {
        return Running::Threads(rslock(port, counter));
    };
    let spawn = |number: usize| {
        let mut command = Command::new(&program);
        command.args(&script).args([&port.to_string(), NAME]).arg(counter.folder()).arg(number.to_string());
        command.spawn().unwrap_or_else(|why| panic!("{} cannot be started: {why}", program.display()))
    };
    Running::Processes(Processes((0..EACH).map(spawn).collect()))
}

fn rslock(port: u16, counter: &Counter) -> Workers {
    Workers::start(|number| {
        let counter = counter.clone();
        async move || {
            let manager = rslock::LockManager::new(vec![format!("redis://127.0.0.1:{port}")]);
            let mut notes = counter.worker(THEIRS, number);
            counter.started().await;
            while counter.goes_on() {
                let lock = manager.acquire(NAME, Duration::from_secs(10)).await.expect("it is granted");
                notes.take_turn().await;
                lock.release().await;
            }
        }
    })
}
