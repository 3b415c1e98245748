//! A TCP proxy that cuts its connections where it is told to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Forwards connections to a server and resets each after as many bytes as its plan says; later ones are left alone.
pub struct Cutter {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    open: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Cutter {
    /// `plan` says for every connection, in order, after how many bytes it is cut, both directions together.
    pub async fn start(server: &str, plan: Vec<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (server, count) = (server.to_owned(), connections.clone());
        let (open, is_open) = tokio::sync::watch::channel(true);
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let index = count.fetch_add(1, Ordering::SeqCst);
                let budget = plan.get(index).copied().unwrap_or(u64::MAX);
                let (server, mut is_open) = (server.clone(), is_open.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = forward(client, server, budget) => {}
                        _ = is_open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { address, connections, open, task }
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Cuts whatever is connected, and lets no connection through until [`Self::mend`].
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    pub fn mend(&self) {
        self.open.send_replace(true);
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: String, budget: u64) {
    let Ok(upstream) = TcpStream::connect(&server).await else { return };
    // With no lingering, dropping a socket resets it: bytes on their way are lost, as when a cable is pulled.
    for socket in [&client, &upstream] {
        let _ = socket.set_zero_linger();
        let _ = socket.set_nodelay(true);
    }
    let left = Arc::new(AtomicU64::new(budget));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = upstream.into_split();
    tokio::select! {
        () = copy(client_read, server_write, left.clone()) => {}
        () = copy(server_read, client_write, left) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: Arc<AtomicU64>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(length as u64))).unwrap_or(0);
        let allowed = usize::try_from(before.min(length as u64)).unwrap();
        if to.write_all(&buffer[..allowed]).await.is_err() || allowed < length {
            return;
        }
    }
}
