//! One environment of the registry, and all of them in order.

use std::collections::HashMap;
use std::sync::Arc;

use outpost_wire::{CapabilityRoot, EnvironmentId};
use tokio::time::Instant;

use super::feed::{RegistryEvent, RegistryTransition};
use crate::connector::{Connector, JoinedLinks};
use crate::definition::Definition;
use crate::environment::{ConnectPolicy, Environment, EnvironmentOptions};
use crate::pending::Provision;
use crate::state::{ConnectionState, ExecutorIdentity, Failure, FailureKind};
use crate::view::Captured;

/// Who brought an environment here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentOrigin {
    Configured,
    /// Added while the program runs; never selected unless named.
    Added,
}

/// The public state of an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentState {
    /// Not asked for yet.
    Idle,
    Connecting,
    Ready,
    /// It was ready and is being got back.
    Recovering {
        reason: String,
        retry_at: Option<Instant>,
    },
    Failed {
        cause: FailureCause,
        reason: String,
        retry_at: Option<Instant>,
    },
    /// Nothing is tried before the user has logged in.
    NeedsLogin {
        reason: String,
    },
    /// No such environment, now.
    Missing,
    /// Environments are switched off.
    Disabled,
}

impl EnvironmentState {
    /// One word, the same wherever it is shown.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::Recovering { .. } => "recovering",
            Self::Failed { .. } => "failed",
            Self::NeedsLogin { .. } => "needs login",
            Self::Missing => "missing",
            Self::Disabled => "disabled",
        }
    }

    /// Why, where there is more to say than the word does.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Recovering { reason, .. } | Self::Failed { reason, .. } | Self::NeedsLogin { reason } => Some(reason),
            Self::Idle | Self::Connecting | Self::Ready | Self::Missing | Self::Disabled => None,
        }
    }

    /// When the next attempt is made, or may be made.
    pub fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::Recovering { retry_at, .. } | Self::Failed { retry_at, .. } => *retry_at,
            Self::Idle | Self::Connecting | Self::Ready | Self::NeedsLogin { .. } | Self::Missing | Self::Disabled => None,
        }
    }

    /// Whether waiting may change it.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::Connecting | Self::Recovering { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    Config,
    Connection,
    Provisioning,
}

/// One environment in a list.
#[derive(Debug, Clone)]
pub struct EnvironmentRow {
    pub id: EnvironmentId,
    pub generation: u64,
    pub standing: EnvironmentState,
    pub origin: EnvironmentOrigin,
    /// Where it is, for people.
    pub address: String,
    pub connect: ConnectPolicy,
    pub identity: Option<ExecutorIdentity>,
    /// Its executor has to dial in, and never has.
    pub waits_for_first: bool,
}

pub(super) struct Entry {
    pub id: EnvironmentId,
    pub generation: u64,
    pub standing: EnvironmentState,
    pub origin: EnvironmentOrigin,
    pub kind: Kind,
    /// Nothing where the configuration is wrong.
    pub live: Option<Live>,
    /// Whether the executor behind this handle was compared with the one before it.
    pub is_recognised: bool,
}

/// A handle, and what another one like it is made of.
pub(super) struct Live {
    pub handle: Environment,
    pub recipe: Recipe,
}

#[derive(Clone)]
pub(super) struct Recipe {
    pub connector: Connector,
    pub options: EnvironmentOptions,
}

#[derive(Clone)]
pub(super) enum Kind {
    /// Configured, and wrong.
    Wrong,
    Defined(Box<Definition>),
    Local,
    /// In a way of the caller's own.
    Attached,
    Joined(JoinedLinks),
    Pending(Arc<Provision>),
}

impl Entry {
    pub(super) fn handle(&self) -> Option<&Environment> {
        self.live.as_ref().map(|live| &live.handle)
    }

    fn policy(&self) -> ConnectPolicy {
        self.live.as_ref().map_or(ConnectPolicy::Manual, |live| live.recipe.options.connect)
    }

    /// The handle, if it is to be connected at once.
    pub(super) fn eager(&self) -> Option<Environment> {
        self.handle().filter(|_| self.policy() == ConnectPolicy::Eager).cloned()
    }

    pub(super) fn unreached(&self) -> Option<Environment> {
        let handle = self.handle().filter(|_| self.policy() != ConnectPolicy::Manual)?;
        matches!(handle.state(), ConnectionState::Failed(failure) if !failure.is_final()).then(|| handle.clone())
    }

    /// Whether the configuration still says the same. This machine has no definition.
    pub(super) fn is_defined_as(&self, wanted: Option<&Result<Definition, String>>) -> bool {
        match (&self.kind, wanted) {
            (Kind::Local, None) => true,
            (Kind::Defined(definition), Some(Ok(wanted))) => **definition == *wanted,
            (Kind::Wrong, Some(Err(wanted))) => matches!(&self.standing, EnvironmentState::Failed { reason, .. } if reason == wanted),
            _ => false,
        }
    }

    pub(super) fn event(&self, transition: RegistryTransition) -> RegistryEvent {
        RegistryEvent::Environment { id: self.id.clone(), generation: self.generation, standing: self.standing.clone(), transition }
    }

    pub(super) fn status(&self) -> EnvironmentRow {
        let address = match (&self.kind, &self.live) {
            (Kind::Defined(definition), _) => definition.to_string(),
            (_, Some(live)) => live.recipe.connector.name().to_owned(),
            (_, None) => String::new(),
        };
        EnvironmentRow {
            id: self.id.clone(),
            generation: self.generation,
            standing: self.standing.clone(),
            origin: self.origin,
            address,
            connect: self.policy(),
            identity: self.handle().and_then(Environment::identity),
            waits_for_first: matches!(&self.kind, Kind::Joined(door) if !door.is_known()),
        }
    }

    /// What the environment itself offers.
    pub(super) fn offered(&self) -> Vec<CapabilityRoot> {
        match &self.kind {
            Kind::Pending(provision) => provision.capability_roots(),
            _ => Vec::new(),
        }
    }

    /// How it stands at this moment, and whether it is to be asked to start.
    pub(super) fn capture(&self) -> (Captured, Option<Environment>) {
        let Some(handle) = self.handle() else { return (Captured::from(&self.standing), None) };
        match handle.state() {
            ConnectionState::Ready(_) => (Captured::Ready(handle.clone()), None),
            // What cannot be provided is known without asking.
            ConnectionState::Idle if self.standing != EnvironmentState::Idle => (Captured::from(&self.standing), None),
            ConnectionState::Idle if self.policy() == ConnectPolicy::Manual => (Captured::Asleep, None),
            ConnectionState::Idle => (Captured::Starting, Some(handle.clone())),
            state @ ConnectionState::Failed(_) => (Captured::from(&EnvironmentState::from(&state)), Some(handle.clone())),
            state @ (ConnectionState::Connecting | ConnectionState::Recovering { .. }) => {
                (Captured::from(&EnvironmentState::from(&state)), None)
            }
        }
    }
}

impl From<&Provision> for EnvironmentState {
    fn from(provision: &Provision) -> Self {
        match provision.failure() {
            Some(reason) => Self::Failed { cause: FailureCause::Provisioning, reason: reason.to_string(), retry_at: None },
            None => Self::Idle,
        }
    }
}

impl From<&Failure> for EnvironmentState {
    fn from(failure: &Failure) -> Self {
        if failure.kind == FailureKind::NeedsLogin {
            return Self::NeedsLogin { reason: failure.reason.to_string() };
        }
        let cause = if failure.kind == FailureKind::Provisioning { FailureCause::Provisioning } else { FailureCause::Connection };
        Self::Failed { cause, reason: failure.reason.to_string(), retry_at: failure.retry_at }
    }
}

impl From<&ConnectionState> for EnvironmentState {
    fn from(state: &ConnectionState) -> Self {
        match state {
            ConnectionState::Idle => Self::Idle,
            ConnectionState::Connecting => Self::Connecting,
            ConnectionState::Ready(_) => Self::Ready,
            ConnectionState::Recovering { reason, needs_login: true, .. } => Self::NeedsLogin { reason: reason.clone() },
            ConnectionState::Recovering { reason, retry_at, .. } => Self::Recovering { reason: reason.clone(), retry_at: *retry_at },
            ConnectionState::Failed(failure) => failure.into(),
        }
    }
}

/// All of them, in the order of the configuration and then in the order in which they were added.
#[derive(Default)]
pub(super) struct Entries {
    order: Vec<EnvironmentId>,
    by_id: HashMap<EnvironmentId, Entry>,
}

impl Entries {
    pub(super) fn get(&self, id: &EnvironmentId) -> Option<&Entry> {
        self.by_id.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &EnvironmentId) -> Option<&mut Entry> {
        self.by_id.get_mut(id)
    }

    /// A known id keeps its place.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let id = entry.id.clone();
        let old = self.by_id.insert(id.clone(), entry);
        if old.is_none() {
            self.order.push(id);
        }
        old
    }

    pub(super) fn remove(&mut self, id: &EnvironmentId) -> Option<Entry> {
        let removed = self.by_id.remove(id);
        if removed.is_some() {
            self.order.retain(|known| known != id);
        }
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.order.iter().filter_map(|id| self.by_id.get(id))
    }

    pub(super) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.insert(entry);
        }
    }

    pub(super) fn into_entries(mut self) -> Vec<Entry> {
        self.order.iter().filter_map(|id| self.by_id.remove(id)).collect()
    }
}
