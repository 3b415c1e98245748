//! Skills of this machine, for lists of clients. Those of other environments belong to steps: `thread/why` tells of them.

use std::sync::Arc;

use outpost_runtime::skills::choice::SkillChoice;
use outpost_runtime::skills::host::{HostSkillScope as Scope, ListedSkill, SkillList};
use outpost_wire::app::Nothing;
use outpost_wire::app::skills::{
    SkillEntry, SkillError, SkillScope, SkillsConfigWrite, SkillsConfigWriteParams, SkillsConfigWriteResponse, SkillsExtraRootsSet,
    SkillsExtraRootsSetParams, SkillsList, SkillsListEntry, SkillsListParams, SkillsListResponse,
};
use outpost_wire::{Fault, PathUri};
use serde_json::Value;

use super::config;
use super::unsupported::places;
use crate::configuration::Edit;
use crate::connection::ClientConnection;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table.on::<SkillsList, _, _>(list).on::<SkillsExtraRootsSet, _, _>(set_extra_roots).on::<SkillsConfigWrite, _, _>(choose)
}

/// There is nothing to be reloaded: what is told is what is there.
async fn list(connection: Arc<ClientConnection>, params: SkillsListParams) -> Result<SkillsListResponse, Fault> {
    let mut data = Vec::new();
    for cwd in places(&connection, params.cwds) {
        data.push(match PathUri::from_syntax(&cwd) {
            Ok(path) => connection.server.runtime.list_skills(&[path]).await.into_iter().map(entry).next().unwrap_or_else(|| nothing(&cwd)),
            Err(error) => {
                let problem = SkillError { path: cwd.clone(), message: error.to_string() };
                SkillsListEntry { errors: vec![problem], ..nothing(&cwd) }
            }
        });
    }
    Ok(SkillsListResponse { data })
}

fn nothing(cwd: &str) -> SkillsListEntry {
    SkillsListEntry { cwd: cwd.to_owned(), skills: Vec::new(), errors: Vec::new() }
}

fn entry(list: SkillList) -> SkillsListEntry {
    let skill = |skill: ListedSkill| SkillEntry {
        name: skill.name,
        description: skill.description,
        short_description: skill.short_description,
        path: skill.path,
        scope: match skill.scope {
            Scope::User => SkillScope::User,
            Scope::Repo => SkillScope::Repo,
            Scope::System => SkillScope::System,
            Scope::Admin => SkillScope::Admin,
        },
        enabled: skill.enabled,
        plugin_id: skill.plugin_id,
        interface: None,
        dependencies: None,
        environment_id: Some("local".into()),
    };
    let problem = |problem: outpost_runtime::skills::host::SkillProblem| SkillError { path: problem.path, message: problem.message };
    SkillsListEntry {
        cwd: list.cwd,
        skills: list.skills.into_iter().map(skill).collect(),
        errors: list.errors.into_iter().map(problem).collect(),
    }
}

async fn set_extra_roots(connection: Arc<ClientConnection>, params: SkillsExtraRootsSetParams) -> Result<Nothing, Fault> {
    connection.server.runtime.set_extra_skill_roots(params.extra_roots.into_iter().map(|root| root.0).collect());
    Ok(Nothing {})
}

/// Writes the wish down and follows it at once. What is wanted anyway is not written.
async fn choose(connection: Arc<ClientConnection>, params: SkillsConfigWriteParams) -> Result<SkillsConfigWriteResponse, Fault> {
    let name = params.name.filter(|name| !name.trim().is_empty());
    let path = params.path.map(|path| path.0.to_syntax());
    if name.is_some() == path.is_some() {
        return Err(Fault::invalid_params("skills/config/write requires exactly one of path or name"));
    }
    let wish = SkillChoice { name, path, enabled: params.enabled };
    let server = connection.server.clone();
    let written = tokio::task::spawn_blocking(move || {
        let found = server.configuration.written().map_err(config::refused)?;
        let known = found.config.pointer("/skills/config").cloned().unwrap_or_default();
        let mut choices: Vec<SkillChoice> = serde_json::from_value(known).unwrap_or_default();
        choices.retain(|choice| !choice.is_about(&wish));
        if !wish.enabled {
            choices.push(wish);
        }
        let value = if choices.is_empty() { Value::Null } else { serde_json::to_value(&choices).unwrap_or_default() };
        let edit = Edit { key_path: "skills.config".into(), value, merges: false };
        server.configuration.write(&[edit], Some(&found.version)).map_err(config::refused)?;
        server.runtime.set_skill_choices(choices);
        Ok::<(), Fault>(())
    });
    written.await.map_err(Fault::internal)??;
    Ok(SkillsConfigWriteResponse { effective_enabled: params.enabled })
}
