//! The peers: which libraries they are, what starts them, and where `cargo xtask` has put their dependencies.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::backend::ServerKind;
use crate::counter::{Counter, THEIRS};
use crate::ours::Workers;
use crate::{EACH, NAME};

/// A library or a program that shares locks with Fencepost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `redis` of Python.
    RedisPy,
    /// `python-redis-lock`.
    PythonRedisLock,
    /// The Redis driver of Python's tooz.
    Tooz,
    /// `Redlock` of Python's pottery, with one server.
    Pottery,
    /// `rslock` of Rust.
    Rslock,
    /// `redlock` of Node.
    NodeRedlock,
    /// `Mutex` of Node's redis-semaphore.
    RedisSemaphore,
    /// `redsync` of Go.
    Redsync,
    /// `etcdctl lock`.
    Etcdctl,
    /// `Mutex` of etcd's own client for Go.
    GoMutex,
    /// `Election` of etcd's own client for Go.
    GoElection,
    /// `Lock` of Python's kazoo.
    Kazoo,
    /// The same, configured to wait for nodes in Curator's form.
    KazooAlso,
    /// `InterProcessMutex` of Java's Curator.
    Curator,
    /// `JdbcTemplateLockProvider` of Java's `ShedLock`, on PostgreSQL.
    Shedlock,
    /// The PostgreSQL driver of Python's tooz: advisory locks.
    ToozPostgres,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::RedisPy,
        Self::PythonRedisLock,
        Self::Tooz,
        Self::Pottery,
        Self::Rslock,
        Self::NodeRedlock,
        Self::RedisSemaphore,
        Self::Redsync,
        Self::Etcdctl,
        Self::GoMutex,
        Self::GoElection,
        Self::Kazoo,
        Self::KazooAlso,
        Self::Curator,
        Self::Shedlock,
        Self::ToozPostgres,
    ];

    /// Returns its name; that of the URL option, where there is one.
    pub fn name(self) -> &'static str {
        match self {
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::Tooz => "tooz",
            Self::Pottery => "pottery",
            Self::Rslock => "rslock",
            Self::NodeRedlock => "node-redlock",
            Self::RedisSemaphore => "redis-semaphore",
            Self::Redsync => "redsync",
            Self::Etcdctl => "etcdctl",
            Self::GoMutex => "go-mutex",
            Self::GoElection => "go-election",
            Self::Kazoo => "kazoo",
            Self::KazooAlso => "kazoo-also",
            Self::Curator => "curator",
            Self::Shedlock => "shedlock",
            Self::ToozPostgres => "tooz-postgres",
        }
    }

    pub(crate) fn server_kind(self) -> ServerKind {
        match self {
            Self::RedisPy
            | Self::PythonRedisLock
            | Self::Tooz
            | Self::Pottery
            | Self::Rslock
            | Self::NodeRedlock
            | Self::RedisSemaphore
            | Self::Redsync => ServerKind::Redis,
            Self::Etcdctl | Self::GoMutex | Self::GoElection => ServerKind::Etcd,
            Self::Kazoo | Self::KazooAlso | Self::Curator => ServerKind::ZooKeeper,
            Self::Shedlock | Self::ToozPostgres => ServerKind::Postgres,
        }
    }

    /// Returns whether its waiters and ours share one queue.
    pub fn shares_one_queue(self) -> bool {
        self.server_kind().shares_one_queue()
    }

    /// Returns the option of our URL for the locks of this peer.
    pub(crate) fn option(self) -> String {
        match self {
            Self::Pottery | Self::RedisSemaphore | Self::Etcdctl | Self::GoMutex | Self::GoElection => {
                "layout=raw".to_owned()
            }
            Self::Tooz => "dialect=redis-py".to_owned(),
            Self::KazooAlso => "dialect=curator".to_owned(),
            Self::ToozPostgres => "mode=advisory&key=tooz".to_owned(),
            _ => format!("dialect={}", self.name()),
        }
    }

    /// Returns the name of the lock in our API.
    pub(crate) fn lock(self) -> &'static str {
        match self {
            Self::Tooz => "_tooz_interop/counter_lock",
            Self::Pottery => "redlock:interop/counter",
            Self::RedisSemaphore => "mutex:interop/counter",
            _ => NAME,
        }
    }

    /// Returns the command that starts one worker, if it is a process; the arguments of the turns follow.
    fn program(self) -> Option<Vec<OsString>> {
        let python = |script| vec![prepared("python/bin/python").into(), source(script).into()];
        let node = |script| vec!["node".into(), prepared("node").join(script).into()];
        match self {
            Self::RedisPy => Some(python("redis_py.py")),
            Self::PythonRedisLock => Some(python("python_redis_lock.py")),
            Self::Tooz => Some(python("tooz_redis.py")),
            Self::ToozPostgres => Some(python("tooz_postgres.py")),
            Self::Pottery => Some(python("pottery_redlock.py")),
            Self::Rslock => None,
            Self::NodeRedlock => Some(node("node_redlock.js")),
            Self::RedisSemaphore => Some(node("redis_semaphore.js")),
            Self::Redsync => Some(vec![prepared("go/redsync").into()]),
            Self::Etcdctl => Some(vec!["sh".into(), source("etcdctl_lock.sh").into()]),
            Self::GoMutex => Some(vec![prepared("go/etcd").into(), "mutex".into()]),
            Self::GoElection => Some(vec![prepared("go/etcd").into(), "election".into()]),
            Self::Kazoo => Some(python("kazoo_lock.py")),
            Self::KazooAlso => {
                Some([python("kazoo_lock.py"), vec!["--also".into(), "-lock-".into()]].concat())
            }
            Self::Curator | Self::Shedlock => {
                let folder = prepared(self.name());
                let classes = format!("{}:{}/*", folder.display(), folder.display());
                Some(vec!["java".into(), "-cp".into(), classes.into(), "Turns".into()])
            }
        }
    }
}

/// Returns the path of a peer's source.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// Returns the path of what `cargo xtask` has prepared.
pub(crate) fn prepared(what: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace is above");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let path = root.join(target).join("interop").join(what);
    assert!(
        path.exists(),
        "{} is missing: `cargo xtask test --only interop` makes what Python needs, `cargo xtask interop` the rest",
        path.display()
    );
    path
}

/// The workers of the other side.
pub(crate) enum Running {
    Threads(Workers),
    Processes(Processes),
}

/// Processes that are killed when this is dropped.
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

/// Starts the workers of the other side.
pub(crate) fn start(peer: Peer, port: u16, counter: &Counter) -> Running {
    let Some(words) = peer.program() else {
        return Running::Threads(rslock(port, counter));
    };
    let (port, name) = (port.to_string(), peer.server_kind().name());
    let turn = counter.turn().as_millis().to_string();
    let spawn = |number: usize| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args([&port, name]).arg(counter.folder()).arg(number.to_string());
        command.env("TURN_MS", &turn);
        command.spawn().unwrap_or_else(|why| panic!("{} cannot be started: {why}", words[0].display()))
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
                notes.take_turn(0).await;
                lock.release().await;
            }
        }
    })
}
