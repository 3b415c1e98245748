//! The exec protocol, over every kind of link alike. With `OUTPOST_CONFORMANCE_URL` the websocket tests run against
//! another executor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adoption;
mod attributes;
mod calls;
mod discovery;
mod dispatch;
mod envelope;
mod files;
mod handshake;
mod http;
mod http_request;
mod idle;
mod limits;
mod links;
mod paths;
mod processes;
mod reads;
mod retention;
mod sessions;
mod settings;
mod snapshots;
mod stdin;
mod streams;
mod support;
mod variables;
mod walk;
mod watch;
