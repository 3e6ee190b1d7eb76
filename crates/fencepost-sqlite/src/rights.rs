//! Which files and folders an account must be able to use, as text that an administrator can paste.

use std::path::{Path, PathBuf};

use fencepost_core::shell_quote;

use crate::open::beside;

/// The rights on the database at this path, which need not be there.
pub(crate) fn rights_on(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let peers = beside(&path);
    // What stands behind a # must not end its line: the text is made to be pasted.
    let said = |path: &Path| path.display().to_string().replace(char::is_control, "?");
    let quoted = |path: &Path| shell_quote(&path.display().to_string());
    let inside = |name: &str| quoted(&peers.join(name));
    let (folder_said, db, peers_said) = (said(folder), said(&path), said(&peers));
    let width = peers_said.chars().count() + 1;
    let (quoted_folder, quoted_db, quoted_peers) = (quoted(folder), quoted(&path), quoted(&peers));
    let (gate, turn) = (inside("gate"), inside("turn"));
    format!(
        "\
# Rights for locks in sqlite:{db}
#
# Every account that takes locks, or only looks at them, needs:
#   {folder_said:width$}  read, write, search: SQLite makes files there
#   {db:width$}  read, write
#   {db_wal:width$}  read, write; SQLite makes it with the mode of the database
#   {db_shm:width$}  read, write; the same
#   {peers_at:width$}  read, write, search; it must belong to the account or to root, and
#   {empty:width$}  must not be writable by everybody
# Nobody else needs anything: who can write to these can take or break every lock.

# One account (write its name for ACCOUNT); the rest is made by itself, for it alone:
install -d -m 0700 -o ACCOUNT {quoted_folder}

# Or several accounts, all in one group (write its name for GROUP):
install -d -m 2770 -o root -g GROUP {quoted_folder} {quoted_peers}
touch {quoted_db} {gate} {turn}
chgrp GROUP {quoted_db} {gate} {turn}
chmod 0660 {quoted_db} {gate} {turn}
",
        db_wal = said(&with_ending(&path, "-wal")),
        db_shm = said(&with_ending(&path, "-shm")),
        peers_at = format!("{peers_said}/"),
        empty = "",
    )
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut longer = path.as_os_str().to_owned();
    longer.push(ending);
    longer.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_its_comment() {
        let text = rights_on(Path::new("/srv/a\nreboot\n/locks.db"));
        let inside_quotes = text.split('\'').skip(1).step_by(2).any(|part| part.contains("\nreboot\n"));
        let outside = text.split('\'').step_by(2).any(|part| part.contains("\nreboot"));
        assert!(inside_quotes && !outside, "{text}");
    }

    #[test]
    fn everything_beside_the_database_is_named() {
        let text = rights_on(Path::new("/srv/locks.db"));
        for part in ["  /srv ", "/srv/locks.db-wal ", "/srv/locks.db-shm ", "/srv/locks.db-peers/ "] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(text.contains("\ninstall -d -m 0700 -o ACCOUNT /srv\n"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }
}
