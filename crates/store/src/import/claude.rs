//! Sessions of Claude Code become threads here: `projects/<project>/<session>.jsonl`, and those of their sub-agents
//! (`agent-<id>.jsonl` beside them or in a folder of the session's).
//!
//! A line names the one that it answers, so that a session is a tree: a message that was taken back has a later sibling. The way from
//! the last line to the first is the conversation; what lies off it was taken back and is left out. One line holds one part of an
//! answer. A file is read twice: first for that way, which needs little of each line ([`plan`]), then for what was said.

mod plan;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use outpost_thread::{
    CallDetail, CallId, CallOutcome, CallReport, ChangeKind, CommandDetail, CompactReason, ContextCompacted, DynamicDetail, Fact,
    FileChangeDetail, InterruptReason, Kept, McpDetail, MetadataChanged, Parent, PlannedChange, Raw, Settings, ThreadCreated, ThreadId,
    TokenTotals, TurnStatus, is_user_message,
};
use outpost_wire::calendar::utc_millis;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::convert::Converted;
use super::file::{self, BadLine};
use super::scribe::{Dated, Ending, ImportedCall, Scribe};

use plan::{LineId, Plan};

/// What is written for the program itself and says nothing about the conversation.
const OWN_BUSINESS: [&str; 6] = ["file-history-snapshot", "progress", "queue-operation", "last-prompt", "pr-link", "agent-name"];

#[derive(Debug, thiserror::Error)]
pub enum ClaudeError {
    #[error("{path}: {error}")]
    Io {
        path: std::path::PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{path}: its session is called `{id}`, which is not a UUID")]
    Id { path: std::path::PathBuf, id: String },
}

/// One line. Everything but what leads to the others stays JSON.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    subtype: String,
    uuid: String,
    parent_uuid: Option<String>,
    /// Where a summary of the conversation continues what it sums up.
    logical_parent_uuid: Option<String>,
    is_sidechain: bool,
    is_meta: bool,
    is_compact_summary: bool,
    is_api_error_message: bool,
    timestamp: String,
    cwd: Option<String>,
    version: Option<String>,
    git_branch: Option<String>,
    session_id: Option<String>,
    agent_id: Option<String>,
    message: Message,
    tool_use_result: Value,
    compact_metadata: Value,
    summary: Option<String>,
    leaf_uuid: Option<String>,
    custom_title: Option<String>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            kind: String::new(),
            subtype: String::new(),
            uuid: String::new(),
            parent_uuid: None,
            logical_parent_uuid: None,
            is_sidechain: false,
            is_meta: false,
            is_compact_summary: false,
            is_api_error_message: false,
            timestamp: String::new(),
            cwd: None,
            version: None,
            git_branch: None,
            session_id: None,
            agent_id: None,
            message: Message::default(),
            tool_use_result: Value::Null,
            compact_metadata: Value::Null,
            summary: None,
            leaf_uuid: None,
            custom_title: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    id: String,
    model: Option<String>,
    content: Value,
    usage: Value,
}

impl Line {
    fn parts(&self) -> Vec<Value> {
        match &self.message.content {
            Value::String(text) => vec![json!({"type": "text", "text": text})],
            Value::Array(parts) => parts.clone(),
            _ => Vec::new(),
        }
    }

    fn is_boundary(&self) -> bool {
        self.kind == "system" && self.subtype == "compact_boundary"
    }
}

/// Whether a file looks like a session.
pub(super) fn is_session(path: &Path) -> bool {
    let is_named =
        path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<Uuid>().is_ok() || name.starts_with("agent-"));
    if !is_named || path.extension().is_none_or(|extension| extension != "jsonl") {
        return false;
    }
    let Ok(first) = file::first_line(path) else { return false };
    // A long first line is cut; its beginning tells as much.
    let has = |word: &str| memchr::memmem::find(&first, word.as_bytes()).is_some();
    first.starts_with(b"{") && has("\"type\":") && (has("\"sessionId\":") || has("\"leafUuid\":") || has("\"file-history-snapshot\""))
}

/// Facts of one thread, in their order, and how many bytes of the file they are about.
pub(super) struct Piece {
    pub thread: ThreadId,
    pub facts: Vec<Dated>,
}

/// What there is to say of a thread when its file was read.
pub(super) struct Whole {
    pub thread: ThreadId,
    pub turns: u64,
    /// Kinds of lines that were carried without being understood, and how many of each.
    pub carried: BTreeMap<String, u64>,
}

/// When this much of a file was read, its facts are handed on: memory does not grow with the file.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_FACTS: usize = 512;

/// Reads the threads of one file, the session and sub-agents that are written into it, and hands their facts on piece by piece for
/// as long as `take` wants more. The session comes first in the answer.
pub(super) fn read(path: &Path, mut take: impl FnMut(Piece) -> bool, mut bad: impl FnMut(BadLine)) -> Result<Vec<Whole>, ClaudeError> {
    let failed = |error| ClaudeError::Io { path: path.to_owned(), error };
    let stem = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let is_agent = stem.starts_with("agent-");
    let plan = Plan::of(file::open(path).map_err(failed)?, is_agent);
    let mut threads: HashMap<Option<LineId>, Session> = HashMap::new();
    let mut titles = Titles::default();
    let mut lines = file::open(path).map_err(failed)?;
    let mut before = lines.left();
    while let Some(line) = lines.next_as::<Line>() {
        let length = before - lines.left();
        before = lines.left();
        let line = match line {
            Ok(line) => line,
            Err(unreadable) => {
                bad(unreadable);
                continue;
            }
        };
        titles.take(&line, &plan);
        let Some(conversation) = plan.conversation(&line) else { continue };
        let session = match threads.entry(conversation) {
            Entry::Occupied(known) => known.into_mut(),
            // Lines before the first message say nothing about where the session was.
            Entry::Vacant(_) if line.uuid.is_empty() => continue,
            Entry::Vacant(new) => new.insert(begin(path, &stem, conversation.map(|root| plan.name(root)), &line)?),
        };
        session.line(&line);
        session.unsettled += length;
        if (session.unsettled >= PIECE_BYTES || session.scribe.facts.len() >= PIECE_FACTS) && session.scribe.turns() > 0 {
            session.unsettled = 0;
            if !take(Piece { thread: session.thread, facts: session.scribe.settled() }) {
                return Ok(Vec::new());
            }
        }
    }
    let name = titles.best().filter(|_| !is_agent);
    let mut ended = Vec::new();
    for (conversation, session) in threads {
        // A head alone is no conversation.
        if session.scribe.turns() == 0 {
            continue;
        }
        let thread = session.thread;
        let is_aside = conversation.is_some();
        let Converted { turns, facts, carried } = session.finish(name.as_deref().filter(|_| !is_aside));
        ended.push((is_aside, Whole { thread, turns, carried }));
        if !take(Piece { thread, facts }) {
            return Ok(Vec::new());
        }
    }
    ended.sort_by_key(|(is_aside, whole)| (*is_aside, whole.thread));
    Ok(ended.into_iter().map(|(_, whole)| whole).collect())
}

/// The first fact of a thread.
fn begin(path: &Path, stem: &str, aside: Option<String>, line: &Line) -> Result<Session, ClaudeError> {
    let bad_id = |id: &str| ClaudeError::Id { path: path.to_owned(), id: id.to_owned() };
    let own = |id: &str| id.parse::<Uuid>().map(ThreadId::new).map_err(|_| bad_id(id));
    let session = line.session_id.clone().unwrap_or_default();
    let agent = stem.strip_prefix("agent-");
    let (thread, parent) = match (agent, aside) {
        (Some(agent), _) => (derived(&[&session, agent]), session.parse::<Uuid>().ok().map(ThreadId::new)),
        (None, Some(root)) => (derived(&[stem, &root]), Some(own(stem)?)),
        (None, None) => (own(stem)?, None),
    };
    let nickname = agent.map(str::to_owned).or_else(|| line.agent_id.clone());
    let created = ThreadCreated {
        session: Some(if agent.is_some() { session } else { stem.to_owned() }),
        source: Some(Raw::from(Value::from("claude-code"))),
        program_version: line.version.clone(),
        parent: parent.map(|thread| Parent { thread, depth: 1, path: None, nickname, role: None }),
        settings: Settings { cwd: line.cwd.clone(), ..Settings::default() },
        git: line.git_branch.as_ref().filter(|branch| !branch.is_empty()).map(|branch| Raw::from(json!({"branch": branch}))),
        imported: Some(Raw::from(json!({"from": "claude-code", "version": line.version}))),
        ..ThreadCreated::new(thread)
    };
    let mut scribe = Scribe::default();
    scribe.at = utc_millis(&line.timestamp).unwrap_or_default();
    scribe.fact(created);
    Ok(Session { thread, scribe, cwd: line.cwd.clone(), carried: BTreeMap::new(), compacts: None, context_generation: 0, unsettled: 0 })
}

/// The same id for the same conversation, whenever it is imported.
fn derived(parts: &[&str]) -> ThreadId {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    ThreadId::new(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// What a session is called: what the user wrote counts more than what the program made up.
#[derive(Default)]
struct Titles {
    given: Option<String>,
    made: Option<String>,
}

impl Titles {
    fn take(&mut self, line: &Line, plan: &Plan) {
        if line.custom_title.is_some() {
            self.given.clone_from(&line.custom_title);
        }
        if line.summary.is_some() && line.leaf_uuid.as_ref().is_some_and(|leaf| plan.is_main(leaf)) {
            self.made.clone_from(&line.summary);
        }
    }

    fn best(self) -> Option<String> {
        self.given.or(self.made).filter(|title| !title.trim().is_empty())
    }
}

/// One conversation, line after line.
struct Session {
    thread: ThreadId,
    scribe: Scribe,
    cwd: Option<String>,
    carried: BTreeMap<String, u64>,
    /// A summary follows, and this is why.
    compacts: Option<CompactReason>,
    context_generation: u32,
    /// Bytes of lines whose facts were not handed on yet.
    unsettled: u64,
}

impl Session {
    fn line(&mut self, line: &Line) {
        self.scribe.at = utc_millis(&line.timestamp).unwrap_or_default().max(self.scribe.at);
        match line.kind.as_str() {
            "user" => self.user(line),
            "assistant" if line.is_api_error_message => self.carry("error", line),
            "assistant" => self.assistant(line),
            "system" if line.is_boundary() => {
                let is_automatic = line.compact_metadata.get("trigger").is_some_and(|trigger| trigger == "auto");
                self.compacts = Some(if is_automatic { CompactReason::Full } else { CompactReason::Asked });
            }
            "summary" | "custom-title" | "ai-title" | "system" | "attachment" => {}
            kind if OWN_BUSINESS.contains(&kind) => {}
            kind => {
                let kind: String = kind.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(40).collect();
                self.carry(&kind, line);
            }
        }
    }

    /// Kept without being understood.
    fn carry(&mut self, kind: &str, line: &Line) {
        let kind = format!("claude.{kind}");
        *self.carried.entry(kind.clone()).or_default() += 1;
        self.scribe.fact(Fact::Unknown { kind, data: Raw::from(json!({"uuid": line.uuid, "content": line.message.content})) });
    }

    fn user(&mut self, line: &Line) {
        let parts = line.parts();
        if line.is_compact_summary || self.compacts.is_some() && !parts.is_empty() && !parts.iter().any(is_result) {
            return self.compacted(&parts);
        }
        for part in parts.iter().filter(|part| is_result(part)) {
            self.result(part, &line.tool_use_result);
        }
        let said: Vec<Value> = parts.iter().filter(|part| !is_result(part)).filter_map(content).collect();
        if said.is_empty() {
            return;
        }
        let raw = Raw::from(json!({"type": "message", "role": "user", "content": said}));
        if line.is_meta || !is_user_message(&raw) { self.scribe.context(raw) } else { self.scribe.input(raw, &line.uuid) }
    }

    fn compacted(&mut self, parts: &[Value]) {
        let reason = self.compacts.take().unwrap_or(CompactReason::Asked);
        self.scribe.compacting();
        self.context_generation += 1;
        let said: Vec<Value> = parts.iter().filter_map(content).collect();
        let kept = vec![Kept::Item(Raw::from(json!({"type": "message", "role": "user", "content": said})))];
        let turn = self.scribe.turn_id().cloned();
        self.scribe.fact(ContextCompacted { turn, reason, kept, tokens: 0, context_generation: self.context_generation });
    }

    fn assistant(&mut self, line: &Line) {
        self.scribe.model.clone_from(&line.message.model);
        for part in line.parts() {
            let text = |name: &str| part.get(name).and_then(Value::as_str).unwrap_or_default();
            match text("type") {
                "text" => {
                    let content = json!([{"type": "output_text", "text": text("text")}]);
                    self.scribe.said(Raw::from(json!({"type": "message", "role": "assistant", "content": content})), None);
                }
                "tool_use" => {
                    let (call, tool) = (text("id").to_owned(), name(text("name")));
                    let input = part.get("input").cloned().unwrap_or_else(|| json!({}));
                    let item = json!({"type": "function_call", "name": tool, "arguments": input.to_string(), "call_id": call});
                    let begun = Some(begun(&tool, input, self.cwd.as_deref()));
                    self.scribe.said(Raw::from(item), Some(ImportedCall { call: CallId::from(call), tool, begun }));
                }
                // What it thought belongs to the model that thought it: no other takes it back.
                "thinking" | "redacted_thinking" => {
                    let thought = json!({"uuid": line.uuid, "text": text("thinking")});
                    *self.carried.entry("claude.thinking".into()).or_default() += 1;
                    self.scribe.fact(Fact::Unknown { kind: "claude.thinking".into(), data: Raw::from(thought) });
                }
                _ => {}
            }
        }
        let count = |name: &str| line.message.usage.get(name).and_then(Value::as_u64).unwrap_or(0);
        let (cached_input, cache_write_input) = (count("cache_read_input_tokens"), count("cache_creation_input_tokens"));
        let input = count("input_tokens") + cached_input + cache_write_input;
        let output = count("output_tokens");
        if input + output > 0 {
            let total = input + output;
            self.scribe.used(TokenTotals { input, cached_input, cache_write_input, output, total, ..TokenTotals::default() });
        }
    }

    fn result(&mut self, part: &Value, shown: &Value) {
        let call = part.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
        let output: Vec<Value> = match part.get("content") {
            Some(Value::String(text)) => vec![json!({"type": "input_text", "text": text})],
            Some(Value::Array(parts)) => parts.iter().filter_map(content).collect(),
            _ => Vec::new(),
        };
        let text = output.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n");
        let has_image = output.iter().any(|part| part["type"] == "input_image");
        let item = json!({"type": "function_call_output", "call_id": call, "output": if has_image { json!(output) } else { json!(text) }});
        let is_error = part.get("is_error").and_then(Value::as_bool).unwrap_or(false);
        let printed = |name: &str| shown.get(name).and_then(Value::as_str);
        let printed = match (printed("stdout"), printed("stderr")) {
            (Some(out), Some(err)) => format!("{out}{err}"),
            _ => text.clone(),
        };
        let report = CallReport {
            aggregated_output: Some(printed),
            answer: Some(json!({"contentItems": [{"type": "inputText", "text": text}]})),
            error: is_error.then(|| json!(text)),
            ..CallReport::default()
        };
        let outcome = if is_error { CallOutcome::Failed } else { CallOutcome::Completed };
        self.scribe.returned(Raw::from(item), CallId::from(call), Ending { outcome, begun: None, report: Some(report) });
    }

    /// The file does not record the end of a turn, so each ends when the next one begins.
    fn finish(mut self, name: Option<&str>) -> Converted {
        self.scribe.end_turn(TurnStatus::Completed, Some(InterruptReason::Shutdown));
        if let Some(name) = name {
            self.scribe.fact(MetadataChanged { name: Some(Some(name.to_owned())), ..MetadataChanged::default() });
        }
        Converted { turns: self.scribe.turns(), facts: self.scribe.facts, carried: self.carried }
    }
}

fn is_result(part: &Value) -> bool {
    part["type"] == "tool_result"
}

/// A part of a message as models are shown it.
fn content(part: &Value) -> Option<Value> {
    match part["type"].as_str()? {
        "text" => Some(json!({"type": "input_text", "text": part["text"]})),
        "image" => {
            let source = &part["source"];
            let url = match source["type"].as_str() {
                Some("url") => source["url"].as_str()?.to_owned(),
                _ => format!("data:{};base64,{}", source["media_type"].as_str().unwrap_or("image/png"), source["data"].as_str()?),
            };
            Some(json!({"type": "input_image", "image_url": url}))
        }
        "document" => Some(json!({"type": "input_text", "text": "[a document that was attached here]"})),
        _ => None,
    }
}

/// A name that every model takes.
fn name(text: &str) -> String {
    let name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).take(64).collect();
    if name.is_empty() { "tool".to_owned() } else { name }
}

/// What clients are shown of a call.
fn begun(tool: &str, input: Value, cwd: Option<&str>) -> CallDetail {
    let text = |name: &str| input.get(name).and_then(Value::as_str).unwrap_or_default();
    match tool {
        "Bash" => {
            let (command, cwd) = (text("command").to_owned(), cwd.unwrap_or_default().to_owned());
            CallDetail::CommandExecution(CommandDetail { command, cwd, ..CommandDetail::default() })
        }
        "Edit" | "Write" | "MultiEdit" => {
            let changed = |edit: &Value| {
                let side = |name: &str, mark: char| {
                    let text = edit.get(name).and_then(Value::as_str).unwrap_or_default();
                    text.lines().map(|line| format!("{mark}{line}\n")).collect::<String>()
                };
                format!("@@\n{}{}", side("old_string", '-'), side("new_string", '+'))
            };
            let (kind, diff) = match tool {
                "Write" => (ChangeKind::Add, text("content").to_owned()),
                "Edit" => (ChangeKind::Update { move_path: None }, changed(&input)),
                _ => {
                    let edits = input.get("edits").and_then(Value::as_array).into_iter().flatten();
                    (ChangeKind::Update { move_path: None }, edits.map(changed).collect())
                }
            };
            let changes = vec![PlannedChange { path: text("file_path").to_owned(), kind, diff }];
            CallDetail::FileChange(FileChangeDetail { changes, environment_id: None })
        }
        _ => match tool.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")) {
            Some((server, tool)) => {
                let (server, tool) = (server.to_owned(), tool.to_owned());
                CallDetail::McpToolCall(McpDetail { server, tool, arguments: input, environment_id: None })
            }
            None => CallDetail::DynamicToolCall(DynamicDetail { namespace: None, tool: tool.to_owned(), arguments: input }),
        },
    }
}
