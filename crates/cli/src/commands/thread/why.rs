//! `outpost thread why`: what the capability roots of a thread come to now, and why.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Context;
use outpost_thread::ThreadId;
use outpost_wire::app::thread::{CapabilityPlugin, CapabilityRootState, ThreadCapabilities};
use serde_json::json;

use super::times::counted;
use super::{Desk, print, print_json};
use crate::ProcessContext;
use crate::assembly::{Assembly, RuntimeOptions};
use crate::home::Home;
use crate::remote::RemoteServer;

pub(super) async fn why(name: &str, store: Option<String>, as_json: bool, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    let home = Home::from_environment().context("there is no home: set OUTPOST_HOME")?;
    let mut config = crate::configuration::load(Some(&home.config()), &own.settings)?;
    config.store = store.or(config.store);
    let wish = RuntimeOptions::of(config);
    let assembly = Assembly::new(&home, wish, own).await?;
    let desk = Desk { store: assembly.runtime.store().clone(), json: as_json, is_quiet: true };
    let found = async {
        let id = desk.find(name).await?;
        Ok::<_, anyhow::Error>((id, assembly.runtime.why(id).await?))
    };
    let found = found.await;
    assembly.shut_down().await;
    let (id, step) = found?;
    tell(id, &(&step).into(), as_json)
}

/// The same of a thread of a server, as it sees it.
pub(super) async fn why_there(server: &RemoteServer, name: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let id = server.find(name).await?;
    tell(id, &server.why(id).await?, as_json)
}

fn tell(id: ThreadId, found: &ThreadCapabilities, as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        print_json(&json!({"id": id, "roots": found.roots, "skills": found.skills, "plugins": found.plugins}))?;
    } else {
        print(&text(found))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn text(found: &ThreadCapabilities) -> String {
    let mut out = String::new();
    if found.roots.is_empty() {
        out.push_str("This thread has no capability roots.\n");
    }
    for root in &found.roots {
        let _ = writeln!(out, "{}  {}  {}:{}", if root.available { "in " } else { "out" }, root.id, root.environment_id, root.path);
        let _ = writeln!(out, "     {}", reason(root));
        for warning in &root.warnings {
            let _ = writeln!(out, "     ! {warning}");
        }
        for plugin in found.plugins.iter().filter(|plugin| !plugin.installed && plugin.root == root.id) {
            declares(plugin, &mut out);
        }
    }
    for plugin in found.plugins.iter().filter(|plugin| plugin.installed) {
        let _ = writeln!(out, "installed  plugin `{}`  {}:{}", plugin.name, plugin.environment_id, plugin.directory);
        declares(plugin, &mut out);
    }
    if !found.skills.is_empty() {
        out.push_str("skills\n");
    }
    for skill in &found.skills {
        let _ = writeln!(out, "     {}  {}", skill.name, skill.address);
    }
    for warning in &found.warnings {
        let _ = writeln!(out, "     ! {}:{}: {}", warning.environment_id, warning.path, warning.message);
    }
    out
}

fn declares(plugin: &CapabilityPlugin, out: &mut String) {
    for server in &plugin.mcp_servers {
        let _ = writeln!(out, "     MCP server {server}");
    }
    if !plugin.hooks_not_run.is_empty() {
        let _ = writeln!(out, "     hooks for {} are declared; this release does not run them", plugin.hooks_not_run.join(", "));
    }
}

fn reason(root: &CapabilityRootState) -> String {
    match (&root.reason, &root.plugin) {
        (Some(reason), _) => reason.clone(),
        (None, Some(plugin)) => format!("plugin `{plugin}`, {}", counted(root.skills, "skill")),
        (None, None) => counted(root.skills, "skill"),
    }
}
