//! Speaking the Model Context Protocol with one server: over the standard input and output of a process in an environment, or over
//! HTTP from that environment's place in the network.
//!
//! The library that knows the protocol is used in `client.rs` and `http.rs` only. What leaves this crate is plain JSON and
//! [`McpConnection`], behind which no type of the library stands: crates that use it do not compile it again. It must not know what is
//! declared, by whom, or which thread asks.

mod client;
mod elicitation;
mod http;
mod offer;
mod stdio;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_wire::SharedError;
use serde_json::Value;
use thiserror::Error;

pub use self::client::{McpLaunch, ServerOpening};
pub use self::elicitation::{Elicitation, ElicitationAnswer, ElicitationListener, NoUser, PendingElicitation, ProgressNote};
pub use self::http::{EnvironmentHttp, HttpServer};
pub use self::offer::{ServerListing, ServerTool, ToolRequest, ToolResult, fitting};

/// Something that a server does, and that the caller waits for.
pub type McpFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A server that answers.
pub trait McpConnection: Send + Sync {
    /// The most bytes of tools that one server may bring into a request.
    fn room(&self) -> usize;

    /// Waits until the connection is over, and tells why.
    fn over(&self) -> McpFuture<'_, String>;

    /// Also if the process is known to have ended and its client has not noticed yet: the next caller must not be given this one.
    fn is_over(&self) -> bool;

    fn close(&self) -> McpFuture<'_, ()>;

    /// What the server offers; asked for again if the server said that it has changed.
    fn listing(&self) -> McpFuture<'_, Arc<ServerListing>>;

    fn resources(&self) -> McpFuture<'_, Result<Vec<Value>, McpError>>;

    fn resource_templates(&self) -> McpFuture<'_, Result<Vec<Value>, McpError>>;

    /// The contents of a resource, as on the wire.
    fn read<'a>(&'a self, uri: &'a str) -> McpFuture<'a, Result<Vec<Value>, McpError>>;

    /// Calls a tool. While its questions wait for the user, the time that it has does not run.
    fn call<'a>(&'a self, request: ToolRequest<'a>, listener: &'a dyn ElicitationListener) -> McpFuture<'a, Result<ToolResult, McpError>>;
}

/// How patient the client is, and how much it puts up with.
#[derive(Debug, Clone)]
pub struct McpLimits {
    /// How long a step waits for servers that are starting and are not required.
    pub patience: Duration,
    /// How long an unused server is kept.
    pub grace: Duration,
    /// How long a server that could not be started is left alone.
    pub retry: Duration,
    /// How long one that ended soon after its start is left alone.
    pub fallen: Duration,
    /// For servers that say nothing else.
    pub startup_timeout: Duration,
    pub tool_timeout: Duration,
    /// The most tools, resources or templates of one server, and the most pages in which they may come.
    pub catalogue: usize,
    pub pages: usize,
    /// The most bytes of all that one server lists.
    pub listed: usize,
    /// The largest tool that is offered to the model, and the most of all tools of one server: each request carries them.
    pub tool: usize,
    pub tools: usize,
    /// The longest line, or event, of a server.
    pub message: usize,
    /// So much that is no message is put up with on a server's standard output.
    pub rubbish: usize,
    /// So many messages of one server are put up with in a second.
    pub messages: usize,
    /// How long an executor may take to tell what its machine declares.
    pub declarations: Duration,
    /// Changes of what servers depend on are collected for so long before they are acted upon.
    pub settle: Duration,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            grace: Duration::from_secs(60),
            retry: Duration::from_secs(30),
            fallen: Duration::from_secs(2),
            startup_timeout: Duration::from_secs(30),
            tool_timeout: Duration::from_secs(300),
            catalogue: 2048,
            pages: 100,
            listed: 32 << 20,
            tool: 64 << 10,
            tools: 512 << 10,
            message: 16 << 20,
            rubbish: 1 << 20,
            messages: 10_000,
            declarations: Duration::from_secs(10),
            settle: Duration::from_millis(300),
        }
    }
}

/// What went wrong with a server.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum McpError {
    #[error("MCP server `{server}` could not be started: {reason}")]
    Start {
        server: String,
        #[source]
        reason: SharedError,
    },
    #[error("MCP server `{server}` did not answer within {seconds} s{said}")]
    StartTimeout { server: String, seconds: u64, said: String },
    #[error("MCP server `{server}` has ended: {reason}")]
    Ended {
        server: String,
        #[source]
        reason: SharedError,
    },
    #[error("`{tool}` of MCP server `{server}` did not answer within {seconds} s; it may still have its effect")]
    CallTimeout { server: String, tool: String, seconds: u64 },
    #[error("`{tool}` of MCP server `{server}` was stopped; it may still have its effect")]
    Cancelled { server: String, tool: String },
    #[error("MCP server `{server}` refuses: {message}")]
    Refused { server: String, message: String },
    #[error("MCP server `{server}` sent an invalid answer: {reason}")]
    Nonsense {
        server: String,
        #[source]
        reason: SharedError,
    },
    #[error("there is no MCP server `{server}`{known}")]
    Unknown { server: String, known: String },
    #[error("MCP server `{server}` is not ready: {reason}")]
    NotReady {
        server: String,
        #[source]
        reason: SharedError,
    },
    #[error("MCP server `{server}` has no tool `{tool}`")]
    NoTool { server: String, tool: String },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text of a value, for people.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
