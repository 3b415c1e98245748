//! The tools that a model is offered.

pub mod output;
