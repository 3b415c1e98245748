//! One test per promise of `SECURITY.md` that tries to break it, as root and as an ordinary user where that differs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod doors;
mod http;
mod secrets;
mod support;
