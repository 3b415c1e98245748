//! Threads as clients see them: from their state if it is at hand, else from what a list knows.

use outpost_runtime::live::ThreadActivity;
use outpost_store::{ThreadSummary, unnoted};
use outpost_thread::{DamagedRange, Raw, Thread as State};
use outpost_wire::app::environment::ThreadEnvironment;
use outpost_wire::app::thread::{ActiveFlag, Thread, ThreadDamage, ThreadOpened, ThreadStatus};
use outpost_wire::app::turn::Turn;
use outpost_wire::intent::Selection;
use serde_json::{Value, json};

use super::Defaults;

/// What a thread's state does not say about it.
#[derive(Debug, Clone, Default)]
pub struct ThreadFacts {
    pub status: Option<ThreadActivity>,
    pub ephemeral: bool,
    pub path: Option<String>,
    pub turns: Vec<Turn>,
    /// Found while its past was read. What is written down in the thread is known from there.
    pub damage: Vec<DamagedRange>,
}

/// All that is known to be missing.
pub fn damage(state: &State, shown: &ThreadFacts) -> Vec<DamagedRange> {
    let mut all: Vec<DamagedRange> = state.damage.iter().cloned().collect();
    all.extend(unnoted(&state.damage, shown.damage.iter().cloned()));
    all.sort_by_key(|range| range.from);
    all
}

/// Nothing is the status of a thread that is not loaded.
pub fn status(status: Option<&ThreadActivity>) -> ThreadStatus {
    match status {
        None | Some(ThreadActivity::Closed) => ThreadStatus::NotLoaded,
        Some(ThreadActivity::Idle) => ThreadStatus::Idle,
        Some(ThreadActivity::Broken { .. }) => ThreadStatus::SystemError,
        Some(ThreadActivity::Active { waits_for_approval, waits_for_input }) => {
            let approval = waits_for_approval.then_some(ActiveFlag::WaitingOnApproval);
            let input = waits_for_input.then_some(ActiveFlag::WaitingOnUserInput);
            ThreadStatus::Active { active_flags: approval.into_iter().chain(input).collect() }
        }
    }
}

pub fn environments(selection: &Selection) -> Vec<ThreadEnvironment> {
    let shown = |attachment: &outpost_wire::Attachment| ThreadEnvironment {
        environment_id: attachment.environment_id.to_string(),
        cwd: attachment.cwd.to_syntax(),
        runtime_workspace_roots: attachment.workspace_roots.iter().map(outpost_wire::PathUri::to_syntax).collect(),
    };
    selection.attachments().iter().map(shown).collect()
}

/// Sources that clients know are words; what others wrote is theirs.
fn source(source: Option<&Raw>) -> Value {
    let known = |word: &str| matches!(word, "cli" | "vscode" | "exec" | "appServer" | "unknown");
    match source.and_then(|source| source.read::<Value>().ok()) {
        Some(Value::String(word)) if known(&word) => Value::String(word),
        Some(Value::String(word)) => json!({"custom": word}),
        Some(Value::Object(details)) if details.contains_key("subAgent") || details.contains_key("custom") => Value::Object(details),
        _ => json!("unknown"),
    }
}

pub fn thread(state: &State, shown: ThreadFacts, defaults: &Defaults) -> Thread {
    let metadata = &state.metadata;
    let damage: Vec<ThreadDamage> = damage(state, &shown)
        .into_iter()
        .map(|range| ThreadDamage { thread_id: state.id.to_string(), from: range.from, to: range.to, what: range.what })
        .collect();
    let is_loaded = shown.status.as_ref().is_some_and(|status| *status != ThreadActivity::Closed);
    Thread {
        id: state.id.to_string(),
        session_id: metadata.session.clone().unwrap_or_else(|| state.id.to_string()),
        forked_from_id: metadata.forked_from.map(|id| id.to_string()),
        parent_thread_id: metadata.parent.as_ref().map(|parent| parent.thread.to_string()),
        preview: metadata.preview.clone().unwrap_or_default(),
        ephemeral: shown.ephemeral,
        model_provider: defaults.provider(&state.settings),
        model: Some(defaults.model(&state.settings)),
        reasoning_effort: defaults.config.effort(&state.settings),
        created_at: state.created_at / 1000,
        updated_at: state.last_at / 1000,
        recency_at: Some(state.last_at / 1000),
        status: status(shown.status.as_ref()),
        path: shown.path,
        cwd: defaults.cwd(&state.settings),
        cli_version: metadata.program_version.clone().unwrap_or_else(|| defaults.version.clone()),
        source: source(metadata.source.as_ref()),
        originator: metadata.originator.clone(),
        thread_source: metadata.thread_source.clone(),
        agent_nickname: metadata.parent.as_ref().and_then(|parent| parent.nickname.clone()),
        agent_role: metadata.parent.as_ref().and_then(|parent| parent.role.clone()),
        git_info: metadata.git.as_ref().and_then(|git| git.read().ok()),
        name: metadata.name.clone(),
        project_id: None,
        section: None,
        section_entered_at: None,
        history_mode: "legacy".into(),
        environments: is_loaded.then(|| state.selection.as_ref().map(environments).unwrap_or_default()),
        can_accept_direct_input: Some(true),
        extra: None,
        daybreak_enabled: None,
        damaged: !damage.is_empty(),
        damage,
        turns: shown.turns,
    }
}

/// From a row of a list.
pub fn summary(row: &ThreadSummary, shown: ThreadFacts, defaults: &Defaults) -> Thread {
    let parent = row.parent.map(|id| id.to_string());
    let word = row.source.as_deref().map(|word| match word {
        // A list keeps only the word.
        "subAgent" => Raw::from(json!({"subAgent": {"other": "agent"}})),
        word => Raw::from(Value::from(word)),
    });
    Thread {
        id: row.id.to_string(),
        session_id: parent.clone().unwrap_or_else(|| row.id.to_string()),
        forked_from_id: row.forked_from.map(|id| id.to_string()),
        parent_thread_id: parent,
        preview: row.preview.clone().unwrap_or_default(),
        ephemeral: shown.ephemeral,
        model_provider: row.provider.clone().unwrap_or_else(|| defaults.config.model_provider.clone()),
        model: row.model.clone().or_else(|| Some(defaults.config.model.clone())),
        reasoning_effort: None,
        created_at: row.created_at / 1000,
        updated_at: row.updated_at / 1000,
        recency_at: Some(row.recency_at / 1000),
        status: status(shown.status.as_ref()),
        path: shown.path,
        cwd: row.cwd.clone().unwrap_or_else(|| defaults.cwd.clone()),
        cli_version: defaults.version.clone(),
        source: source(word.as_ref()),
        originator: None,
        thread_source: row.thread_source.clone(),
        agent_nickname: None,
        agent_role: None,
        git_info: None,
        name: row.name.clone(),
        project_id: None,
        section: None,
        section_entered_at: None,
        history_mode: "legacy".into(),
        environments: row.selection.as_ref().map(environments),
        can_accept_direct_input: Some(true),
        extra: None,
        daybreak_enabled: None,
        damaged: row.damaged,
        damage: vec![],
        turns: shown.turns,
    }
}

/// The answer to starting, resuming and forking.
pub fn opened(state: &State, shown: ThreadFacts, defaults: &Defaults) -> ThreadOpened {
    let settings = &state.settings;
    let primary = state.selection.as_ref().and_then(Selection::primary);
    ThreadOpened {
        model: defaults.model(settings),
        model_provider: defaults.provider(settings),
        service_tier: defaults.config.service_tier.clone(),
        cwd: defaults.cwd(settings),
        instruction_sources: vec![],
        approval_policy: defaults.approval(settings),
        approvals_reviewer: Defaults::reviewer(settings),
        sandbox: defaults.sandbox(settings),
        reasoning_effort: defaults.config.effort(settings),
        disabled_plugin_ids: vec![],
        runtime_workspace_roots: primary
            .map(|primary| primary.workspace_roots.iter().map(outpost_wire::PathUri::to_syntax).collect())
            .unwrap_or_default(),
        active_permission_profile: None,
        multi_agent_mode: outpost_wire::app::settings::MultiAgentMode::default(),
        collaboration_mode: Some(defaults.collaboration(settings)),
        initial_turns_page: None,
        turns_backwards_cursor: None,
        items_backwards_cursor: None,
        ordinal: state.last,
        model_context_window: Some(defaults.context_window(settings)),
        thread: thread(state, shown, defaults),
    }
}
