//! A harness with MCP servers.

use std::path::Path;
use std::sync::{Arc, Mutex};

use outpost_environment::{ConnectPolicy, Connector};
use outpost_runtime::mcp::{LayerSource, McpConfig, McpLimits, ServerLayer};
use outpost_testkit::executor::is_alive;
use outpost_testkit::model::Reply;
use outpost_testkit::{Bench, LinkKind};
use outpost_wire::SharedError;
use outpost_wire::intent::EnvironmentId;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Harness, Setup};

/// The scripted server.
pub(crate) const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/mcp/server.py");

/// What a configuration file would hold: servers, or why it cannot be read.
#[derive(Clone)]
pub(crate) struct Files {
    held: Arc<Mutex<Result<Value, SharedError>>>,
    changes: watch::Sender<u64>,
}

impl Files {
    pub(crate) fn new(servers: Value) -> Self {
        Self { held: Arc::new(Mutex::new(Ok(servers))), changes: watch::Sender::new(0) }
    }

    pub(crate) fn write(&self, servers: Value) {
        *self.held.lock().unwrap() = Ok(servers);
    }

    pub(crate) fn spoil(&self, why: &str) {
        *self.held.lock().unwrap() = Err(why.into());
    }

    /// The same, and whoever watches hears of it.
    pub(crate) fn change(&self, servers: Value) {
        self.write(servers);
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn spoil_loudly(&self, why: &str) {
        self.spoil(why);
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn source(&self) -> LayerSource {
        let files = self.clone();
        let read = move |_: Option<&str>| files.held.lock().unwrap().clone().and_then(|servers| ServerLayer::of(Some(&servers))).into();
        let changes = self.changes.clone();
        LayerSource::new(read).with_changes(move || Some(changes.subscribe()))
    }
}

/// A server in the first environment that behaves like this.
pub(crate) fn server(behaviour: &str) -> Value {
    json!({"command": "python3", "args": [SERVER, behaviour], "environment_id": "one"})
}

/// One environment in memory and these servers.
pub(crate) async fn harness(servers: Value, replies: Vec<Reply>) -> Harness {
    Harness::new(setup(&[LinkKind::Memory], &Files::new(servers), replies)).await
}

pub(crate) fn setup(kinds: &[LinkKind], files: &Files, replies: Vec<Reply>) -> Setup {
    let mut setup = Setup::new(kinds, replies);
    let limits = McpLimits { patience: std::time::Duration::from_secs(15), ..McpLimits::default() };
    setup.config.mcp = McpConfig { source: files.source(), limits, ..McpConfig::default() };
    setup
}

/// Another environment.
pub(crate) fn attach(harness: &Harness, name: &str, bench: Bench) {
    let bench = Arc::new(bench);
    let connector = Connector::new(name, move || {
        let bench = bench.clone();
        async move { Ok(bench.link().await) }
    });
    harness.runtime.registry().attach(EnvironmentId::parse(name).unwrap(), connector, ConnectPolicy::Lazy).unwrap();
}

/// The processes that were started, by what they wrote themselves.
pub(crate) fn starts(file: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

pub(crate) fn living(file: &Path) -> usize {
    starts(file).into_iter().filter(|pid| is_alive(*pid)).count()
}

/// The names of the tools that a request offered.
pub(crate) fn offered(harness: &Harness, request: usize) -> Vec<String> {
    let body = &harness.model.requests()[request].body;
    let names = body["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str());
    names.filter(|name| name.starts_with("mcp__") || name.contains("mcp_resource")).map(str::to_owned).collect()
}
