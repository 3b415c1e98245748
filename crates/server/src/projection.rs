//! What clients see of a thread. The only translator from entries and events to threads, turns, items and notifications.
//!
//! Pure: facts go in, what is to be told comes out. A read of the past and a live subscription run through the same
//! [`Projector`], so they cannot show different things; what is told of an entry is the same whenever it is told.

mod ask;
mod calls;
mod diffs;
mod items;
mod projector;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod thread;
mod turns;

use outpost_runtime::RuntimeConfig;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_thread::{ApprovalId, Entry, Settings, TurnId, VERSION};
use outpost_wire::app::event::Notice;
use outpost_wire::app::journal::JournalEntry;
use outpost_wire::app::settings::{
    ApprovalsReviewer, AskForApproval, CollaborationMode, CollaborationSettings, MultiAgentMode, SandboxPolicy, ThreadSettings,
};

pub use ask::{ApprovalPrompt, QuestionKind};
pub use projector::{Projector, damage_warning};
pub use thread::{ThreadFacts, damage, environments, opened, status, summary, thread};
pub use turns::{Turns, only_last_message, without_items};

use crate::server::Facts;

/// Something that a client is to be told.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    Notice(Notice),
    /// The client is asked something.
    Ask(Box<ApprovalPrompt>),
    /// The question was withdrawn.
    Resolved(ApprovalId),
    /// This turn and all later ones do not count any more; for those who put turns together.
    Reverted(TurnId),
}

impl<N: Into<Notice>> From<N> for ClientMessage {
    fn from(notice: N) -> Self {
        Self::Notice(notice.into())
    }
}

/// An entry as it is stored.
pub fn journal_entry(entry: &Entry) -> JournalEntry {
    // What cannot be written could not have been stored either.
    let data = entry.fact.data().ok().and_then(|data| data.read().ok()).unwrap_or_default();
    JournalEntry { ordinal: entry.ordinal, at_ms: entry.at, version: VERSION, kind: entry.fact.kind().to_owned(), data }
}

/// What holds for a thread that says nothing else.
#[derive(Debug, Clone)]
pub struct Defaults {
    pub config: RuntimeConfig,
    pub cwd: String,
    pub version: String,
}

impl Defaults {
    pub fn of(config: &RuntimeConfig, facts: &Facts) -> Self {
        Self { config: config.clone(), cwd: facts.cwd.to_syntax(), version: facts.version.clone() }
    }

    pub fn model(&self, settings: &Settings) -> String {
        settings.model.clone().unwrap_or_else(|| self.config.model.clone())
    }

    pub fn provider(&self, settings: &Settings) -> String {
        settings.model_provider.clone().unwrap_or_else(|| self.config.model_provider.clone())
    }

    pub fn cwd(&self, settings: &Settings) -> String {
        settings.cwd.clone().unwrap_or_else(|| self.cwd.clone())
    }

    pub fn context_window(&self, settings: &Settings) -> u64 {
        self.config.context_window(&self.model(settings))
    }

    pub fn approval(&self, settings: &Settings) -> AskForApproval {
        // One that cannot be read counts as the strictest, as it does in the runtime.
        let own = outpost_runtime::settings::approval(settings).unwrap_or(Some(ApprovalPolicy::Untrusted));
        // The runtime and the wire spell policies alike.
        same(&own.unwrap_or(self.config.approval)).unwrap_or(AskForApproval::Untrusted)
    }

    pub fn reviewer(settings: &Settings) -> ApprovalsReviewer {
        settings.other.get("approvalsReviewer").and_then(same).unwrap_or_default()
    }

    pub fn mode(&self, settings: &Settings) -> SandboxMode {
        let own = outpost_runtime::settings::sandbox(settings).unwrap_or(Some(SandboxMode::ReadOnly { network_access: false }));
        match own.unwrap_or_else(|| self.config.sandbox.clone()) {
            SandboxMode::Unset => SandboxMode::workspace_write(),
            mode => mode,
        }
    }

    pub fn sandbox(&self, settings: &Settings) -> SandboxPolicy {
        same(&self.mode(settings)).unwrap_or(SandboxPolicy::ReadOnly { network_access: false })
    }

    pub fn settings(&self, settings: &Settings) -> ThreadSettings {
        ThreadSettings {
            model: self.model(settings),
            model_provider: self.provider(settings),
            effort: self.config.effort(settings),
            summary: None,
            approval_policy: self.approval(settings),
            approvals_reviewer: Self::reviewer(settings),
            sandbox_policy: self.sandbox(settings),
            active_permission_profile: None,
            cwd: self.cwd(settings),
            service_tier: self.config.service_tier.clone(),
            personality: None,
            collaboration_mode: self.collaboration(settings),
            disabled_plugin_ids: vec![],
            multi_agent_mode: MultiAgentMode::default(),
        }
    }

    pub fn collaboration(&self, settings: &Settings) -> CollaborationMode {
        CollaborationMode {
            mode: "default".into(),
            settings: CollaborationSettings {
                model: self.model(settings),
                reasoning_effort: self.config.effort(settings),
                developer_instructions: None,
            },
        }
    }
}

/// The same value in another type with the same spelling.
pub(crate) fn same<A: serde::Serialize, B: serde::de::DeserializeOwned>(value: &A) -> Option<B> {
    serde_json::from_value(serde_json::to_value(value).ok()?).ok()
}
