//! From the name of a method to its handler.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;

use outpost_wire::{Fault, Method, envelope, fault};
use tokio::sync::Semaphore;

use crate::frame;
use crate::peer::{Answer, Lanes, Request};

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

type Handler<C> = Box<dyn Fn(Arc<C>, Request) -> Answer + Send + Sync>;

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

impl<C: Send + Sync + 'static> Router<C> {
    /// Registers a handler. `admit` is asked before the parameters are looked at.
    pub fn on<M, F, Fut>(mut self, lane: Lane, admit: fn(&C) -> Result<(), Fault>, handler: F) -> Self
    where
        M: Method,
        F: Fn(Arc<C>, M::Params) -> Fut + Send + Sync + Copy + 'static,
        Fut: Future<Output = Result<M::Output, Fault>> + Send,
    {
        let handler: Handler<C> = Box::new(move |context, request| {
            Box::pin(async move {
                let Request { id, params, .. } = request;
                let answer = async {
                    admit(&context)?;
                    let params = frame::decode_value(&params).map_err(Fault::invalid_params)?;
                    handler(context, params).await
                };
                match answer.await {
                    Ok(output) => envelope::response(&id, &output),
                    Err(fault) => envelope::error(&id, &fault),
                }
            })
        });
        self.routes.insert(M::NAME, Route { lane, handler });
        self
    }

    pub fn lane(&self, method: &str) -> Lane {
        self.routes.get(method).map_or(Lane::Control, |route| route.lane)
    }

    /// The answer to a request; `unknown` words the refusal of a method that nobody registered.
    pub fn answer(&self, context: Arc<C>, request: Request, unknown: impl FnOnce(&str) -> String) -> Answer {
        match self.routes.get(request.method.as_str()) {
            Some(route) => (route.handler)(context, request),
            None => {
                let fault = Fault::new(fault::METHOD_NOT_FOUND, unknown(&request.method));
                Box::pin(std::future::ready(envelope::error(&request.id, &fault)))
            }
        }
    }
}
