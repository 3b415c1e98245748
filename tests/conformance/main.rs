//! The exec protocol, over every kind of link alike. With `OUTPOST_CONFORMANCE_URL` the websocket tests run against
//! another executor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod handshake;
mod http_request;
mod streams;
mod walk;
mod watch;
