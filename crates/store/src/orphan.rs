//! Threads whose node died: which of them have work to do, and who may take them up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use outpost_thread::{Selection, ThreadId};
use outpost_wire::EnvironmentId;

use crate::lease::LeaseHolder;
use crate::summary::ThreadSummary;

/// So many nodes in a row may take up a thread without getting on with it, and die within five minutes.
pub const MOST_CLAIMS: u64 = 3;

/// Who has a thread.
#[derive(Debug, Clone)]
pub enum ThreadTenure {
    Held(Box<LeaseHolder>),
    Orphaned(Box<OrphanedThread>),
}

/// A thread that no program has: its node died, or gave it back.
#[derive(Debug, Clone)]
pub struct OrphanedThread {
    pub thread: ThreadId,
    /// Something is to be done in it, and it was a node's that died.
    pub has_work: bool,
    /// So often was it taken up since it last got on.
    pub claims: u64,
    /// The machine that `local` is in it; where its node ran, as long as no step has said so.
    pub host: String,
    pub selection: Option<Selection>,
}

/// What becomes of such a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanFate {
    /// There is nothing to go on with: it waits until a client asks for it.
    Idle,
    TakeUp,
    /// It works on the machine of its node, which is not ours.
    Elsewhere,
    /// Node after node ended while it had the thread.
    Parked,
}

/// What a node does that is asked for such a thread by a client whose node died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanAnswer {
    /// It takes the thread for the client.
    Open,
    /// Another node is about to take the thread up, or it is this one by itself.
    Wait,
    Refuse,
}

impl OrphanFate {
    /// Nodes that take up what died know how often that was tried and on which machine it works, so they come first, and work that they
    /// leave alone is refused: clients ask again by themselves, and a thread that ends its nodes would end one after the other.
    pub const fn when_asked(self, is_time_over: bool) -> OrphanAnswer {
        match self {
            Self::Idle => OrphanAnswer::Open,
            Self::TakeUp | Self::Elsewhere if !is_time_over => OrphanAnswer::Wait,
            Self::TakeUp | Self::Elsewhere | Self::Parked => OrphanAnswer::Refuse,
        }
    }
}

/// The machine that `local` is in a thread, and where it works: by what lists know of it, and where its last node ran.
pub(crate) fn places(summary: Option<&str>, host: Option<String>) -> (String, Option<Selection>) {
    let summary: Option<ThreadSummary> = summary.and_then(|text| serde_json::from_str(text).ok());
    let (local_host, selection) = summary.map(|summary| (summary.local_host, summary.selection)).unwrap_or_default();
    (local_host.or(host).unwrap_or_default(), selection)
}

impl OrphanedThread {
    pub fn fate(&self, own_host: &str) -> OrphanFate {
        let is_local = |selection: &Selection| selection.get(&EnvironmentId::local()).is_some();
        if !self.has_work {
            OrphanFate::Idle
        } else if self.claims >= MOST_CLAIMS {
            OrphanFate::Parked
        } else if self.host != own_host && self.selection.as_ref().is_none_or(is_local) {
            OrphanFate::Elsewhere
        } else {
            OrphanFate::TakeUp
        }
    }
}

/// So long a thread that is not taken up is not looked at again.
const PASSED: Duration = Duration::from_secs(60);

/// Threads that a node has looked at and does not take up: however many they are, they must not hide others. Under one number of its lease
/// the fate of a thread changes only if a node lives that was taken for dead, so each is looked at again now and then.
#[derive(Debug, Default)]
pub struct PassedOrphans(HashMap<ThreadId, (u64, Instant)>);

impl PassedOrphans {
    pub(crate) fn pass(&mut self, thread: ThreadId, epoch: u64) {
        self.0.insert(thread, (epoch, Instant::now()));
    }

    /// Each with the number of its lease.
    pub(crate) fn names(&mut self) -> Vec<String> {
        self.0.retain(|_, (_, at)| at.elapsed() < PASSED);
        self.0.iter().map(|(thread, (epoch, _))| format!("{thread} {epoch}")).collect()
    }
}

/// Whether a thread has work to do, as far as the kinds of its entries tell: a turn that has not ended, or an input after the last
/// start of a turn. A command whose end begins a turn is work, too; the summary of a thread knows of those. An input that a running turn took counts until the next turn; a node that takes up such a thread finds nothing to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadWork {
    pub is_there: bool,
    has_input: bool,
}

impl ThreadWork {
    /// As it was stored, and whether an input came after the last start of a turn.
    pub const fn known(is_there: bool, has_input: bool) -> Self {
        Self { is_there, has_input }
    }

    pub fn see(&mut self, kind: &str) {
        match kind {
            "inputReceived" => *self = Self { is_there: true, has_input: true },
            "turnStarted" => *self = Self { is_there: true, has_input: false },
            "turnFinished" => self.is_there = self.has_input,
            _ => {}
        }
    }

    /// Whether an entry shows that the thread gets on.
    pub fn is_progress(kind: &str) -> bool {
        matches!(kind, "modelAnswered" | "callFinished" | "turnFinished")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_work_from_its_input_to_the_end_of_its_last_turn() {
        let mut work = ThreadWork::default();
        let mut after = |kinds: &[&str]| {
            kinds.iter().for_each(|kind| work.see(kind));
            work.is_there
        };
        assert!(!after(&["threadCreated"]));
        assert!(after(&["inputReceived"]));
        assert!(after(&["turnStarted", "modelAnswered", "callStarted"]));
        assert!(!after(&["callFinished", "turnFinished"]));
        assert!(after(&["inputReceived", "turnStarted", "inputReceived", "turnFinished"]), "one is queued");
        assert!(!after(&["turnStarted", "turnFinished"]));
    }

    #[test]
    fn a_turn_that_another_node_began_ends_the_work_unless_an_input_waits() {
        for waits in [false, true] {
            let mut work = ThreadWork::known(true, waits);
            work.see("turnFinished");
            assert_eq!(work.is_there, waits);
        }
    }

    #[test]
    fn a_thread_of_another_machine_waits_for_it_and_one_that_ends_nodes_is_parked() {
        let orphan = |claims, host: &str, environment: &str| {
            let attachment = outpost_wire::intent::Attachment::new(
                EnvironmentId::parse(environment).unwrap(),
                outpost_wire::PathUri::from_syntax("/srv").unwrap(),
            );
            let selection = Selection::new(vec![attachment]).ok();
            OrphanedThread { thread: ThreadId::new(uuid::Uuid::nil()), has_work: true, claims, host: host.into(), selection }
        };
        assert_eq!(orphan(0, "a", "box").fate("b"), OrphanFate::TakeUp);
        assert_eq!(orphan(2, "a", "local").fate("a"), OrphanFate::TakeUp);
        assert_eq!(orphan(0, "a", "local").fate("b"), OrphanFate::Elsewhere);
        assert_eq!(OrphanedThread { selection: None, ..orphan(0, "a", "box") }.fate("b"), OrphanFate::Elsewhere);
        assert_eq!(orphan(MOST_CLAIMS, "a", "box").fate("b"), OrphanFate::Parked);
        assert_eq!(OrphanedThread { has_work: false, ..orphan(MOST_CLAIMS, "a", "local") }.fate("b"), OrphanFate::Idle);
    }

    #[test]
    fn a_client_that_asks_for_an_orphan_comes_after_the_nodes() {
        for fate in [OrphanFate::TakeUp, OrphanFate::Elsewhere] {
            assert_eq!((fate.when_asked(false), fate.when_asked(true)), (OrphanAnswer::Wait, OrphanAnswer::Refuse), "{fate:?}");
        }
        for is_time_over in [false, true] {
            assert_eq!(OrphanFate::Idle.when_asked(is_time_over), OrphanAnswer::Open);
            assert_eq!(OrphanFate::Parked.when_asked(is_time_over), OrphanAnswer::Refuse, "no node takes it up");
        }
    }
}
