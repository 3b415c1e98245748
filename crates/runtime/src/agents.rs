//! Trees of agents: how many there may be at once, and what they have used together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How far agents may make agents.
#[derive(Debug, Clone, Copy)]
pub struct AgentLimits {
    /// Of one tree, besides its root, at the same time.
    pub most: usize,
    /// A root may make agents at depth 1, those at depth 2, and so on.
    pub depth: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { most: 6, depth: 1 }
    }
}

/// What the agents of one root share.
pub struct Tree {
    permits: Arc<Semaphore>,
    tokens: AtomicU64,
}

/// A place in a tree. It is given back when it is dropped.
pub struct Seat {
    tree: Arc<Tree>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Tree {
    pub fn new(limits: AgentLimits, tokens: u64) -> Arc<Self> {
        Arc::new(Self { permits: Arc::new(Semaphore::new(limits.most)), tokens: AtomicU64::new(tokens) })
    }

    /// The root's own place.
    pub fn root(self: &Arc<Self>) -> Seat {
        Seat { tree: self.clone(), _permit: None }
    }

    /// A place for another agent, if there is one. Two who ask at once cannot both get the last.
    pub fn seat(self: &Arc<Self>) -> Option<Seat> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        Some(Seat { tree: self.clone(), _permit: Some(permit) })
    }
}

impl Seat {
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
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
        let tree = Tree::new(AgentLimits { most: 2, depth: 1 }, 0);
        let root = tree.root();
        let (first, second) = (tree.seat(), tree.seat());
        assert!(first.is_some() && second.is_some() && tree.seat().is_none());
        drop(first);
        assert!(tree.seat().is_some());
        root.used(5);
        second.unwrap().used(2);
        assert_eq!(root.tree_tokens(), 7);
    }
}
