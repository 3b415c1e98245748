//! Entries: facts in the past tense, as they stand in a journal.
//!
//! A kind that this program does not know is carried as it is; a field that it does not know is ignored. Facts that belong
//! to one topic are declared there (`turn.rs`, `call.rs`, …); the rest is here.

use std::borrow::Cow;

use outpost_wire::intent::{CapabilityRoot, EnvironmentId, Selection};
use serde::{Deserialize, Serialize};

use crate::call::{ApprovalAnswered, ApprovalAsked, CallFinished, CallRequest, CallStarted};
use crate::compact::{ContextCompacted, TurnsReverted};
use crate::fork::ThreadForked;
use crate::grant::PermissionsGranted;
use crate::id::{CallId, Ordinal, ThreadId, TurnId};
use crate::input::{InputReceived, QueueChanged};
use crate::raw::Raw;
use crate::state::{Settings, ThreadCreated};
use crate::turn::{TurnFinished, TurnStarted};
use crate::upcast::upcast;
use crate::usage::TokenTotals;
use crate::wake::{WakeEnded, WakeSet};

/// A fact with its place in the thread and the time at which it was written, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub ordinal: Ordinal,
    pub at: u64,
    pub fact: Fact,
}

#[derive(Debug, thiserror::Error)]
#[error("a fact of kind `{kind}` has another shape than expected: {why}")]
pub struct FactError {
    pub kind: String,
    #[source]
    pub why: serde_json::Error,
}

/// Declares the facts: the enum, their kinds, and both directions.
macro_rules! facts {
    ($($kind:literal => $name:ident),+ $(,)?) => {
        /// What happened.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Fact {
            $($name(Box<$name>),)+
            /// Written by a program that knows more than this one, or spoiled in a way that checksums cannot see. Carried, counted, told.
            Unknown { kind: String, data: Raw },
        }

        impl Fact {
            /// All kinds that this program knows.
            pub const KINDS: &'static [&'static str] = &[$($kind),+];

            pub fn kind(&self) -> &str {
                match self {
                    $(Self::$name(_) => $kind,)+
                    Self::Unknown { kind, .. } => kind,
                }
            }

            /// The `data` member of its line.
            pub fn data(&self) -> Result<Raw, FactError> {
                let data = match self {
                    $(Self::$name(fact) => Raw::of(fact),)+
                    Self::Unknown { data, .. } => Ok(data.clone()),
                };
                data.map_err(|why| FactError { kind: self.kind().to_owned(), why })
            }

            fn typed(kind: &str, data: &str) -> Option<Result<Self, serde_json::Error>> {
                match kind {
                    $($kind => Some(serde_json::from_str(data).map(|fact| Self::$name(Box::new(fact)))),)+
                    _ => None,
                }
            }
        }

        $(impl From<$name> for Fact {
            fn from(fact: $name) -> Self {
                Self::$name(Box::new(fact))
            }
        })+
    };
}

facts! {
    "threadCreated" => ThreadCreated,
    "threadForked" => ThreadForked,
    "metadataChanged" => MetadataChanged,
    "settingsChanged" => SettingsChanged,
    "turnSettingsChanged" => TurnSettingsChanged,
    "selectionChanged" => SelectionChanged,
    "inputReceived" => InputReceived,
    "queueChanged" => QueueChanged,
    "turnStarted" => TurnStarted,
    "stepCaptured" => StepCaptured,
    "modelAsked" => ModelAsked,
    "modelAnswered" => ModelAnswered,
    "approvalAsked" => ApprovalAsked,
    "approvalAnswered" => ApprovalAnswered,
    "permissionsGranted" => PermissionsGranted,
    "callStarted" => CallStarted,
    "callFinished" => CallFinished,
    "wakeSet" => WakeSet,
    "wakeEnded" => WakeEnded,
    "agentSpawned" => AgentSpawned,
    "agentClosed" => AgentClosed,
    "contextCompacted" => ContextCompacted,
    "turnsReverted" => TurnsReverted,
    "turnFinished" => TurnFinished,
    "damageNoted" => DamageNoted,
}

impl Fact {
    /// Reads a fact that was written in `version` of the format. Whatever cannot be understood is carried as it is.
    pub fn read(version: u32, kind: &str, data: Raw) -> Self {
        let (kind, data) = upcast(version, kind, Cow::Borrowed(data.get()));
        match Self::typed(&kind, &data) {
            Some(Ok(fact)) => fact,
            // It was JSON before; `null` stands for the impossible.
            _ => Self::Unknown { kind: kind.into_owned(), data: Raw::parse(data).unwrap_or_else(|_| Raw::from(serde_json::Value::Null)) },
        }
    }

    /// The same from a text, which is looked at only once. An error if it is no JSON.
    pub fn read_text(version: u32, kind: &str, data: &str) -> Result<Self, serde_json::Error> {
        let (kind, data) = upcast(version, kind, Cow::Borrowed(data));
        match Self::typed(&kind, &data) {
            Some(Ok(fact)) => Ok(fact),
            _ => Ok(Self::Unknown { kind: kind.into_owned(), data: Raw::parse(data)? }),
        }
    }
}

/// Names, labels and marks of a thread. A member that is absent stays as it is; `null` clears it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetadataChanged {
    #[serde(skip_serializing_if = "Option::is_none", with = "clearable")]
    pub name: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", with = "clearable")]
    pub git: Option<Option<Raw>>,
    /// Anything else that a client wants to be kept with the thread, by key; `null` removes a key.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, serde_json::Value>,
}

/// Tells an absent member from one that is `null`.
mod clearable {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Option<Option<T>>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
        Option::<T>::deserialize(deserializer).map(Some)
    }
}

/// Settings that stay for later turns. Members that are absent stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SettingsChanged {
    pub settings: Settings,
}

/// Settings of a running turn from its next step on. They end with it; members that are absent stay as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnSettingsChanged {
    pub turn: TurnId,
    pub settings: Settings,
}

/// The sticky selection or the capability roots were changed. What is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectionChanged {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability_roots: Option<Vec<CapabilityRoot>>,
}

/// What one model step froze, and what the model was told because of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepCaptured {
    pub turn: TurnId,
    /// Counts from 0 in each turn. The same number again is the same step, asked again after a crash.
    pub step: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environments: Vec<StepEnvironment>,
    /// Model items that were injected before this step: environment context, instructions, reminders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Raw>,
    /// Whatever else the loop wants to remember of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Raw>,
}

/// An environment as a step saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepEnvironment {
    pub id: EnvironmentId,
    /// `ready`, `starting`, `failed`, `missing`, …
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Where work begins there; nothing if it was not selected for work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The machine that `local` is, where nodes on several machines share the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl StepEnvironment {
    /// As people see it: `local@host` where there are several.
    pub fn shown(&self) -> String {
        match &self.host {
            Some(host) => format!("{}@{host}", self.id),
            None => self.id.to_string(),
        }
    }
}

/// A request went to the model. Asking again after a crash writes another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelAsked {
    pub turn: TurnId,
    pub step: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

/// The model said something. An answer may come in parts, so that calls can start before it ends; the last part is `complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelAnswered {
    pub turn: TurnId,
    pub step: u32,
    /// Model items, as the model wrote them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Raw>,
    /// The calls that these items ask for, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallRequest>,
    pub complete: bool,
    /// The model said that it is not done although it asked for nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenTotals>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
}

/// A sub-agent was made. The edge itself is `parent` in the child's first entry; this is what the parent knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSpawned {
    pub child: ThreadId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nickname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// A sub-agent is no longer listed as open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentClosed {
    pub child: ThreadId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Entries that cannot be read any more. Written once when damage is found; in a repaired journal it stands in their place. A
/// reader of a journal that is not repaired puts one in their place, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DamageNoted {
    pub damage: Vec<DamagedRange>,
    /// In a repaired journal: the ordinals up to this one are gone, and the next entry follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Ordinal>,
    /// The thread went on without them: the user had been shown what is missing, and started another turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continued: bool,
}

impl DamageNoted {
    /// The entry that stands in the place of a range.
    pub fn in_place_of(range: DamagedRange) -> Self {
        let through = Some(range.to);
        Self { damage: vec![range], through, continued: false }
    }

    /// The ranges in whose place this entry stands, if its ordinal is `ordinal`: what was lost at the end of a journal has ordinals that
    /// were used again. Other ranges are noted from afar.
    pub fn here(&self, ordinal: Ordinal) -> impl Iterator<Item = &DamagedRange> {
        self.damage.iter().filter(move |range| !self.continued && (self.through.is_some() || range.to >= ordinal))
    }
}

impl Entry {
    /// The last ordinal that it stands for: its own, unless it stands in the place of others.
    pub fn end(&self) -> Ordinal {
        match &self.fact {
            Fact::DamageNoted(noted) => noted.through.unwrap_or(0).max(self.ordinal),
            _ => self.ordinal,
        }
    }
}

/// Ordinals `from` to `to`, both included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DamagedRange {
    pub from: Ordinal,
    pub to: Ordinal,
    pub what: String,
}

impl std::fmt::Display for DamagedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            from if from == self.to => write!(f, "entry {from}: {}", self.what),
            from => write!(f, "entries {from} to {}: {}", self.to, self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_and_fields_are_carried_or_ignored() {
        let data = Raw::parse(r#"{"deep":[1,{"x":null}]}"#).unwrap();
        let fact = Fact::read(1, "fromTheFuture", data.clone());
        assert_eq!(fact, Fact::Unknown { kind: "fromTheFuture".into(), data: data.clone() });
        assert_eq!(fact.data().unwrap(), data);
        let known = Fact::read(1, "agentClosed", Raw::parse(r#"{"child":"00000000-0000-0000-0000-000000000001","new":1}"#).unwrap());
        assert!(matches!(known, Fact::AgentClosed(_)), "{known:?}");
        let spoiled = Fact::read(1, "agentClosed", Raw::parse("7").unwrap());
        assert_eq!(spoiled.kind(), "agentClosed");
        assert!(matches!(spoiled, Fact::Unknown { .. }));
    }

    #[test]
    fn a_name_can_be_left_set_and_cleared() {
        let read = |text: &str| serde_json::from_str::<MetadataChanged>(text).unwrap().name;
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"name":null}"#), Some(None));
        assert_eq!(read(r#"{"name":"x"}"#), Some(Some("x".into())));
        let text = |name| serde_json::to_string(&MetadataChanged { name, ..Default::default() }).unwrap();
        assert_eq!((text(None), text(Some(None))), ("{}".into(), r#"{"name":null}"#.into()));
    }
}
