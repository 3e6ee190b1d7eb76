//! On which file system a folder is, whether the locks of a file there can be trusted, and how much room there is.

use std::path::Path;

#[cfg(target_os = "linux")]
use fencepost_core::Error;
use fencepost_core::{ErrorKind, Finding, Result};

use crate::error::io_error;

/// With less room than this the next commits may fail.
const NO_ROOM: u64 = 1 << 20;
/// With less room than this somebody should know.
const LITTLE_ROOM: u64 = 64 << 20;

const MAKE_ROOM: &str = "make room: no lock can be taken on a full disk";

/// The magic numbers of file systems that other machines can write to, or that cannot be told from such.
#[cfg(target_os = "linux")]
const SHARED: [(u32, &str); 14] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x517B, "SMB"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x786F_4256, "VirtualBox's shared folder"),
    (0xBACB_ACBC, "VMware's shared folder"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x4750_4653, "GPFS"),
];

/// The magic numbers of file systems that are known by name.
#[cfg(target_os = "linux")]
const LOCAL: [(u32, &str); 6] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "XFS"),
    (0x9123_683E, "Btrfs"),
    (0x2FC1_2FC1, "ZFS"),
    (0xF2F5_2010, "F2FS"),
    (0xCA45_1A4E, "bcachefs"),
];
#[cfg(target_os = "linux")]
const TMPFS: u32 = 0x0102_1994;
#[cfg(target_os = "linux")]
const OVERLAY: u32 = 0x794C_7630;

/// Refuses file systems on which locks of other hosts, or no locks at all, are seen.
#[cfg(target_os = "linux")]
pub(crate) fn check_file_system(folder: &Path) -> Result<()> {
    let magic = magic_of(folder)?;
    match SHARED.iter().find(|(number, _)| *number == magic) {
        None => Ok(()),
        Some((_, name)) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} is on {name}, where the locks of an SQLite file cannot be trusted", folder.display()),
        )
        .with_hint("use a file on a local disk, or a storage made for several hosts")),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn check_file_system(_folder: &Path) -> Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn magic_of(folder: &Path) -> Result<u32> {
    let found =
        rustix::fs::statfs(folder).map_err(|error| io_error("could not look at", folder, error.into()))?;
    // The kernel's word has another width on other machines; the numbers have 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "only the low 32 bits count")]
    let magic = found.f_type as u32;
    Ok(magic)
}

/// Which file system it is, and what that means for locks.
pub(crate) fn file_system(folder: &Path) -> Finding {
    const CHECK: &str = "file system";
    match check_file_system(folder) {
        Err(shared) if shared.kind() == ErrorKind::Unsupported => Finding::failed(CHECK, &shared),
        checked => Finding::from_result(CHECK, checked.and_then(|()| local(CHECK, folder))),
    }
}

#[cfg(target_os = "linux")]
fn local(check: &str, folder: &Path) -> Result<Finding> {
    let magic = magic_of(folder)?;
    Ok(match (magic, LOCAL.iter().find(|(number, _)| *number == magic)) {
        (TMPFS, _) => Finding::warning(check, "tmpfs: the cells of locks are gone after a reboot")
            .with_advice("use a file on a disk, unless nothing has to outlive a reboot"),
        (OVERLAY, _) => {
            Finding::warning(check, "overlay: a container's own layer, which no other container sees")
                .with_advice("mount a folder of the host into every container that takes these locks")
        }
        (_, Some((_, name))) => Finding::ok(check, format!("{name}, of this host")),
        (_, None) => Finding::ok(check, format!("of this host (type {magic:#x})")),
    })
}

#[cfg(not(target_os = "linux"))]
fn local(check: &str, _folder: &Path) -> Result<Finding> {
    Ok(Finding::warning(check, "cannot be told on this system")
        .with_advice("make sure that it is a local disk"))
}

/// How much can still be written.
pub(crate) fn free_space(folder: &Path) -> Finding {
    const CHECK: &str = "free space";
    match rustix::fs::statvfs(folder) {
        Ok(found) => judge_space(CHECK, found.f_bavail.saturating_mul(found.f_frsize)),
        Err(error) => Finding::not_checked(CHECK, &io_error("could not look at", folder, error.into())),
    }
}

fn judge_space(check: &str, free: u64) -> Finding {
    let found = format!("{} MiB are left", free >> 20);
    match free {
        ..NO_ROOM => Finding::problem(check, found).with_advice(MAKE_ROOM),
        NO_ROOM..LITTLE_ROOM => Finding::warning(check, found).with_advice(MAKE_ROOM),
        _ => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_told() {
        let verdict = |free| judge_space("free space", free).severity;
        assert_eq!(verdict(0), Severity::Problem);
        assert_eq!(verdict(NO_ROOM), Severity::Warning);
        assert_eq!(verdict(LITTLE_ROOM), Severity::Ok);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_in_memory_is_warned_of() {
        let finding = file_system(Path::new("/dev/shm"));
        assert_eq!(finding.severity, Severity::Warning, "{finding}");
        assert!(finding.found.starts_with("tmpfs"), "{finding}");
    }
}
