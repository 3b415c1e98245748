//! From the name of a method to its handler, in the manner of this dialect: a request is first understood, then it is asked
//! whether the client may send it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use outpost_rpc::HandlerOutcome;
use outpost_rpc::frame::decode_value;
use outpost_rpc::peer::{PeerReply, ResponseFuture};
use outpost_wire::app::AppMethod;
use outpost_wire::app::session::Initialize;
use outpost_wire::envelope::TraceContext;
use outpost_wire::{Fault, Method, RequestId, envelope};
use serde_json::value::RawValue;

use crate::connection::ClientConnection;
use crate::fault;

type Handler = Box<dyn Fn(Arc<ClientConnection>, Sent, Bytes) -> ResponseFuture + Send + Sync>;

/// What a request says besides its method and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub id: RequestId,
    /// What of a distributed trace it belongs to.
    pub trace: Option<TraceContext>,
}

/// All methods that there are.
#[derive(Default)]
pub(crate) struct Table {
    routes: HashMap<&'static str, Handler>,
    /// In the order of registration, for the refusal of others.
    names: Vec<&'static str>,
}

impl Table {
    /// Registers a handler.
    pub(crate) fn on<M, F, Fut>(self, handler: F) -> Self
    where
        M: AppMethod,
        F: Fn(Arc<ClientConnection>, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<M::Output, Fault>> + Send,
    {
        self.on_call::<M, _, _>(move |connection, params| async move { Ok(handler(connection, params).await?.into()) })
    }

    /// Registers a handler that goes on after its answer: what must be told only then waits in [`Outcome::rest`].
    pub(crate) fn on_call<M, F, Fut>(self, handler: F) -> Self
    where
        M: AppMethod,
        F: Fn(Arc<ClientConnection>, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<HandlerOutcome<M::Output>, Fault>> + Send,
    {
        self.on_request::<M, _, _>(move |connection, _, params| handler(connection, params))
    }

    /// Registers a handler that wants to know what else the request says, too.
    pub(crate) fn on_request<M, F, Fut>(mut self, handler: F) -> Self
    where
        M: AppMethod,
        F: Fn(Arc<ClientConnection>, Sent, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<HandlerOutcome<M::Output>, Fault>> + Send,
    {
        let route: Handler = Box::new(move |connection, sent, params| {
            Box::pin(async move {
                let id = sent.id.clone();
                let answer = async {
                    let decoded = decode::<M>(&params)?;
                    admit::<M>(&connection, &params)?;
                    handler(connection, sent, decoded).await
                };
                match answer.await {
                    Ok(HandlerOutcome { output, rest }) => PeerReply { frame: envelope::response(&id, &output), rest },
                    Err(fault) => envelope::error(&id, &fault).into(),
                }
            })
        });
        self.routes.insert(M::NAME, route);
        self.names.push(M::NAME);
        self
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> &[&'static str] {
        &self.names
    }

    pub(crate) fn answer(&self, connection: Arc<ClientConnection>, sent: Sent, method: &str, params: Bytes) -> ResponseFuture {
        match self.routes.get(method) {
            Some(handler) => handler(connection, sent, params),
            None => Box::pin(std::future::ready(envelope::error(&sent.id, &fault::unknown_method(method, &self.names)).into())),
        }
    }
}

fn decode<M: AppMethod>(params: &[u8]) -> Result<M::Params, Fault> {
    if params == b"null" && !M::BARE {
        return Err(fault::invalid("missing field `params`"));
    }
    decode_value(params).map_err(|why| fault::invalid(&why))
}

/// Whether this client may send this now.
fn admit<M: AppMethod>(connection: &ClientConnection, params: &[u8]) -> Result<(), Fault> {
    if M::NAME == <Initialize as Method>::NAME {
        return Ok(());
    }
    let client = connection.client().ok_or_else(fault::not_initialized)?;
    if client.experimental {
        return Ok(());
    }
    if M::EXPERIMENTAL {
        return Err(fault::experimental(M::NAME));
    }
    // An object with members that it cannot have is an object all the same.
    let Ok(members) = serde_json::from_slice::<HashMap<String, &RawValue>>(params) else { return Ok(()) };
    let is_sent = |member: &str| members.get(member).is_some_and(|value| !matches!(value.get(), "null" | "false"));
    if let Some(member) = M::EXPERIMENTAL_MEMBERS.iter().find(|member| is_sent(member)) {
        return Err(fault::experimental(&format!("{}.{member}", M::NAME)));
    }
    if members.get("approvalPolicy").is_some_and(|policy| policy.get().starts_with('{')) {
        return Err(fault::experimental("askForApproval.granular"));
    }
    Ok(())
}
