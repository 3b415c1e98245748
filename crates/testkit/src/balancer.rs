//! One address before several servers: a connection goes to one of those that are there, and stays with it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections to its servers in turn.
pub struct Balancer {
    address: SocketAddr,
    servers: Arc<Mutex<Vec<String>>>,
    /// Counts cuts.
    cuts: watch::Sender<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl Balancer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (servers, cuts) = (Arc::<Mutex<Vec<String>>>::default(), watch::Sender::new(0));
        let (known, cut, next) = (servers.clone(), cuts.clone(), AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut cut = cut.subscribe();
                let server = {
                    let known = known.lock().unwrap();
                    let index = next.fetch_add(1, Ordering::SeqCst) % known.len().max(1);
                    known.get(index).cloned()
                };
                // Without a server the connection is closed, as a balancer does.
                let Some(server) = server else { continue };
                tokio::spawn(async move {
                    tokio::select! {
                        () = forward(client, &server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, servers, cuts, task }
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// The servers that new connections go to, each `IP:PORT`.
    pub fn lead_to(&self, servers: Vec<String>) {
        *self.servers.lock().unwrap() = servers;
    }

    /// Cuts what is connected; new connections go through.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut client: TcpStream, server: &str) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    for socket in [&client, &server] {
        // Dropping a socket resets it: bytes on their way are lost, as when a cable is pulled.
        let _ = socket.set_zero_linger();
        let _ = socket.set_nodelay(true);
    }
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}
