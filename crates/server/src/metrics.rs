//! `/metrics`, for Prometheus. Everything is looked up when it is asked for; nothing is kept twice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use outpost_runtime::{Runtime, ThreadActivity};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::executors::Executors;
use crate::server::Server;

/// What the answer's type is said to be.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where the numbers come from.
#[derive(Clone)]
pub struct MetricSources {
    pub server: Server,
    pub executors: Arc<Executors>,
}

pub struct Metrics(Registry);

impl Metrics {
    pub fn new(sources: MetricSources) -> Self {
        let mut registry = Registry::with_prefix("outpost");
        registry.register_collector(Box::new(sources));
        Self(registry)
    }

    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0)?;
        Ok(text)
    }
}

impl fmt::Debug for MetricSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sources")
    }
}

impl Collector for MetricSources {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let runtime = self.server.runtime();
        self.threads(&mut page, runtime)?;
        let counted = runtime.counts();
        let kind = |kind: &str| counted.entries.get(kind).copied().unwrap_or_default();
        page.count("turns_started", "Turns that were started.", kind("turnStarted"))?;
        let turns = [("completed", counted.turns_completed), ("failed", counted.turns_failed), ("interrupted", counted.turns_interrupted)];
        page.counts("turns_finished", "Turns that ended, by how they did.", "status", turns)?;
        page.count("model_requests", "Requests to a model.", kind("modelAsked"))?;
        let tokens = [("input", counted.tokens.input), ("cached_input", counted.tokens.cached_input), ("output", counted.tokens.output)];
        page.counts("model_tokens", "Tokens that models reported.", "kind", tokens)?;
        page.count("calls_started", "Tool calls that were started.", kind("callStarted"))?;
        page.count("approvals_asked", "Approval questions put to users.", kind("approvalAsked"))?;
        page.count("store_appends", "Batches of entries that were stored.", counted.appends)?;
        let entries = counted.entries.iter().map(|(kind, count)| (kind.as_str(), *count));
        page.counts("store_entries", "Entries that were stored, by their kind.", "kind", entries)?;
        page.gauge("client_connections", "Clients of the app protocol that are connected.", self.server.clients())?;
        let mut states: BTreeMap<&str, usize> =
            ["idle", "connecting", "ready", "recovering", "needs login", "failed"].into_iter().map(|state| (state, 0)).collect();
        for status in runtime.registry().list() {
            *states.entry(status.standing.word()).or_default() += 1;
        }
        page.gauges("environments", "Environments, by how they stand.", "state", states)?;
        let (joins, refusals) = self.executors.counts();
        page.count("executor_joins", "Links of executors that dialled in.", joins)?;
        page.count("executor_join_refusals", "Executors that dialled in and were not let in.", refusals)?;
        let links = self.executors.links();
        page.gauges("executor_links", "Open links of executors that dialled in.", "executor", links.iter().map(|(id, n)| (id.as_str(), *n)))
    }
}

impl MetricSources {
    fn threads(&self, page: &mut Page<'_>, runtime: &Runtime) -> fmt::Result {
        let mut states: BTreeMap<&str, usize> = ["idle", "active", "waiting", "broken"].into_iter().map(|state| (state, 0)).collect();
        for thread in runtime.loaded().into_iter().filter_map(|id| runtime.get(id)) {
            let state = match thread.status() {
                ThreadActivity::Idle => "idle",
                ThreadActivity::Active { waits_for_approval: false, waits_for_input: false } => "active",
                ThreadActivity::Active { .. } => "waiting",
                ThreadActivity::Broken { .. } => "broken",
                ThreadActivity::Closed => continue,
            };
            *states.entry(state).or_default() += 1;
        }
        page.gauges("threads_loaded", "Threads that are loaded, by what they do.", "state", states)
    }
}

/// Writes one metric after the other.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn count(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = ConstCounter::new(value);
        metric.encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn counts<'l>(&mut self, name: &str, help: &str, label: &str, values: impl IntoIterator<Item = (&'l str, u64)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in values {
            ConstCounter::new(count).encode(family.encode_family(&[(label, value)])?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) -> fmt::Result {
        let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        metric.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn gauges<'l>(&mut self, name: &str, help: &str, label: &str, values: impl IntoIterator<Item = (&'l str, usize)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (value, count) in values {
            ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX)).encode(family.encode_family(&[(label, value)])?)?;
        }
        Ok(())
    }
}
