//! One channel of the database's notes. A connection that dies without a word is noticed, because it is tried when nothing comes.

use std::future::poll_fn;
use std::time::Duration;

use outpost_wire::SharedError;
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use super::address::Address;
use super::unreached;

/// After so long without a note the connection is tried.
const QUIET: Duration = Duration::from_secs(15);
/// How long it may take until a connection is made and listens: one that hangs half-way would be waited for without end.
const CONNECT: Duration = Duration::from_secs(10);
const PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What is heard on a channel.
pub(super) enum Heard {
    Note(String),
    /// The connection was lost, or is there again: notes may have been missed.
    Gap,
}

/// Tells what is heard, for as long as this future is polled. Connects again by itself.
pub(super) async fn listen(address: Address, channel: &'static str, first: Option<Listener>, mut tell: impl FnMut(Heard)) {
    let (mut listener, mut pause) = (first, PATIENCE.0);
    loop {
        if let Some(mut listener) = listener.take() {
            pause = PATIENCE.0;
            while let Some(note) = listener.next().await {
                tell(Heard::Note(note));
            }
            tell(Heard::Gap);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PATIENCE.1);
        match Listener::connect(&address, channel).await {
            Ok(again) => {
                tell(Heard::Gap);
                listener = Some(again);
            }
            Err(error) => tracing::debug!(%error, channel, "notes of the database are not heard"),
        }
    }
}

pub(super) struct Listener {
    /// Dropping it ends the connection.
    client: tokio_postgres::Client,
    notes: tokio::sync::mpsc::UnboundedReceiver<String>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    pub(super) async fn connect(address: &Address, channel: &str) -> Result<Self, SharedError> {
        let connecting = tokio::time::timeout(CONNECT, Self::connect_to(address, channel));
        connecting.await.map_err(SharedError::new)?
    }

    async fn connect_to(address: &Address, channel: &str) -> Result<Self, SharedError> {
        let (client, mut connection) = address.config.connect(address.encryption.clone()).await.map_err(unreached)?;
        let (sender, notes) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(note) = message
                    && sender.send(note.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let listener = Self { client, notes, task };
        listener.client.batch_execute(&format!("listen {channel}")).await.map_err(unreached)?;
        Ok(listener)
    }

    /// The next note; nothing once the connection is over.
    async fn next(&mut self) -> Option<String> {
        loop {
            match tokio::time::timeout(QUIET, self.notes.recv()).await {
                Ok(note) => return note,
                // A connection that died without a word would be listened to for ever.
                Err(_) => tokio::time::timeout(QUIET, self.client.batch_execute("")).await.ok()?.ok()?,
            }
        }
    }
}
