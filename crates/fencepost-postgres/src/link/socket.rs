//! TCP connections that end soon after the other side is gone.

use std::io;
use std::time::Duration;

use fencepost_net::Address;
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// How long a connection without traffic is believed to be alive; then it is probed.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// How often it is probed, and after how many probes without a reply it ends.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
pub(crate) const KEEPALIVE_PROBES: u32 = 3;
/// How long sent data may be unacknowledged.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a server.
pub(super) async fn connect(host: &Address) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host.host.as_str(), host.port)).await?;
    // Without it, small requests wait for the acknowledgement of earlier ones.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
    #[cfg(target_os = "linux")]
    {
        let millis = u32::try_from(USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
    }
    Ok(stream)
}
