//! Checks a database without opening it: the file, its folder, their permissions, and the disk.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fencepost_core::{Finding, shell_quote};
use rustix::fs::{Access, access};

use crate::error::io_error;
use crate::file_system::{file_system, free_space};
use crate::open::peers_folder;

const OTHERS_READ: u32 = 0o004;
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_SEARCH: u32 = 0o001;
const STICKY: u32 = 0o1000;

/// The size of the write-ahead log from which the doctor warns.
const LARGE_LOG: u64 = 64 << 20;

const RIGHTS_ADVICE: &str = "`fencepost rights` prints the rights that an account needs";

/// Returns the findings about the database at this path. Files that do not exist have none, except the folder.
pub(crate) fn preflight_of(path: &Path) -> Vec<Finding> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let found = match folder.metadata() {
        Ok(found) => found,
        Err(error) => {
            let error =
                io_error("could not find the folder", folder, error).with_hint("create the folder first");
            return vec![Finding::failed("folder", &error)];
        }
    };
    let others = if found.mode() & OTHERS_SEARCH == 0 { Others::Excluded } else { Others::Admitted };
    let (peers, log) = (peers_folder(&path), log_of(&path));
    let mut findings = Vec::new();
    findings.extend(check("file", &path, |file| file_finding(&path, file, others)));
    findings.push(folder_finding(folder, &found));
    findings.extend(check("peers folder", &peers, |found| peers_finding(&peers, found, others)));
    findings.extend(check("write-ahead log", &log, log_finding));
    findings.extend([file_system(folder), free_space(folder)]);
    findings
}

/// Whether other users can access files in the folder at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Admitted,
    Excluded,
}

fn check(check: &str, path: &Path, finding: impl FnOnce(&Metadata) -> Finding) -> Option<Finding> {
    match path.metadata() {
        Ok(found) => Some(finding(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Finding::not_checked(check, &io_error("could not read", path, error))),
    }
}

fn file_finding(path: &Path, found: &Metadata, others: Others) -> Finding {
    let described = describe(path, found);
    let others_mode = if others == Others::Admitted { found.mode() } else { 0 };
    if access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        return Finding::problem("file", format!("{described}: you cannot read and write it"))
            .with_advice(RIGHTS_ADVICE);
    }
    if others_mode & OTHERS_WRITE != 0 {
        return Finding::problem("file", format!("{described}: all users can remove every lock"))
            .with_advice(exclude_others(path));
    }
    if others_mode & OTHERS_READ != 0 {
        return Finding::warning("file", format!("{described}: all users can read names, labels and cells"))
            .with_advice(exclude_others(path));
    }
    Finding::ok("file", described)
}

fn folder_finding(folder: &Path, found: &Metadata) -> Finding {
    let described = describe(folder, found);
    if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::problem("folder", format!("{described}: you cannot create files in it"))
            .with_advice(RIGHTS_ADVICE);
    }
    let advice = "use a folder of your own; `fencepost rights` prints how to create one for several accounts";
    match (found.mode() & OTHERS_WRITE != 0, found.mode() & STICKY != 0) {
        (true, false) => {
            Finding::problem("folder", format!("{described}: all users can replace the database"))
                .with_advice(advice)
        }
        (true, true) => Finding::warning("folder", format!("{described}: all users can create files in it"))
            .with_advice(advice),
        (false, _) => Finding::ok("folder", described),
    }
}

fn peers_finding(peers: &Path, found: &Metadata, others: Others) -> Finding {
    let described = describe(peers, found);
    if found.mode() & OTHERS_WRITE != 0 && others == Others::Admitted {
        return Finding::problem("peers folder", format!("{described}: all users can block all clients"))
            .with_advice(exclude_others(peers));
    }
    if access(peers, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Finding::problem("peers folder", format!("{described}: you cannot read and write it"))
            .with_advice(RIGHTS_ADVICE);
    }
    Finding::ok("peers folder", described)
}

fn log_finding(found: &Metadata) -> Finding {
    let size = format!("{} KiB", found.len().div_ceil(1 << 10));
    if found.len() < LARGE_LOG {
        return Finding::ok("write-ahead log", size);
    }
    Finding::warning("write-ahead log", format!("{size}: another program may keep a read transaction open"))
        .with_advice("find the program that has the file open, such as sqlite3")
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn exclude_others(path: &Path) -> String {
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

    fn severity(path: &Path, check: &str) -> Option<Severity> {
        preflight_of(path).into_iter().find(|finding| finding.check == check).map(|finding| finding.severity)
    }

    #[test]
    fn rights_of_others_count_only_if_they_can_access_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        write(&file, "").unwrap();
        create_dir(peers_folder(&file)).unwrap();
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
            chmod(&peers_folder(&file), peers_mode);
            chmod(folder.path(), folder_mode);
            let found = ["file", "folder", "peers folder"].map(|check| severity(&file, check).unwrap());
            assert_eq!(found, expected, "{folder_mode:o} {file_mode:o} {peers_mode:o}");
        }
    }

    #[test]
    fn a_missing_file_has_no_finding_and_a_missing_folder_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        assert_eq!(severity(&file, "file"), None);
        assert_eq!(severity(&file, "folder"), Some(Fine));
        let missing = folder.path().join("no/locks.db");
        assert_eq!(preflight_of(&missing).len(), 1);
        assert_eq!(severity(&missing, "folder"), Some(Problem));
    }

    #[test]
    fn a_large_log_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("locks.db-wal")).unwrap();
        for (length, expected) in [(4096, Fine), (LARGE_LOG, Warning)] {
            log.set_len(length).unwrap();
            assert_eq!(severity(&folder.path().join("locks.db"), "write-ahead log"), Some(expected));
        }
    }
}
