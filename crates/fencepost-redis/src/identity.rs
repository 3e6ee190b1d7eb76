//! Which storage it is: the format and the id that a namespace keeps about itself.

use std::sync::OnceLock;

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use crate::error::{Sent, call_failed};
use crate::setup::Setup;

/// The identity of one storage: of a server, or of a whole cluster.
pub(crate) struct Identity {
    known: OnceLock<StorageId>,
    /// The id of this storage if it has none yet.
    new: StorageId,
}

impl Default for Identity {
    fn default() -> Self {
        Self { known: OnceLock::new(), new: StorageId::random() }
    }
}

impl Identity {
    /// The format in which locks are kept.
    pub(crate) const FORMAT: u64 = 1;

    /// Returns the id of the storage; none until a namespace was found or made there.
    pub(crate) fn known(&self) -> Option<StorageId> {
        self.known.get().copied()
    }

    /// Returns the id of the storage, or the one that it gets with its first lock.
    pub(crate) fn id(&self) -> StorageId {
        self.known().unwrap_or(self.new)
    }

    /// Makes sure that the namespace is of our format and of the storage that it was before. A storage that has forgotten
    /// everything is told its old id again.
    pub(crate) async fn check(&self, setup: &Setup, connection: &mut MultiplexedConnection) -> Result<()> {
        let failed = |error: RedisError| call_failed(&setup.location, &error, Sent::No);
        let (key, ours) = (setup.layout.about(), format!("{} {}", Self::FORMAT, self.id()));
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let found: Option<String> = get.query_async(connection).await.map_err(failed)?;
        if let Some(about) = found {
            return self.recognise(&setup.location, &about);
        }
        if setup.only_existing {
            return Ok(());
        }
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&ours).arg("NX");
        if set.query_async::<Value>(connection).await.map_err(failed)? == Value::Okay {
            return self.recognise(&setup.location, &ours);
        }
        let theirs: Option<String> = get.query_async(connection).await.map_err(failed)?;
        self.recognise(&setup.location, &theirs.unwrap_or(ours))
    }

    fn recognise(&self, location: &str, about: &str) -> Result<()> {
        let (format, id) = about.split_once(' ').unzip();
        let said = (format.and_then(|format| format.parse().ok()), id);
        let id =
            fencepost_net::storage_id(location, said, Self::FORMAT, "another namespace: ?namespace=NAME")?;
        if *self.known.get_or_init(|| id) == id {
            return Ok(());
        }
        let error = format!("{location} is not the storage that it was: its identity has changed");
        Err(Error::new(ErrorKind::Backend, error).with_hint(
            "tokens of different storages have no order; connect again once you are sure it is right",
        ))
    }
}
