//! Symmetric JSON-RPC peers over any link.
//!
//! This room knows frames, pending calls, dispatch and backpressure, and how to make a [`Link`] out of a websocket, a
//! pair of pipes, a unix socket or memory. It must not know the name of any method.

pub mod frame;
pub mod link;
pub mod peer;
mod pending;
pub mod router;
pub mod tls;

pub use frame::FrameLimits;
pub use link::{Close, FrameSink, FrameSource, Link, LinkError};
pub use peer::{CallError, Peer, PeerOptions, Service, Violation};
pub use router::{Dispatch, HandlerOutcome, Lane, RequestContext, Router};
