//! Which storage this is, and in which format: what `_fencepost/about` says.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use serde_json::{Value as Json, json};
use zookeeper_client as zk;

use crate::conversion;
use crate::ensemble::Ensemble;

/// The format of what we store. Clients of another one do not mix with us.
const FORMAT: u64 = 2;
/// How often it is read again because another client has changed it meanwhile. Each change brings it further.
const MAX_TRIES: usize = 10;

/// What is to be done before the storage can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatState {
    Ready,
    /// No client of an older format can hold anything, but not everything has been moved.
    Converting,
    /// Clients of format 1 may hold locks.
    Format1,
}

/// What the node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct About {
    id: StorageId,
    state: FormatState,
}

impl About {
    /// As it is written when it is to have this state.
    fn text(id: StorageId, state: FormatState) -> String {
        let mut about = json!({ "format": FORMAT, "storage_id": id.to_string() });
        if state == FormatState::Converting {
            about["converting"] = true.into();
        }
        about.to_string()
    }

    fn read(ensemble: &Ensemble, bytes: &[u8]) -> Result<Self> {
        let about: Json = serde_json::from_slice(bytes).unwrap_or_default();
        let said = (about["format"].as_u64(), about["storage_id"].as_str());
        let (known, state) = match said.0 {
            Some(1) => (1, FormatState::Format1),
            _ if about["converting"] == true => (FORMAT, FormatState::Converting),
            _ => (FORMAT, FormatState::Ready),
        };
        let id = fencepost_net::storage_id(&ensemble.location, said, known, "another chroot")?;
        Ok(Self { id, state })
    }
}

/// Returns the id of this storage. Unless it must exist already, it is made if there is none, and converted if it is of an
/// older format.
pub(crate) async fn storage_id(
    ensemble: &Ensemble,
    client: &zk::Client,
    existing: bool,
) -> Result<StorageId> {
    for _ in 0..MAX_TRIES {
        if let Some(id) = advance_format(ensemble, client, existing).await? {
            return Ok(id);
        }
    }
    let message = format!("others keep changing {} of {}", ensemble.layout.about(), ensemble.location);
    Err(Error::new(ErrorKind::Unreachable, message))
}

/// Returns the id if the storage is ready; otherwise brings it a step further.
async fn advance_format(
    ensemble: &Ensemble,
    client: &zk::Client,
    existing: bool,
) -> Result<Option<StorageId>> {
    let path = ensemble.layout.about();
    let (synced, read) = futures_util::join!(client.sync(&path), client.get_data(&path));
    synced.map_err(|error| ensemble.failed(&error))?;
    let (about, stat) = match read {
        Ok((bytes, stat)) => (About::read(ensemble, &bytes)?, stat),
        Err(zk::Error::NoNode) if existing => return Err(missing(ensemble)),
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
        FormatState::Format1 if existing => return Err(unconverted(ensemble)),
        FormatState::Converting if existing => return Err(unfinished(ensemble)),
        FormatState::Format1 => {
            let text = About::text(about.id, FormatState::Converting);
            conversion::lock_out_format_1(ensemble, client, &text, Some(stat.version)).await?;
        }
        FormatState::Converting => {
            ensemble.create_base_nodes(client).await?;
            conversion::move_cells(ensemble, client, stat.mtime).await?;
            let text = About::text(about.id, FormatState::Ready);
            match client.set_data(&path, text.as_bytes(), Some(stat.version)).await {
                // Another client may have done the same.
                Ok(_) | Err(zk::Error::BadVersion | zk::Error::NoNode) => {}
                Err(error) => return Err(ensemble.failed(&error)),
            }
        }
    }
    Ok(None)
}

fn missing(ensemble: &Ensemble) -> Error {
    Error::new(ErrorKind::Missing, format!("there are no locks yet in {}", ensemble.location))
        .with_hint("the first to take a lock makes what is needed; or is it another chroot?")
}

fn unfinished(ensemble: &Ensemble) -> Error {
    Error::new(
        ErrorKind::Backend,
        format!("{} is being set up, or converted to format {FORMAT}", ensemble.location),
    )
    .with_hint("try again; if that does not help, the next client that takes a lock finishes it")
}

fn unconverted(ensemble: &Ensemble) -> Error {
    let message = format!(
        "{} has format 1 and is not converted yet to format {FORMAT}, which this program knows",
        ensemble.location
    );
    Error::new(ErrorKind::Backend, message)
        .with_hint("stop the clients of format 1; the next client that takes a lock converts it")
}
