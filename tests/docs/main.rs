//! The pages: every link leads somewhere, what a newcomer looks for is near, the examples do what they show, and what is named is there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod examples;
mod links;
mod pages;
mod security;
mod typed;
