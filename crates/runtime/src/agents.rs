//! Trees of agents: how many there may be at once, and what they have used together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How far agents may make agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// Of one tree, besides its root, at work at the same time.
    #[serde(rename = "max_threads")]
    pub most: usize,
    /// A root may make agents at depth 1, those at depth 2, and so on.
    #[serde(rename = "max_depth")]
    pub depth: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { most: 6, depth: 1 }
    }
}

/// What the agents of one root share.
pub struct AgentTree {
    permits: Arc<Semaphore>,
    tokens: AtomicU64,
}

/// A place in a tree. A working agent holds one of its permits until the work ends.
pub struct AgentSlot {
    tree: Arc<AgentTree>,
    permit: Permit,
}

enum Permit {
    /// A root needs none.
    Needless,
    Held(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit),
    None,
}

impl AgentTree {
    pub fn new(limits: AgentLimits, tokens: u64) -> Arc<Self> {
        Arc::new(Self { permits: Arc::new(Semaphore::new(limits.most)), tokens: AtomicU64::new(tokens) })
    }

    /// The root's own place.
    pub fn root(self: &Arc<Self>) -> AgentSlot {
        AgentSlot { tree: self.clone(), permit: Permit::Needless }
    }

    /// The place of an agent that does nothing yet.
    pub fn resting(self: &Arc<Self>) -> AgentSlot {
        AgentSlot { tree: self.clone(), permit: Permit::None }
    }

    /// A place for another agent that is about to work, if there is one.
    pub fn seat(self: &Arc<Self>) -> Option<AgentSlot> {
        let mut seat = self.resting();
        seat.work().then_some(seat)
    }
}

impl AgentSlot {
    pub fn tree(&self) -> &Arc<AgentTree> {
        &self.tree
    }

    /// Whether work may begin. Two who ask at once cannot both get the last permit.
    pub fn work(&mut self) -> bool {
        if matches!(self.permit, Permit::None)
            && let Ok(permit) = self.tree.permits.clone().try_acquire_owned()
        {
            self.permit = Permit::Held(permit);
        }
        !matches!(self.permit, Permit::None)
    }

    /// The work is done.
    pub fn rest(&mut self) {
        if matches!(self.permit, Permit::Held(_)) {
            self.permit = Permit::None;
        }
    }

    pub fn used(&self, tokens: u64) {
        self.tree.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    pub fn tree_tokens(&self) -> u64 {
        self.tree.tokens.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_counted_and_given_back() {
        let tree = AgentTree::new(AgentLimits { most: 2, depth: 1 }, 0);
        let root = tree.root();
        let (first, second) = (tree.seat(), tree.seat());
        assert!(first.is_some() && second.is_some() && tree.seat().is_none());
        drop(first);
        assert!(tree.seat().is_some());
        let (mut third, mut late) = (tree.seat().unwrap(), tree.resting());
        assert!(!late.work());
        third.rest();
        assert!(late.work() && !third.work());
        let mut root = root;
        root.rest();
        assert!(root.work(), "a root needs no permit");
        root.used(5);
        second.unwrap().used(2);
        assert_eq!(root.tree_tokens(), 7);
    }
}
