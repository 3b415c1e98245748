//! The pages: every link leads somewhere, what a newcomer looks for is near, and the examples do what they show.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod examples;
mod links;
mod pages;
