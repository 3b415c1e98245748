//! The HTTP listener: where to listen, who may connect, and what becomes of a connection that asks for something.
//!
//! A request ends as an answer or as a websocket, which is a [`Link`](outpost_rpc::Link) from then on. This crate must not know the name of
//! any method, nor what is served behind it.

pub mod access;
pub mod auth;
pub mod http_service;
pub mod listen;
pub mod unauthenticated;
