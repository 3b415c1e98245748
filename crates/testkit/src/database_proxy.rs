//! Stands between a program and a database: notes which statements are run, cuts connections, and lets them die without a word.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// A socket that leads to the database of a test.
pub struct DatabaseProxy {
    directory: TempDir,
    database: String,
    shared: Arc<Shared>,
}

struct Shared {
    statements: Mutex<Vec<String>>,
    /// Whether connections are let through.
    open: watch::Sender<bool>,
    /// Whether what the database says is held back.
    held: watch::Sender<bool>,
    /// Connections with a number up to this one say nothing any more, and stay open.
    frozen: AtomicU64,
    next: AtomicU64,
}

impl DatabaseProxy {
    /// `url` is that of a [`crate::postgres::Database`].
    pub fn start(url: &str) -> Self {
        let (server, database) = url.strip_prefix("postgres://postgres@").unwrap().split_once('/').unwrap();
        let socket = PathBuf::from(server.replace("%2F", "/")).join(".s.PGSQL.5432");
        let directory = tempfile::Builder::new().prefix("px").tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let shared = Arc::new(Shared {
            statements: Mutex::default(),
            open: watch::Sender::new(true),
            held: watch::Sender::new(false),
            frozen: AtomicU64::new(0),
            next: AtomicU64::new(0),
        });
        let own = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut open = own.open.subscribe();
                if !*open.borrow() {
                    continue;
                }
                let Ok(server) = UnixStream::connect(&socket).await else { continue };
                let number = own.next.fetch_add(1, Ordering::SeqCst) + 1;
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                let own = own.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = requests(&own, number, from_client, to_server) => {}
                        () = answers(&own, number, from_server, to_client) => {}
                        _ = open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { directory, database: database.to_owned(), shared }
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/{}", self.directory.path().display().to_string().replace('/', "%2F"), self.database)
    }

    /// The statements that were run since this was last asked, in their order.
    pub fn take_statements(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.statements.lock().unwrap())
    }

    /// From now on nothing comes through the connections that there are; new ones work.
    pub fn freeze(&self) {
        self.shared.frozen.store(self.shared.next.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Holds back what the database says, as if it were slow, until [`Self::resume`].
    pub fn hold(&self) {
        self.shared.held.send_replace(true);
    }

    pub fn resume(&self) {
        self.shared.held.send_replace(false);
    }

    /// Cuts what is connected, and lets no connection through until [`Self::mend`].
    pub fn cut(&self) {
        self.shared.open.send_replace(false);
    }

    pub fn mend(&self) {
        self.shared.open.send_replace(true);
    }

    pub fn connections(&self) -> u64 {
        self.shared.next.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn is_frozen(&self, number: u64) -> bool {
        number <= self.frozen.load(Ordering::SeqCst)
    }
}

async fn answers(shared: &Shared, number: u64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if shared.is_frozen(number) {
            std::future::pending::<()>().await;
        }
        let _ = shared.held.subscribe().wait_for(|held| !held).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn requests(shared: &Shared, number: u64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut prepared: HashMap<Vec<u8>, String> = HashMap::new();
    let mut bound = String::new();
    // The first message has no type.
    let mut is_first = true;
    loop {
        let mut head = [0; 5];
        let start = usize::from(is_first);
        if from.read_exact(&mut head[start..]).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let mut body = vec![0; length - 4];
        if from.read_exact(&mut body).await.is_err() {
            return;
        }
        if shared.is_frozen(number) {
            continue;
        }
        if !is_first {
            let mut texts = body.split(|byte| *byte == 0).map(<[u8]>::to_vec);
            let mut text = || texts.next().unwrap_or_default();
            match head[0] {
                b'P' => drop(prepared.insert(text(), String::from_utf8_lossy(&text()).into_owned())),
                b'B' => {
                    let _portal = text();
                    bound = prepared.get(&text()).cloned().unwrap_or_default();
                }
                b'E' => shared.statements.lock().unwrap().push(bound.clone()),
                b'Q' => shared.statements.lock().unwrap().push(String::from_utf8_lossy(&text()).into_owned()),
                _ => {}
            }
        }
        if to.write_all(&head[start..]).await.is_err() || to.write_all(&body).await.is_err() {
            return;
        }
        is_first = false;
    }
}
