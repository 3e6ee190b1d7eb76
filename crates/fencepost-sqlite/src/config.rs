//! Which file: what stands behind `sqlite:` in a URL, and whether it is on a disk of this host.

use std::path::{Path, PathBuf};

use fencepost_core::{Error, ErrorKind, Result};

use crate::error::io_error;

/// What to do about a database that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Make,
    Refuse,
}

/// The file that `sqlite:REST` names; the user's own if nothing is named.
pub(crate) fn path_of(rest: &str, if_missing: IfMissing) -> Result<PathBuf> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if !options.is_empty() {
        return Err(Error::new(ErrorKind::BadConfig, "sqlite: has no options")
            .with_hint("write sqlite:PATH, without a question mark"));
    }
    match path.strip_prefix("//").unwrap_or(path) {
        ":memory:" => Err(Error::new(ErrorKind::BadConfig, "sqlite: keeps locks in a file, not in memory")
            .with_hint("use memory: for locks within this process")),
        "" => default_path(|name| std::env::var_os(name).map(PathBuf::from), if_missing),
        path => Ok(PathBuf::from(path)),
    }
}

/// `fencepost/locks.db` in the user's state folder.
fn default_path(variable: impl Fn(&str) -> Option<PathBuf>, if_missing: IfMissing) -> Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = variable("XDG_STATE_HOME").filter(absolute);
    let home = || variable("HOME").filter(absolute).map(|home| home.join(".local/state"));
    let folder = state.or_else(home).ok_or_else(|| {
        Error::new(ErrorKind::BadConfig, "there is no state folder: neither XDG_STATE_HOME nor HOME is set")
            .with_hint("name a file: sqlite:/var/lib/jobs/locks.db")
    })?;
    let folder = folder.join("fencepost");
    if if_missing == IfMissing::Make {
        make_private_folder(&folder)?;
    }
    Ok(folder.join("locks.db"))
}

/// Makes a folder, and those above it, that only this user can look into.
pub(crate) fn make_private_folder(folder: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| io_error("could not make the folder", folder, error))
}

/// Refuses file systems on which locks of other hosts, or no locks at all, are seen.
#[cfg(target_os = "linux")]
pub(crate) fn check_file_system(folder: &Path) -> Result<()> {
    /// The magic numbers of file systems that other machines can write to, or that cannot be told from such.
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
    let found =
        rustix::fs::statfs(folder).map_err(|error| io_error("could not look at", folder, error.into()))?;
    // The kernel's word has another width on other machines; the numbers have 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "only the low 32 bits count")]
    let magic = found.f_type as u32;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is() {
        for (rest, path) in
            [("a.db", "a.db"), ("/a b/c.db", "/a b/c.db"), ("///a.db", "/a.db"), ("//a.db", "a.db")]
        {
            assert_eq!(path_of(rest, IfMissing::Make).unwrap(), Path::new(path), "{rest}");
        }
        assert_eq!(path_of("a.db?mode=memory", IfMissing::Make).unwrap_err().kind(), ErrorKind::BadConfig);
    }

    #[test]
    fn the_default_needs_an_absolute_folder() {
        let nothing = default_path(|_| None, IfMissing::Make).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::BadConfig);
        assert!(nothing.hint().unwrap().contains("sqlite:/"));
        let relative = default_path(|_| Some("relative".into()), IfMissing::Make).unwrap_err();
        assert_eq!(relative.kind(), ErrorKind::BadConfig);
    }

    #[test]
    fn the_state_folder_goes_before_home() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("fencepost");
        for (if_missing, is_made) in [(IfMissing::Refuse, false), (IfMissing::Make, true)] {
            let variable = |name: &str| match name {
                "XDG_STATE_HOME" => Some(state.path().into()),
                _ => Some("/nowhere".into()),
            };
            assert_eq!(default_path(variable, if_missing).unwrap(), folder.join("locks.db"));
            assert_eq!(folder.exists(), is_made, "{if_missing:?}");
        }
    }
}
