//! Opens a database: resolves its path, checks that it is a Fencepost database, and creates the files beside it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencepost_core::clock::{Clock, StorageTime, wall_time};
use fencepost_core::lock_table::LockTable;
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, Owner, Result, push};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::net::UnixDatagram;

use crate::backend::{SqliteBackend, WakeupReceiver};
use crate::config::{IfMissing, create_private_folder};
use crate::error::{io_error, sqlite_error};
use crate::file_system::check_file_system;
use crate::first_turn;
use crate::host_clock::{boot_id, clock_id};
use crate::identity::FileIdentity;
use crate::inbox::Inbox;
use crate::state::{ClientState, RESERVED_BLOCK};
use crate::statements::{Counter, Statements};
use crate::turnstile::Turnstile;
use crate::waiter_poll::WaiterPoll;
use crate::wake::Sockets;
use crate::writer;

/// Bounds the wait for a foreign program that has SQLite's write lock: practically unbounded.
const FOREIGN_WRITER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Opens the database and starts the writer thread. Must be called inside the client's runtime.
pub(crate) fn open(path: &Path, if_missing: IfMissing) -> Result<SqliteBackend> {
    if if_missing == IfMissing::Fail {
        check_exists(path)?;
    }
    let path = resolve(path)?;
    let boot_id = boot_id();
    let peers = peers_folder(&path);
    let is_new = !peers.exists();
    create_private_folder(&peers)?;
    check_owner(&peers)?;
    let mut turnstile = Turnstile::open(&peers)?;
    let sockets = Arc::new(Sockets::open(&peers)?);
    let client = random_client_id();
    // Without a turn, this client could open a database that another process is still creating.
    let turn = first_turn::take(&path, &mut turnstile, &sockets, &Clock::system())?;
    let statements = connect(&path, if_missing)
        .map(|connection| Statements::new(connection, &path, clock_id(boot_id)))
        .and_then(|statements| statements.check().map(|()| statements))
        .inspect_err(|_| remove_if_new(&peers, is_new))?;
    let first = i64::try_from(wall_time().as_micros()).unwrap_or(0);
    let storage_id = statements.prepare(first, RESERVED_BLOCK, boot_id)?;
    let file = FileIdentity::of_open(&path)?;
    // From here on, new clients see that the files are in use.
    let socket = sockets.bind(client)?;
    drop(turn);

    let failed = |error| io_error("could not listen for wake-ups in", &peers, error);
    let socket = UnixDatagram::from_std(socket).map_err(failed)?;
    let (pusher, wakeups) = push::channel();
    let waiter_poll = WaiterPoll::default();
    let waiters = waiter_poll.waiters.clone();
    let state = ClientState {
        client,
        statements,
        turnstile,
        sockets: sockets.clone(),
        pusher,
        boot_id,
        table: LockTable::of_rows(),
        counter: Counter { last: 0, reserved: 0, boot: 0, swept: StorageTime::from_nanos(0) },
        version: None,
        waiter_poll,
        file,
    };
    // Removes the sockets of dead processes.
    sockets.alive();
    let inbox = Arc::new(Inbox::default());
    let jobs = inbox.clone();
    let thread = std::thread::Builder::new().name("fencepost-sqlite".into());
    thread.spawn(move || writer::run(state, &jobs)).map_err(failed)?;
    let receiver = Mutex::new(Some(WakeupReceiver::new(socket, inbox.clone(), waiters)));
    Ok(SqliteBackend { path, storage_id, client, inbox, sockets, pushes: wakeups, receiver })
}

/// Fails if there is no database. A client that only reads must not create one: an empty one would report that nothing is locked.
fn check_exists(path: &Path) -> Result<()> {
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Missing, format!("there is no database {}", path.display())).with_hint(
                "check the path; if it is right, no lock was taken there yet: the first acquire creates it",
            ))
        }
        // Other errors are reported by the steps that follow.
        _ => Ok(()),
    }
}

/// Returns the absolute path. Rejects a path that cannot be a Fencepost database.
fn resolve(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        Error::new(ErrorKind::BadConfig, format!("{} does not name a file", path.display()))
    })?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let found = folder.canonicalize().map_err(|error| {
        io_error("could not find the folder", folder, error).with_hint("create the folder first")
    })?;
    // Two names of one file would have two turnstiles, so a symbolic link is followed.
    let path = found.join(name);
    let path = path.canonicalize().unwrap_or(path);
    check_file_system(path.parent().unwrap_or(&found))?;
    check_file(&path)?;
    Ok(path)
}

/// Rejects an existing file that cannot be a Fencepost database, before anything is created beside it.
fn check_file(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    let Ok(found) = path.metadata() else { return Ok(()) };
    let rejected = |what: &str| Err(Error::new(ErrorKind::BadConfig, format!("{} {what}", path.display())));
    if found.is_dir() {
        return rejected("is a folder, not a file");
    }
    if !found.is_file() {
        return rejected("is not a plain file");
    }
    // The files beside a database are found by its name: under another name, other clients would not be found.
    let hint = "share the folder, not the file, and name it the same way everywhere";
    if found.nlink() > 1 {
        return rejected("has another name (a hard link)").map_err(|error| error.with_hint(hint));
    }
    if is_mount_point(path) {
        return rejected("is mounted by itself, without its folder").map_err(|error| error.with_hint(hint));
    }
    Ok(())
}

/// Whether the file itself is a mount point, as in a container into which one file of the host is mounted.
fn is_mount_point(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| point == path)
}

/// Returns the folder beside the database with the turnstile and the sockets of its clients.
pub(crate) fn peers_folder(path: &Path) -> PathBuf {
    let mut folder = path.as_os_str().to_owned();
    folder.push("-peers");
    folder.into()
}

/// Removes the folder that was created beside a file that turned out not to be a Fencepost database.
fn remove_if_new(peers: &Path, is_new: bool) {
    if is_new {
        for name in ["gate", "turn"] {
            let _ = std::fs::remove_file(peers.join(name));
        }
        let _ = std::fs::remove_dir(peers);
    }
}

/// Rejects a folder that other users can write to: they could block all clients, or send them false wake-ups.
fn check_owner(peers: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    let found = peers.metadata().map_err(|error| io_error("could not read", peers, error))?;
    let trusted = [rustix::process::geteuid().as_raw(), 0];
    if found.mode() & 0o002 == 0 && (trusted.contains(&found.uid()) || trusted[0] == 0) {
        return Ok(());
    }
    let text = format!("{} belongs to another user or is writable by all users", peers.display());
    Err(Error::new(ErrorKind::Denied, text).with_hint(
        "it must belong to you or to root and not be writable by others: chmod o-w, or use a folder of your own",
    ))
}

fn connect(path: &Path, if_missing: IfMissing) -> Result<Connection> {
    /// Closing a file drops all locks that this process has on it, also those of another connection. So no thread may create
    /// the file while another one opens it.
    static OPENING: Mutex<()> = Mutex::new(());
    let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if if_missing == IfMissing::Create {
        create_private_file(path)?;
    }
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(FOREIGN_WRITER_TIMEOUT)?;
        // Otherwise the last connection to close checkpoints and syncs: each run of the command would pay for that.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Otherwise a statement is planned again for every value that is bound to it, which costs more than running it.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(connection)
    };
    open().map_err(|error| sqlite_error(path, error))
}

/// Creates the database file with mode 0600, which SQLite also gives its files beside it.
fn create_private_file(path: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    match std::fs::File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error("could not create the database", path, error)),
    }
}

fn random_client_id() -> ClientId {
    let random = u128::from_be_bytes(Owner::random().to_bytes());
    ClientId(u64::try_from(random >> 64).unwrap_or(0))
}
