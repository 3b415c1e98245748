//! A turn as programs read it: one event a line.
//!
//! An entry becomes a line; nothing is told twice. What these shapes have no word for (agents, pictures that are looked at,
//! waiting) is not told, except where it fails.

use std::collections::HashMap;

use outpost_runtime::live::ThreadEvent;
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::model::ModelProgress;
use outpost_runtime::tools::output::HeadTail;
use outpost_thread::{
    CallAction, CallEnding, CallFinished, CallId, CallStarted, CallView, EndedCallView, Fact, FileView, GeneratedImage, PlannedStep,
    PlannedStepStatus, Raw, Thread, TokenTotals, TurnFinished, said,
};
use serde_json::Value;

use super::shapes::{FileChangeShape, ItemShape, LineShape, MessageShape, SCHEMA_VERSION, StatusShape, Todo};
use crate::render::why;

/// So many tokens of a command's output are told, its beginning and its end.
const OUTPUT: usize = 1 << 18;

#[derive(Default)]
pub(super) struct JsonLines {
    items: usize,
    /// Of the whole thread.
    usage: TokenTotals,
    calls: HashMap<CallId, Call>,
    /// The plan of the running turn: its item, and its steps as they were told last.
    plan: Option<(String, Vec<Todo>)>,
}

/// A call that was told as started.
struct Call {
    /// In which order calls were told.
    order: usize,
    id: String,
    view: CallView,
    /// What a command printed.
    output: HeadTail,
    /// Goes on behind its call.
    goes_on: bool,
}

/// What is known of a call at the moment in which it is told.
struct Standing<'a> {
    status: StatusShape,
    exit_code: Option<i32>,
    end: Option<&'a EndedCallView>,
}

impl JsonLines {
    /// The first lines: which thread it is, and what is under way in it.
    pub(super) fn begin(&mut self, thread: &Thread) -> Vec<LineShape> {
        self.usage = thread.usage.total;
        let mut lines = vec![LineShape::ThreadStarted { thread_id: thread.id, schema_version: SCHEMA_VERSION }];
        if let Some(turn) = &thread.turn {
            lines.push(LineShape::TurnStarted {});
            lines.extend(turn.calls.iter().filter_map(|call| self.call_started(call.started.as_ref()?)));
        }
        lines
    }

    pub(super) fn event(&mut self, event: &ThreadEvent) -> Vec<LineShape> {
        match event {
            ThreadEvent::Entry(entry) => self.fact(&entry.fact),
            ThreadEvent::Output { call, bytes } => {
                self.calls.get_mut(call).into_iter().for_each(|call| call.output.push(bytes));
                vec![]
            }
            ThreadEvent::ProcessEnded { call, exit_code } => self.process_ended(call, *exit_code).into_iter().collect(),
            ThreadEvent::Progress { progress: ModelProgress::Retrying { attempt, of, reason }, .. } => {
                vec![self.warning(format!("{reason}; asking again ({attempt} of {of})"))]
            }
            ThreadEvent::Mcp(McpEvent::Startup { server, error: Some(error), .. }) => {
                vec![self.warning(format!("MCP server `{server}`: {error}"))]
            }
            ThreadEvent::Mcp(McpEvent::Warning { message }) | ThreadEvent::Warning { message } => vec![self.warning(message.clone())],
            ThreadEvent::Progress { .. } | ThreadEvent::Mcp(_) | ThreadEvent::Status(_) => vec![],
        }
    }

    /// Something that did not end the turn.
    pub(super) fn warning(&mut self, message: String) -> LineShape {
        let id = self.next_item();
        LineShape::ItemCompleted { item: ItemShape::Error { id, message } }
    }

    fn fact(&mut self, fact: &Fact) -> Vec<LineShape> {
        match fact {
            Fact::TurnStarted(_) => vec![LineShape::TurnStarted {}],
            Fact::ModelAnswered(answered) => {
                self.usage = self.usage.plus(answered.usage.unwrap_or_default());
                answered.items.iter().filter_map(|item| self.answered(item)).map(|item| LineShape::ItemCompleted { item }).collect()
            }
            Fact::CallStarted(started) => self.call_started(started).into_iter().collect(),
            Fact::CallFinished(finished) => {
                let line = self.call_finished(finished);
                let warnings: Vec<LineShape> = finished.view().notices.into_iter().map(|notice| self.warning(notice)).collect();
                line.into_iter().chain(warnings).collect()
            }
            Fact::ApprovalAsked(asked) => {
                let question = asked.question();
                let words = Some(question.words.join(", ")).filter(|words| !words.is_empty());
                let what = question.command.or(words).unwrap_or_else(|| asked.kind.as_str().to_owned());
                vec![self.warning(format!("`{what}` needs an answer, and `exec` asks no questions: it is refused"))]
            }
            Fact::TurnFinished(finished) => self.turn_finished(finished),
            _ => vec![],
        }
    }

    /// What the model said or thought.
    fn answered(&mut self, item: &Raw) -> Option<ItemShape> {
        if let Some(image) = GeneratedImage::of(item) {
            let status = image.end().to_owned();
            let GeneratedImage { revised_prompt, saved_path, .. } = image;
            return Some(ItemShape::ImageGeneration { id: self.next_item(), status, revised_prompt, saved_path });
        }
        let value = read(Some(item));
        match value["type"].as_str()? {
            "message" => {
                let text = said(item).filter(|text| !text.is_empty())?;
                Some(ItemShape::AgentMessage { id: self.next_item(), text })
            }
            "reasoning" => {
                let texts = |name: &str| value[name].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
                let text =
                    [texts("summary").collect::<Vec<_>>(), texts("content").collect()].into_iter().find(|texts| !texts.is_empty())?;
                Some(ItemShape::Reasoning { id: self.next_item(), text: text.join("\n") })
            }
            "web_search_call" => Some(ItemShape::WebSearch { id: self.next_item(), query: text(&value["action"]["query"]) }),
            _ => None,
        }
    }

    fn call_started(&mut self, started: &CallStarted) -> Option<LineShape> {
        let view = started.view();
        match &view.action {
            CallAction::Command { .. } | CallAction::Files(_) | CallAction::McpTool { .. } => {}
            CallAction::Plan(steps) => return Some(self.planned(steps)),
            CallAction::Other => return None,
        }
        let call = Call { order: self.items, id: self.next_item(), view, output: HeadTail::default(), goes_on: false };
        let item = call.item(Standing { status: StatusShape::InProgress, exit_code: None, end: None });
        self.calls.insert(started.call.clone(), call);
        Some(LineShape::ItemStarted { item: item? })
    }

    fn call_finished(&mut self, finished: &CallFinished) -> Option<LineShape> {
        let end = finished.view();
        let Some(mut call) = self.calls.remove(&finished.call) else {
            // It ended before it began, because it could not be done. A refusal was told with its question.
            let CallEnding::Failed(why) = end.ending else { return None };
            return Some(self.warning(why?));
        };
        if end.ending == CallEnding::RunsOn {
            call.goes_on = true;
            self.calls.insert(finished.call.clone(), call);
            return None;
        }
        // A command of before this program was started may have printed before we listened; the record has it then.
        if let Some(text) = end.output.as_ref().filter(|text| call.output.total() < text.len() as u64) {
            call.output = HeadTail::default();
            call.output.push(text.as_bytes());
        }
        let status = if end.ending == CallEnding::Done { StatusShape::Completed } else { StatusShape::Failed };
        let item = call.item(Standing { status, exit_code: end.exit_code, end: Some(&end) })?;
        Some(LineShape::ItemCompleted { item })
    }

    /// A command that outlived its call has ended.
    fn process_ended(&mut self, call: &CallId, exit_code: Option<i32>) -> Option<LineShape> {
        if !self.calls.get(call)?.goes_on {
            return None;
        }
        let call = self.calls.remove(call)?;
        let status = if exit_code == Some(0) { StatusShape::Completed } else { StatusShape::Failed };
        Some(LineShape::ItemCompleted { item: call.item(Standing { status, exit_code, end: None })? })
    }

    fn planned(&mut self, steps: &[PlannedStep]) -> LineShape {
        let todo = |step: &PlannedStep| Todo { text: step.step.clone(), completed: step.status == PlannedStepStatus::Completed };
        let items: Vec<Todo> = steps.iter().map(todo).collect();
        let known = self.plan.take().map(|(id, _)| id);
        let (is_new, id) = (known.is_none(), known.unwrap_or_else(|| self.next_item()));
        self.plan = Some((id.clone(), items.clone()));
        let item = ItemShape::TodoList { id, items };
        if is_new { LineShape::ItemStarted { item } } else { LineShape::ItemUpdated { item } }
    }

    fn turn_finished(&mut self, finished: &TurnFinished) -> Vec<LineShape> {
        let mut lines = Vec::new();
        // Every item that began is completed, also that of a command that stays running; `command.running` names it.
        let mut left: Vec<Call> = self.calls.drain().map(|(_, call)| call).collect();
        left.sort_by_key(|call| call.order);
        let cut_off = |call: &Call| call.item(Standing { status: StatusShape::Failed, exit_code: None, end: None });
        lines.extend(left.iter().filter_map(cut_off).map(|item| LineShape::ItemCompleted { item }));
        if let Some((id, items)) = self.plan.take() {
            lines.push(LineShape::ItemCompleted { item: ItemShape::TodoList { id, items } });
        }
        match why(finished) {
            None => lines.push(LineShape::TurnCompleted { usage: self.usage.into() }),
            Some(why) => lines.extend(failed(&why)),
        }
        lines
    }

    fn next_item(&mut self) -> String {
        self.items += 1;
        format!("item_{}", self.items - 1)
    }
}

impl Call {
    /// As it is at this moment. Nothing for a call that these shapes have no word for.
    fn item(&self, standing: Standing<'_>) -> Option<ItemShape> {
        let Standing { status, exit_code, end } = standing;
        let (id, environment_id) = (self.id.clone(), self.view.place.clone());
        Some(match &self.view.action {
            CallAction::Command { command, .. } => {
                let aggregated_output = self.output.show(OUTPUT).text;
                let (command, exit_code) = (command.clone(), exit_code.map(i64::from));
                ItemShape::CommandExecution { id, command, environment_id, aggregated_output, exit_code, status }
            }
            CallAction::Files(planned) => {
                let written = end.map(|end| &end.files).filter(|written| !written.is_empty());
                let changes = written.unwrap_or(planned).iter().map(changed).collect();
                ItemShape::FileChange { id, changes, environment_id, status }
            }
            CallAction::McpTool { server, tool, arguments } => ItemShape::McpToolCall {
                id,
                server: server.clone(),
                tool: tool.clone(),
                arguments: arguments.clone(),
                result: end.and_then(|end| end.result.clone()).unwrap_or_default(),
                error: end.and_then(|end| end.error.clone()).map(|message| MessageShape { message }),
                status,
            },
            CallAction::Plan(_) | CallAction::Other => return None,
        })
    }
}

/// A turn that did not end well, or a thread that had to stop.
pub(super) fn failed(message: &str) -> Vec<LineShape> {
    let message = message.to_owned();
    vec![LineShape::Error { message: message.clone() }, LineShape::TurnFailed { error: MessageShape { message } }]
}

fn changed(file: &FileView) -> FileChangeShape {
    FileChangeShape { path: file.path.clone(), kind: file.change }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(raw: Option<&Raw>) -> Value {
    raw.and_then(|raw| raw.read().ok()).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outpost_thread::{CallOutcome, Recorded, TurnId};
    use serde_json::json;

    use super::*;

    #[test]
    fn output_from_before_we_listened_is_taken_from_the_record() {
        let (turn, call) = (TurnId("t".into()), CallId("c".into()));
        let detail = json!({"type": "commandExecution", "command": "count", "cwd": "/", "source": "agent"});
        let started = CallStarted {
            turn: turn.clone(),
            call: call.clone(),
            tool: "exec_command".into(),
            environment: None,
            process: None,
            repeatable: false,
            adoption_key: None,
            executor: None,
            detail: Some(Recorded::from(Raw::from(detail))),
        };
        let report = json!({"exitCode": 0, "aggregatedOutput": "line 1\nline 2\n"});
        let finished = CallFinished {
            turn,
            call: call.clone(),
            outcome: CallOutcome::Completed,
            items: vec![],
            detail: Some(Recorded::from(Raw::from(report))),
        };
        for heard in ["", "line 2\n", "line 1\nline 2\n"] {
            let mut lines = JsonLines::default();
            lines.call_started(&started).unwrap();
            lines.event(&ThreadEvent::Output { call: call.clone(), bytes: heard.into() });
            let told = serde_json::to_value(lines.call_finished(&finished).unwrap()).unwrap();
            assert_eq!(told["item"]["aggregated_output"], "line 1\nline 2\n", "{told}");
        }
    }
}
