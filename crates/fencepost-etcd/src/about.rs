//! What a storage says about itself: which one it is, and in which form its locks are.

use fencepost_core::{Result, StorageId};
use fencepost_net::storage_id;

use crate::keys::Keys;
use crate::link::Link;
use crate::proto::TxnRequest;
use crate::request::{absent, found, get, one, put};
use crate::store::LOOKING;

/// The version of what is written; another one is refused.
const FORMAT: u64 = 1;

/// Finds out which storage it is, and makes it one if it is none yet.
pub(crate) async fn introduce(link: &Link, keys: &Keys, only_existing: bool) -> Result<StorageId> {
    let new = StorageId::random();
    let about = serde_json::json!({ "format": FORMAT, "storage_id": new.to_string() });
    let mut request = TxnRequest { failure: vec![get(one(keys.about()))], ..TxnRequest::default() };
    request.compare.push(absent(keys.about()));
    if !only_existing {
        request.success.push(put(keys.about(), about.to_string().into_bytes(), 0));
    }
    let location = link.location();
    let answer = link.txn(request, LOOKING).await.map_err(|failure| failure.into_error(location))?;
    let cluster = answer.header.map_or(0, |header| header.cluster_id);
    if answer.succeeded {
        // Whoever only looks finds that nothing is locked, and leaves it so: others may take the locks in their own way.
        return Ok(life_of(new, cluster));
    }
    let text = answer.responses.first().and_then(|look| found(look).first()).map(|key| key.value.clone());
    let about: serde_json::Value =
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let said = (about["format"].as_u64(), about["storage_id"].as_str());
    let id = storage_id(location, said, FORMAT, "another namespace: ?namespace=NAME")?;
    Ok(life_of(id, cluster))
}

/// A cluster that was restored from a snapshot may give tokens again that were given before: tokens are ordered within the life
/// of one cluster. It is another one if it was restored with another token, or at other addresses.
fn life_of(id: StorageId, cluster: u64) -> StorageId {
    StorageId::from_bytes((u128::from_be_bytes(id.to_bytes()) ^ u128::from(cluster)).to_be_bytes())
}
