//! The file system of a folder: whether file locks there can be trusted, and how much space is left.

use std::path::Path;

#[cfg(target_os = "linux")]
use fencepost_core::Error;
use fencepost_core::{ErrorKind, Finding, Result};

use crate::error::io_error;

/// The free space below which the next commits may fail.
const MIN_SPACE: u64 = 1 << 20;
/// The free space below which the doctor warns.
const LOW_SPACE: u64 = 64 << 20;

const FREE_SPACE: &str = "free disk space: no lock can be acquired on a full disk";

/// The magic numbers of file systems that other hosts can write to, or that cannot be distinguished from such.
#[cfg(target_os = "linux")]
const SHARED: [(u32, &str); 14] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x517B, "SMB"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x786F_4256, "a VirtualBox shared folder"),
    (0xBACB_ACBC, "a VMware shared folder"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x4750_4653, "GPFS"),
];

/// The magic numbers of common local file systems.
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

/// Rejects file systems on which other hosts may not see a file's locks.
#[cfg(target_os = "linux")]
pub(crate) fn check_file_system(folder: &Path) -> Result<()> {
    let magic = magic_of(folder)?;
    match SHARED.iter().find(|(number, _)| *number == magic) {
        None => Ok(()),
        Some((_, name)) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} is on {name}, where the locks of an SQLite file cannot be trusted", folder.display()),
        )
        .with_hint("use a file on a local disk, or a backend for several hosts")),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn check_file_system(_folder: &Path) -> Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn magic_of(folder: &Path) -> Result<u32> {
    let found =
        rustix::fs::statfs(folder).map_err(|error| io_error("could not read", folder, error.into()))?;
    // The width of the field depends on the architecture; the numbers have 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "only the low 32 bits count")]
    let magic = found.f_type as u32;
    Ok(magic)
}

/// Returns the finding about the file system.
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
        (TMPFS, _) => Finding::warning(check, "tmpfs: the cells of locks are lost at a reboot")
            .with_advice("use a file on a disk, unless nothing has to survive a reboot"),
        (OVERLAY, _) => {
            Finding::warning(check, "overlay: the layer of one container, which no other container sees")
                .with_advice("mount a folder of the host into every container that uses these locks")
        }
        (_, Some((_, name))) => Finding::ok(check, format!("{name}, local")),
        (_, None) => Finding::ok(check, format!("local (type {magic:#x})")),
    })
}

#[cfg(not(target_os = "linux"))]
fn local(check: &str, _folder: &Path) -> Result<Finding> {
    Ok(Finding::warning(check, "unknown: it cannot be determined on this system")
        .with_advice("make sure that it is a local disk"))
}

/// Returns the finding about free disk space.
pub(crate) fn free_space(folder: &Path) -> Finding {
    const CHECK: &str = "free space";
    match rustix::fs::statvfs(folder) {
        Ok(found) => space_finding(CHECK, found.f_bavail.saturating_mul(found.f_frsize)),
        Err(error) => Finding::not_checked(CHECK, &io_error("could not read", folder, error.into())),
    }
}

fn space_finding(check: &str, free: u64) -> Finding {
    let found = format!("{} MiB are left", free >> 20);
    match free {
        ..MIN_SPACE => Finding::problem(check, found).with_advice(FREE_SPACE),
        MIN_SPACE..LOW_SPACE => Finding::warning(check, found).with_advice(FREE_SPACE),
        _ => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_reported() {
        let severity = |free| space_finding("free space", free).severity;
        assert_eq!(severity(0), Severity::Problem);
        assert_eq!(severity(MIN_SPACE), Severity::Warning);
        assert_eq!(severity(LOW_SPACE), Severity::Ok);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_in_memory_is_a_warning() {
        let finding = file_system(Path::new("/dev/shm"));
        assert_eq!(finding.severity, Severity::Warning, "{finding}");
        assert!(finding.found.starts_with("tmpfs"), "{finding}");
    }
}
