//! Websocket framing over a unix socket.

use std::io;
use std::path::Path;

use tokio::net::UnixStream;

use super::ws::{self, ClientOptions};
use super::{Link, LinkError};

/// A server talks to its own user's processes, and to root's: another user may have got hold of the socket.
pub fn check_client(stream: &UnixStream) -> io::Result<()> {
    check(stream, |theirs, ours| theirs == ours || theirs == 0)
}

/// A client talks to its own user's servers, and to root's: another user may have made the socket. Root may talk to all.
fn check_server(stream: &UnixStream) -> io::Result<()> {
    check(stream, |theirs, ours| theirs == ours || theirs == 0 || ours == 0)
}

fn check(stream: &UnixStream, is_trusted: fn(u32, u32) -> bool) -> io::Result<()> {
    let (theirs, ours) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if is_trusted(theirs, ours) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the other end of the socket belongs to user {theirs}")))
}

pub async fn connect(path: &Path, options: &ClientOptions) -> Result<Link, LinkError> {
    let stream = UnixStream::connect(path).await?;
    check_server(&stream)?;
    ws::handshake(stream, "ws://localhost/", format!("unix socket {}", path.display()), options).await
}
