//! The front door: the app protocol, executors that dial in, metrics and the page.
//!
//! This room turns requests of clients into calls of the runtime and its events into what clients see. It must not know how a
//! step is done.
//!
//! Where to look: a client is a [`connection`]; a method is a function in `methods/`, registered there by its type from
//! `outpost_wire::app`; whatever a client sees of a thread is made in `projection/`, and nowhere else; `subscription.rs` takes
//! it to the client in order, without a gap and without holding anything up; `questions.rs` knows what clients were asked.

pub mod admission;
mod agents;
mod configuration;
mod connection;
mod connection_resources;
mod excerpt;
pub mod executors;
mod fault;
mod forward;
mod fuzzy;
mod input;
mod jobs;
mod lending;
mod methods;
pub mod metrics;
mod news;
pub mod people;
pub mod projection;
mod questions;
mod relay;
mod server;
pub mod site;
mod subscription;
mod table;
pub mod tokens;
pub mod web;

pub use configuration::{ConfigEditError, change_key};
pub use server::{Facts, Server, ServerParts};
