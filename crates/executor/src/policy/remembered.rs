//! Policies that were resolved a moment ago: resolving one means looking at the disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outpost_sandbox::policy::{PathAccess, Policy};
use outpost_wire::exec::policy::SandboxContext;

use super::{Grounds, PolicyError};
use crate::trails::{TrailStamp, Trails};

/// So long is a policy taken for what it was: resolving it means looking at the disk.
const CURRENT: Duration = Duration::from_secs(1);
/// So many are remembered.
const REMEMBERED: usize = 64;

/// The policies that a client asks for again and again.
#[derive(Default)]
pub(crate) struct Policies(pub(super) Mutex<HashMap<SandboxContext, Resolved>>);

/// A policy, when it was resolved, and by what it is seen that its denied paths lead elsewhere since.
pub(super) struct Resolved {
    pub(super) at: Instant,
    policy: Policy,
    marks: Vec<Mark>,
}

impl Resolved {
    fn is_current(&self) -> bool {
        self.at.elapsed() < CURRENT && self.marks.iter().all(Mark::is_current)
    }
}

/// What was at a path: at the link itself, or at what the path leads to.
struct Mark {
    path: PathBuf,
    look: fn(&Path) -> Option<TrailStamp>,
    seen: Option<TrailStamp>,
}

impl Mark {
    /// Links on the way to what is denied, and what is denied: a program outside may replace either at any time.
    fn all(policy: &Policy) -> Vec<Self> {
        let Some(rules) = policy.rules() else { return Vec::new() };
        let links = rules.links().map(|(link, _)| Self::new(link, TrailStamp::of));
        let denied = rules.iter().filter(|rule| rule.access == PathAccess::Deny).map(|rule| Self::new(&rule.path, TrailStamp::of_target));
        links.chain(denied).collect()
    }

    fn new(path: &Path, look: fn(&Path) -> Option<TrailStamp>) -> Self {
        Self { seen: look(path), path: path.to_owned(), look }
    }

    fn is_current(&self) -> bool {
        (self.look)(&self.path) == self.seen
    }
}

impl Policies {
    pub(crate) fn of(&self, context: &SandboxContext, grounds: &Grounds, trails: &Trails) -> Result<Policy, PolicyError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(resolved) = known.get(context).filter(|resolved| resolved.is_current()) {
            return Ok(resolved.policy.clone());
        }
        let policy = grounds.policy(Some(context), trails)?;
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let marks = Mark::all(&policy);
        known.insert(context.clone(), Resolved { at: Instant::now(), policy: policy.clone(), marks });
        Ok(policy)
    }
}
