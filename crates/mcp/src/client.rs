//! One connection to one server, and everything that is asked of it. Here and in `http.rs` the library is known; what leaves
//! this file is plain JSON.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outpost_environment::{Environment, ProcessStart, Repeat};
use outpost_wire::SharedError;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{ProcessParams, Terminate};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationCapability, FormElicitationCapability, Implementation, MetaObject, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ReadResourceRequestParams, RequestId, RequestMetaObject, ServerResult,
    UrlElicitationCapability,
};
use rmcp::service::{
    ClientInitializeError, InboundStreamOrigin, NotificationContext, Peer, PeerRequestOptions, RequestContext, RequestHandle, RoleClient,
    RunningService, RunningServiceCancellationToken, ServiceError, ServiceExt,
};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ClientHandler, ErrorData};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::elicitation::{Elicitation, ElicitationAnswer, ElicitationListener, PendingElicitation, ProgressNote};
use crate::http::{EnvironmentHttp, HttpFailure};
use crate::offer::{ServerListing, ToolRequest, ToolResult, usable};
use crate::stdio::StdioServer;
use crate::{McpConnection, McpError, McpFuture, McpLimits, lock, text_of};

/// So many questions of one call may wait for the user; a server that asks more gets no answer.
const QUESTIONS: usize = 16;

/// How long a dead server may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// So much of what a server complains about is told, in characters.
const MOST_SAID: usize = 2000;

/// How a server is reached.
pub enum McpLaunch {
    Stdio { start: Box<ProcessStart>, sandbox: Option<SandboxContext> },
    Http(EnvironmentHttp),
}

/// What can be listed.
#[derive(Clone, Copy)]
enum Catalogue {
    Tools,
    Resources,
    Templates,
}

/// A server that answers.
struct Client {
    server: String,
    limits: McpLimits,
    peer: Peer<RoleClient>,
    calls: Arc<Calls>,
    stdio: Option<StdioServer>,
    listing: Mutex<Arc<ServerListing>>,
    stop: Mutex<Option<RunningServiceCancellationToken>>,
    ended: watch::Receiver<bool>,
}

/// The calls that run on a connection: whom their progress and their questions belong to.
#[derive(Default)]
struct Calls {
    running: Mutex<HashMap<RequestId, Slot>>,
    /// The server said that its tools are others now.
    stale: AtomicBool,
}

struct Slot {
    owner: String,
    token: ProgressToken,
    /// How far the call was when it last said so.
    progress: Option<f64>,
    events: mpsc::UnboundedSender<CallEvent>,
}

enum CallEvent {
    Progress(ProgressNote),
    Question(Value, oneshot::Sender<ElicitationAnswer>),
}

struct Handler(Arc<Calls>);

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation =
            Some(ElicitationCapability::new().with_form(FormElicitationCapability::new()).with_url(UrlElicitationCapability::new()));
        ClientConfig::new(capabilities, Implementation::new("outpost", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        let mut running = lock(&self.0.running);
        // The library handles notifications beside each other. Progress only grows: a note that a later one overtook is old.
        let is_new = |slot: &&mut Slot| slot.token == params.progress_token && slot.progress.is_none_or(|last| last <= params.progress);
        if let Some(slot) = running.values_mut().find(is_new) {
            slot.progress = Some(params.progress);
            let note = ProgressNote { progress: params.progress, total: params.total, message: params.message };
            let _ = slot.events.send(CallEvent::Progress(note));
        }
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.stale.store(true, Ordering::Relaxed);
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let origin = context.extensions.get::<InboundStreamOrigin>();
        let Some(events) = self.0.meant(origin) else {
            tracing::warn!("an MCP server asks a question that belongs to no call, or to calls of several threads: declined");
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        let request = serde_json::to_value(&request).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let (reply, answer) = oneshot::channel();
        if events.send(CallEvent::Question(request, reply)).is_err() {
            return Ok(ElicitResult::new(ElicitationAction::Cancel));
        }
        let answer = tokio::select! {
            answer = answer => answer.unwrap_or(ElicitationAnswer::Cancelled),
            () = context.ct.cancelled() => ElicitationAnswer::Cancelled,
        };
        Ok(match answer {
            ElicitationAnswer::Accepted(Some(content)) => ElicitResult::new(ElicitationAction::Accept).with_content(content),
            ElicitationAnswer::Accepted(None) => ElicitResult::new(ElicitationAction::Accept),
            ElicitationAnswer::Declined => ElicitResult::new(ElicitationAction::Decline),
            ElicitationAnswer::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
        })
    }
}

impl Calls {
    /// Whom a question is meant for: the call on whose stream it came, or else the only one who has calls out. What one user
    /// says must not reach the call of another.
    fn meant(&self, origin: Option<&InboundStreamOrigin>) -> Option<mpsc::UnboundedSender<CallEvent>> {
        let running = lock(&self.running);
        if let Some(InboundStreamOrigin::OutboundRequest(id)) = origin {
            return running.get(id).map(|slot| slot.events.clone());
        }
        let first = running.values().next()?;
        running.values().all(|slot| slot.owner == first.owner).then(|| first.events.clone())
    }
}

/// Takes the call out again, however it ends.
struct Entered<'a> {
    calls: &'a Calls,
    id: RequestId,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        lock(&self.calls.running).remove(&self.id);
    }
}

/// A server that is to be reached.
pub struct ServerOpening<'a> {
    pub server: &'a str,
    pub environment: &'a Environment,
    pub limits: &'a McpLimits,
    pub within: Duration,
    /// It is no longer needed.
    pub stop: &'a CancellationToken,
}

/// Why something did not come to its end.
enum Unfinished {
    Late,
    Stopped,
}

impl<'a> ServerOpening<'a> {
    /// Starts the server, says hello and asks what it offers. Whatever goes wrong, nothing is left of it.
    pub fn run(self, launch: McpLaunch) -> McpFuture<'a, Result<Arc<dyn McpConnection>, McpError>> {
        Box::pin(async move { Ok(Arc::new(self.open(launch).await?) as Arc<dyn McpConnection>) })
    }

    async fn open(self, launch: McpLaunch) -> Result<Client, McpError> {
        let deadline = Instant::now() + self.within;
        let calls = Arc::new(Calls::default());
        let (service, stdio) = match launch {
            McpLaunch::Stdio { start, sandbox } => {
                let (id, program) = (start.id.clone(), start.argv.first().cloned().unwrap_or_default());
                let process = match self.finish(deadline, self.environment.start_within(*start, sandbox)).await {
                    Ok(started) => started.map_err(|error| {
                        self.failed(told(format!("cannot run `{program}` on `{}`: {error}", self.environment.name()), error))
                    })?,
                    Err(unfinished) => {
                        self.kill(id).await;
                        return Err(self.unfinished(unfinished, String::new()));
                    }
                };
                let (stdio, reader, writer) = StdioServer::follow(process, self.limits);
                let transport = AsyncRwTransport::new_client(reader, writer).with_max_line_length(self.limits.message);
                match self.finish(deadline, Handler(calls.clone()).serve(transport)).await {
                    Ok(Ok(service)) => (service, Some(stdio)),
                    Ok(Err(error)) => {
                        let end = stdio.end_within(LAST_WORDS).await;
                        stdio.close().await;
                        let why = format!("{}{}", end.unwrap_or_else(|| unreached(&error)), stdio.said());
                        return Err(self.failed(told(why, error)));
                    }
                    Err(unfinished) => {
                        stdio.close().await;
                        return Err(self.unfinished(unfinished, stdio.said()));
                    }
                }
            }
            McpLaunch::Http(http) => {
                http.check(self.environment).await.map_err(|reason| self.failed(told(reason.to_string(), reason)))?;
                let transport = http.transport(self.environment.clone(), self.limits);
                match self.finish(deadline, Handler(calls.clone()).serve(transport)).await {
                    Ok(Ok(service)) => (service, None),
                    Ok(Err(error)) => return Err(self.failed(told(unreached(&error), error))),
                    Err(unfinished) => return Err(self.unfinished(unfinished, String::new())),
                }
            }
        };
        let connection = Client::new(self.server, self.limits, calls, service, stdio);
        let error = match self.finish(deadline, connection.list()).await {
            Ok(Ok(())) => return Ok(connection),
            Ok(Err(error)) => error,
            Err(unfinished) => self.unfinished(unfinished, connection.stdio.as_ref().map_or_else(String::new, StdioServer::said)),
        };
        connection.close().await;
        Err(error)
    }

    async fn finish<T>(&self, deadline: Instant, work: impl Future<Output = T>) -> Result<T, Unfinished> {
        tokio::select! {
            done = work => Ok(done),
            () = tokio::time::sleep_until(deadline) => Err(Unfinished::Late),
            () = self.stop.cancelled() => Err(Unfinished::Stopped),
        }
    }

    /// A start whose caller is gone may still have its effect.
    async fn kill(&self, process_id: String) {
        let params = ProcessParams { process_id };
        let _ = tokio::time::timeout(Duration::from_secs(5), self.environment.call::<Terminate>(&params, Repeat::Harmless)).await;
    }

    fn failed(&self, reason: SharedError) -> McpError {
        McpError::Start { server: self.server.to_owned(), reason }
    }

    fn unfinished(&self, why: Unfinished, said: String) -> McpError {
        match why {
            Unfinished::Late => McpError::StartTimeout { server: self.server.to_owned(), seconds: self.within.as_secs(), said },
            Unfinished::Stopped => self.failed("it is not wanted any more".into()),
        }
    }
}

impl Client {
    fn new(
        server: &str,
        limits: &McpLimits,
        calls: Arc<Calls>,
        service: RunningService<RoleClient, Handler>,
        stdio: Option<StdioServer>,
    ) -> Self {
        let (peer, stop) = (service.peer().clone(), service.cancellation_token());
        let (told, ended) = watch::channel(false);
        tokio::spawn(async move {
            let _ = service.waiting().await;
            told.send_replace(true);
        });
        let (server, limits) = (server.to_owned(), limits.clone());
        Self { server, limits, peer, calls, stdio, listing: Mutex::default(), stop: Mutex::new(Some(stop)), ended }
    }

    /// Waits until the connection is over, and tells why.
    async fn over(&self) -> String {
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|ended| *ended).await;
        self.why_over().await
    }

    async fn why_over(&self) -> String {
        match &self.stdio {
            Some(stdio) => {
                let end = stdio.end_within(LAST_WORDS).await;
                format!("{}{}", end.unwrap_or_else(|| "its connection was closed".into()), stdio.said())
            }
            None => "its connection was closed".into(),
        }
    }

    async fn close(&self) {
        if let Some(stop) = lock(&self.stop).take() {
            stop.cancel();
        }
        // A server behind HTTP is told that its session is over; it need not answer.
        let mut ended = self.ended.clone();
        let _ = tokio::time::timeout(Duration::from_secs(6), ended.wait_for(|ended| *ended)).await;
        if let Some(stdio) = &self.stdio {
            stdio.close().await;
        }
    }

    /// What the server offers; asked for again if the server said that it has changed.
    async fn listing(&self) -> Arc<ServerListing> {
        if self.calls.stale.swap(false, Ordering::Relaxed)
            && let Err(error) = tokio::time::timeout(Duration::from_secs(10), self.list()).await.unwrap_or(Ok(()))
        {
            tracing::warn!(server = self.server, %error, "the changed tools of an MCP server cannot be listed; the old ones stay");
        }
        lock(&self.listing).clone()
    }

    async fn list(&self) -> Result<(), McpError> {
        let peer = self.peer.peer_info();
        let mut listing = ServerListing::default();
        if let Some(peer) = &peer {
            listing.has_resources = peer.capabilities.resources.is_some();
            listing.info = serde_json::to_value(&**peer).ok().map(|info| info["serverInfo"].clone()).filter(|info| !info.is_null());
            listing.instructions.clone_from(&peer.instructions);
        }
        if peer.is_none_or(|peer| peer.capabilities.tools.is_some()) {
            (listing.tools, listing.left_out) = usable(self.all(Catalogue::Tools).await?, self.limits.tool);
        }
        *lock(&self.listing) = Arc::new(listing);
        Ok(())
    }

    /// All pages of a list, but not without end.
    async fn all(&self, what: Catalogue) -> Result<Vec<Value>, McpError> {
        let (mut all, mut cursor, mut bytes) = (Vec::new(), None, 0);
        for _ in 0..self.limits.pages {
            let (items, next) = match self.page(what, cursor).await {
                Ok(page) => page,
                Err(error) => return Err(self.error(error).await),
            };
            bytes += items.iter().map(|item: &Value| item.to_string().len()).sum::<usize>();
            if bytes > self.limits.listed {
                let reason = format!("it lists more than {} bytes", self.limits.listed);
                return Err(McpError::Nonsense { server: self.server.clone(), reason: reason.into() });
            }
            all.extend(items);
            if all.len() > self.limits.catalogue {
                let reason = format!("it lists more than {} items", self.limits.catalogue);
                return Err(McpError::Nonsense { server: self.server.clone(), reason: reason.into() });
            }
            match next {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
        let reason = format!("its list has more than {} pages", self.limits.pages);
        Err(McpError::Nonsense { server: self.server.clone(), reason: reason.into() })
    }

    async fn page(&self, what: Catalogue, cursor: Option<String>) -> Result<(Vec<Value>, Option<String>), ServiceError> {
        let params = Some(PaginatedRequestParams::default().with_cursor(cursor));
        Ok(match what {
            Catalogue::Tools => {
                let page = self.peer.list_tools(params).await?;
                (page.tools.iter().map(json).collect(), page.next_cursor)
            }
            Catalogue::Resources => {
                let page = self.peer.list_resources(params).await?;
                (page.resources.iter().map(json).collect(), page.next_cursor)
            }
            Catalogue::Templates => {
                let page = self.peer.list_resource_templates(params).await?;
                (page.resource_templates.iter().map(json).collect(), page.next_cursor)
            }
        })
    }

    async fn contents(&self, uri: &str) -> Result<Vec<Value>, McpError> {
        match self.peer.read_resource(ReadResourceRequestParams::new(uri)).await {
            Ok(read) => Ok(read.contents.iter().map(json).collect()),
            Err(error) => Err(self.error(error).await),
        }
    }

    async fn timed<T>(&self, what: &str, work: impl Future<Output = Result<T, McpError>>) -> Result<T, McpError> {
        let time = self.limits.startup_timeout;
        let late = |_| McpError::CallTimeout { server: self.server.clone(), tool: what.to_owned(), seconds: time.as_secs() };
        tokio::time::timeout(time, work).await.map_err(late)?
    }

    /// Calls a tool. While its questions wait for the user, the time that it has does not run.
    async fn call(&self, request: ToolRequest<'_>, listener: &dyn ElicitationListener) -> Result<ToolResult, McpError> {
        let mut params = CallToolRequestParams::new(request.tool.to_owned());
        params.arguments = request.arguments;
        let mut options = PeerRequestOptions::no_options();
        if let Some(meta) = request.meta {
            options = options.with_meta(RequestMetaObject(MetaObject(meta)));
        }
        let asked = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let mut handle = match self.peer.send_cancellable_request(asked, options).await {
            Ok(handle) => handle,
            Err(error) => return Err(self.error(error).await),
        };
        let (sender, mut events) = mpsc::unbounded_channel();
        let slot = Slot { owner: listener.owner().to_owned(), token: handle.progress_token.clone(), progress: None, events: sender };
        lock(&self.calls.running).insert(handle.id.clone(), slot);
        let entered = Entered { calls: &self.calls, id: handle.id.clone() };
        let answer = tokio::select! {
            answer = self.await_answer(&mut handle, &mut events, request.timeout, listener) => answer,
            () = request.cancel.cancelled() => None,
        };
        // Notifications are handled beside the answer that came after them; they need a moment.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        while let Ok(CallEvent::Progress(note)) = events.try_recv() {
            listener.progress(note);
        }
        drop(entered);
        match answer {
            Some(Ok(ServerResult::CallToolResult(result))) => Ok(ToolResult {
                content: result.content.iter().map(json).collect(),
                structured: result.structured_content,
                is_error: result.is_error.unwrap_or(false),
                meta: result.meta.as_ref().map(json),
            }),
            Some(Ok(_)) => Err(McpError::Nonsense {
                server: self.server.clone(),
                reason: "it answered a call with something else than a result".into(),
            }),
            Some(Err(error)) => Err(self.error(error).await),
            None => {
                let _ = tokio::time::timeout(LAST_WORDS, handle.cancel(None)).await;
                let (server, tool) = (self.server.clone(), request.tool.to_owned());
                if request.cancel.is_cancelled() {
                    return Err(McpError::Cancelled { server, tool });
                }
                Err(McpError::CallTimeout { server, tool, seconds: request.timeout.as_secs() })
            }
        }
    }

    /// The answer; nothing if the time is up.
    async fn await_answer(
        &self,
        handle: &mut RequestHandle<RoleClient>,
        events: &mut mpsc::UnboundedReceiver<CallEvent>,
        timeout: Duration,
        listener: &dyn ElicitationListener,
    ) -> Option<Result<ServerResult, ServiceError>> {
        let mut deadline = Instant::now() + timeout;
        let mut waiting: VecDeque<(Value, oneshot::Sender<ElicitationAnswer>)> = VecDeque::new();
        let mut asking: Option<(PendingElicitation, oneshot::Sender<ElicitationAnswer>, Instant)> = None;
        loop {
            if asking.is_none()
                && let Some((request, reply)) = waiting.pop_front()
            {
                let question = listener.ask(Elicitation { server: self.server.clone(), request });
                asking = Some((question, reply, Instant::now()));
            }
            let is_asking = asking.is_some();
            let answered = async {
                match &mut asking {
                    Some((question, ..)) => question.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // What was told before the answer is heard before it.
                biased;
                Some(item) = events.recv() => match item {
                    CallEvent::Progress(note) => listener.progress(note),
                    CallEvent::Question(request, reply) if waiting.len() < QUESTIONS => waiting.push_back((request, reply)),
                    CallEvent::Question(_, reply) => drop(reply.send(ElicitationAnswer::Cancelled)),
                },
                answer = &mut handle.rx => return Some(answer.unwrap_or(Err(ServiceError::TransportClosed))),
                answer = answered => {
                    if let Some((_, reply, since)) = asking.take() {
                        deadline += since.elapsed();
                        let _ = reply.send(answer);
                    }
                }
                () = tokio::time::sleep_until(deadline), if !is_asking => return None,
            }
        }
    }

    async fn error(&self, error: ServiceError) -> McpError {
        let server = self.server.clone();
        match error {
            ServiceError::McpError(error) => {
                let detail = error.data.as_ref().map(|data| format!(" ({})", text_of(data))).unwrap_or_default();
                McpError::Refused { server, message: clipped(format!("{}{detail}", error.message)) }
            }
            ServiceError::TransportClosed | ServiceError::Cancelled { .. } => {
                McpError::Ended { server, reason: self.why_over().await.into() }
            }
            ServiceError::TransportSend(error) => {
                let why = if self.stdio.is_some() { self.why_over().await } else { chain(&*error.error) };
                McpError::Ended { server, reason: SharedError::worded(why, error.error) }
            }
            ServiceError::UnexpectedResponse => McpError::Nonsense { server, reason: "its answer is not what the protocol says".into() },
            other => McpError::Nonsense { server, reason: told(other.to_string(), other) },
        }
    }
}

impl McpConnection for Client {
    fn room(&self) -> usize {
        self.limits.tools
    }

    fn over(&self) -> McpFuture<'_, String> {
        Box::pin(self.over())
    }

    fn is_over(&self) -> bool {
        *self.ended.borrow() || self.stdio.as_ref().is_some_and(|stdio| stdio.end().is_some())
    }

    fn close(&self) -> McpFuture<'_, ()> {
        Box::pin(self.close())
    }

    fn listing(&self) -> McpFuture<'_, Arc<ServerListing>> {
        Box::pin(self.listing())
    }

    fn resources(&self) -> McpFuture<'_, Result<Vec<Value>, McpError>> {
        Box::pin(self.timed("resources/list", self.all(Catalogue::Resources)))
    }

    fn resource_templates(&self) -> McpFuture<'_, Result<Vec<Value>, McpError>> {
        Box::pin(self.timed("resources/templates/list", self.all(Catalogue::Templates)))
    }

    fn read<'a>(&'a self, uri: &'a str) -> McpFuture<'a, Result<Vec<Value>, McpError>> {
        Box::pin(self.timed("resources/read", self.contents(uri)))
    }

    fn call<'a>(&'a self, request: ToolRequest<'a>, listener: &'a dyn ElicitationListener) -> McpFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(self.call(request, listener))
    }
}

/// An error in words that are not too long.
fn told(words: String, error: impl Into<Box<dyn Error + Send + Sync>>) -> SharedError {
    SharedError::worded(clipped(words), error)
}

/// What a server says of itself is for people and models, who do not read without end.
fn clipped(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MOST_SAID) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Why a server cannot be spoken to, without the names of types that the library puts before it.
fn unreached(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => match error.error.downcast_ref::<HttpFailure>() {
            Some(HttpFailure::AuthRequired(_)) => {
                "it asks for a token (401); name the variable of the executor that holds one with `bearer_token_env_var`".into()
            }
            Some(HttpFailure::Client(error)) => chain(error),
            _ => chain(&*error.error),
        },
        ClientInitializeError::JsonRpcError(error) => format!("it refuses to begin: {}", error.message),
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_)
        | ClientInitializeError::ConflictInitResponseId(..)
        | ClientInitializeError::UncorrelatedErrorResponse { .. } => "it does not answer `initialize` as the protocol says".into(),
        other => chain(other),
    }
}

/// An error with what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = inner.source();
    }
    text
}

fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
