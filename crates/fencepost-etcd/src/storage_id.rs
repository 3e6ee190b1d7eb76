//! The storage id and the format of the locks, stored in the key `about` of the namespace.

use fencepost_core::{Result, StorageId};
use fencepost_net::storage_id;

use crate::cluster::READ_TIMEOUT;
use crate::layout::Keys;
use crate::link::Link;
use crate::proto::TxnRequest;
use crate::request::{get, key_absent, kvs, put, single_key};

/// The version of the stored format; a client rejects every other one.
const FORMAT: u64 = 1;

/// Reads the storage id, and creates one if there is none, unless the client connects to an existing one only.
pub(crate) async fn read_or_create(link: &Link, keys: &Keys, only_existing: bool) -> Result<StorageId> {
    let new = StorageId::random();
    let about = serde_json::json!({ "format": FORMAT, "storage_id": new.to_string() });
    let mut request = TxnRequest { failure: vec![get(single_key(keys.about()))], ..TxnRequest::default() };
    request.compare.push(key_absent(keys.about()));
    if !only_existing {
        request.success.push(put(keys.about(), about.to_string().into_bytes(), 0));
    }
    let location = link.location();
    let response = link.txn(request, READ_TIMEOUT).await;
    let response = response.map_err(|failure| failure.into_error(location))?;
    let cluster_id = response.header.map_or(0, |header| header.cluster_id);
    if response.succeeded {
        // A client that only reads finds no locks, and writes nothing: other programs may use the namespace in their own way.
        return Ok(with_cluster_id(new, cluster_id));
    }
    let stored = response.responses.first().and_then(|read| kvs(read).first());
    let about: serde_json::Value =
        stored.and_then(|key| serde_json::from_slice(&key.value).ok()).unwrap_or_default();
    let stored = (about["format"].as_u64(), about["storage_id"].as_str());
    let id = storage_id(location, stored, FORMAT, "another namespace: ?namespace=NAME")?;
    Ok(with_cluster_id(id, cluster_id))
}

/// Combines the stored id with the id of the cluster. A cluster that was restored from a snapshot may issue tokens that
/// were issued before, so tokens are ordered within one cluster id only. The id changes if the snapshot is restored with
/// another cluster token, or at other addresses.
fn with_cluster_id(id: StorageId, cluster_id: u64) -> StorageId {
    StorageId::from_bytes((u128::from_be_bytes(id.to_bytes()) ^ u128::from(cluster_id)).to_be_bytes())
}
