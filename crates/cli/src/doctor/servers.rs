//! MCP servers: may they be used, can they be started, and do they answer?

use std::time::Duration;

use outpost_config::Config;
use outpost_runtime::mcp::refresh::{ServerStatus, StatusDetail};
use tokio::time::timeout;

use super::{Finding, Patient, not_looked_at};
use crate::assembly::{Assembly, RuntimeOptions};
use crate::home::Home;
use crate::out::with_causes;
use crate::servers;

/// Longer than a server may take to start by default.
const PATIENCE: Duration = Duration::from_secs(40);

pub(super) async fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let Some(home) = &patient.home else { return vec![] };
    let required = servers::required(home).problems().into_iter();
    let mut findings: Vec<Finding> =
        required.map(|why| Finding::broken("requirements.toml", why, "put that file right, or take it away; see docs/mcp.md")).collect();
    let Ok(config) = Config::read(Some(&home.config()), &patient.own.settings) else {
        findings.extend(not_looked_at("MCP servers", "config.toml"));
        return findings;
    };
    if config.mcp_servers.is_none() {
        findings.push(Finding::good("MCP servers", "none in config.toml"));
        return findings;
    }
    match timeout(PATIENCE, ask(home, config, patient)).await {
        Ok(Ok(servers)) => findings.extend(servers.iter().map(finding)),
        Ok(Err(error)) => {
            findings.push(Finding::weak("MCP servers", format!("not looked at: {}", with_causes(&error)), "put that right and ask again"))
        }
        Err(_) => {
            let detail = format!("not all of them answered within {} s", PATIENCE.as_secs());
            findings.push(Finding::broken("MCP servers", detail, "start them by hand to see why; see docs/mcp.md"));
        }
    }
    findings
}

/// Starts those of config.toml as a thread would.
async fn ask(home: &Home, config: Config, patient: &Patient<'_>) -> anyhow::Result<Vec<ServerStatus>> {
    let wish = RuntimeOptions::of(config);
    let assembly = Assembly::new(home, wish, patient.own).await?;
    let asked = assembly.runtime.mcp_status(None, StatusDetail::ToolsOnly).await;
    assembly.shut_down().await;
    Ok(asked?)
}

fn finding(server: &ServerStatus) -> Finding {
    let what = format!("MCP server {}", server.name);
    let why = || server.error.clone().unwrap_or_else(|| format!("it is {}", server.state));
    match (server.state.as_str(), &server.error) {
        ("ready", _) => Finding::good(what, format!("answers; it has {} tools", server.tools.len())),
        ("disabled", None) => Finding::good(what, "switched off by `enabled = false`"),
        ("disabled", Some(_)) => Finding::weak(what, why(), "it is not used; see docs/mcp.md"),
        _ => {
            Finding::broken(what, why(), "is its command installed on that machine, and is its entry in config.toml right? See docs/mcp.md")
        }
    }
}
