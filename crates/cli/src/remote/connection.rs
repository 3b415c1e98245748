//! The connection to a server, and getting it back when it is lost.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use outpost_environment::{Backoff, Connector, ExecutorAddress, Token, Waits};
use outpost_rpc::{LinkError, Peer, PeerOptions};
use outpost_wire::app::Nothing;
use outpost_wire::app::event::Notice;
use outpost_wire::app::journal::ENTRIES;
use outpost_wire::app::session::{ClientCapabilities, ClientInfo, Initialize, InitializeParams};
use outpost_wire::envelope;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{ClientService, HEARD, Routes};
use crate::out::{say, with_causes};

/// Waits between attempts to get a lost connection back.
const WAITS: Waits = Waits { first: Duration::from_millis(100), longest: Duration::from_secs(5) };
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(20);
/// A lost connection that is back sooner is told once, when it is back.
const NOTICEABLE: Duration = Duration::from_secs(2);

/// What routes are told of the connection, as if the server had said so. No method of a server is called that.
pub(crate) const GONE: &str = "connection gone";
pub(crate) const BACK: &str = "connection back";

/// Where a server is, and how long a lost connection to it is tried to get back.
pub(super) struct ServerTarget {
    pub address: ExecutorAddress,
    pub token: Token,
    pub patience: Duration,
}

/// How a connection stands.
enum Standing {
    /// With the number of the link.
    Up(Peer, u64),
    Down,
    /// It was given up, and why.
    Over(String),
}

/// A connection that comes back.
pub(super) struct Connection {
    standing: watch::Receiver<Standing>,
    _supervisor: AbortOnDropHandle<()>,
}

/// A peer, and the standing that it was taken from.
pub(super) struct CurrentPeer {
    pub peer: Peer,
    /// Which link it is the end of; later ones have higher numbers.
    pub number: u64,
    standing: watch::Receiver<Standing>,
}

impl CurrentPeer {
    /// Waits until it is known that this one is lost.
    pub(super) async fn lost(mut self) {
        let _ = self.standing.changed().await;
    }

    /// Waits for something. False if this one was lost before.
    pub(super) async fn holds_until(&mut self, something: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = something => true,
            _ = self.standing.changed() => false,
        }
    }
}

impl Connection {
    pub(super) async fn open(target: ServerTarget, routes: Arc<Routes>) -> anyhow::Result<Self> {
        let link = target.connect(&routes).await?;
        let (sender, standing) = watch::channel(Standing::Up(link.peer.clone(), 1));
        let supervisor = tokio::spawn(supervise(target, routes, link, sender));
        Ok(Self { standing, _supervisor: AbortOnDropHandle::new(supervisor) })
    }

    /// The other side, once there is a connection. Fails when it was given up.
    pub(super) async fn peer(&self) -> anyhow::Result<CurrentPeer> {
        let mut standing = self.standing.clone();
        loop {
            let up = match &*standing.borrow_and_update() {
                Standing::Up(peer, number) => Some((peer.clone(), *number)),
                Standing::Over(why) => bail!("{why}"),
                Standing::Down => None,
            };
            if let Some((peer, number)) = up {
                return Ok(CurrentPeer { peer, number, standing });
            }
            standing.changed().await.context("the connection to the server is closed")?;
        }
    }

    /// Why it was given up, if it was.
    pub(super) fn given_up(&self) -> Option<String> {
        match &*self.standing.borrow() {
            Standing::Over(why) => Some(why.clone()),
            Standing::Up(..) | Standing::Down => None,
        }
    }

    /// Waits until there is no connection.
    pub(super) async fn down(&self) {
        let _ = self.standing.clone().wait_for(|standing| !matches!(standing, Standing::Up(..))).await;
    }

    /// The number of the link that there is, or was last.
    pub(super) fn number(&self) -> u64 {
        match &*self.standing.borrow() {
            Standing::Up(_, number) => *number,
            Standing::Down | Standing::Over(_) => 0,
        }
    }
}

/// One link.
struct ServerLink {
    peer: Peer,
    /// Ends with the link.
    driver: AbortOnDropHandle<()>,
}

async fn supervise(target: ServerTarget, routes: Arc<Routes>, mut link: ServerLink, standing: watch::Sender<Standing>) {
    for number in 2.. {
        let _ = (&mut link.driver).await;
        standing.send_replace(Standing::Down);
        match target.again(&routes).await {
            Ok(next) => {
                link = next;
                standing.send_replace(Standing::Up(link.peer.clone(), number));
                routes.tell_back();
            }
            Err(error) => {
                standing.send_replace(Standing::Over(format!("the connection to {} was lost: {}", target.address, with_causes(&error))));
                routes.close();
                return;
            }
        }
    }
}

impl ServerTarget {
    /// Gets a lost connection back. If that takes long it is told, also while an attempt hangs.
    async fn again(&self, routes: &Arc<Routes>) -> anyhow::Result<ServerLink> {
        let mut trying = std::pin::pin!(self.try_again(routes));
        tokio::select! {
            biased;
            link = &mut trying => return link,
            () = sleep(NOTICEABLE) => {}
        }
        match routes.have_threads() {
            true => routes.tell(GONE),
            false => say(&format!("the connection to {} was lost; trying to get it back", self.address)),
        }
        let link = trying.await?;
        if !routes.have_threads() {
            say(&format!("connected to {} again", self.address));
        }
        Ok(link)
    }

    /// Tries again until the patience is over. What does not pass by waiting ends it at once.
    async fn try_again(&self, routes: &Arc<Routes>) -> anyhow::Result<ServerLink> {
        let lost_at = Instant::now();
        let mut backoff = Backoff::new(WAITS, u64::from(std::process::id()));
        loop {
            let tried = timeout(ATTEMPT, self.connect(routes)).await.unwrap_or_else(|_| Err(anyhow!("it does not answer")));
            let error = match tried {
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            if asks_for_token(&error) {
                return Err(error);
            }
            let wait = backoff.wait();
            if lost_at.elapsed() + wait > self.patience {
                return Err(error.context(format!("it did not come back within {} seconds", self.patience.as_secs())));
            }
            sleep(wait).await;
        }
    }

    async fn connect(&self, routes: &Arc<Routes>) -> anyhow::Result<ServerLink> {
        let name = self.address.to_string();
        let has_none = self.token == Token::None;
        let link = Connector::target(self.address.clone(), self.token.clone()).link().await.map_err(|error| {
            let error = anyhow::Error::new(error);
            let advice = match has_none && asks_for_token(&error) {
                true => ": it asks for a token: pass it in OUTPOST_TOKEN, or name a file with `token_file` in [client] of config.toml",
                false => "",
            };
            error.context(format!("server {name} cannot be reached{advice}"))
        })?;
        let service = Arc::new(ClientService(routes.clone()));
        let (peer, driver) = Peer::new(link, PeerOptions::default(), |_| service);
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            let end = driver.await;
            tracing::debug!(?end, "the connection to the server ended");
        }));
        let opted_out = Notice::METHODS.iter().filter(|method| !HEARD.contains(method)).map(|method| (*method).to_owned()).collect();
        let hello = InitializeParams {
            client_info: ClientInfo { name: "outpost-cli".into(), version: env!("CARGO_PKG_VERSION").into(), title: None },
            capabilities: Some(ClientCapabilities {
                experimental_api: true,
                opt_out_notification_methods: Some(opted_out),
                extensions: Some(json!({ENTRIES: true})),
            }),
        };
        let welcome = peer.call::<Initialize>(&hello).await.with_context(|| format!("{name} does not answer as a server of threads"))?;
        if welcome.server_info.name != "outpost" {
            bail!("{name} is not an Outpost server, but `{}`", welcome.server_info.name);
        }
        peer.admit();
        peer.sink().send(envelope::notification("initialized", &Nothing {}));
        Ok(ServerLink { peer, driver })
    }
}

/// Whether a server refused the token, or the want of one.
fn asks_for_token(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(LinkError::Refused { status: 401, .. })))
}

/// Whether a request comes to the same when it is made twice: one that asks, or one with a key of its own.
pub(super) fn is_repeatable(method: &str) -> bool {
    const HARMLESS: [&str; 6] =
        ["thread/resume", "environment/info", "turn/start", "turn/interrupt", "thread/settings/update", "thread/name/set"];
    method.ends_with("/list") || method.ends_with("/read") || HARMLESS.contains(&method)
}
