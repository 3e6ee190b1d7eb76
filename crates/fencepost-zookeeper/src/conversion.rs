//! From format 1, whose nodes had other names, to format 2.
//!
//! A client of format 1 reads the format when it connects and never again, so one that is connected and idle cannot be seen. But
//! it holds nothing without a session, and opens none without a node below `_fencepost/sessions`. One transaction therefore
//! removes that node, which fails while a session has a child there, makes it again as one below which nothing can be made, and
//! writes the new format: before it no client of format 2 holds anything, after it none of format 1 can.

use std::time::Duration;

use fencepost_contenders::PersistentCell;
use fencepost_core::{Error, ErrorKind, LockName, Result};
use zookeeper_client::{self as zk, Acls, CreateMode, MultiWriteError, Stat};

use crate::ensemble::Ensemble;
use crate::node_name::encode;

/// What the node says below which clients of format 1 can make nothing any more.
const CLOSED: &[u8] = b"closed: this storage has format 2, whose sessions are in sessions2";

/// Writes `about`, over this version or as a new node, and keeps clients of format 1 from holding anything. Nothing is
/// done if another client was faster.
pub(crate) async fn lock_out_format_1(
    ensemble: &Ensemble,
    client: &zk::Client,
    about: &str,
    over: Option<i32>,
) -> Result<()> {
    match try_to_lock_out(ensemble, client, about, over).await {
        Ok(())
        | Err(MultiWriteError::OperationFailed {
            source: zk::Error::BadVersion | zk::Error::NoNode | zk::Error::NodeExists,
            ..
        }) => Ok(()),
        Err(MultiWriteError::OperationFailed { source: zk::Error::NotEmpty, .. }) => Err(in_use(ensemble)),
        Err(error) => Err(ensemble.failed(&error.into())),
    }
}

async fn try_to_lock_out(
    ensemble: &Ensemble,
    client: &zk::Client,
    about: &str,
    over: Option<i32>,
) -> Result<(), MultiWriteError> {
    let (path, sessions) = (ensemble.layout.about(), ensemble.layout.old_sessions());
    let stat = client.check_stat(&sessions).await;
    let is_there = stat.map_err(|source| MultiWriteError::RequestFailed { source })?.is_some();
    let mut writer = client.new_multi_writer();
    match over {
        Some(version) => writer.add_set_data(&path, about.as_bytes(), Some(version))?,
        None => {
            writer.add_create(&path, about.as_bytes(), &ensemble.create_options(CreateMode::Persistent))?
        }
    }
    if is_there {
        writer.add_delete(&sessions, None)?;
    }
    writer.add_create(&sessions, CLOSED, &CreateMode::Persistent.with_acls(Acls::anyone_read()))?;
    writer.commit().await?;
    Ok(())
}

fn in_use(ensemble: &Ensemble) -> Error {
    let message = format!(
        "{} has format 1 and is in use by clients of that format, this program knows format 2",
        ensemble.location
    );
    let sessions = ensemble.layout.old_sessions();
    Error::new(ErrorKind::Backend, message).with_hint(format!(
        "stop them, and this one converts it: their sessions are the nodes below {sessions}; or use another chroot"
    ))
}

/// Moves the kept cells of format 1 to the nodes that they have now. Several clients may do so at once.
pub(crate) async fn move_cells(ensemble: &Ensemble, client: &zk::Client, now: i64) -> Result<()> {
    let old_cells = ensemble.layout.old_cells();
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
        match move_cell(ensemble, client, &old, &name, &remaining(&bytes, &stat, now)).await {
            // If it is not there any more, another client has moved it.
            Ok(())
            | Err(MultiWriteError::OperationFailed {
                source: zk::Error::NoNode | zk::Error::NodeExists,
                ..
            }) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    // What is not a cell of ours keeps it.
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

/// The cell as it is stored in a node that is new now: its time counts from when it was written.
fn remaining(bytes: &[u8], stat: &Stat, now: i64) -> Vec<u8> {
    let age = Duration::from_millis(u64::try_from(now - stat.mtime).unwrap_or(0));
    match PersistentCell::from_bytes(bytes) {
        Some(PersistentCell { cell, ttl: Some(lasts) }) => {
            PersistentCell { cell, ttl: Some(lasts.saturating_sub(age)) }.to_bytes()
        }
        _ => bytes.to_vec(),
    }
}

/// The name whose node was called this in format 1, where everything but printable ASCII was percent-encoded.
fn format_1_name(node: &str) -> Option<LockName> {
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let (byte, behind) = match behind.split_at_checked(2).filter(|_| *first == b'%') {
            Some((digits, behind)) => {
                (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, behind)
            }
            None => (*first, behind),
        };
        bytes.push(byte);
        rest = behind;
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
