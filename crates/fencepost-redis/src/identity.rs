//! The identity of the stored data: the format and the id that a namespace keeps in its `about` key.

use std::sync::OnceLock;

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use crate::error::{Sent, call_failed};
use crate::state::ClientState;

/// The identity of the data on one server, or on a whole cluster.
pub(crate) struct Identity {
    stored: OnceLock<StorageId>,
    /// The id that is stored if there is none yet.
    new: StorageId,
}

impl Default for Identity {
    fn default() -> Self {
        Self { stored: OnceLock::new(), new: StorageId::random() }
    }
}

impl Identity {
    /// The format of the stored locks.
    pub(crate) const FORMAT: u64 = 1;

    /// Returns the stored id, or `None` until a namespace was found or created.
    pub(crate) fn stored(&self) -> Option<StorageId> {
        self.stored.get().copied()
    }

    /// Returns the stored id, or the one that will be stored with the first lock.
    pub(crate) fn id(&self) -> StorageId {
        self.stored().unwrap_or(self.new)
    }

    /// Checks that the namespace has this format and the same id as before. If the server has lost its data, the known id is
    /// stored again.
    pub(crate) async fn check(
        &self,
        state: &ClientState,
        connection: &mut MultiplexedConnection,
    ) -> Result<()> {
        let failed = |error: RedisError| call_failed(&state.location, &error, Sent::No);
        let (key, expected) = (state.layout.about(), format!("{} {}", Self::FORMAT, self.id()));
        let mut get = redis::cmd("GET");
        get.arg(&key);
        let found: Option<String> = get.query_async(connection).await.map_err(failed)?;
        if let Some(about) = found {
            return self.verify(&state.location, &about);
        }
        if state.only_existing {
            return Ok(());
        }
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&expected).arg("NX");
        if set.query_async::<Value>(connection).await.map_err(failed)? == Value::Okay {
            return self.verify(&state.location, &expected);
        }
        let stored: Option<String> = get.query_async(connection).await.map_err(failed)?;
        self.verify(&state.location, &stored.unwrap_or(expected))
    }

    fn verify(&self, location: &str, about: &str) -> Result<()> {
        let (format, id) = about.split_once(' ').unzip();
        let found = (format.and_then(|format| format.parse().ok()), id);
        let id =
            fencepost_net::storage_id(location, found, Self::FORMAT, "another namespace: ?namespace=NAME")?;
        if *self.stored.get_or_init(|| id) == id {
            return Ok(());
        }
        let error = format!("the data of {location} was replaced: its identity has changed");
        Err(Error::new(ErrorKind::Backend, error).with_hint(
            "fencing tokens of different data sets are not ordered; reconnect once the right data is there",
        ))
    }
}
