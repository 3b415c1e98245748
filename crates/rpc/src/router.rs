//! From the name of a method to its handler.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use outpost_wire::envelope::{self, TraceContext};
use outpost_wire::{Fault, Method, fault};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tracing::{Instrument, Span};

use crate::frame;
use crate::peer::{Lanes, PeerReply, PeerRequest, ResponseFuture, Rest};

/// How the requests of one link run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// One after the other.
    InOrder,
    /// Requests start in arrival order; one that waits steps aside.
    StepAside,
    /// Two lanes with so many permits each.
    Lanes(NonZeroUsize),
}

impl Dispatch {
    pub(crate) fn lanes(self) -> Lanes {
        let lane = |permits: usize| Some(Arc::new(Semaphore::new(permits)));
        match self {
            Self::StepAside => Lanes { control: None, ordinary: None },
            Self::Lanes(permits) => Lanes { control: lane(permits.get()), ordinary: lane(permits.get()) },
            Self::InOrder => {
                let only = lane(1);
                Lanes { control: only.clone(), ordinary: only }
            }
        }
    }
}

/// Requests that must get through while ordinary ones wait have a lane of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Control,
    Ordinary,
}

type Handler<C> = Box<dyn Fn(Arc<C>, PeerRequest) -> ResponseFuture + Send + Sync>;

/// Handlers by method, for connections with the context `C`.
pub struct Router<C> {
    routes: HashMap<&'static str, Route<C>>,
}

struct Route<C> {
    lane: Lane,
    handler: Handler<C>,
}

impl<C: Send + Sync + 'static> Default for Router<C> {
    fn default() -> Self {
        Self { routes: HashMap::new() }
    }
}

/// Everything that a handler can know about a request.
pub struct RequestContext<P> {
    pub params: P,
    pub trace: Option<TraceContext>,
}

/// What a handler answers, and what it still has to tell afterwards.
pub struct HandlerOutcome<O> {
    pub output: O,
    pub rest: Option<Rest>,
}

impl<O> From<O> for HandlerOutcome<O> {
    fn from(output: O) -> Self {
        Self { output, rest: None }
    }
}

impl<C: Send + Sync + 'static> Router<C> {
    /// Registers a handler. `admit` is asked before the parameters are looked at.
    pub fn on<M, F, Fut>(self, lane: Lane, admit: fn(&C) -> Result<(), Fault>, handler: F) -> Self
    where
        M: Method,
        F: Fn(Arc<C>, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<M::Output, Fault>> + Send,
    {
        self.on_call::<M, _, _>(lane, admit, move |context, call| async move { Ok(handler(context, call.params).await?.into()) })
    }

    /// Registers a handler that wants to know more than the parameters, or goes on after its answer.
    pub fn on_call<M, F, Fut>(mut self, lane: Lane, admit: fn(&C) -> Result<(), Fault>, handler: F) -> Self
    where
        M: Method,
        F: Fn(Arc<C>, RequestContext<M::Params>) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<HandlerOutcome<M::Output>, Fault>> + Send,
    {
        let handler: Handler<C> = Box::new(move |context, request| {
            let PeerRequest { id, params, trace, .. } = request;
            let span = span(M::NAME, trace.as_ref());
            let answer = async move {
                let answer = async {
                    admit(&context)?;
                    let params = decode(params)?;
                    handler(context, RequestContext { params, trace }).await
                };
                match answer.await {
                    Ok(HandlerOutcome { output, rest }) => PeerReply { frame: envelope::response(&id, &output), rest },
                    Err(fault) => envelope::error(&id, &fault).into(),
                }
            };
            Box::pin(answer.instrument(span))
        });
        self.routes.insert(M::NAME, Route { lane, handler });
        self
    }

    pub fn lane(&self, method: &str) -> Lane {
        self.routes.get(method).map_or(Lane::Control, |route| route.lane)
    }

    /// The answer to a request; `unknown` words the refusal of an unregistered method.
    pub fn answer(&self, context: Arc<C>, request: PeerRequest, unknown: impl FnOnce(&str) -> String) -> ResponseFuture {
        match self.routes.get(request.method.as_str()) {
            Some(route) => (route.handler)(context, request),
            None => {
                let fault = Fault::new(fault::METHOD_NOT_FOUND, unknown(&request.method));
                Box::pin(std::future::ready(envelope::error(&request.id, &fault).into()))
            }
        }
    }
}

/// Takes the text along, so that bulk is not kept twice for as long as a handler takes.
fn decode<P: DeserializeOwned>(params: Bytes) -> Result<P, Fault> {
    frame::decode_value(&params).map_err(Fault::invalid_params)
}

/// The names of spans are fixed when the program is built; `otel.name` is how one says at run time what it is about.
fn span(method: &'static str, trace: Option<&TraceContext>) -> Span {
    tracing::debug_span!("request", otel.name = method, traceparent = trace.and_then(TraceContext::parent))
}
