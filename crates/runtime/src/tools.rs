//! The tools that a model is offered.

pub mod catalogue;
pub mod output;
