//! What storages behind a network have in common: how their URLs are read, and encryption.

mod about;
mod account;
mod address;
mod reconnect;
mod stream;
mod tls;
mod url;

pub use about::storage_id;
pub use account::{Account, Login, Secret};
pub use address::Address;
pub use reconnect::{Backoff, CONNECT_TIMEOUT, Coalesced};
pub use stream::Stream;
pub use tls::{Encryption, Tls, encryption_finding, not_agreed};
pub use url::{Url, bad, checked_namespace};
