//! Faults of the connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cuts;
