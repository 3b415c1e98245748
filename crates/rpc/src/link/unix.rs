//! Websocket framing over a unix socket.

use std::io;
use std::path::Path;

use tokio::net::UnixStream;

use super::ws::{self, ClientOptions};
use super::{Link, LinkError};

/// Only one's own processes, and root's, are talked to: another user may have made the socket, or got hold of it.
pub fn check_owner(stream: &UnixStream) -> io::Result<()> {
    let (theirs, ours) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if theirs == ours || theirs == 0 || ours == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the other end of the socket belongs to user {theirs}")))
}

pub async fn connect(path: &Path, options: &ClientOptions) -> Result<Link, LinkError> {
    let stream = UnixStream::connect(path).await?;
    check_owner(&stream)?;
    ws::handshake(stream, "ws://localhost/", format!("unix socket {}", path.display()), options).await
}
