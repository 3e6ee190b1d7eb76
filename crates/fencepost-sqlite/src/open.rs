//! Opening a database: where it is, whether it is ours, and everything that stands beside it.

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

use crate::backend::{Ears, SqliteBackend};
use crate::config::{IfMissing, make_private_folder};
use crate::entrance;
use crate::error::{io_error, sqlite_error};
use crate::file_system::check_file_system;
use crate::host_clock::{boot_id, clock_id};
use crate::identity::FileIdentity;
use crate::inbox::Inbox;
use crate::lookout::Lookout;
use crate::statements::{Counter, Statements};
use crate::turnstile::Turnstile;
use crate::wake::Sockets;
use crate::writer::{RESERVE, Writer};

/// Another program may hold SQLite's write lock: it is waited for, however long it takes.
const FOREIGN_WRITERS: Duration = Duration::from_secs(24 * 3600);

/// Opens the database and starts its writer. Must be called inside the client's runtime.
pub(crate) fn open(path: &Path, if_missing: IfMissing) -> Result<SqliteBackend> {
    if if_missing == IfMissing::Refuse {
        check_exists(path)?;
    }
    let path = locate(path)?;
    let boot_id = boot_id();
    let beside = beside(&path);
    let is_first = !beside.exists();
    make_private_folder(&beside)?;
    check_owner(&beside)?;
    let mut turnstile = Turnstile::open(&beside)?;
    let sockets = Arc::new(Sockets::open(&beside)?);
    let client = new_client();
    // Without a turn a database could be seen that another process is just making.
    let turn = entrance::enter(&path, &mut turnstile, &sockets, &Clock::system())?;
    let statements = connect(&path, if_missing)
        .map(|connection| Statements::new(connection, &path, clock_id(boot_id)))
        .and_then(|statements| statements.check().map(|()| statements))
        .inspect_err(|_| clear_away(&beside, is_first))?;
    let first = i64::try_from(wall_time().as_micros()).unwrap_or(0);
    let storage_id = statements.prepare(first, RESERVE, boot_id)?;
    let file = FileIdentity::of_open(&path)?;
    // From here on newcomers know that the files are in use.
    let socket = sockets.bind(client)?;
    drop(turn);

    let failed = |error| io_error("could not listen for wake-ups in", &beside, error);
    let socket = UnixDatagram::from_std(socket).map_err(failed)?;
    let (own, pushes) = push::channel();
    let lookout = Lookout::default();
    let waiters = lookout.waiting.clone();
    let writer = Writer {
        client,
        statements,
        turnstile,
        sockets: sockets.clone(),
        own,
        boot_id,
        table: LockTable::of_rows(),
        counter: Counter { last: 0, reserved: 0, boot: 0, swept: StorageTime::from_nanos(0) },
        version: None,
        lookout,
        file,
    };
    // Clears away the sockets of dead processes.
    sockets.alive();
    let inbox = Arc::new(Inbox::default());
    let jobs = inbox.clone();
    let thread = std::thread::Builder::new().name("fencepost-sqlite".into());
    thread.spawn(move || writer.run(&jobs)).map_err(failed)?;
    let ears = Mutex::new(Some(Ears::new(socket, inbox.clone(), waiters)));
    Ok(SqliteBackend { path, storage_id, client, inbox, sockets, pushes, ears })
}

/// Who only looks must not make a database where none is: an empty one would say that nothing is locked.
fn check_exists(path: &Path) -> Result<()> {
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::new(
            ErrorKind::Missing,
            format!("there is no database {}", path.display()),
        )
        .with_hint(
            "check the path; if it is right, nobody has taken a lock there yet: the first to do so makes it",
        )),
        // Whatever else is wrong with it is found on the way.
        _ => Ok(()),
    }
}

/// The absolute path; refuses what cannot be a database of ours.
fn locate(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        Error::new(ErrorKind::BadConfig, format!("{} does not name a file", path.display()))
    })?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let found = folder.canonicalize().map_err(|error| {
        io_error("could not find the folder", folder, error).with_hint("make the folder first")
    })?;
    // Two names of one file would have two gates, so a symbolic link is followed.
    let path = found.join(name);
    let path = path.canonicalize().unwrap_or(path);
    check_file_system(path.parent().unwrap_or(&found))?;
    check_file(&path)?;
    Ok(path)
}

/// Refuses what is there but cannot be a database of ours, before anything is made beside it.
fn check_file(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    let Ok(found) = path.metadata() else { return Ok(()) };
    let refuse = |what: &str| Err(Error::new(ErrorKind::BadConfig, format!("{} {what}", path.display())));
    if found.is_dir() {
        return refuse("is a folder, not a file");
    }
    if !found.is_file() {
        return refuse("is not a plain file");
    }
    // What stands beside a database is found by its name: under another name, others would not be seen.
    let hint = "share the folder, not the file, and name it the same way everywhere";
    if found.nlink() > 1 {
        return refuse("has another name (a hard link)").map_err(|error| error.with_hint(hint));
    }
    if is_mount_point(path) {
        return refuse("is mounted by itself, without its folder").map_err(|error| error.with_hint(hint));
    }
    Ok(())
}

/// Whether a single file was mounted here, as containers do with one file of their host.
fn is_mount_point(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| point == path)
}

/// The folder beside the database: the turnstile, and the sockets of its clients.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push("-peers");
    beside.into()
}

/// Nothing stays beside a file that is not ours.
fn clear_away(beside: &Path, is_first: bool) {
    if is_first {
        for name in ["gate", "turn"] {
            let _ = std::fs::remove_file(beside.join(name));
        }
        let _ = std::fs::remove_dir(beside);
    }
}

/// Whoever could write to the folder could stop everybody, or wake them with false news.
fn check_owner(beside: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;

    let found = beside.metadata().map_err(|error| io_error("could not look at", beside, error))?;
    let ours = [rustix::process::geteuid().as_raw(), 0];
    if found.mode() & 0o002 == 0 && (ours.contains(&found.uid()) || ours[0] == 0) {
        return Ok(());
    }
    let text = format!("{} belongs to somebody else or can be written by everybody", beside.display());
    Err(Error::new(ErrorKind::Denied, text).with_hint(
        "it must belong to you, and others must not write to it: chmod o-w, or a folder of your own",
    ))
}

fn connect(path: &Path, if_missing: IfMissing) -> Result<Connection> {
    /// Closing a file drops all locks this process has on it, also those of another connection, so that nobody may make
    /// the file while somebody else opens it.
    static OPENING: Mutex<()> = Mutex::new(());
    let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if if_missing == IfMissing::Make {
        make_private_file(path)?;
    }
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(FOREIGN_WRITERS)?;
        // The last to close would write everything back into the file, and sync: a command would pay for it each time.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Otherwise a statement is planned anew for every value that is bound to it, which costs more than running it.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(connection)
    };
    open().map_err(|error| sqlite_error(path, error))
}

/// SQLite gives the files beside the database the same mode.
fn make_private_file(path: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    match std::fs::File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error("could not make the database", path, error)),
    }
}

fn new_client() -> ClientId {
    let random = u128::from_be_bytes(Owner::random().to_bytes());
    ClientId(u64::try_from(random >> 64).unwrap_or(0))
}
