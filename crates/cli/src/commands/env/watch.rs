//! `outpost env watch`: follows how environments stand, and the file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use outpost_environment::{RegistryChange, RegistryEvent};
use outpost_wire::EnvironmentId;
use serde_json::{Value, json};

use super::print;
use crate::ProcessContext;
use crate::confinement::configured_limits;
use crate::env_args::WatchArguments;
use crate::environments::{self, KnownEnvironments};
use crate::out::{ReaderGone, is_unread, on_line, print_shown};
use crate::reach::{self, Caller};
use crate::signals::ForwardedSignals;

const CALLER: Caller = Caller { client: "outpost-env", patience: Duration::from_secs(600) };
/// How often standard output is checked for a reader: there may be no event for days.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn run(arguments: WatchArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let changes = environments::watch();
    let known = KnownEnvironments::load(own).await?;
    known.snapshot()?;
    let ids: Vec<EnvironmentId> = arguments.names.iter().map(|name| EnvironmentId::parse(name)).collect::<Result<_, _>>()?;
    for id in ids.iter().filter(|id| !id.is_local()) {
        known.definition(id)?;
    }
    let (local, executor) = reach::local(configured_limits(&own.settings)?, own)?;
    let registry = known.registry(CALLER.options(own), local)?;
    let mut signals = ForwardedSignals::listen().context("signals cannot be taken")?;
    let mut watcher = registry.watch();
    let _file = known.follow(changes, &registry);
    for handle in ids.iter().filter_map(|id| registry.get(id)) {
        // Asked for by name, so it is woken. How that goes is told as news.
        tokio::spawn(async move { handle.connect().await.map(|_| ()) });
    }
    let mut ticks = tokio::time::interval(LOOK);
    let ended = loop {
        let told = tokio::select! {
            change = watcher.next() => tell(&change, &ids, arguments.json),
            _ = ticks.tick() => if is_unread() { Err(ReaderGone.into()) } else { Ok(()) },
            code = signals.stop() => break Ok(code),
        };
        if let Err(error) = told {
            break Err(error);
        }
    };
    executor.shut_down().await;
    ended
}

fn tell(change: &RegistryChange, wanted: &[EnvironmentId], as_json: bool) -> anyhow::Result<()> {
    let is_wanted = |id: &EnvironmentId| wanted.is_empty() || wanted.contains(id);
    let (id, text, mut value) = match &change.event {
        RegistryEvent::Environment { id, generation, standing, transition } => {
            let (state, reason) = (standing.word(), standing.reason());
            let value =
                json!({"event": format!("{transition:?}").to_lowercase(), "generation": generation, "state": state, "reason": reason});
            (Some(id), reason.map_or_else(|| state.to_owned(), |reason| format!("{state}: {reason}")), value)
        }
        RegistryEvent::OtherExecutor { id, generation, was, now } => {
            let text = format!("another executor answers: {} was {}", name(&now.executor_id), name(&was.executor_id));
            let value = json!({"event": "otherExecutor", "generation": generation, "was": was.executor_id, "now": now.executor_id});
            (Some(id), text, value)
        }
        RegistryEvent::Lost { id, generation, processes, reason } => {
            let value = json!({"event": "lost", "generation": generation, "processes": processes, "reason": reason});
            (Some(id), format!("lost {}: {reason}", processes.join(", ")), value)
        }
        RegistryEvent::Configured => (None, "the configuration was taken over".into(), json!({"event": "configured"})),
        RegistryEvent::Misconfigured { reason } => {
            (None, format!("the configuration is not used: {reason}"), json!({"event": "misconfigured", "reason": reason}))
        }
    };
    if id.is_some_and(|id| !is_wanted(id)) {
        return Ok(());
    }
    if as_json {
        value["sequence"] = json!(change.sequence);
        value["id"] = id.map_or(Value::Null, |id| json!(id));
        print(&value.to_string())
    } else {
        print_shown(&format!("{}  {}  {}\n", clock(), id.map_or_else(|| "-".to_owned(), ToString::to_string), on_line(&text)))
    }
}

fn name(id: &Option<String>) -> &str {
    id.as_deref().unwrap_or("unknown")
}

/// The time of day, in UTC.
fn clock() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{:02}:{:02}:{:02}Z", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}
