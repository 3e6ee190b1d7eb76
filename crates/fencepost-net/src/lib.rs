//! What storages behind a network have in common: how their URLs are read, and encryption.

mod account;
mod address;
mod stream;
mod tls;
mod url;

pub use account::{Account, Login, Secret};
pub use address::Address;
pub use stream::Stream;
pub use tls::{Encryption, Tls, not_agreed};
pub use url::{Url, bad, checked_namespace};
