//! The heads, settings and token counts of rollouts, in our words.

use std::collections::BTreeMap;

use outpost_thread::{Parent, Raw, Settings, ThreadCreated, ThreadId, TokenTotals};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, CapabilityRoot, EnvironmentId, RootLocation, Selection};
use serde_json::{Value, json};

/// The first fact of an imported thread. Where it came from stays with it.
pub(super) fn created(thread: ThreadId, meta: &Value) -> ThreadCreated {
    let imported = json!({
        "from": "codex",
        "version": meta.get("cli_version"),
        "historyMode": meta.get("history_mode"),
        "forkedFrom": meta.get("forked_from_id"),
    });
    ThreadCreated {
        session: text(meta, "session_id"),
        source: raw(meta, "source"),
        thread_source: text(meta, "thread_source"),
        originator: text(meta, "originator"),
        program_version: text(meta, "cli_version"),
        parent: parent(meta),
        instructions: raw(meta, "base_instructions"),
        dynamic_tools: meta.get("dynamic_tools").and_then(Value::as_array).into_iter().flatten().cloned().map(Raw::from).collect(),
        settings: Settings { model_provider: text(meta, "model_provider"), cwd: text(meta, "cwd"), ..Settings::default() },
        git: raw(meta, "git"),
        selection: selection(meta),
        capability_roots: roots(meta),
        forked_from: text(meta, "forked_from_id").and_then(|id| id.parse().ok()),
        imported: Some(Raw::from(imported)),
        ..ThreadCreated::new(thread)
    }
}

/// A sub-agent says who made it in its source; newer rollouts in a member of its own, too.
fn parent(meta: &Value) -> Option<Parent> {
    let spawn = meta.pointer("/source/subagent/thread_spawn");
    let thread = text(meta, "parent_thread_id").or_else(|| text(spawn?, "parent_thread_id"))?.parse().ok()?;
    let about = |name: &str| text(meta, name).or_else(|| text(spawn?, name));
    Some(Parent {
        thread,
        depth: spawn.and_then(|spawn| spawn.get("depth")).and_then(Value::as_u64).and_then(|depth| u32::try_from(depth).ok()).unwrap_or(1),
        path: about("agent_path"),
        nickname: about("agent_nickname"),
        role: about("agent_role").or_else(|| about("agent_type")),
    })
}

fn either<'a>(value: &'a Value, names: [&str; 2]) -> Option<&'a Value> {
    names.into_iter().find_map(|name| value.get(name)).filter(|value| !value.is_null())
}

fn path(value: &Value) -> Option<PathUri> {
    let text = value.as_str()?;
    PathUri::parse_either(text).ok()
}

/// The environments that were selected, if the rollout says so. One that cannot be understood is as good as none.
pub(super) fn selection(value: &Value) -> Option<Selection> {
    let attachment = |value: &Value| {
        let id = EnvironmentId::parse(either(value, ["environment_id", "environmentId"]).or_else(|| value.get("id"))?.as_str()?).ok()?;
        let roots = either(value, ["workspace_roots", "runtimeWorkspaceRoots"]).and_then(Value::as_array);
        let attachment = Attachment::new(id, path(value.get("cwd")?)?);
        Some(match roots {
            Some(roots) => attachment.with_roots(roots.iter().filter_map(path)),
            None => attachment,
        })
    };
    let attachments = value.get("environments")?.as_array()?.iter().map(attachment).collect::<Option<Vec<_>>>()?;
    Selection::new(attachments).ok().filter(|selection| !selection.is_empty())
}

/// Those capability roots that can be understood.
fn roots(meta: &Value) -> Vec<CapabilityRoot> {
    let root = |value: &Value| {
        let location = value.get("location")?;
        let location = location.get("environment").filter(|inner| inner.is_object()).unwrap_or(location);
        let id = either(location, ["environment_id", "environmentId"])?.as_str()?;
        let location = RootLocation::Environment { environment_id: EnvironmentId::parse(id).ok()?, path: path(location.get("path")?)? };
        Some(CapabilityRoot { id: text(value, "id")?, location })
    };
    let all = meta.get("selected_capability_roots").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(root).collect()
}

pub(super) fn turn_settings(context: &Value) -> Settings {
    Settings {
        model: text(context, "model"),
        reasoning_effort: text(context, "effort"),
        approval_policy: raw(context, "approval_policy"),
        sandbox: raw(context, "sandbox_policy"),
        cwd: text(context, "cwd"),
        ..Settings::default()
    }
}

pub(super) fn thread_settings(settings: &Value) -> Settings {
    Settings {
        model: text(settings, "model"),
        model_provider: text(settings, "model_provider_id"),
        reasoning_effort: text(settings, "reasoning_effort"),
        approval_policy: raw(settings, "approval_policy"),
        cwd: text(settings, "cwd"),
        ..Settings::default()
    }
}

/// What `new` says that `old` does not.
pub(super) fn difference(old: &Settings, new: &Settings) -> Settings {
    fn changed<T: Clone + PartialEq>(old: &Option<T>, new: &Option<T>) -> Option<T> {
        if old == new { None } else { new.clone() }
    }
    Settings {
        model: changed(&old.model, &new.model),
        model_provider: changed(&old.model_provider, &new.model_provider),
        reasoning_effort: changed(&old.reasoning_effort, &new.reasoning_effort),
        approval_policy: changed(&old.approval_policy, &new.approval_policy),
        sandbox: changed(&old.sandbox, &new.sandbox),
        cwd: changed(&old.cwd, &new.cwd),
        compact_at: None,
        other: BTreeMap::new(),
    }
}

pub(super) fn merged(old: &Settings, change: &Settings) -> Settings {
    let (old, change) = (old.clone(), change.clone());
    Settings {
        model: change.model.or(old.model),
        model_provider: change.model_provider.or(old.model_provider),
        reasoning_effort: change.reasoning_effort.or(old.reasoning_effort),
        approval_policy: change.approval_policy.or(old.approval_policy),
        sandbox: change.sandbox.or(old.sandbox),
        cwd: change.cwd.or(old.cwd),
        compact_at: old.compact_at,
        other: old.other,
    }
}

pub(super) fn tokens(usage: &Value) -> TokenTotals {
    let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
    TokenTotals {
        input: count("input_tokens"),
        cached_input: count("cached_input_tokens"),
        cache_write_input: count("cache_write_input_tokens"),
        output: count("output_tokens"),
        reasoning_output: count("reasoning_output_tokens"),
        total: count("total_tokens"),
    }
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name)?.as_str().map(str::to_owned)
}

fn raw(value: &Value, name: &str) -> Option<Raw> {
    value.get(name).filter(|value| !value.is_null()).cloned().map(Raw::from)
}
