//! What one model step may use: frozen when the step begins.
//!
//! Everything inside a step takes the view, nothing takes the registry: there is no way from a view, or from a handle in
//! it, back to the registry. So a call of this step cannot reach a handle that was put there later.
//!
//! ```compile_fail,E0599
//! fn tool(view: &outpost_environment::StepView, id: &outpost_wire::EnvironmentId) {
//!     view.registry().get(id);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! fn tool(handle: &outpost_environment::Environment, id: &outpost_wire::EnvironmentId) {
//!     handle.registry().get(id);
//! }
//! ```

use std::sync::Arc;

use outpost_wire::{Attachment, CapabilityRoot, EnvironmentId, Selection};
use thiserror::Error;
use tokio::time::Instant;

use crate::environment::Environment;
use crate::registry::EnvironmentState;

/// How an environment stood when the step began.
#[derive(Debug, Clone)]
pub enum Captured {
    /// Exactly this handle, whatever becomes of the id meanwhile.
    Ready(Environment),
    Starting,
    /// It was there and is being got back.
    Recovering {
        reason: String,
    },
    Failed {
        reason: String,
        retry_at: Option<Instant>,
    },
    /// It is connected only on request, and there was none.
    Asleep,
    Missing,
    Disabled,
}

impl From<&EnvironmentState> for Captured {
    fn from(standing: &EnvironmentState) -> Self {
        match standing {
            // Ready without a handle is not ready.
            EnvironmentState::Idle | EnvironmentState::Connecting | EnvironmentState::Ready => Self::Starting,
            EnvironmentState::Recovering { reason, .. } => Self::Recovering { reason: reason.clone() },
            EnvironmentState::Failed { reason, retry_at, .. } => Self::Failed { reason: reason.clone(), retry_at: *retry_at },
            EnvironmentState::NeedsLogin { reason } => Self::Failed { reason: format!("it needs a login: {reason}"), retry_at: None },
            EnvironmentState::Missing => Self::Missing,
            EnvironmentState::Disabled => Self::Disabled,
        }
    }
}

impl Captured {
    pub fn handle(&self) -> Option<&Environment> {
        match self {
            Self::Ready(handle) => Some(handle),
            _ => None,
        }
    }

    /// In a few words, for people and models.
    pub fn describe(&self) -> String {
        match self {
            Self::Ready(_) => "ready".into(),
            Self::Starting => "starting".into(),
            Self::Recovering { reason } => format!("recovering: {reason}"),
            Self::Failed { reason, .. } => format!("failed: {reason}"),
            Self::Asleep => "not connected; it is connected only when asked for".into(),
            Self::Missing => "missing: no such environment is configured".into(),
            Self::Disabled => "disabled: environments are switched off".into(),
        }
    }
}

/// One environment of a step.
#[derive(Debug, Clone)]
pub struct ViewMember {
    pub id: EnvironmentId,
    /// Where to work in it. Nothing if it is here only because a capability root or a server is in it: then no tool is
    /// offered for it.
    pub attachment: Option<Attachment>,
    pub captured: Captured,
    /// Capability roots that the environment itself offers.
    pub offered: Vec<CapabilityRoot>,
}

/// Cheap to clone; all clones are the same frozen view.
#[derive(Debug, Clone)]
pub struct StepView(Arc<[ViewMember]>);

/// An environment that can be worked in.
#[derive(Debug, Clone, Copy)]
pub struct Workplace<'a> {
    pub attachment: &'a Attachment,
    pub handle: &'a Environment,
}

/// Why a call cannot go where it wants to.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ViewError {
    #[error("no environment is selected")]
    Empty,
    #[error("unknown turn environment id `{0}`")]
    NotSelected(String),
    #[error("environment `{id}` is not ready: {state}")]
    NotReady { id: EnvironmentId, state: String },
}

impl StepView {
    pub(crate) fn capture(
        selection: &Selection,
        roots: &[CapabilityRoot],
        others: &[EnvironmentId],
        mut capture: impl FnMut(&EnvironmentId) -> (Captured, Vec<CapabilityRoot>),
    ) -> Self {
        let mut members: Vec<ViewMember> = Vec::with_capacity(selection.attachments().len());
        let mut add = |members: &mut Vec<ViewMember>, id: &EnvironmentId, attachment: Option<Attachment>| {
            let (captured, offered) = capture(id);
            members.push(ViewMember { id: id.clone(), attachment, captured, offered });
        };
        for attachment in selection.attachments() {
            add(&mut members, &attachment.environment_id, Some(attachment.clone()));
        }
        for id in roots.iter().map(CapabilityRoot::environment_id).chain(others) {
            if members.iter().all(|member| member.id != *id) {
                add(&mut members, id, None);
            }
        }
        Self(members.into())
    }

    /// The same without the use of one environment, for this reason.
    pub fn without(&self, id: &EnvironmentId, reason: &str) -> Self {
        let withheld = |member: &ViewMember| match member.id == *id {
            true => ViewMember { captured: Captured::Failed { reason: reason.to_owned(), retry_at: None }, ..member.clone() },
            false => member.clone(),
        };
        Self(self.0.iter().map(withheld).collect())
    }

    /// All of them: the selected ones in their order, then those that are here for their roots.
    pub fn members(&self) -> &[ViewMember] {
        &self.0
    }

    /// Those that were selected, in their order.
    pub fn selected(&self) -> impl Iterator<Item = &ViewMember> {
        self.0.iter().filter(|member| member.attachment.is_some())
    }

    /// Those that can be worked in; tools are offered for these.
    pub fn workplaces(&self) -> impl Iterator<Item = Workplace<'_>> {
        self.0.iter().filter_map(|member| Some(Workplace { attachment: member.attachment.as_ref()?, handle: member.captured.handle()? }))
    }

    /// The first that was selected. If it is not ready, nothing takes its place.
    pub fn primary(&self) -> Result<Workplace<'_>, ViewError> {
        let member = self.selected().next().ok_or(ViewError::Empty)?;
        member.workplace()
    }

    /// Where a call goes that names this environment, or none.
    pub fn workplace(&self, id: Option<&str>) -> Result<Workplace<'_>, ViewError> {
        let Some(id) = id else { return self.primary() };
        let member = self.selected().find(|member| member.id.as_str() == id);
        member.ok_or_else(|| ViewError::NotSelected(id.to_owned()))?.workplace()
    }

    /// How an environment was captured; nothing if this step has nothing to do with it.
    pub fn captured(&self, id: &EnvironmentId) -> Option<&Captured> {
        self.0.iter().find(|member| member.id == *id).map(|member| &member.captured)
    }
}

impl ViewMember {
    fn workplace(&self) -> Result<Workplace<'_>, ViewError> {
        match (&self.attachment, &self.captured) {
            (Some(attachment), Captured::Ready(handle)) => Ok(Workplace { attachment, handle }),
            (None, _) => Err(ViewError::NotSelected(self.id.to_string())),
            (_, captured) => Err(ViewError::NotReady { id: self.id.clone(), state: captured.describe() }),
        }
    }
}
