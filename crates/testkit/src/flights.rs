//! A link that counts flights: how often something waits for a message to go there and for one to come back.
//!
//! Each message carries a depth, as with a logical clock. What a client sends is one deeper than all that it has heard; what a server
//! sends is as deep as what has reached it. So requests that are sent together are one flight, one that is sent because of an answer
//! is another, and what is pushed costs nothing. Everything that a server says is held back for a moment, so that requests which do
//! not wait for it have left before it is heard: an answer that is heard too early counts a flight too many, and never one too few.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// The clock of one client, which several links may share.
#[derive(Clone)]
pub struct FlightClock(Arc<Clock>);

struct Clock {
    heard: AtomicU64,
    delay: Duration,
    /// False as long as nothing gets through.
    open: watch::Sender<bool>,
}

impl FlightClock {
    /// Answers are held back for so long.
    pub fn new(delay: Duration) -> Self {
        Self(Arc::new(Clock { heard: AtomicU64::new(0), delay, open: watch::Sender::new(true) }))
    }

    /// How many flights there were so far, one after the other.
    pub fn flights(&self) -> u64 {
        self.0.heard.load(Ordering::SeqCst)
    }

    /// Lets nothing through in either direction until [`Self::thaw`]; nothing is lost.
    pub fn freeze(&self) {
        self.0.open.send_replace(false);
    }

    pub fn thaw(&self) {
        self.0.open.send_replace(true);
    }

    async fn is_open(&self) {
        let _ = self.0.open.subscribe().wait_for(|open| *open).await;
    }

    fn hear(&self, depth: u64) {
        self.0.heard.fetch_max(depth, Ordering::SeqCst);
    }

    /// A way to a server, `IP:PORT`, on which flights are counted.
    pub async fn link(&self, server: &str) -> CountedLink {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (server, clock) = (watch::Sender::new(server.to_owned()), self.clone());
        let (leads, cut) = (server.subscribe(), watch::Sender::new(0_u64));
        let cuts = cut.clone();
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let (clock, server, mut cut) = (clock.clone(), leads.borrow().clone(), cuts.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        () = forward(&clock, client, server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        CountedLink { address, server, cut, task }
    }
}

/// A proxy in front of one server.
pub struct CountedLink {
    address: SocketAddr,
    server: watch::Sender<String>,
    cut: watch::Sender<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl CountedLink {
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Later connections lead to another server, `IP:PORT`.
    pub fn lead_to(&self, server: &str) {
        self.server.send_replace(server.to_owned());
    }

    /// Cuts whatever is connected.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for CountedLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(clock: &FlightClock, client: TcpStream, server: String) {
    // A connection is a flight, too; nothing is sent on it before it is there.
    let connected = clock.flights() + 1;
    sleep(clock.0.delay).await;
    clock.is_open().await;
    clock.hear(connected);
    let Ok(upstream) = TcpStream::connect(&server).await else { return };
    for socket in [&client, &upstream] {
        let _ = socket.set_zero_linger();
        let _ = socket.set_nodelay(true);
    }
    let reached = AtomicU64::new(connected);
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = upstream.into_split();
    let (sender, waiting) = mpsc::unbounded_channel();
    tokio::select! {
        () = upwards(clock, &reached, client_read, server_write) => {}
        () = downwards(clock, &reached, server_read, sender) => {}
        () = deliver(clock, waiting, client_write) => {}
    }
}

async fn upwards(clock: &FlightClock, reached: &AtomicU64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let depth = clock.flights() + 1;
        clock.is_open().await;
        reached.fetch_max(depth, Ordering::SeqCst);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// What waits on its way to the client.
struct Waiting {
    depth: u64,
    due: Instant,
    bytes: Vec<u8>,
}

async fn downwards(clock: &FlightClock, reached: &AtomicU64, mut from: OwnedReadHalf, waiting: mpsc::UnboundedSender<Waiting>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let (depth, due) = (reached.load(Ordering::SeqCst), Instant::now() + clock.0.delay);
        if waiting.send(Waiting { depth, due, bytes: buffer[..length].to_vec() }).is_err() {
            return;
        }
    }
    // What is on its way still arrives.
    waiting.closed().await;
}

async fn deliver(clock: &FlightClock, mut waiting: mpsc::UnboundedReceiver<Waiting>, mut to: OwnedWriteHalf) {
    while let Some(Waiting { depth, due, bytes }) = waiting.recv().await {
        sleep_until(due).await;
        clock.is_open().await;
        clock.hear(depth);
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
