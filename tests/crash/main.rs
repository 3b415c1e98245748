//! Faults: of the connection, of the executor, of the command in between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cuts;
mod fates;
mod keeper;
