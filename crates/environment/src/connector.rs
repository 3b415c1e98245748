//! Ways to make a link to an executor.
//!
//! A connector is asked for a link whenever one is needed, and may be asked again. What is behind it, and who pays for
//! it, is not its business.

mod command;
mod joined;
mod journey;
mod target;
mod tls;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outpost_rpc::{Link, LinkError};
use outpost_wire::SharedError;
use outpost_wire::exec::session::CallerContext;

pub(crate) use command::withhold_secrets;
pub use command::{CommandLine, Complaints, NoExecutor, TAKEN_OVER_EXIT};
pub use joined::{JoinedLinks, LinkRefused};
pub(crate) use journey::marker;
pub use journey::{Carrier, Journey, Means};
pub use target::{ExecutorAddress, TargetError, Token};
pub use tls::dial;

use crate::pending::Provision;

/// Makes a link whenever one is needed.
#[derive(Clone)]
pub struct Connector {
    name: String,
    make: LinkSource,
    nature: Nature,
    /// In whose place commands run there.
    caller: Option<Arc<CallerContext>>,
}

/// What else is to be known about the links of a connector.
#[derive(Clone)]
enum Nature {
    Plain,
    /// The same, over a network.
    Dialled,
    /// Whatever is behind a command ends with it, unless there is a keeper.
    Command,
    /// The same, through places that may have to be started, prepared and logged in to.
    Journey(Arc<Journey>),
    /// Links come from outside, whenever they come.
    Joined(Arc<joined::LinkQueue>),
    /// It cannot be connected to before it is provided.
    Pending(Arc<Provision>),
}

/// Why there is no connection to an executor that has never dialled in.
pub const FIRST_CONNECTION: &str = "waiting for the first connection";

/// A link, and how to tell whether anything comes in on it.
pub(crate) struct MonitoredLink {
    pub link: Link,
    /// Where the end of the other side does not show by itself.
    pub pulse: Option<Pulse>,
}

impl From<Link> for MonitoredLink {
    fn from(link: Link) -> Self {
        Self { link, pulse: None }
    }
}

/// Counts what comes in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Asked with the session that is to be resumed, if one is.
type LinkSource = Arc<dyn Fn(Option<&str>) -> Connecting + Send + Sync>;

type Connecting = Pin<Box<dyn Future<Output = Result<MonitoredLink, LinkError>> + Send>>;

impl Connector {
    /// Any other way; the closure is called for every attempt.
    pub fn new<F, Fut>(name: impl Into<String>, make: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Link, LinkError>> + Send + 'static,
    {
        Self::with_nature(name.into(), Nature::Plain, move || {
            let link = make();
            async move { Ok(link.await?.into()) }
        })
    }

    fn with_nature<F, Fut>(name: String, nature: Nature, make: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<MonitoredLink, LinkError>> + Send + 'static,
    {
        Self { name, make: Arc::new(move |_| Box::pin(make())), nature, caller: None }
    }

    /// The same where the way depends on the session that is to be resumed, if one is.
    pub fn for_session<F, Fut>(name: impl Into<String>, make: F) -> Self
    where
        F: Fn(Option<&str>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Link, LinkError>> + Send + 'static,
    {
        let make = move |session: Option<&str>| -> Connecting {
            let link = make(session);
            Box::pin(async move { Ok(link.await?.into()) })
        };
        Self { name: name.into(), make: Arc::new(make), nature: Nature::Plain, caller: None }
    }

    /// Commands run there in the place of this program.
    pub fn in_place_of(mut self, caller: CallerContext) -> Self {
        self.caller = Some(Arc::new(caller));
        self
    }

    pub(crate) fn caller(&self) -> Option<&CallerContext> {
        self.caller.as_deref()
    }

    /// An executor that listens. The token is only ever sent to websockets.
    pub fn target(target: ExecutorAddress, token: Token) -> Self {
        Self::dialling(target.to_string(), token, move || target.clone())
    }

    /// The same, where the address says something else every time.
    pub fn dialling(name: impl Into<String>, token: Token, address: impl Fn() -> ExecutorAddress + Send + Sync + 'static) -> Self {
        let tls = Arc::new(tls::Tls::default());
        Self::with_nature(name.into(), Nature::Dialled, move || {
            let (target, token, tls) = (address(), token.clone(), tls.clone());
            async move { Ok(target::connect(&target, &token, &tls).await?.into()) }
        })
    }

    /// A shell command whose standard input and output are an executor. It lives as long as the link.
    pub fn command(command: impl Into<String>) -> Self {
        Self::program(CommandLine::shell(command))
    }

    /// A program whose standard input and output are an executor. It lives as long as the link.
    pub fn program(line: CommandLine) -> Self {
        let line = Arc::new(line);
        Self::with_nature(line.to_string(), Nature::Command, move || {
            let line = line.clone();
            async move { command::start(&line).await }
        })
    }

    /// A way through ssh, jobs and containers. What is missing on it is started, copied and set up.
    pub fn route(journey: Journey) -> Self {
        let journey = Arc::new(journey);
        Self::with_nature(journey.route.to_string(), Nature::Journey(journey.clone()), move || {
            let journey = journey.clone();
            async move { journey.link().await }
        })
    }

    /// Links that executors bring: they come through the door.
    pub fn joined(name: impl Into<String>) -> (Self, JoinedLinks) {
        let slot = Arc::new(joined::LinkQueue::default());
        let door = JoinedLinks::new(&slot);
        let taken = slot.clone();
        let connector = Self::with_nature(name.into(), Nature::Joined(slot), move || {
            let taken = taken.clone();
            async move { Ok(taken.take().await.into()) }
        });
        (connector, door)
    }

    /// An environment that is announced before it exists; connecting waits until it is provided.
    pub(crate) fn pending(name: impl Into<String>, provision: Arc<Provision>) -> Self {
        let provided = provision.clone();
        Self::with_nature(name.into(), Nature::Pending(provision), move || {
            let connector = provided.connector();
            async move {
                match connector {
                    Some(connector) => connector.connect(None).await,
                    None => Err(LinkError::Protocol("it is not provided yet".into())),
                }
            }
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// One link, for callers that do not want the environment's own session.
    pub async fn link(&self) -> Result<Link, LinkError> {
        Ok(self.connect(None).await?.link)
    }

    /// A link, and for a session that is to be resumed one to where that is.
    pub(crate) async fn connect(&self, session: Option<&str>) -> Result<MonitoredLink, LinkError> {
        (self.make)(session).await
    }

    /// Whether sessions outlive the link only with a keeper on the other side.
    pub(crate) fn needs_keeper(&self) -> bool {
        match &self.nature {
            Nature::Command | Nature::Journey(_) => true,
            Nature::Pending(provision) => provision.connector().is_some_and(|connector| connector.needs_keeper()),
            Nature::Plain | Nature::Dialled | Nature::Joined(_) => false,
        }
    }

    /// Whether its executor is certainly on this machine.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.nature, Nature::Plain)
    }

    /// Waits until connecting makes sense; says why it never will.
    pub(crate) async fn provided(&self) -> Result<(), SharedError> {
        match &self.nature {
            Nature::Pending(provision) => provision.wait().await,
            Nature::Plain | Nature::Dialled | Nature::Command | Nature::Journey(_) | Nature::Joined(_) => Ok(()),
        }
    }

    /// Whether its executor has never dialled in.
    pub(crate) fn waits_for_the_first(&self) -> bool {
        match &self.nature {
            Nature::Joined(slot) => !slot.is_known(),
            Nature::Plain | Nature::Dialled | Nature::Command | Nature::Journey(_) | Nature::Pending(_) => false,
        }
    }

    /// Waits until an executor has dialled in; for ever where executors do not dial in.
    pub(crate) async fn arrival(&self) {
        match &self.nature {
            Nature::Joined(slot) => slot.filled().await,
            Nature::Plain | Nature::Dialled | Nature::Command | Nature::Journey(_) | Nature::Pending(_) => std::future::pending().await,
        }
    }

    /// Waits until a user has logged in; for ever where no login exists.
    pub(crate) async fn login(&self) {
        match &self.nature {
            Nature::Journey(journey) => journey.login().await,
            Nature::Plain | Nature::Dialled | Nature::Command | Nature::Joined(_) | Nature::Pending(_) => std::future::pending().await,
        }
    }

    /// Sees to it that what was started for it is stopped after being unused for so long, even if this program has ended by then.
    pub(crate) fn stop_later(&self, idle: Duration) {
        if let Nature::Journey(journey) = &self.nature {
            journey.stop_later(idle);
        }
    }

    /// Stops what was started for it, unless another program still uses it.
    pub(crate) async fn stop(&self) {
        if let Nature::Journey(journey) = &self.nature {
            journey.stop().await;
        }
    }
}
