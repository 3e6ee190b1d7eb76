//! Shared code of the backends behind a network: parsing URLs, TLS, and reconnecting.

mod account;
mod address;
mod reconnect;
mod storage_id;
mod stream;
mod tls;
mod url;

pub use account::{Account, Login, Secret};
pub use address::Address;
pub use reconnect::{Backoff, CONNECT_TIMEOUT, Coalesced};
pub use storage_id::storage_id;
pub use stream::Stream;
pub use tls::{Encryption, Tls, encryption_finding, handshake_failed};
pub use url::{Url, bad, checked_namespace};
