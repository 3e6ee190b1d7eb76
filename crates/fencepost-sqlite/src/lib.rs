//! x

/// x
pub async fn connect(_rest: &str) -> fencepost_core::Result<fencepost_core::Client> { std::future::pending().await }
