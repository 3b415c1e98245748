//! A turn as programs read it: one event a line, in the shapes that clients of `codex exec --json` know.
//!
//! An entry becomes an event; nothing is told twice. What these shapes have no word for (agents, pictures that are looked at,
//! waiting) is not told, except where it fails.

use std::collections::HashMap;

use outpost_runtime::live::Event;
use outpost_runtime::model::Progress;
use outpost_runtime::tools::output::HeadTail;
use outpost_thread::{CallFinished, CallId, CallOutcome, CallStarted, Fact, Raw, Thread, Tokens, TurnFinished, TurnStatus, said};
use serde_json::{Map, Value, json};

use crate::screen::why;

/// So many tokens of a command's output are told, its beginning and its end.
const OUTPUT: usize = 1 << 18;

#[derive(Default)]
pub struct Lines {
    items: usize,
    /// Of the whole thread.
    usage: Tokens,
    calls: HashMap<CallId, Call>,
    /// The plan of the running turn: its item, and its steps as they were told last.
    plan: Option<(String, Value)>,
}

/// A call that was told as started.
struct Call {
    item: String,
    kind: Kind,
    /// Goes on behind its call.
    goes_on: bool,
}

enum Kind {
    Command { command: String, output: HeadTail },
    Files { changes: Value },
    Mcp { detail: Value },
}

impl Lines {
    /// The first lines: which thread it is, and what is under way in it.
    pub fn begin(&mut self, thread: &Thread) -> Vec<Value> {
        self.usage = thread.usage.total;
        let mut events = vec![json!({"type": "thread.started", "thread_id": thread.id})];
        if let Some(turn) = &thread.turn {
            events.push(json!({"type": "turn.started"}));
            events.extend(turn.calls.iter().filter_map(|call| self.call_started(call.started.as_ref()?)));
        }
        events
    }

    pub fn event(&mut self, event: &Event) -> Vec<Value> {
        match event {
            Event::Entry(entry) => self.fact(&entry.fact),
            Event::Output { call, bytes } => {
                if let Some(Call { kind: Kind::Command { output, .. }, .. }) = self.calls.get_mut(call) {
                    output.push(bytes);
                }
                vec![]
            }
            Event::ProcessEnded { call, exit_code } => self.process_ended(call, *exit_code).into_iter().collect(),
            Event::Progress { progress: Progress::Retrying { attempt, of, reason }, .. } => {
                vec![self.warning(&format!("{reason}; asking again ({attempt} of {of})"))]
            }
            Event::Progress { .. } | Event::Status(_) => vec![],
        }
    }

    /// The thread had to stop.
    pub fn broken(&mut self, reason: &str) -> Vec<Value> {
        failed(reason)
    }

    fn fact(&mut self, fact: &Fact) -> Vec<Value> {
        match fact {
            Fact::TurnStarted(_) => vec![json!({"type": "turn.started"})],
            Fact::ModelAnswered(answered) => {
                self.usage = self.usage.plus(answered.usage.unwrap_or_default());
                answered.items.iter().filter_map(|item| self.answered(item)).collect()
            }
            Fact::CallStarted(started) => self.call_started(started).into_iter().collect(),
            Fact::CallFinished(finished) => self.call_finished(finished).into_iter().collect(),
            Fact::ApprovalAsked(asked) => {
                let detail: Value = read(asked.detail.as_ref());
                let what = detail["command"].as_str().unwrap_or(&asked.kind);
                vec![self.warning(&format!("`{what}` needs an answer, and nobody is there to give one: it is refused"))]
            }
            Fact::TurnFinished(finished) => self.turn_finished(finished),
            _ => vec![],
        }
    }

    /// What the model said or thought.
    fn answered(&mut self, item: &Raw) -> Option<Value> {
        let value: Value = read(Some(item));
        match value["type"].as_str()? {
            "message" => {
                let text = said(item).filter(|text| !text.is_empty())?;
                Some(self.completed("agent_message", json!({"text": text})))
            }
            "reasoning" => {
                let parts = |name: &str| value[name].as_array().cloned().unwrap_or_default();
                let texts = [parts("summary"), parts("content")].into_iter().find(|parts| !parts.is_empty())?;
                let text: Vec<&str> = texts.iter().filter_map(|part| part["text"].as_str()).collect();
                Some(self.completed("reasoning", json!({"text": text.join("\n")})))
            }
            "web_search_call" => {
                Some(self.completed("web_search", json!({"query": value["action"]["query"].as_str().unwrap_or_default()})))
            }
            _ => None,
        }
    }

    fn call_started(&mut self, started: &CallStarted) -> Option<Value> {
        let detail: Value = read(started.detail.as_ref());
        let kind = match detail["type"].as_str()? {
            "commandExecution" => {
                Kind::Command { command: detail["command"].as_str().unwrap_or_default().to_owned(), output: HeadTail::default() }
            }
            "fileChange" => Kind::Files { changes: changes(&detail) },
            "mcpToolCall" => Kind::Mcp { detail },
            "plan" => return self.planned(&detail),
            _ => return None,
        };
        let call = Call { item: self.next_item(), kind, goes_on: false };
        let event = call.event("item.started", &call.state("in_progress", None, &Value::Null));
        self.calls.insert(started.call.clone(), call);
        Some(event)
    }

    fn call_finished(&mut self, finished: &CallFinished) -> Option<Value> {
        let detail: Value = read(finished.detail.as_ref());
        let Some(mut call) = self.calls.remove(&finished.call) else {
            // It ended before it began: nobody could do it, or somebody said no.
            let why = detail["error"].as_str().filter(|_| finished.outcome == CallOutcome::Failed)?;
            return Some(self.warning(why));
        };
        if !detail["sessionId"].is_null() && detail["exitCode"].is_null() {
            call.goes_on = true;
            self.calls.insert(finished.call.clone(), call);
            return None;
        }
        if let (Kind::Command { output, .. }, Some(text)) = (&mut call.kind, detail["aggregatedOutput"].as_str())
            && output.is_empty()
        {
            output.push(text.as_bytes());
        }
        let exit_code = detail["exitCode"].as_i64();
        let done = finished.outcome == CallOutcome::Completed && exit_code.unwrap_or(0) == 0;
        Some(call.event("item.completed", &call.state(if done { "completed" } else { "failed" }, exit_code, &detail)))
    }

    /// A command that outlived its call has ended.
    fn process_ended(&mut self, call: &CallId, exit_code: Option<i32>) -> Option<Value> {
        if !self.calls.get(call)?.goes_on {
            return None;
        }
        let call = self.calls.remove(call)?;
        let status = if exit_code == Some(0) { "completed" } else { "failed" };
        Some(call.event("item.completed", &call.state(status, exit_code.map(i64::from), &Value::Null)))
    }

    fn planned(&mut self, detail: &Value) -> Option<Value> {
        let step = |step: &Value| json!({"text": step["step"], "completed": step["status"] == "completed"});
        let steps: Value = detail["plan"].as_array()?.iter().map(step).collect();
        let (kind, item) = match self.plan.take() {
            Some((item, _)) => ("item.updated", item),
            None => ("item.started", self.next_item()),
        };
        let event = event(kind, &item, "todo_list", json!({"items": steps}));
        self.plan = Some((item, steps));
        Some(event)
    }

    fn turn_finished(&mut self, finished: &TurnFinished) -> Vec<Value> {
        let mut events = Vec::new();
        if let Some((item, steps)) = self.plan.take() {
            events.push(event("item.completed", &item, "todo_list", json!({"items": steps})));
        }
        // What still runs ends with this program.
        let mut left: Vec<Call> = self.calls.drain().map(|(_, call)| call).collect();
        left.sort_by(|one, other| one.item.len().cmp(&other.item.len()).then_with(|| one.item.cmp(&other.item)));
        events.extend(left.iter().map(|call| call.event("item.completed", &call.state("failed", None, &Value::Null))));
        if finished.status == TurnStatus::Completed {
            events.push(json!({"type": "turn.completed", "usage": {
                "input_tokens": self.usage.input, "cached_input_tokens": self.usage.cached_input,
                "cache_write_input_tokens": self.usage.cache_write_input, "output_tokens": self.usage.output,
                "reasoning_output_tokens": self.usage.reasoning_output,
            }}));
        } else {
            events.extend(failed(&why(finished).unwrap_or_default()));
        }
        events
    }

    fn warning(&mut self, message: &str) -> Value {
        self.completed("error", json!({"message": message}))
    }

    fn completed(&mut self, kind: &str, members: Value) -> Value {
        let item = self.next_item();
        event("item.completed", &item, kind, members)
    }

    fn next_item(&mut self) -> String {
        self.items += 1;
        format!("item_{}", self.items - 1)
    }
}

impl Call {
    fn event(&self, kind: &str, members: &Value) -> Value {
        let item = match &self.kind {
            Kind::Command { .. } => "command_execution",
            Kind::Files { .. } => "file_change",
            Kind::Mcp { .. } => "mcp_tool_call",
        };
        event(kind, &self.item, item, members.clone())
    }

    /// Its members at this moment; `end` is what is known at its end.
    fn state(&self, status: &str, exit_code: Option<i64>, end: &Value) -> Value {
        match &self.kind {
            Kind::Command { command, output } => {
                json!({"command": command, "aggregated_output": output.show(OUTPUT).text, "exit_code": exit_code, "status": status})
            }
            Kind::Files { changes: planned } => {
                let made = if end["changes"].is_array() { changes(end) } else { planned.clone() };
                json!({"changes": made, "status": status})
            }
            Kind::Mcp { detail } => {
                let error = end["error"].as_str().map(|message| json!({"message": message})).or_else(|| end.get("error").cloned());
                json!({"server": detail["server"], "tool": detail["tool"], "arguments": detail["arguments"],
                    "result": end["result"], "error": error, "status": status})
            }
        }
    }
}

/// An event about an item, with all that the item has.
fn event(kind: &str, item: &str, item_type: &str, members: Value) -> Value {
    let mut all = Map::new();
    all.insert("id".into(), item.into());
    all.insert("type".into(), item_type.into());
    if let Value::Object(members) = members {
        all.extend(members);
    }
    json!({"type": kind, "item": all})
}

fn failed(message: &str) -> Vec<Value> {
    vec![json!({"type": "error", "message": message}), json!({"type": "turn.failed", "error": {"message": message}})]
}

fn changes(detail: &Value) -> Value {
    let change = |change: &Value| json!({"path": change["path"], "kind": change["kind"]["type"]});
    detail["changes"].as_array().into_iter().flatten().map(change).collect()
}

fn read(raw: Option<&Raw>) -> Value {
    raw.and_then(|raw| raw.read().ok()).unwrap_or_default()
}
