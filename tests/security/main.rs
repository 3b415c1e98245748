//! One test per promise that tries to break it: as root, and as an ordinary user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ceiling;
mod daemons;
mod files;
mod limits;
mod rights;
mod support;
