//! `outpost env check`: connects and tells what is there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use futures_util::future::join_all;
use outpost_environment::{Environment, EnvironmentError, Obstacle, ProcessEvent, ProcessStart, Repeat};
use outpost_runtime::permissions::SandboxMode;
use outpost_wire::PathUri;
use outpost_wire::exec::environment::{EnvironmentInfo, Status, Unit};
use outpost_wire::intent::{Attachment, EnvironmentId};
use serde_json::{Value, json};

use super::{print, say, table};
use crate::ProcessContext;
use crate::commands::{FAILED, UNREACHABLE};
use crate::env_args::CheckArguments;
use crate::environments::{self, KnownEnvironments};
use crate::out;
use crate::out::with_causes;
use crate::reach::{self, Caller};

const CALLER: Caller = Caller { client: "outpost-env", patience: Duration::from_secs(10) };

pub(super) async fn run(arguments: CheckArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let (names, asleep, nameless) = match arguments.names.as_slice() {
        [] => {
            let known = KnownEnvironments::load(own).await?;
            let snapshot = known.snapshot()?;
            let asleep = snapshot.asleep();
            // Only a name wakes what sleeps.
            let awake = snapshot.ids().iter().filter(|id| !asleep.contains(id)).map(ToString::to_string).collect();
            (awake, asleep, snapshot.nameless.clone())
        }
        names => (names.to_vec(), Vec::new(), Vec::new()),
    };
    // One that is down holds up no other.
    let mut found = join_all(names.iter().map(|name| check(name, own))).await;
    found.extend(nameless.into_iter().map(|wrong| CheckedEnvironment {
        name: wrong.label(),
        answer: Err(wrong.reason),
        state: "failed",
        obstacle: Obstacle::Unknown,
        code: FAILED,
    }));
    if arguments.json {
        let all: Vec<Value> = found.iter().map(CheckedEnvironment::json).collect();
        print(&json!({"environments": all}).to_string())?;
    } else {
        table(&std::iter::once(CheckedEnvironment::heading()).chain(found.iter().map(CheckedEnvironment::row)).collect::<Vec<_>>())?;
        found.iter().filter_map(CheckedEnvironment::complaint).try_for_each(|complaint| out::print_shown(&complaint))?;
        for id in asleep {
            say(&format!("`{id}` is connected only when asked for; `outpost env check {id}` asks"));
        }
    }
    Ok(found.iter().map(|found| found.code).max().unwrap_or(0))
}

/// How one environment stands.
pub(super) struct CheckedEnvironment {
    name: String,
    answer: Result<Answer, String>,
    /// One word for how it stands.
    state: &'static str,
    /// What stands in the way, if it failed.
    obstacle: Obstacle,
    pub code: u8,
}

struct Answer {
    info: EnvironmentInfo,
    /// From nothing to a session.
    connect: Duration,
    /// There and back.
    latency: Duration,
}

pub(super) async fn check(name: &str, own: &ProcessContext) -> CheckedEnvironment {
    let (answer, state, obstacle, code) = match ask(name, own).await {
        Ok(answer) => (Ok(answer), "ready", Obstacle::Unknown, 0),
        Err(error) => {
            // A name that is not known is a mistake here; everything else is something there.
            let there = error.downcast_ref::<EnvironmentError>();
            let state = if matches!(there, Some(EnvironmentError::NeedsLogin { .. })) { "needs login" } else { "failed" };
            let code = if there.is_none() { FAILED } else { UNREACHABLE };
            (Err(with_causes(&error)), state, environments::obstacle(&error), code)
        }
    };
    CheckedEnvironment { name: name.to_owned(), answer, state, obstacle, code }
}

async fn ask(name: &str, own: &ProcessContext) -> anyhow::Result<Answer> {
    let reached = reach::named(name, CALLER, own).await?;
    let start = Instant::now();
    let info = reached.connect().await?;
    let connected = start.elapsed();
    let start = Instant::now();
    reached.environment.call::<Status>(&Unit, Repeat::Harmless).await?;
    let latency = start.elapsed();
    let tried = try_sandbox(&reached.environment, &info).await;
    reached.leave().await;
    tried?;
    Ok(Answer { info, connect: connected, latency })
}

/// Runs a command there as an agent would: before that it is unknown whether anything starts.
async fn try_sandbox(environment: &Environment, info: &EnvironmentInfo) -> anyhow::Result<()> {
    let Some(cwd) = info.cwd.clone().or_else(|| info.user_home_dir.clone()) else { return Ok(()) };
    let attachment = Attachment { environment_id: EnvironmentId::local(), cwd: cwd.clone(), workspace_roots: Vec::new() };
    let start = ProcessStart {
        id: format!("check-{}", uuid::Uuid::new_v4()),
        argv: ["/bin/sh", "-c", "exit 0"].map(str::to_owned).to_vec(),
        cwd,
        env_policy: None,
        env: BTreeMap::new(),
        tty: false,
        pipe_stdin: false,
        profiles: None,
        adoption: None,
    };
    let sandbox = SandboxMode::ReadOnly { network_access: false }.context(&attachment);
    let process = environment.start_within(start, sandbox).await;
    let process = process.map_err(|error| anyhow!("no sandboxed command can be started there: {error}"))?;
    while let Some(event) = process.next().await {
        match event {
            ProcessEvent::Exited { code: 0, .. } => return Ok(()),
            ProcessEvent::Exited { code, .. } => bail!("a sandboxed `true` ended with code {code} there"),
            ProcessEvent::Lost { reason, .. } => bail!("a sandboxed `true` was lost there: {reason}"),
            _ => {}
        }
    }
    Ok(())
}

impl CheckedEnvironment {
    fn heading() -> Vec<String> {
        ["NAME", "STATE", "EXECUTOR", "VERSION", "SHELL", "DIRECTORY", "CONNECT", "LATENCY"].map(String::from).to_vec()
    }

    fn row(&self) -> Vec<String> {
        match &self.answer {
            Err(_) => vec![self.name.clone(), self.state.into()],
            Ok(Answer { info, connect, latency }) => {
                let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
                let identity = known(&info.executor_id);
                vec![
                    self.name.clone(),
                    "ready".into(),
                    identity,
                    known(&info.executor_version),
                    info.shell.path.clone(),
                    info.cwd.as_ref().map_or_else(|| "unknown".into(), PathUri::to_syntax),
                    milliseconds(*connect),
                    milliseconds(*latency),
                ]
            }
        }
    }

    /// Why it failed, and what to look at. Too long for a table.
    fn complaint(&self) -> Option<String> {
        let reason = self.answer.as_ref().err()?;
        // Who has to log in was told how.
        let is_unknown = self.code == UNREACHABLE && self.state == "failed";
        let advice = environments::advice(&self.name, self.obstacle).filter(|_| is_unknown);
        let advice = advice.map(|advice| format!("\n  {advice}")).unwrap_or_default();
        // On a terminal a line of the other side cannot begin where one of ours does.
        let reason = out::on_lines(reason).replace('\n', "\n  ");
        Some(format!("\n{reason}{}\n", out::on_lines(&advice)))
    }

    fn json(&self) -> Value {
        match &self.answer {
            Err(reason) => json!({"id": self.name, "state": self.state, "reason": reason}),
            Ok(Answer { info, connect, latency }) => json!({
                "id": self.name,
                "state": "ready",
                "executorId": info.executor_id,
                "instanceId": info.instance_id,
                "version": info.executor_version,
                "os": info.platform_os,
                "shell": info.shell.path,
                "cwd": info.cwd.as_ref().map(PathUri::to_syntax),
                "home": info.user_home_dir.as_ref().map(PathUri::to_syntax),
                "connectMs": connect.as_secs_f64() * 1000.0,
                "latencyMs": latency.as_secs_f64() * 1000.0,
            }),
        }
    }

    /// The version that answers.
    pub(super) fn version(&self) -> Option<&str> {
        self.answer.as_ref().ok()?.info.executor_version.as_deref()
    }

    /// Whether it was refused because its version is too far from ours.
    pub(super) fn is_too_far(&self) -> bool {
        self.obstacle == Obstacle::Version
    }

    /// In a sentence.
    pub(super) fn sentence(&self) -> String {
        match &self.answer {
            Err(reason) => format!("{} does not work yet: {reason}", self.name),
            Ok(Answer { info, latency, .. }) => {
                let version = info.executor_version.as_deref().unwrap_or("of an unknown version");
                format!("{} is ready: outpost {version}, {}, {}", self.name, info.shell.path, milliseconds(*latency))
            }
        }
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
