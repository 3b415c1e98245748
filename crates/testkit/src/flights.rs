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

/// How a way is: what the server says is held back for so long, so many bytes a second go in each direction, and of a million pieces so
/// many wait one delay more, as if they had been lost and sent again.
#[derive(Debug, Clone, Copy)]
pub struct LinkQuality {
    pub delay: Duration,
    pub rate: Option<u64>,
    pub losses: u32,
}

struct Clock {
    heard: AtomicU64,
    delay: Duration,
    rate: Option<u64>,
    losses: u32,
    pieces: AtomicU64,
    carried: AtomicU64,
    /// False as long as nothing gets through.
    open: watch::Sender<bool>,
}

impl FlightClock {
    /// Answers are held back for so long.
    pub fn new(delay: Duration) -> Self {
        Self::over(LinkQuality { delay, rate: None, losses: 0 })
    }

    /// Over a way that is not only far.
    pub fn over(quality: LinkQuality) -> Self {
        let LinkQuality { delay, rate, losses } = quality;
        let (heard, pieces, carried, open) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), watch::Sender::new(true));
        Self(Arc::new(Clock { heard, delay, rate, losses, pieces, carried, open }))
    }

    /// How much later a piece is than the delay alone makes it. Every so manieth is lost, so that two runs lose alike.
    fn lateness(&self) -> Duration {
        let piece = self.0.pieces.fetch_add(1, Ordering::Relaxed) + 1;
        let lost = piece * u64::from(self.0.losses) / 1_000_000 > (piece - 1) * u64::from(self.0.losses) / 1_000_000;
        if lost { self.0.delay.max(Duration::from_millis(1)) } else { Duration::ZERO }
    }

    /// How many bytes went either way.
    pub fn carried(&self) -> u64 {
        self.0.carried.load(Ordering::Relaxed)
    }

    /// When so many bytes are through, if those before were through by then.
    fn through(&self, free: Instant, bytes: usize) -> Instant {
        self.0.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        let takes = self.0.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64));
        free.max(Instant::now()) + takes
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

    pub fn port(&self) -> u16 {
        self.address.port()
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
    let mut free = Instant::now();
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let depth = clock.flights() + 1;
        free = clock.through(free, length);
        sleep_until(free + clock.lateness()).await;
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
    let mut free = Instant::now();
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        free = clock.through(free, length);
        // No more is taken from the server than the way takes, else the proxy would be what holds it.
        sleep_until(free).await;
        let (depth, due) = (reached.load(Ordering::SeqCst), free + clock.0.delay + clock.lateness());
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
