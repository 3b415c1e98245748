//! From the name of a method to its handler.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use outpost_wire::envelope::{self, TraceContext};
use outpost_wire::{Fault, Method, RequestId, fault};
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

/// What differs between methods: reading the parameters, doing it, and writing the answer down.
type Handler<C> = Arc<dyn Fn(Arc<C>, RequestContext<Bytes>, RequestId) -> Result<Running, Fault> + Send + Sync>;

/// A handler at work.
type Running = Pin<Box<dyn Future<Output = Result<PeerReply, Fault>> + Send>>;

/// Handlers by method, for connections with the context `C`.
pub struct Router<C> {
    routes: HashMap<&'static str, Route<C>>,
}

struct Route<C> {
    lane: Lane,
    name: &'static str,
    admit: fn(&C) -> Result<(), Fault>,
    handler: Handler<C>,
}

impl<C: Send + Sync + 'static> Route<C> {
    /// The same for all methods, so that it is compiled once and not for each of them.
    fn answer(&self, context: Arc<C>, request: PeerRequest) -> ResponseFuture {
        let PeerRequest { id, params, trace, .. } = request;
        let span = span(self.name, trace.as_ref());
        let (admit, handler) = (self.admit, self.handler.clone());
        let answer = async move {
            let begun = match admit(&context) {
                Ok(()) => handler(context, RequestContext { params, trace }, id.clone()),
                Err(fault) => Err(fault),
            };
            let answer = match begun {
                Ok(running) => running.await,
                Err(fault) => Err(fault),
            };
            answer.unwrap_or_else(|fault| envelope::error(&id, &fault).into())
        };
        Box::pin(answer.instrument(span))
    }
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
        Fut: Future<Output = Result<M::Output, Fault>> + Send + 'static,
    {
        let handler: Handler<C> = Arc::new(move |context, request, id| {
            let running = handler(context, read::<M>(request.params)?);
            Ok(Box::pin(async move { Ok(envelope::response(&id, &running.await?).into()) }))
        });
        self.with(Route { lane, name: M::NAME, admit, handler })
    }

    /// Registers a handler that wants to know more than the parameters, or goes on after its answer.
    pub fn on_call<M, F, Fut>(self, lane: Lane, admit: fn(&C) -> Result<(), Fault>, handler: F) -> Self
    where
        M: Method,
        F: Fn(Arc<C>, RequestContext<M::Params>) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<HandlerOutcome<M::Output>, Fault>> + Send + 'static,
    {
        let handler: Handler<C> = Arc::new(move |context, request, id| {
            let RequestContext { params, trace } = request;
            let running = handler(context, RequestContext { params: read::<M>(params)?, trace });
            Ok(Box::pin(async move {
                let HandlerOutcome { output, rest } = running.await?;
                Ok(PeerReply { frame: envelope::response(&id, &output), rest })
            }))
        });
        self.with(Route { lane, name: M::NAME, admit, handler })
    }

    fn with(mut self, route: Route<C>) -> Self {
        self.routes.insert(route.name, route);
        self
    }

    pub fn lane(&self, method: &str) -> Lane {
        self.routes.get(method).map_or(Lane::Control, |route| route.lane)
    }

    /// The answer to a request; `unknown` words the refusal of an unregistered method.
    pub fn answer(&self, context: Arc<C>, request: PeerRequest, unknown: impl FnOnce(&str) -> String) -> ResponseFuture {
        match self.routes.get(request.method.as_str()) {
            Some(route) => route.answer(context, request),
            None => {
                let fault = Fault::new(fault::METHOD_NOT_FOUND, unknown(&request.method));
                Box::pin(std::future::ready(envelope::error(&request.id, &fault).into()))
            }
        }
    }
}

/// Takes the text along, so that bulk is not kept twice for as long as a handler takes.
fn read<M: Method>(params: Bytes) -> Result<M::Params, Fault> {
    frame::decoded(M::read_params(&params)).map_err(Fault::invalid_params)
}

/// The names of spans are fixed when the program is built; `otel.name` is how one says at run time what it is about.
fn span(method: &'static str, trace: Option<&TraceContext>) -> Span {
    tracing::debug_span!("request", otel.name = method, traceparent = trace.and_then(TraceContext::parent))
}
