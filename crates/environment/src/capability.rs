//! Capability roots: which of them a step can use, and through which handle. Nothing is read here, and nothing waits.

use outpost_wire::intent::MAX_ROOTS;
use outpost_wire::{CapabilityRoot, RootLocation};

use crate::environment::Environment;
use crate::view::{Captured, StepView};

/// A root and what it can be reached through in this step.
#[derive(Debug, Clone)]
pub struct ResolvedRoot {
    pub root: CapabilityRoot,
    pub access: CapabilityAccess,
}

#[derive(Debug, Clone)]
pub enum CapabilityAccess {
    /// Exactly the handle that the step captured.
    Available(Environment),
    Unavailable {
        why: String,
    },
}

impl ResolvedRoot {
    pub fn handle(&self) -> Option<&Environment> {
        match &self.access {
            CapabilityAccess::Available(handle) => Some(handle),
            CapabilityAccess::Unavailable { .. } => None,
        }
    }
}

/// What each root can be reached through in this step, in their order.
pub fn resolve_selected_capability_roots(roots: &[CapabilityRoot], view: &StepView) -> Vec<ResolvedRoot> {
    let resolve = |root: &CapabilityRoot| {
        let access = match view.captured(root.environment_id()) {
            Some(Captured::Ready(handle)) => CapabilityAccess::Available(handle.clone()),
            Some(captured) => {
                CapabilityAccess::Unavailable { why: format!("environment `{}` is {}", root.environment_id(), captured.describe()) }
            }
            None => CapabilityAccess::Unavailable { why: format!("environment `{}` is not part of this step", root.environment_id()) },
        };
        ResolvedRoot { root: root.clone(), access }
    };
    roots.iter().map(resolve).collect()
}

/// The thread's own roots, and after them what its environments offer. The first of two with one id counts; only a place
/// that the environment itself tells anew is newer than the thread's.
pub fn gather_roots(thread: &[CapabilityRoot], view: &StepView) -> Vec<CapabilityRoot> {
    let offered = || view.members().iter().filter(|member| member.attachment.is_some()).flat_map(|member| &member.offered);
    let mut roots: Vec<CapabilityRoot> = thread.to_vec();
    for root in &mut roots {
        if let Some(live) = offered().find(|live| live.id == root.id && live.environment_id() == root.environment_id()) {
            let RootLocation::Environment { path, .. } = &mut root.location;
            path.clone_from(live.path());
        }
    }
    let own = roots.len();
    for root in offered() {
        if roots.len() - own == MAX_ROOTS {
            tracing::warn!(root = root.id, "more capability roots are offered than a step takes");
            break;
        }
        match roots.iter().find(|known| known.id == root.id) {
            None => roots.push(root.clone()),
            Some(known) if known == root => {}
            Some(_) => tracing::warn!(root = root.id, environment = %root.environment_id(), "another capability root has the same id"),
        }
    }
    roots
}
