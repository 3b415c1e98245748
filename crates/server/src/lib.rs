//! The front door: the app protocol, executors that dial in, metrics and the page.
//!
//! This room turns requests of clients into calls of the runtime and its events into what clients see. It must not know how a
//! step is done.

pub mod admission;
pub mod executors;
mod relay;
pub mod site;
pub mod tokens;
