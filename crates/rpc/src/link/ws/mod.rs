//! Websockets: one message per frame of ours, text outbound, text or binary inbound.
//!
//! The client's side stands on a library. The server's side speaks the frames itself: it has to write bulk without
//! copying it, keep thousands of idle connections without a buffer each, and hold unauthenticated connections to a few bytes.

mod client;
mod codec;
mod server;

pub use client::{ClientOptions, KeepAlive, connect, handshake};
pub use server::{Socket, accept};
