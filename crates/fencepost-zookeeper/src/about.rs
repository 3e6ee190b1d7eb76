//! The node `_fencepost/about`: the storage id and the format of a chroot.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use serde_json::{Value as Json, json};
use zookeeper_client as zk;

use crate::conversion;
use crate::ensemble::Ensemble;

/// The stored format. Clients of different formats cannot share a chroot.
const FORMAT: u64 = 2;
/// How often the node is read again because another client changed it. Each change advances its state.
const MAX_TRIES: usize = 10;

/// Whether the chroot can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatState {
    Ready,
    /// Clients of format 1 are locked out, but not all cells are moved.
    Converting,
    /// Clients of format 1 may hold locks.
    Format1,
}

/// The data of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct About {
    id: StorageId,
    state: FormatState,
}

impl About {
    /// Returns the data to store for this state.
    fn text(id: StorageId, state: FormatState) -> String {
        let mut about = json!({ "format": FORMAT, "storage_id": id.to_string() });
        if state == FormatState::Converting {
            about["converting"] = true.into();
        }
        about.to_string()
    }

    fn read(ensemble: &Ensemble, bytes: &[u8]) -> Result<Self> {
        let about: Json = serde_json::from_slice(bytes).unwrap_or_default();
        let stored = (about["format"].as_u64(), about["storage_id"].as_str());
        let (known, state) = match stored.0 {
            Some(1) => (1, FormatState::Format1),
            _ if about["converting"] == true => (FORMAT, FormatState::Converting),
            _ => (FORMAT, FormatState::Ready),
        };
        let id = fencepost_net::storage_id(&ensemble.location, stored, known, "another chroot")?;
        Ok(Self { id, state })
    }
}

/// Returns the storage id. Unless `must_exist`, initializes a new chroot and converts one of an older format.
pub(crate) async fn storage_id(
    ensemble: &Ensemble,
    client: &zk::Client,
    must_exist: bool,
) -> Result<StorageId> {
    for _ in 0..MAX_TRIES {
        if let Some(id) = advance_format(ensemble, client, must_exist).await? {
            return Ok(id);
        }
    }
    let message = format!("other clients keep changing {} of {}", ensemble.layout.about(), ensemble.location);
    Err(Error::new(ErrorKind::Unreachable, message).with_hint("try again"))
}

/// Returns the id if the chroot is ready; otherwise advances it by one state.
async fn advance_format(
    ensemble: &Ensemble,
    client: &zk::Client,
    must_exist: bool,
) -> Result<Option<StorageId>> {
    let path = ensemble.layout.about();
    let (synced, read) = futures_util::join!(client.sync(&path), client.get_data(&path));
    synced.map_err(|error| ensemble.failed(&error))?;
    let (about, stat) = match read {
        Ok((bytes, stat)) => (About::read(ensemble, &bytes)?, stat),
        Err(zk::Error::NoNode) if must_exist => return Err(missing_error(ensemble)),
        Err(zk::Error::NoNode) => {
            ensemble.create_base_nodes(client).await?;
            let text = About::text(StorageId::random(), FormatState::Converting);
            conversion::lock_out_format_1(ensemble, client, &text, None).await?;
            return Ok(None);
        }
        Err(error) => return Err(ensemble.failed(&error)),
    };
    match about.state {
        FormatState::Ready => return Ok(Some(about.id)),
        FormatState::Format1 if must_exist => return Err(unconverted_error(ensemble)),
        FormatState::Converting if must_exist => return Err(converting_error(ensemble)),
        FormatState::Format1 => {
            let text = About::text(about.id, FormatState::Converting);
            conversion::lock_out_format_1(ensemble, client, &text, Some(stat.version)).await?;
        }
        FormatState::Converting => {
            ensemble.create_base_nodes(client).await?;
            conversion::move_cells(ensemble, client, stat.mtime).await?;
            let text = About::text(about.id, FormatState::Ready);
            match client.set_data(&path, text.as_bytes(), Some(stat.version)).await {
                // Another client may have written the same.
                Ok(_) | Err(zk::Error::BadVersion | zk::Error::NoNode) => {}
                Err(error) => return Err(ensemble.failed(&error)),
            }
        }
    }
    Ok(None)
}

fn missing_error(ensemble: &Ensemble) -> Error {
    Error::new(ErrorKind::Missing, format!("{} has never been used for locks", ensemble.location))
        .with_hint("the first acquire initializes it; otherwise check the chroot in the URL")
}

fn converting_error(ensemble: &Ensemble) -> Error {
    Error::new(
        ErrorKind::Backend,
        format!("{} is being initialized, or converted to format {FORMAT}", ensemble.location),
    )
    .with_hint(
        "try again; if that does not help, connect with a client that acquires locks, which finishes it",
    )
}

fn unconverted_error(ensemble: &Ensemble) -> Error {
    let message = format!(
        "{} has format 1 and is not converted yet to format {FORMAT}, which this program uses",
        ensemble.location
    );
    Error::new(ErrorKind::Backend, message).with_hint(
        "stop the clients of format 1, then connect with a client that acquires locks, which converts it",
    )
}
