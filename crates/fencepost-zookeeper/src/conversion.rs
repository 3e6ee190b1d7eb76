//! Converts format 1, which named nodes differently, to format 2.
//!
//! A client of format 1 reads the format when it connects and never again, so an idle connected client cannot be
//! detected. But it holds nothing without a session, and opens none without a node below `_fencepost/sessions`. One
//! transaction therefore deletes that node, which fails while a session has a child there, creates it again with an ACL
//! that forbids children, and writes the new format: before the transaction no client of format 2 holds anything, after
//! it no client of format 1 can.

use std::time::Duration;

use fencepost_contenders::PersistentCell;
use fencepost_core::{Error, ErrorKind, LockName, Result};
use zookeeper_client::{self as zk, Acls, CreateMode, MultiWriteError, Stat};

use crate::ensemble::Ensemble;
use crate::node_name::encode;

/// The data of the node below which clients of format 1 can no longer create nodes.
const CLOSED: &[u8] = b"closed: this storage has format 2, whose sessions are in sessions2";

/// Writes `about`, over this version or as a new node, and locks out clients of format 1. Does nothing if another
/// client was faster.
pub(crate) async fn lock_out_format_1(
    ensemble: &Ensemble,
    client: &zk::Client,
    about: &str,
    version: Option<i32>,
) -> Result<()> {
    match send_lock_out(ensemble, client, about, version).await {
        Ok(())
        | Err(MultiWriteError::OperationFailed {
            source: zk::Error::BadVersion | zk::Error::NoNode | zk::Error::NodeExists,
            ..
        }) => Ok(()),
        Err(MultiWriteError::OperationFailed { source: zk::Error::NotEmpty, .. }) => Err(in_use(ensemble)),
        Err(error) => Err(ensemble.failed(&error.into())),
    }
}

async fn send_lock_out(
    ensemble: &Ensemble,
    client: &zk::Client,
    about: &str,
    version: Option<i32>,
) -> Result<(), MultiWriteError> {
    let (path, sessions) = (ensemble.layout.about(), ensemble.layout.format_1_sessions());
    let stat = client.check_stat(&sessions).await;
    let exists = stat.map_err(|source| MultiWriteError::RequestFailed { source })?.is_some();
    let mut writer = client.new_multi_writer();
    match version {
        Some(version) => writer.add_set_data(&path, about.as_bytes(), Some(version))?,
        None => {
            writer.add_create(&path, about.as_bytes(), &ensemble.create_options(CreateMode::Persistent))?;
        }
    }
    if exists {
        writer.add_delete(&sessions, None)?;
    }
    writer.add_create(&sessions, CLOSED, &CreateMode::Persistent.with_acls(Acls::anyone_read()))?;
    writer.commit().await?;
    Ok(())
}

fn in_use(ensemble: &Ensemble) -> Error {
    let message = format!(
        "{} has format 1 and is in use by clients of that format; this program uses format 2",
        ensemble.location
    );
    let sessions = ensemble.layout.format_1_sessions();
    Error::new(ErrorKind::Backend, message).with_hint(format!(
        "stop these clients (their sessions are the nodes below {sessions}) and connect again to convert it, or use another chroot"
    ))
}

/// Moves the persistent cells of format 1 to their new nodes. Several clients may do so concurrently.
pub(crate) async fn move_cells(ensemble: &Ensemble, client: &zk::Client, now: i64) -> Result<()> {
    let old_cells = ensemble.layout.format_1_cells();
    let failed = |error: zk::Error| ensemble.failed(&error);
    let cells = match client.list_children(&old_cells).await {
        Ok(cells) => cells,
        Err(zk::Error::NoNode) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for cell in cells {
        let old = format!("{old_cells}/{cell}");
        let (bytes, stat) = match client.get_data(&old).await {
            Ok(read) => read,
            Err(zk::Error::NoNode) => continue,
            Err(error) => return Err(failed(error)),
        };
        let Some(name) = format_1_name(&cell) else { continue };
        match move_cell(ensemble, client, &old, &name, &with_remaining_ttl(&bytes, &stat, now)).await {
            // If the cell is missing, another client has moved it.
            Ok(())
            | Err(MultiWriteError::OperationFailed {
                source: zk::Error::NoNode | zk::Error::NodeExists,
                ..
            }) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    // The node stays if it has children that are not cells.
    let _ = client.delete(&old_cells, None).await;
    Ok(())
}

async fn move_cell(
    ensemble: &Ensemble,
    client: &zk::Client,
    old: &str,
    name: &LockName,
    bytes: &[u8],
) -> Result<(), MultiWriteError> {
    let mut writer = client.new_multi_writer();
    writer.add_delete(old, None)?;
    let new = format!("{}/{}", ensemble.layout.cells(), encode(name.as_str()));
    writer.add_create(&new, bytes, &ensemble.create_options(CreateMode::Persistent))?;
    writer.commit().await?;
    Ok(())
}

/// Returns the cell as stored in a new node: the time since it was written is subtracted from its ttl.
fn with_remaining_ttl(bytes: &[u8], stat: &Stat, now: i64) -> Vec<u8> {
    let age = Duration::from_millis(u64::try_from(now - stat.mtime).unwrap_or(0));
    match PersistentCell::from_bytes(bytes) {
        Some(PersistentCell { cell, ttl: Some(ttl) }) => {
            PersistentCell { cell, ttl: Some(ttl.saturating_sub(age)) }.to_bytes()
        }
        _ => bytes.to_vec(),
    }
}

/// Returns the lock name of a node of format 1, which percent-encoded everything but printable ASCII.
fn format_1_name(node: &str) -> Option<LockName> {
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let (byte, tail) = match tail.split_at_checked(2).filter(|_| *first == b'%') {
            Some((digits, tail)) => (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, tail),
            None => (*first, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    LockName::new(String::from_utf8(bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_format_1_are_read() {
        for (node, name) in [
            ("invoice%2F42", Some("invoice/42")),
            ("m%C3%BCller", Some("müller")),
            ("%252F", Some("%2F")),
            ("%5Ffencepost%2Fx%2Ey", Some("_fencepost/x.y")),
            ("%7Aookeeper", Some("zookeeper")),
            ("%FF", None),
            ("%zz", None),
        ] {
            assert_eq!(format_1_name(node).as_ref().map(LockName::as_str), name, "{node}");
        }
    }
}
