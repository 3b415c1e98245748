//! Every environment that is written down: can it be reached, who answers, and is it as good as this machine?

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use outpost_environment::{Environment, Obstacle, ProcessEvent, ProcessStart};
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::process::{EnvPolicy, Inherit};
use tokio::time::timeout;

use super::{Finding, Patient, not_looked_at};
use crate::ProcessContext;
use crate::environments::{KnownEnvironments, advice, obstacle};
use crate::out::with_causes;
use crate::reach::{self, Caller};
use crate::shortfall::Shortfall;
use crate::store::now;

const CALLER: Caller = Caller { client: "outpost-doctor", patience: Duration::from_secs(5) };
/// The longest wait for one of them.
const PATIENCE: Duration = Duration::from_secs(15);
/// Clocks that are further apart make times in threads and tokens misleading.
const SKEW: u64 = 5_000;

pub(super) async fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let Ok(known) = KnownEnvironments::load(patient.own).await else { return not_looked_at("environments", "environments.toml") };
    let Ok(snapshot) = known.snapshot() else {
        return vec![Finding::weak("environments", "switched off by OUTPOST_EXEC_SERVER_URL=none", "unset it to use machines again")];
    };
    let names: Vec<String> = snapshot.ids().iter().filter(|id| !id.is_local()).map(ToString::to_string).collect();
    let nameless = snapshot.nameless.iter().map(|wrong| {
        Finding::broken(wrong.label(), &wrong.reason, "give that entry an id of its own in environments.toml; see docs/environments.md")
    });
    let nameless: Vec<Finding> = nameless.collect();
    if names.is_empty() && nameless.is_empty() {
        return vec![Finding::good("environments", "only this machine; `outpost env add` knows more")];
    }
    let asleep: Vec<String> = snapshot.asleep().iter().map(ToString::to_string).collect();
    let looks = names.iter().map(async |name| {
        if asleep.contains(name) {
            return vec![Finding::good(name, "connected only when asked for; `outpost env check` with its name asks")];
        }
        look(name, patient.own).await
    });
    join_all(looks).await.into_iter().flatten().chain(nameless).collect()
}

async fn look(name: &str, own: &ProcessContext) -> Vec<Finding> {
    match timeout(PATIENCE, ask(name, own)).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => {
            let told = with_causes(&error);
            let obstacle = obstacle(&error);
            let advice = advice(name, obstacle).unwrap_or_else(|| match obstacle {
                Obstacle::NoProgram => format!("`outpost env upgrade {name}` brings the program there"),
                Obstacle::Version => "bring both to the same version".to_owned(),
                _ => "put its entry in environments.toml right; see docs/environments.md".to_owned(),
            });
            vec![Finding::broken(name, told, format!("{advice}; `outpost env check {name}` tries it again"))]
        }
        Err(_) => {
            let detail = format!("no answer within {} s", PATIENCE.as_secs());
            vec![Finding::broken(name, detail, "is the machine up, and does its network let you through?")]
        }
    }
}

async fn ask(name: &str, own: &ProcessContext) -> anyhow::Result<Vec<Finding>> {
    let reached = reach::named(name, CALLER, own).await?;
    let start = Instant::now();
    let info = reached.connect().await?;
    let took = start.elapsed();
    let info = reached.environment.full_info().await.unwrap_or(info);
    let clock = clock(&reached.environment, &info).await;
    reached.leave().await;
    let mut findings = vec![identity(name, &info, took), sandbox(name, &info)];
    findings.extend(clock.map(|skew| clocks(name, skew)));
    Ok(findings)
}

fn identity(name: &str, info: &EnvironmentInfo, took: Duration) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    let who = info.executor_id.as_deref().unwrap_or("without an identity");
    let told = info.executor_version.as_deref().unwrap_or("unknown");
    let detail = format!("reached in {} ms; executor {who}, version {told}", took.as_millis());
    match &info.executor_version {
        Some(version) if version == ours => Finding::good(name, detail),
        _ => Finding::weak(name, format!("{detail}; this is {ours}"), format!("`outpost env upgrade {name}` brings this version there")),
    }
}

fn sandbox(name: &str, info: &EnvironmentInfo) -> Finding {
    let what = format!("{name}: sandbox");
    if info.sandbox.is_empty() {
        return Finding::weak(what, "the executor does not tell what it holds", "run `outpost doctor` there");
    }
    let Some(Shortfall { level, missing, reason }) = Shortfall::of(info) else {
        return Finding::good(what, format!("all {} promises hold", info.sandbox.len()));
    };
    let missing = missing.join("; ");
    match level {
        Some(level) => {
            let detail = format!("level `{level}`; does not hold there: {missing}");
            Finding::weak(what, detail, reason.unwrap_or("see docs/sandbox.md"))
        }
        None => Finding::broken(what, format!("does not hold there: {missing}"), "run `outpost doctor` there; see docs/sandbox.md"),
    }
}

fn clocks(name: &str, skew: u64) -> Finding {
    let what = format!("{name}: clock");
    if skew > SKEW {
        let detail = format!("{} s away from the one here", skew / 1000);
        return Finding::weak(what, detail, "set the clocks, for example with chrony or systemd-timesyncd");
    }
    Finding::good(what, "agrees with the one here")
}

/// How far the clock there is away from ours, in milliseconds. Nothing where the time cannot be asked for.
async fn clock(environment: &Environment, info: &EnvironmentInfo) -> Option<u64> {
    let start = ProcessStart {
        id: format!("clock-{}", uuid::Uuid::new_v4()),
        argv: ["/bin/sh", "-c", "date +%s"].map(str::to_owned).to_vec(),
        cwd: info.cwd.clone().or_else(|| info.user_home_dir.clone())?,
        env_policy: Some(EnvPolicy {
            inherit: Inherit::Core,
            ignore_default_excludes: false,
            exclude: vec![],
            set: BTreeMap::new(),
            include_only: vec![],
        }),
        env: BTreeMap::new(),
        tty: false,
        pipe_stdin: false,
        profiles: None,
        adoption: None,
    };
    let before = now();
    let process = environment.start(start).await.ok()?;
    let mut said = Vec::new();
    while let Some(event) = process.next().await {
        match event {
            ProcessEvent::Output { bytes, .. } => said.extend_from_slice(&bytes),
            ProcessEvent::Closed | ProcessEvent::Lost { .. } => break,
            _ => {}
        }
    }
    let after = now();
    let there = String::from_utf8_lossy(&said).trim().parse::<u64>().ok()?.checked_mul(1000)?;
    // It tells whole seconds, of a moment between our two.
    Some(before.saturating_sub(there + 999).max(there.saturating_sub(after)))
}
