//! What tests of several crates share: a client that speaks the wire by hand, executors to talk to, links that break, a
//! model that says what it was told to say. Only for tests; failing loudly is its job.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod app;
pub mod balancer;
pub mod bench;
pub mod chaos;
pub mod client;
pub mod cutter;
pub mod database_proxy;
pub mod executor;
pub mod flights;
pub mod model;
pub mod postgres;
pub mod raw;
pub mod readable;
pub mod said;
pub mod sshd;
pub mod strict;
pub mod terminal;
pub mod threads;
pub mod tls;

/// The smallest picture: one transparent pixel, as a PNG.
pub const PIXEL: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\0\0\0\rIDATx\xdac\xfc\xcf\xc0P\x0f\0\x04\x85\x01\x80\x84\xa9\x8c!\0\0\0\0IEND\xaeB`\x82";

pub use bench::{Bench, LinkKind, Setup};
pub use client::Client;
pub use cutter::Cutter;
pub use executor::ExecutorProcess;
pub use flights::{CountedLink, FlightClock};
pub use raw::RawSocket;
pub use readable::{readable, readable_words};
pub use sshd::{LoginShell, Sshd};
pub use terminal::{Narrowing, TestTerminal};
pub use tls::TlsProxy;
