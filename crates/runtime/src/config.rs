//! How a runtime behaves. Everything here is a value that the program passes in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use outpost_thread::Settings;
use serde::Deserialize;

use crate::agents::AgentLimits;
use crate::feed::FeedLimits;
use crate::mcp::McpConfig;
use crate::model::{ModelFacts, ModelOverrides, NO_MODEL};
use crate::permissions::SandboxMode;
use crate::policy::{AllowedPolicies, ApprovalPolicy};
use crate::skills::choice::SkillChoice;
use crate::skills::host::HostRoot;

#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// The model of threads that name none.
    pub model: String,
    pub model_provider: String,
    /// How long the model may reason in threads that do not say; without it, as long as the model likes.
    pub reasoning_effort: Option<String>,
    /// The service tier of requests, in the provider's own word.
    pub service_tier: Option<String>,
    pub approval: ApprovalPolicy,
    /// Those that threads may have, if an administrator names them.
    pub allowed_policies: Option<AllowedPolicies>,
    pub sandbox: SandboxMode,
    pub budgets: Budgets,
    pub agents: AgentLimits,
    /// The context window of models, in tokens, by name; `default` for the others.
    pub context_windows: BTreeMap<String, u64>,
    /// What configuration says of models in the place of the built-in table, by name.
    pub models: BTreeMap<String, ModelOverrides>,
    /// Whether a user can be asked.
    pub questions: bool,
    /// How long a step waits for environments that are starting: for the primary, and for the others after it.
    pub patience: StepPatience,
    /// How long a step waits for an environment to tell what its capability roots hold.
    pub discovery_patience: Duration,
    /// Folders of this machine that hold skills.
    pub host_skills: Vec<HostRoot>,
    /// What the user asks of agents in all projects: a file of this machine, which need not be there.
    pub user_instructions: Option<PathBuf>,
    /// Which skills the user wants and which not.
    pub skill_choices: Vec<SkillChoice>,
    /// How long a command of a previous run is looked for.
    pub reattach_patience: Duration,
    /// A thread in which nothing happens for so long is unloaded.
    pub unload_after: Duration,
    /// So many threads without subscribers and work stay loaded that long; of more, those that have rested longest
    /// are unloaded at once.
    pub most_resting: usize,
    /// The state of a thread is kept aside every so many turns.
    pub checkpoint_every: u64,
    /// Which MCP servers there are, and how patient we are with them.
    pub mcp: McpConfig,
    /// How much of what happens in a thread is remembered for a follower that is slow to read it.
    pub feed: FeedLimits,
}

/// How much a thread, one of its turns, or a thread with all its agents may use. Nothing, or zero, is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Budgets {
    pub turn_tokens: Option<u64>,
    pub thread_tokens: Option<u64>,
    pub tree_tokens: Option<u64>,
    pub turn_seconds: Option<u64>,
    /// How often the model may be asked in one turn.
    pub turn_steps: Option<u64>,
    /// How many turns in a row ends of commands may begin, without a word of a user.
    pub woken_turns: Option<u64>,
}

impl Default for Budgets {
    /// Far more than a turn that gets anywhere needs, so that one that gets nowhere ends by itself.
    fn default() -> Self {
        Self {
            turn_tokens: Some(50_000_000),
            thread_tokens: None,
            tree_tokens: None,
            turn_seconds: None,
            turn_steps: Some(500),
            woken_turns: Some(50),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct StepPatience {
    pub primary: Duration,
    pub others: Duration,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            model: NO_MODEL.into(),
            model_provider: "offline".into(),
            reasoning_effort: None,
            service_tier: None,
            approval: ApprovalPolicy::default(),
            allowed_policies: None,
            sandbox: SandboxMode::workspace_write(),
            budgets: Budgets::default(),
            agents: AgentLimits::default(),
            context_windows: BTreeMap::new(),
            models: BTreeMap::new(),
            questions: true,
            patience: StepPatience { primary: Duration::from_secs(10), others: Duration::from_secs(1) },
            discovery_patience: Duration::from_secs(5),
            host_skills: Vec::new(),
            user_instructions: None,
            skill_choices: Vec::new(),
            reattach_patience: Duration::from_secs(600),
            unload_after: Duration::from_secs(600),
            most_resting: 64,
            checkpoint_every: 16,
            mcp: McpConfig::default(),
            feed: FeedLimits::default(),
        }
    }
}

impl RuntimeConfig {
    /// Why a thread may not have the approval policy that its settings ask for, or that it would have without, if so.
    pub fn policy_refusal(&self, settings: &Settings) -> Option<String> {
        let policy = crate::settings::approval(settings).ok()?.unwrap_or(self.approval);
        self.allowed_policies.as_ref()?.refusal(policy)
    }

    /// The effort that counts for a thread.
    pub fn effort(&self, settings: &Settings) -> Option<String> {
        settings.reasoning_effort.clone().or_else(|| self.reasoning_effort.clone())
    }

    /// The window of a model.
    pub fn context_window(&self, model: &str) -> u64 {
        self.facts(model).context_window
    }

    /// What is known of a model.
    pub fn facts(&self, model: &str) -> ModelFacts {
        let mut facts = ModelFacts::of(model, &self.models);
        let is_said = self.models.get(model).is_some_and(|own| own.context_window.is_some());
        let window = self.context_windows.get(model).or_else(|| self.context_windows.get("default"));
        if let Some(window) = window.filter(|_| !is_said) {
            facts.context_window = *window;
        }
        facts
    }
}
