//! What is recorded of calls and questions besides their fate: what clients are shown of them, and by what they are found again.
//!
//! The loop constructs these records, and everything that shows a thread reads them; no other module knows their spelling. It is the
//! spelling of version 0.1.0, so that each journal opens. A record that cannot be understood is kept as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::raw::Raw;

/// A record as it stands in the journal. It is read where it is needed: what another version added to it stays in the journal, and
/// threads that are only opened do not pay for it.
pub struct Recorded<T> {
    raw: Raw,
    record: PhantomData<fn() -> T>,
}

impl<T: JournalRecord> Recorded<T> {
    pub fn read(&self) -> T {
        T::from_raw(&self.raw)
    }

    /// The text in the journal.
    pub const fn raw(&self) -> &Raw {
        &self.raw
    }
}

impl<T: JournalRecord> From<T> for Recorded<T> {
    fn from(record: T) -> Self {
        Raw::from(record.into_value()).into()
    }
}

impl<T> From<Raw> for Recorded<T> {
    fn from(raw: Raw) -> Self {
        Self { raw, record: PhantomData }
    }
}

impl<T> Clone for Recorded<T> {
    fn clone(&self) -> Self {
        self.raw.clone().into()
    }
}

impl<T> fmt::Debug for Recorded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<T> PartialEq for Recorded<T> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl<T> Serialize for Recorded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Recorded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Raw::deserialize(deserializer).map(Into::into)
    }
}

/// What [`Recorded`] can hold.
pub trait JournalRecord: Sized {
    fn from_raw(raw: &Raw) -> Self;
    fn into_value(self) -> Value;
}

/// What a call is about to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum CallDetail {
    CommandExecution(CommandDetail),
    /// Something is typed into a running command.
    TerminalInteraction(InteractionDetail),
    FileChange(FileChangeDetail),
    ImageView(ImageDetail),
    McpToolCall(McpDetail),
    DynamicToolCall(DynamicDetail),
    CollabAgentToolCall(AgentDetail),
    SkillRead(SkillDetail),
    Plan(PlanDetail),
    /// Of another version.
    #[serde(skip)]
    Unknown(Raw),
}

impl JournalRecord for CallDetail {
    fn from_raw(raw: &Raw) -> Self {
        raw.read().unwrap_or_else(|_| Self::Unknown(raw.clone()))
    }

    fn into_value(self) -> Value {
        match self {
            Self::Unknown(raw) => raw.read().unwrap_or_default(),
            known => value_of(&known),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CommandDetail {
    pub command: String,
    pub cwd: String,
    /// As the model named it, if there is no such environment.
    pub environment_id: Option<String>,
    pub source: CommandOrigin,
    /// It may do more than the sandbox allows every command of the agent. Unknown for commands that 0.1.0 started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beyond_sandbox: Option<bool>,
    /// The user wrote it: it is waited for, however long it takes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub until_it_ends: bool,
}

impl CommandDetail {
    /// Whether its call waits until it ends.
    pub const fn is_awaited(&self) -> bool {
        self.until_it_ends || matches!(self.source, CommandOrigin::UserShell)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CommandOrigin {
    #[default]
    Agent,
    /// A command that the user typed: it runs as the user, without a sandbox.
    UserShell,
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InteractionDetail {
    /// The call that started the command.
    pub process_call: Option<String>,
    pub stdin: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileChangeDetail {
    pub changes: Vec<PlannedChange>,
    pub environment_id: Option<String>,
}

/// A change of a file before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    pub path: String,
    pub kind: ChangeKind,
    #[serde(default)]
    pub diff: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum ChangeKind {
    Add,
    Delete,
    Update {
        #[serde(default)]
        move_path: Option<String>,
    },
}

impl ChangeKind {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Delete => "delete",
            Self::Update { .. } => "update",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageDetail {
    pub path: String,
    pub environment_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McpDetail {
    pub server: String,
    pub tool: String,
    pub arguments: Value,
    pub environment_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DynamicDetail {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub tool: String,
    pub arguments: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentDetail {
    pub tool: String,
    pub prompt: Option<String>,
    /// The agents that it is about.
    pub receivers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SkillDetail {
    pub skill: String,
    pub path: String,
    pub file: Option<String>,
    pub environment_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanDetail {
    pub explanation: Option<String>,
    pub plan: Vec<PlannedStep>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    pub step: String,
    pub status: PlannedStepStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedStepStatus {
    InProgress,
    Completed,
    #[serde(other)]
    Pending,
}

/// How a call ended. Each kind of call uses some of the members; one that is absent was not recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Why it failed: a text, or what an MCP server wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// What it would have done, if it was refused before it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<Recorded<CallDetail>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregated_output: Option<String>,
    /// The bytes of output that the model was shown or that were left out, since the command began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// The session id of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// The same while the command runs, and nothing once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_denied: Option<bool>,
    /// What the sandbox forbade, and the setting that allows it, in words for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_hint: Option<String>,
    /// The limit that stopped it, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// What its executor had to say besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// What an MCP server answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// What the user or a client answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The agents that it was about, and how they stand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub receivers: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<String, Value>,
    /// Files that were written and removed, and what their paths are shown relative to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<WrittenFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// What another program recorded of an imported call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<Value>,
}

impl CallReport {
    pub fn failed(why: &str) -> Self {
        Self { error: Some(why.into()), ..Self::default() }
    }

    /// Why it failed, if that is a text.
    pub fn error_text(&self) -> Option<&str> {
        self.error.as_ref()?.as_str()
    }
}

impl JournalRecord for CallReport {
    fn from_raw(raw: &Raw) -> Self {
        raw.read().unwrap_or_default()
    }

    fn into_value(self) -> Value {
        value_of(&self)
    }
}

/// A file that a patch has written or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenFile {
    pub path: String,
    pub kind: ChangeKind,
    /// Hunks; nothing for what is no text and for what is too large.
    #[serde(default)]
    pub diff: Option<String>,
    /// The file that was moved here, and the hunks that lead from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_diff: Option<String>,
}

/// What a question is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalKind {
    Command,
    FileChange,
    Permissions,
    UserInput,
    DynamicTool,
    /// Whether a tool of an MCP server may run.
    McpTool,
    /// An MCP server asks the user something.
    McpElicitation,
    /// Of another version.
    Unknown(String),
}

impl ApprovalKind {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Command => "command",
            Self::FileChange => "fileChange",
            Self::Permissions => "permissions",
            Self::UserInput => "userInput",
            Self::DynamicTool => "dynamicTool",
            Self::McpTool => "mcpTool",
            Self::McpElicitation => "mcpElicitation",
            Self::Unknown(kind) => kind,
        }
    }
}

impl From<String> for ApprovalKind {
    fn from(kind: String) -> Self {
        let known =
            [Self::Command, Self::FileChange, Self::Permissions, Self::UserInput, Self::DynamicTool, Self::McpTool, Self::McpElicitation];
        known.into_iter().find(|known| known.as_str() == kind).unwrap_or(Self::Unknown(kind))
    }
}

impl Serialize for ApprovalKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ApprovalKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Into::into)
    }
}

/// What the user is asked. Each kind of question uses some of the members.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApprovalDetail {
    /// The kind of call that a client is asked to carry out.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub call_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// Why the user is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What the agent says it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The command is to run without a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalated: Option<bool>,
    /// The rule that the agent suggests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_rule: Option<Vec<String>>,
    /// The program that runs the command, and its flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<Vec<String>>,
    /// The sandbox around it, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The command that it is typed into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typed_into: Option<String>,
    /// Permissions that it asks for, and the same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_permissions: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Raw>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PlannedChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub arguments: Value,
    /// What an MCP server says of its tool.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub annotations: Value,
    /// What an MCP server wrote.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub request: Value,
    /// The call whose server asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Value>,
    /// What an answer is bound to, and what an answer for the thread is remembered under if that is wider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lasting: Option<String>,
    /// The parts that the question is about, for each of which an answer for the thread is remembered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// What is different from when the user was asked before, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<Vec<String>>,
}

impl JournalRecord for ApprovalDetail {
    fn from_raw(raw: &Raw) -> Self {
        raw.read().unwrap_or_default()
    }

    fn into_value(self) -> Value {
        value_of(&self)
    }
}

/// These records have texts as keys and no numbers that JSON lacks: they always serialise.
fn value_of(record: &impl Serialize) -> Value {
    serde_json::to_value(record).unwrap_or_default()
}

/// Reads what may not be recorded at all.
pub(crate) fn read_or_default<T: JournalRecord + Default>(recorded: Option<&Recorded<T>>) -> T {
    recorded.map(Recorded::read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a reader that does not know it writes back.
    fn carried<T: JournalRecord>(value: &Value) -> Value {
        let recorded = Recorded::<T>::from(Raw::from(value.clone()));
        Recorded::from(recorded.read()).raw().read().unwrap()
    }

    #[test]
    fn a_kind_of_call_of_another_version_is_carried_as_it_is() {
        for value in [json!({"type": "hologram", "x": 1}), json!({"type": "fileChange", "changes": 5}), json!({"x": 1}), json!(7)] {
            let raw = Raw::from(value.clone());
            assert_eq!(CallDetail::from_raw(&raw), CallDetail::Unknown(raw), "{value}");
            assert_eq!(carried::<CallDetail>(&value), value);
        }
        let known = json!({"type": "imageView", "path": "/x.png", "environmentId": "box"});
        assert_eq!(carried::<CallDetail>(&known), known);
    }

    #[test]
    fn a_kind_of_question_of_another_version_keeps_its_name() {
        for (name, kind) in [("hologram", ApprovalKind::Unknown("hologram".into())), ("mcpTool", ApprovalKind::McpTool)] {
            let read: ApprovalKind = serde_json::from_value(json!(name)).unwrap();
            assert_eq!(read, kind);
            assert_eq!(serde_json::to_value(read).unwrap(), json!(name));
        }
    }

    #[test]
    fn what_another_version_added_to_a_report_stays_in_the_journal() {
        let value = json!({"exitCode": 3, "hologram": {"x": 1}, "begun": {"type": "hologram", "x": 1}});
        let recorded: Recorded<CallReport> = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&recorded).unwrap(), value);
        let report = recorded.read();
        assert_eq!((report.exit_code, report.duration_ms), (Some(3), None));
        assert!(matches!(report.begun.unwrap().read(), CallDetail::Unknown(_)));
        // One that cannot be understood at all has nothing to tell, and is kept.
        let spoiled: Recorded<CallReport> = serde_json::from_value(json!({"exitCode": "three"})).unwrap();
        assert_eq!((spoiled.read(), spoiled.raw().read::<Value>().unwrap()), (CallReport::default(), json!({"exitCode": "three"})));
    }
}
