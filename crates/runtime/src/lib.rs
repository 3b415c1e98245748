//! Driving threads: models, tools, approvals.
//!
//! This room knows what a step is made of. It must not know JSON-RPC, how HTTP is served, or terminals.

pub mod feed;
pub mod model;
pub mod patch;
pub mod permissions;
pub mod policy;
pub mod rules;
pub mod surroundings;
pub mod tools;
