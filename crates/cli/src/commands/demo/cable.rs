//! A cable between the program and the second machine that can be pulled and put back.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

pub(super) struct Cable {
    address: SocketAddr,
    whole: watch::Sender<bool>,
    _task: AbortOnDropHandle<()>,
}

impl Cable {
    /// Carries connections to `server` (`IP:PORT`).
    pub(super) async fn lay(server: String) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (whole, is_whole) = watch::channel(true);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut is_whole) = (server.clone(), is_whole.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        _ = carry(client, &server) => {}
                        _ = is_whole.wait_for(|whole| !whole) => {}
                    }
                });
            }
        });
        Ok(Self { address, whole, _task: AbortOnDropHandle::new(task) })
    }

    pub(super) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Whatever is connected is cut off, and new connections fail.
    pub(super) fn cut(&self) {
        self.whole.send_replace(false);
    }

    pub(super) fn mend(&self) {
        self.whole.send_replace(true);
    }
}

async fn carry(mut client: TcpStream, server: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // Without lingering, a socket that is dropped is reset: bytes on their way are lost, as when a cable is pulled.
    client.set_zero_linger()?;
    server.set_zero_linger()?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}
