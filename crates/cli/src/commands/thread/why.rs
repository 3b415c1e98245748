//! `outpost thread why`: what the capability roots of a thread come to now, and why.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Context;
use outpost_runtime::capabilities::{RootReport, StepCapabilities};
use outpost_runtime::plugins::Plugin;
use serde_json::json;

use super::times::counted;
use super::{Desk, print, print_json};
use crate::ProcessContext;
use crate::assembly::{Assembly, RuntimeOptions};
use crate::home::Home;

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
    if as_json {
        print_json(&json!({"id": id, "roots": step.roots, "skills": skills(&step), "plugins": plugins(&step)}))?;
    } else {
        print(&text(&step))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn skills(step: &StepCapabilities) -> Vec<serde_json::Value> {
    let skill = |skill: &outpost_runtime::skills::Skill| json!({"name": skill.name, "description": skill.description, "address": skill.locator, "environmentId": skill.environment});
    step.skills.iter().map(skill).collect()
}

fn plugins(step: &StepCapabilities) -> Vec<serde_json::Value> {
    let plugin = |plugin: &Plugin| {
        let servers: Vec<&str> = plugin.mcp_servers.iter().map(|server| server.name.as_str()).collect();
        json!({"name": plugin.name, "root": plugin.root, "environmentId": plugin.environment, "mcpServers": servers,
               "hooksNotRun": plugin.hooks, "installed": plugin.is_installed})
    };
    step.plugins.iter().map(plugin).collect()
}

pub(crate) fn text(step: &StepCapabilities) -> String {
    let mut out = String::new();
    if step.roots.is_empty() {
        out.push_str("This thread has no capability roots.\n");
    }
    for root in &step.roots {
        let _ = writeln!(out, "{}  {}  {}:{}", if root.available { "in " } else { "out" }, root.id, root.environment_id, root.path);
        let _ = writeln!(out, "     {}", reason(root));
        for warning in &root.warnings {
            let _ = writeln!(out, "     ! {warning}");
        }
        for plugin in step.plugins.iter().filter(|plugin| !plugin.is_installed && plugin.root == root.id) {
            declares(plugin, &mut out);
        }
    }
    for plugin in step.plugins.iter().filter(|plugin| plugin.is_installed) {
        let _ = writeln!(out, "installed  plugin `{}`  {}:{}", plugin.name, plugin.environment, plugin.directory.to_syntax());
        declares(plugin, &mut out);
    }
    if !step.skills.is_empty() {
        out.push_str("skills\n");
    }
    for skill in &step.skills {
        let _ = writeln!(out, "     {}  {}", skill.name, skill.locator);
    }
    for warning in &step.warnings {
        let _ = writeln!(out, "     ! {}:{}: {}", warning.environment, warning.path, warning.message);
    }
    out
}

fn declares(plugin: &Plugin, out: &mut String) {
    for server in &plugin.mcp_servers {
        let _ = writeln!(out, "     MCP server {}", server.name);
    }
    if !plugin.hooks.is_empty() {
        let _ = writeln!(out, "     hooks for {} are declared; this release does not run them", plugin.hooks.join(", "));
    }
}

fn reason(root: &RootReport) -> String {
    match (&root.reason, &root.plugin) {
        (Some(reason), _) => reason.clone(),
        (None, Some(plugin)) => format!("plugin `{plugin}`, {}", counted(root.skills as u64, "skill")),
        (None, None) => counted(root.skills as u64, "skill"),
    }
}
