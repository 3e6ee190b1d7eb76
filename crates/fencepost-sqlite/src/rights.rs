//! The rights that an account needs on files and folders, as text that an administrator can paste.

use std::path::{Path, PathBuf};

use fencepost_core::shell_quote;

use crate::open::peers_folder;

/// Returns the rights on the database at this path, which need not exist.
pub(crate) fn rights_on(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let peers = peers_folder(&path);
    // A path must not end the comment it is in: the text is meant to be pasted.
    let shown = |path: &Path| path.display().to_string().replace(char::is_control, "?");
    let quoted = |path: &Path| shell_quote(&path.display().to_string());
    let inside = |name: &str| quoted(&peers.join(name));
    let (folder_shown, db, peers_shown) = (shown(folder), shown(&path), shown(&peers));
    let width = peers_shown.chars().count() + 1;
    let (quoted_folder, quoted_db, quoted_peers) = (quoted(folder), quoted(&path), quoted(&peers));
    let (gate, turn) = (inside("gate"), inside("turn"));
    format!(
        "\
# Rights for locks in sqlite:{db}
#
# Every account that acquires locks, or only lists them, needs:
#   {folder_shown:width$}  read, write, search: SQLite creates files there
#   {db:width$}  read, write
#   {db_wal:width$}  read, write; SQLite creates it with the mode of the database
#   {db_shm:width$}  read, write; the same
#   {peers_at:width$}  read, write, search; it must belong to the account or to root, and
#   {empty:width$}  must not be writable by all users
# No other account needs any right: one that can write to these can take or break every lock.

# One account (replace ACCOUNT with its name); the files are created by it, for it alone:
install -d -m 0700 -o ACCOUNT {quoted_folder}

# Or several accounts, all in one group (replace GROUP with its name):
install -d -m 2770 -o root -g GROUP {quoted_folder} {quoted_peers}
touch {quoted_db} {gate} {turn}
chgrp GROUP {quoted_db} {gate} {turn}
chmod 0660 {quoted_db} {gate} {turn}
",
        db_wal = shown(&with_suffix(&path, "-wal")),
        db_shm = shown(&with_suffix(&path, "-shm")),
        peers_at = format!("{peers_shown}/"),
        empty = "",
    )
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut file = path.as_os_str().to_owned();
    file.push(suffix);
    file.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_does_not_end_the_comment_it_is_in() {
        let text = rights_on(Path::new("/srv/a\nreboot\n/locks.db"));
        let inside_quotes = text.split('\'').skip(1).step_by(2).any(|part| part.contains("\nreboot\n"));
        let outside = text.split('\'').step_by(2).any(|part| part.contains("\nreboot"));
        assert!(inside_quotes && !outside, "{text}");
    }

    #[test]
    fn all_files_beside_the_database_are_named() {
        let text = rights_on(Path::new("/srv/locks.db"));
        for part in ["  /srv ", "/srv/locks.db-wal ", "/srv/locks.db-shm ", "/srv/locks.db-peers/ "] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(text.contains("\ninstall -d -m 0700 -o ACCOUNT /srv\n"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }
}
