//! Threads of a running server, over the app protocol: `--server URL`, `[client] server`, and the server of this home.
//!
//! A thread there is mirrored here (`outpost_runtime::mirror`), so that what shows, asks and answers is the same as for a thread that
//! this program drives.

mod connection;
mod mirror;
mod threads;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use outpost_config::Config;
use outpost_environment::{ExecutorAddress, Token};
use outpost_rpc::peer::{PeerRequest, ResponseFuture};
use outpost_rpc::{CallError, Lane, Service, Violation};
use outpost_wire::PathUri;
use outpost_wire::app::AppMethod;
use outpost_wire::app::NoParams;
use outpost_wire::app::environment::{EnvironmentEntry, EnvironmentIdParams, EnvironmentInfo, EnvironmentList, EnvironmentParams};
use serde::Deserialize;
use tokio::sync::{Notify, mpsc, watch};

use crate::ProcessContext;
use crate::home::Home;
use crate::tokens;

use self::connection::{Connection, ServerTarget, is_repeatable};
pub(crate) use connection::BACK;
pub(crate) use mirror::OpenedMirror;
pub(crate) use threads::list_params;

/// How long a lost connection is tried to get back, in seconds, unless the configuration says otherwise.
const PATIENCE: u64 = 600;
/// So many notifications wait to be handled before no more are read.
const WAITING: usize = 4096;

/// What is heard; everything else is opted out of.
const HEARD: [&str; 9] = [
    "thread/entry",
    "thread/closed",
    "thread/tokenUsage/updated",
    "item/agentMessage/delta",
    "item/commandExecution/outputDelta",
    "mcpServer/startupStatus/updated",
    "warning",
    "error",
    "configWarning",
];

/// A connection to a server.
#[derive(Clone)]
pub(crate) struct RemoteServer {
    connection: Arc<Connection>,
    address: String,
    routes: Arc<Routes>,
    /// It runs for this home, on this machine.
    pub is_of_home: bool,
    flag: String,
}

/// A notification about a thread.
pub(crate) struct Notified {
    pub method: String,
    pub params: Bytes,
}

/// Where notifications go, by thread.
#[derive(Default)]
struct Routes {
    threads: Mutex<RouteTable>,
    waiting: AtomicUsize,
    taken: Notify,
    /// The threads that are followed, and the number of the link on which the server was last asked to tell of each.
    followed: watch::Sender<HashMap<String, u64>>,
}

/// A thread that is followed, for as long as it is.
struct FollowedThread {
    routes: Arc<Routes>,
    thread: String,
}

impl FollowedThread {
    /// The server tells of it on this link from now on. Number 0 is none.
    fn is_followed_on(&self, number: u64) {
        self.routes.followed.send_modify(|threads| {
            threads.insert(self.thread.clone(), number);
        });
    }
}

impl Drop for FollowedThread {
    fn drop(&mut self) {
        self.routes.followed.send_modify(|threads| {
            threads.remove(&self.thread);
        });
    }
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    ForConnection,
    /// On a new link a server knows of a thread only once it is followed there: what is asked of it comes after that.
    ForThreads,
}

#[derive(Default)]
struct RouteTable {
    threads: HashMap<String, mpsc::UnboundedSender<Notified>>,
    /// Those of threads that were not opened here: agents of one that was.
    others: Option<mpsc::UnboundedSender<Notified>>,
    is_lost: bool,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, RouteTable> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One notification was handled.
    fn took(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        self.taken.notify_waiters();
    }

    /// Tells the routes of threads of the connection itself.
    fn tell(&self, what: &str) {
        self.lock().threads.values().for_each(|route| self.pass(route, what));
    }

    /// The connection is back. Where threads are followed, the route of the others is told by [`Self::tell_others`] once they are followed
    /// again: the server tells of their agents from then on.
    fn tell_back(&self) {
        self.tell(BACK);
        if !self.have_threads() {
            self.tell_others(BACK);
        }
    }

    fn tell_others(&self, what: &str) {
        self.lock().others.iter().for_each(|route| self.pass(route, what));
    }

    fn pass(&self, route: &mpsc::UnboundedSender<Notified>, what: &str) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if route.send(Notified { method: what.to_owned(), params: Bytes::new() }).is_err() {
            self.took();
        }
    }

    /// Waits until every thread is followed on a link, or a later one.
    async fn all_followed(&self, number: u64) {
        let _ = self.followed.subscribe().wait_for(|threads| threads.values().all(|on| *on >= number)).await;
    }

    fn have_threads(&self) -> bool {
        self.lock().threads.values().any(|route| !route.is_closed())
    }

    /// Nothing will come any more.
    fn close(&self) {
        let mut table = self.lock();
        table.threads.clear();
        table.others = None;
        table.is_lost = true;
    }

    /// Hears of a thread from now on.
    fn of_thread(self: &Arc<Self>, thread: &str) -> FrameRoute {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut table = self.lock();
        if !table.is_lost {
            table.threads.insert(thread.to_owned(), sender);
        }
        FrameRoute { routes: self.clone(), receiver, kept: VecDeque::new() }
    }

    /// Hears of every thread that was not opened here.
    fn of_others(self: &Arc<Self>) -> FrameRoute {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut table = self.lock();
        if !table.is_lost {
            table.others = Some(sender);
        }
        FrameRoute { routes: self.clone(), receiver, kept: VecDeque::new() }
    }
}

/// The receiving end of a route.
pub(crate) struct FrameRoute {
    routes: Arc<Routes>,
    receiver: mpsc::UnboundedReceiver<Notified>,
    /// What was heard while an answer was waited for.
    kept: VecDeque<Notified>,
}

impl FrameRoute {
    /// Nothing once the connection is lost.
    pub(crate) async fn next(&mut self) -> Option<Notified> {
        if let Some(kept) = self.kept.pop_front() {
            return Some(kept);
        }
        let notified = self.receiver.recv().await?;
        self.routes.took();
        Some(notified)
    }

    /// Waits for an answer of the server. What comes meanwhile is kept: answers are read from the same connection, which is not read
    /// any further while too many notifications wait.
    pub(crate) async fn hold<T>(&mut self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                Some(notified) = self.receiver.recv() => {
                    self.routes.took();
                    self.kept.push_back(notified);
                }
            }
        }
    }
}

impl Drop for FrameRoute {
    fn drop(&mut self) {
        self.receiver.close();
        while self.receiver.try_recv().is_ok() {
            self.routes.took();
        }
    }
}

/// The client's end of the connection.
struct ClientService(Arc<Routes>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct About {
    thread_id: Option<String>,
}

impl Service for ClientService {
    fn request(self: Arc<Self>, _request: PeerRequest) -> ResponseFuture {
        // Questions are read from the journal and answered with `thread/approval/answer`.
        Box::pin(std::future::pending())
    }

    fn notification(&self, method: &str, params: &[u8]) -> Result<(), Violation> {
        let about = serde_json::from_slice::<About>(params).ok().and_then(|about| about.thread_id);
        let table = self.0.lock();
        let route = about.and_then(|thread| table.threads.get(&thread)).or(table.others.as_ref());
        if let Some(route) = route {
            self.0.waiting.fetch_add(1, Ordering::AcqRel);
            if route.send(Notified { method: method.to_owned(), params: Bytes::copy_from_slice(params) }).is_err() {
                self.0.took();
            }
        }
        Ok(())
    }

    fn lane(&self, _method: &str) -> Lane {
        Lane::Ordinary
    }

    fn is_settled(&self) -> bool {
        true
    }

    async fn room(&self) {
        loop {
            let taken = self.0.taken.notified();
            if self.0.waiting.load(Ordering::Acquire) < WAITING {
                return;
            }
            taken.await;
        }
    }
}

impl RemoteServer {
    /// The server that this run is for, if the user named one.
    pub(crate) async fn named(own: &ProcessContext) -> anyhow::Result<Option<Self>> {
        let config = Config::read(Home::from_environment().map(|home| home.config()).as_deref(), &own.settings)?.client;
        let Some(url) = own.server.clone().or(config.server).filter(|url| !url.is_empty()) else { return Ok(None) };
        let address: ExecutorAddress =
            url.parse().map_err(|_| anyhow::anyhow!("--server {url}: a server is ws://HOST:PORT, wss://HOST or unix:///PATH"))?;
        let token = match tokens::of_server(&url, config.token_file.as_deref(), own)? {
            Some(token) => {
                own.secrets.register(&token);
                Token::Bearer(token)
            }
            None => Token::None,
        };
        address.check_token(&token)?;
        let patience = Duration::from_secs(config.patience.unwrap_or(PATIENCE));
        let server = Self::connect(ServerTarget { address, token, patience }).await?;
        // What the file says, it says to the next program, too.
        let is_said = own.server.is_some() || own.settings.iter().any(|setting| setting.trim_start().starts_with("client.server"));
        let flag = if is_said { format!(" --server {url}") } else { String::new() };
        Ok(Some(Self { flag, ..server }))
    }

    /// The server that runs for this home, if one does.
    pub(crate) async fn of_home(own: &ProcessContext) -> Option<Self> {
        let path = Home::from_environment()?.seat(&own.variables).ok()?.run.join("app.sock");
        if !path.exists() {
            return None;
        }
        Self::at(&path).await.ok()
    }

    /// The same at a path.
    pub(crate) async fn at(path: &Path) -> anyhow::Result<Self> {
        // A process of the home that is gone does not come back.
        let target = ServerTarget { address: ExecutorAddress::Unix(path.to_owned()), token: Token::None, patience: Duration::ZERO };
        let server = Self::connect(target).await?;
        Ok(Self { is_of_home: true, ..server })
    }

    async fn connect(target: ServerTarget) -> anyhow::Result<Self> {
        let (address, routes) = (target.address.to_string(), Arc::<Routes>::default());
        let connection = Arc::new(Connection::open(target, routes.clone()).await?);
        Ok(Self { connection, address, routes, is_of_home: false, flag: String::new() })
    }

    /// Why the connection was given up, if it was.
    fn given_up(&self) -> Option<String> {
        self.connection.given_up()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// With this behind its verb, another call of this program finds the same server; begins with a blank unless it is empty.
    pub(crate) fn flag(&self) -> &str {
        &self.flag
    }

    pub(crate) async fn call<M: AppMethod>(&self, params: &M::Params) -> anyhow::Result<M::Output>
    where
        M::Params: serde::Serialize,
    {
        Ok(self.ask::<M>(params, Waits::ForConnection).await?.0)
    }

    /// The answer, and the number of the link that it came on.
    async fn ask<M: AppMethod>(&self, params: &M::Params, waits: Waits) -> anyhow::Result<(M::Output, u64)>
    where
        M::Params: serde::Serialize,
    {
        loop {
            let mut current = self.connection.peer().await?;
            let number = current.number;
            if waits == Waits::ForThreads && !current.holds_until(self.routes.all_followed(number)).await {
                continue;
            }
            match current.peer.call::<M>(params).await {
                Err(CallError::Lost) if is_repeatable(M::NAME) => current.lost().await,
                Ok(output) => return Ok((output, number)),
                Err(error) => return Err(self.explained(M::NAME, error)),
            }
        }
    }

    /// Waits for something, but not for a connection that is lost: nothing then.
    async fn while_connected<T>(&self, something: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.connection.down() => None,
            outcome = something => Some(outcome),
        }
    }

    fn explained(&self, method: &str, error: CallError) -> anyhow::Error {
        match error {
            CallError::Lost => {
                anyhow::anyhow!("the connection to {} was lost during `{method}`; it may or may not have happened", self.address)
            }
            CallError::Fault(fault) => anyhow::anyhow!("{}", fault.message),
            error => anyhow::Error::new(error).context(format!("server {}", self.address)),
        }
    }

    /// All environments of the server, joined executors among them.
    pub(crate) async fn environments(&self) -> anyhow::Result<Vec<EnvironmentEntry>> {
        Ok(self.call::<EnvironmentList>(&NoParams {}).await?.data)
    }

    /// The names, with those of all environments in the place of `*`.
    pub(crate) async fn expanded(&self, names: &[String]) -> anyhow::Result<Vec<String>> {
        match names {
            [every] if every == "*" => Ok(self.environments().await?.into_iter().map(|entry| entry.environment_id).collect()),
            names => Ok(names.to_vec()),
        }
    }

    /// `-e ENV[=DIR]`, as the server knows them.
    pub(crate) async fn select(&self, names: &[String]) -> anyhow::Result<Vec<EnvironmentParams>> {
        let known = self.environments().await?;
        let wishes = self.expanded(names).await?;
        let mut chosen = Vec::new();
        for wish in &wishes {
            let (name, directory) = wish.split_once('=').map_or((wish.as_str(), None), |(name, directory)| (name, Some(directory)));
            if known.iter().all(|entry| entry.environment_id != name) {
                let names = known.iter().map(|entry| format!("`{}`", entry.environment_id)).collect::<Vec<_>>().join(", ");
                bail!("{} has no environment `{name}`; there are {names}", self.address);
            }
            let cwd = match directory {
                Some(directory) if directory.starts_with('/') => directory.to_owned(),
                Some(_) => bail!("`{wish}`: the directory must be absolute"),
                None => {
                    let info = self.call::<EnvironmentInfo>(&EnvironmentIdParams { environment_id: name.to_owned() }).await?;
                    let cwd = info.cwd.with_context(|| format!("`{name}` tells no directory; write {name}=/DIRECTORY"))?;
                    PathUri::parse(&cwd).map_or_else(|_| cwd.clone(), |uri| uri.to_syntax())
                }
            };
            chosen.push(EnvironmentParams { environment_id: name.to_owned(), cwd, runtime_workspace_roots: None });
        }
        Ok(chosen)
    }

    /// Hears of a thread from now on.
    fn route(&self, thread: &str) -> FrameRoute {
        self.routes.of_thread(thread)
    }

    /// Hears of every thread that was not opened here: agents of those that were.
    pub(crate) fn others(&self) -> FrameRoute {
        self.routes.of_others()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn flooded(routes: &Arc<Routes>) -> ClientService {
        let service = ClientService(routes.clone());
        for _ in 0..WAITING {
            service.notification("thread/entry", br#"{"threadId":"t"}"#).unwrap();
        }
        assert!(service.room().now_or_never().is_none(), "no more is read");
        service
    }

    #[tokio::test]
    async fn the_connection_is_read_while_an_answer_is_waited_for() {
        let routes = Arc::<Routes>::default();
        let mut route = routes.of_thread("t");
        let service = flooded(&routes);
        // An answer can only come once there is room.
        route.hold(service.room()).now_or_never().unwrap();
        service.notification("thread/closed", br#"{"threadId":"t"}"#).unwrap();
        let mut heard = Vec::new();
        for _ in 0..=WAITING {
            heard.extend(route.next().await.map(|notified| notified.method));
        }
        assert_eq!((heard.len(), heard.last().map(String::as_str)), (WAITING + 1, Some("thread/closed")), "in order, and nothing is lost");
        assert_eq!(routes.waiting.load(Ordering::Acquire), 0);
    }

    /// What agents ask before their thread is followed again is not told: who looks for it earlier misses it.
    #[tokio::test]
    async fn questions_of_agents_are_looked_for_once_their_thread_is_followed_again() {
        let routes = Arc::<Routes>::default();
        let (mut thread, mut others) = (routes.of_thread("t"), routes.of_others());
        let heard = |route: &mut FrameRoute| route.next().now_or_never().flatten().map(|notified| notified.method);
        routes.tell_back();
        assert_eq!((heard(&mut thread).as_deref(), heard(&mut others)), (Some(BACK), None));
        routes.tell_others(BACK);
        assert_eq!(heard(&mut others).as_deref(), Some(BACK));
        drop(thread);
        routes.tell_back();
        assert_eq!(heard(&mut others).as_deref(), Some(BACK), "nothing is followed again");
        assert_eq!(routes.waiting.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn what_is_not_heard_any_more_does_not_count() {
        let routes = Arc::<Routes>::default();
        let route = routes.of_thread("t");
        let service = flooded(&routes);
        drop(route);
        service.room().now_or_never().unwrap();
        service.notification("thread/entry", br#"{"threadId":"t"}"#).unwrap();
        assert_eq!(routes.waiting.load(Ordering::Acquire), 0);
    }
}
