//! The exec protocol: what an executor is asked and what it tells. One file per family of methods.

pub mod adoption;
pub mod attributes;
pub mod calls;
pub mod discovery;
pub mod environment;
pub mod files;
pub mod http;
pub mod packs;
pub mod policy;
pub mod process;
pub mod session;
pub mod streams;
pub mod walk;
pub mod watch;
