//! One test per promise that tries to break it: as root, and as an ordinary user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod ceiling;
mod daemons;
mod doors;
mod file_calls;
mod files;
mod http;
mod limits;
mod rights;
mod secrets;
mod server;
mod support;
mod writes;
