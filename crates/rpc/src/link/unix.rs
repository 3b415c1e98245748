//! Websocket framing over a unix socket.

use std::path::Path;

use tokio::net::UnixStream;

use super::ws::{self, ClientOptions};
use super::{Link, LinkError};

pub async fn connect(path: &Path, options: &ClientOptions) -> Result<Link, LinkError> {
    let stream = UnixStream::connect(path).await?;
    ws::handshake(stream, "ws://localhost/", format!("unix socket {}", path.display()), options).await
}
