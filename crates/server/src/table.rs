//! From the name of a method to its handler, in the manner of this dialect: a request is first understood, then it is asked
//! whether the client may send it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use outpost_rpc::HandlerOutcome;
use outpost_rpc::frame::decoded;
use outpost_rpc::peer::{PeerReply, ResponseFuture};
use outpost_wire::app::AppMethod;
use outpost_wire::app::session::Initialize;
use outpost_wire::envelope::TraceContext;
use outpost_wire::{Fault, Method, RequestId, envelope};
use serde_json::value::RawValue;

use crate::connection::ClientConnection;
use crate::fault;

/// What differs between methods: reading the parameters, doing it, and writing the answer down.
type Handler = Arc<dyn Fn(Arc<ClientConnection>, Sent, &[u8], &Gate) -> Result<Running, Fault> + Send + Sync>;

/// A handler at work.
type Running = Pin<Box<dyn Future<Output = Result<PeerReply, Fault>> + Send>>;

/// What a request says besides its method and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub id: RequestId,
    /// What of a distributed trace it belongs to.
    pub trace: Option<TraceContext>,
}

/// What a client must be to send a method.
#[derive(Debug, Clone, Copy)]
struct Gate {
    method: &'static str,
    is_bare: bool,
    is_experimental: bool,
    experimental_members: &'static [&'static str],
}

/// All methods that there are.
#[derive(Default)]
pub(crate) struct Table {
    routes: HashMap<&'static str, (Gate, Handler)>,
    /// In the order of registration, for the refusal of others.
    names: Vec<&'static str>,
}

impl Table {
    /// Registers a handler.
    pub(crate) fn on<M, F, Fut>(self, handler: F) -> Self
    where
        M: AppMethod,
        F: Fn(Arc<ClientConnection>, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<M::Output, Fault>> + Send + 'static,
    {
        self.with::<M>(Arc::new(move |connection, sent, params, gate| {
            let running = handler(connection.clone(), gate.pass::<M>(&connection, params)?);
            Ok(Box::pin(async move { Ok(envelope::response(&sent.id, &running.await?).into()) }))
        }))
    }

    /// Registers a handler that goes on after its answer: what must be told only then waits in [`HandlerOutcome::rest`].
    pub(crate) fn on_call<M, F, Fut>(self, handler: F) -> Self
    where
        M: AppMethod,
        F: Fn(Arc<ClientConnection>, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<HandlerOutcome<M::Output>, Fault>> + Send + 'static,
    {
        self.on_request::<M, _, _>(move |connection, _, params| handler(connection, params))
    }

    /// Registers a handler that wants to know what else the request says, too.
    pub(crate) fn on_request<M, F, Fut>(self, handler: F) -> Self
    where
        M: AppMethod,
        F: Fn(Arc<ClientConnection>, Sent, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<HandlerOutcome<M::Output>, Fault>> + Send + 'static,
    {
        self.with::<M>(Arc::new(move |connection, sent, params, gate| {
            let params = gate.pass::<M>(&connection, params)?;
            let id = sent.id.clone();
            let running = handler(connection, sent, params);
            Ok(Box::pin(async move {
                let HandlerOutcome { output, rest } = running.await?;
                Ok(PeerReply { frame: envelope::response(&id, &output), rest })
            }))
        }))
    }

    fn with<M: AppMethod>(mut self, handler: Handler) -> Self {
        let gate =
            Gate { method: M::NAME, is_bare: M::BARE, is_experimental: M::EXPERIMENTAL, experimental_members: M::EXPERIMENTAL_MEMBERS };
        self.routes.insert(M::NAME, (gate, handler));
        self.names.push(M::NAME);
        self
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> &[&'static str] {
        &self.names
    }

    pub(crate) fn answer(&self, connection: Arc<ClientConnection>, sent: Sent, method: &str, params: Bytes) -> ResponseFuture {
        match self.routes.get(method) {
            Some((gate, handler)) => Box::pin(run(*gate, handler.clone(), connection, sent, params)),
            None => Box::pin(std::future::ready(envelope::error(&sent.id, &fault::unknown_method(method, &self.names)).into())),
        }
    }
}

/// The same for all methods, so that it is compiled once and not for each of them.
async fn run(gate: Gate, handler: Handler, connection: Arc<ClientConnection>, sent: Sent, params: Bytes) -> PeerReply {
    let id = sent.id.clone();
    let begun = handler(connection, sent, &params, &gate);
    drop(params);
    let answer = match begun {
        Ok(running) => running.await,
        Err(fault) => Err(fault),
    };
    answer.unwrap_or_else(|fault| envelope::error(&id, &fault).into())
}

impl Gate {
    /// The parameters, if they can be read and this client may send them now. What cannot be read is told first.
    fn pass<M: AppMethod>(&self, connection: &ClientConnection, params: &[u8]) -> Result<M::Params, Fault> {
        if params == b"null" && !self.is_bare {
            return Err(fault::invalid("missing field `params`"));
        }
        let read = decoded(M::read_params(params)).map_err(fault::invalid)?;
        self.admit(connection, params)?;
        Ok(read)
    }

    /// Whether this client may send this now.
    fn admit(&self, connection: &ClientConnection, params: &[u8]) -> Result<(), Fault> {
        if self.method == <Initialize as Method>::NAME {
            return Ok(());
        }
        let client = connection.client().ok_or_else(fault::not_initialized)?;
        if client.experimental {
            return Ok(());
        }
        if self.is_experimental {
            return Err(fault::experimental(self.method));
        }
        // An object with members that it cannot have is an object all the same.
        let Ok(members) = serde_json::from_slice::<HashMap<String, &RawValue>>(params) else { return Ok(()) };
        let is_sent = |member: &str| members.get(member).is_some_and(|value| !matches!(value.get(), "null" | "false"));
        if let Some(member) = self.experimental_members.iter().find(|member| is_sent(member)) {
            return Err(fault::experimental(&format!("{}.{member}", self.method)));
        }
        if members.get("approvalPolicy").is_some_and(|policy| policy.get().starts_with('{')) {
            return Err(fault::experimental("askForApproval.granular"));
        }
        Ok(())
    }
}
