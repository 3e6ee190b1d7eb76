//! What can be seen of a database without opening it: the file, its folder, who may use them, and the disk.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fencepost_core::{Finding, shell_quote};
use rustix::fs::{Access, access};

use crate::error::io_error;
use crate::file_system::{file_system, free_space};
use crate::open::beside;

const OTHERS_READ: u32 = 0o004;
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_SEARCH: u32 = 0o001;
const STICKY: u32 = 0o1000;

/// A write-ahead log should not grow beyond this.
const LONG_LOG: u64 = 64 << 20;

const ASK_FOR_RIGHTS: &str = "`fencepost rights` says who needs which rights";

/// The surroundings of the database at this path. Of what is not there nothing is said, but for the folder.
pub(crate) fn preflight_of(path: &Path) -> Vec<Finding> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let found = match folder.metadata() {
        Ok(found) => found,
        Err(error) => {
            let error =
                io_error("could not find the folder", folder, error).with_hint("make the folder first");
            return vec![Finding::failed("folder", &error)];
        }
    };
    let reach = if found.mode() & OTHERS_SEARCH == 0 { Reach::Closed } else { Reach::Open };
    let (peers, log) = (beside(&path), log_of(&path));
    let mut findings = Vec::new();
    findings.extend(look("file", &path, |file| judge_file(&path, file, reach)));
    findings.push(judge_folder(folder, &found));
    findings.extend(look("peers folder", &peers, |found| judge_peers(&peers, found, reach)));
    findings.extend(look("write-ahead log", &log, judge_log));
    findings.extend([file_system(folder), free_space(folder)]);
    findings
}

/// Whether others get into the folder at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Open,
    Closed,
}

fn look(check: &str, path: &Path, judge: impl FnOnce(&Metadata) -> Finding) -> Option<Finding> {
    match path.metadata() {
        Ok(found) => Some(judge(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Finding::not_checked(check, &io_error("could not look at", path, error))),
    }
}

fn judge_file(path: &Path, found: &Metadata, reach: Reach) -> Finding {
    let said = describe(path, found);
    let others = if reach == Reach::Open { found.mode() } else { 0 };
    if access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        return Finding::problem("file", format!("{said}: you cannot read and write it"))
            .with_advice(ASK_FOR_RIGHTS);
    }
    if others & OTHERS_WRITE != 0 {
        return Finding::problem("file", format!("{said}: everybody can take every lock away"))
            .with_advice(shut_out(path));
    }
    if others & OTHERS_READ != 0 {
        return Finding::warning("file", format!("{said}: everybody can read names, labels and cells"))
            .with_advice(shut_out(path));
    }
    Finding::ok("file", said)
}

fn judge_folder(folder: &Path, found: &Metadata) -> Finding {
    let said = describe(folder, found);
    if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::problem("folder", format!("{said}: you cannot make files in it"))
            .with_advice(ASK_FOR_RIGHTS);
    }
    let advice = "use a folder of your own; `fencepost rights` says how to make one for several accounts";
    match (found.mode() & OTHERS_WRITE != 0, found.mode() & STICKY != 0) {
        (true, false) => Finding::problem("folder", format!("{said}: everybody can replace the database"))
            .with_advice(advice),
        (true, true) => {
            Finding::warning("folder", format!("{said}: everybody can make files in it")).with_advice(advice)
        }
        (false, _) => Finding::ok("folder", said),
    }
}

fn judge_peers(peers: &Path, found: &Metadata, reach: Reach) -> Finding {
    let said = describe(peers, found);
    if found.mode() & OTHERS_WRITE != 0 && reach == Reach::Open {
        return Finding::problem("peers folder", format!("{said}: everybody can stop everybody"))
            .with_advice(shut_out(peers));
    }
    if access(peers, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::problem("peers folder", format!("{said}: you cannot use it"))
            .with_advice(ASK_FOR_RIGHTS);
    }
    Finding::ok("peers folder", said)
}

fn judge_log(found: &Metadata) -> Finding {
    let said = format!("{} KiB", found.len().div_ceil(1 << 10));
    if found.len() < LONG_LOG {
        return Finding::ok("write-ahead log", said);
    }
    Finding::warning("write-ahead log", format!("{said}: somebody may keep a read transaction open"))
        .with_advice("look for another program that has the file open, such as sqlite3")
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn shut_out(path: &Path) -> String {
    format!("chmod o-rwx {}", shell_quote(&path.display().to_string()))
}

fn describe(path: &Path, found: &Metadata) -> String {
    let owner = match found.uid() {
        uid if uid == rustix::process::geteuid().as_raw() => "you".to_owned(),
        0 => "root".to_owned(),
        uid => format!("user {uid}"),
    };
    format!("{}, mode {:04o}, belongs to {owner}", path.display(), found.mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use fencepost_core::Severity::{self, Ok as Fine, Problem, Warning};

    use super::*;

    fn verdict(path: &Path, check: &str) -> Option<Severity> {
        preflight_of(path).into_iter().find(|finding| finding.check == check).map(|finding| finding.severity)
    }

    #[test]
    fn what_others_may_do_is_judged_by_what_they_can_reach() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        write(&file, "").unwrap();
        create_dir(beside(&file)).unwrap();
        let chmod = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (folder_mode, file_mode, peers_mode, expected) in [
            (0o700, 0o600, 0o700, [Fine, Fine, Fine]),
            (0o700, 0o666, 0o777, [Fine, Fine, Fine]),
            (0o755, 0o644, 0o755, [Warning, Fine, Fine]),
            (0o755, 0o666, 0o777, [Problem, Fine, Problem]),
            (0o777, 0o600, 0o700, [Fine, Problem, Fine]),
            (0o1777, 0o600, 0o700, [Fine, Warning, Fine]),
        ] {
            chmod(&file, file_mode);
            chmod(&beside(&file), peers_mode);
            chmod(folder.path(), folder_mode);
            let found = ["file", "folder", "peers folder"].map(|check| verdict(&file, check).unwrap());
            assert_eq!(found, expected, "{folder_mode:o} {file_mode:o} {peers_mode:o}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_not_judged_and_a_folder_that_is_not_there_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        assert_eq!(verdict(&file, "file"), None);
        assert_eq!(verdict(&file, "folder"), Some(Fine));
        let nowhere = folder.path().join("no/locks.db");
        assert_eq!(preflight_of(&nowhere).len(), 1);
        assert_eq!(verdict(&nowhere, "folder"), Some(Problem));
    }

    #[test]
    fn a_long_log_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("locks.db-wal")).unwrap();
        for (length, expected) in [(4096, Fine), (LONG_LOG, Warning)] {
            log.set_len(length).unwrap();
            assert_eq!(verdict(&folder.path().join("locks.db"), "write-ahead log"), Some(expected));
        }
    }
}
