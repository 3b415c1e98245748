//! A turn as people see it: what happens on standard error, the answer on standard output.

use std::io::IsTerminal;

use outpost_runtime::live::{Event, Status};
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::model::Progress;
use outpost_thread::{CallFinished, CallOutcome, CallStarted, Fact, Raw, ThreadId, TurnFinished, TurnStatus, said};
use serde_json::Value;

/// So many lines of a command's output are shown.
const LINES: usize = 12;

pub struct Screen {
    colours: bool,
    answer: Option<String>,
}

impl Screen {
    pub fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colours: wanted && std::io::stderr().is_terminal(), answer: None }
    }

    pub fn thread(&self, id: ThreadId) {
        self.say("2", &format!("thread {id}"));
    }

    pub fn note(&self, text: &str) {
        self.say("33", text);
    }

    pub fn show(&mut self, event: &Event) {
        match event {
            Event::Entry(entry) => match &entry.fact {
                Fact::CallStarted(started) => self.started(started),
                Fact::CallFinished(finished) => self.finished(finished),
                Fact::ModelAnswered(answered) => self.answer = answered.items.iter().rev().find_map(said).or_else(|| self.answer.take()),
                Fact::ContextCompacted(_) => self.say("2", "the conversation was summed up"),
                _ => {}
            },
            Event::Progress { progress: Progress::Retrying { attempt, of, reason }, .. } => {
                self.note(&format!("{reason}; asking again ({attempt} of {of})"));
            }
            Event::Mcp(McpEvent::Startup { state, error: Some(error), .. }) if state == "failed" => self.note(error),
            Event::Mcp(McpEvent::Warning { message }) => self.note(message),
            Event::Status(Status::Broken { reason }) => self.note(reason),
            _ => {}
        }
    }

    fn started(&self, started: &CallStarted) {
        let detail: Value = started.detail.as_ref().and_then(|detail: &Raw| detail.read().ok()).unwrap_or_default();
        let place = started.environment.as_ref().map(|id| format!("[{id}] ")).unwrap_or_default();
        match detail["type"].as_str() {
            Some("commandExecution") => self.say("1", &format!("{place}$ {}", detail["command"].as_str().unwrap_or_default())),
            Some("fileChange") => {
                for change in detail["changes"].as_array().into_iter().flatten() {
                    let kind = change["kind"]["type"].as_str().unwrap_or_default();
                    self.say("1", &format!("{place}{kind} {}", change["path"].as_str().unwrap_or_default()));
                }
            }
            Some("plan") => {
                for step in detail["plan"].as_array().into_iter().flatten() {
                    let mark = match step["status"].as_str() {
                        Some("completed") => "x",
                        Some("in_progress") => ">",
                        _ => " ",
                    };
                    self.say("2", &format!("[{mark}] {}", step["step"].as_str().unwrap_or_default()));
                }
            }
            Some("mcpToolCall") => {
                let of = |name: &str| detail[name].as_str().unwrap_or_default().to_owned();
                self.say("1", &format!("{place}{}.{} {}", of("server"), of("tool"), detail["arguments"]));
            }
            _ => self.say("1", &format!("{place}{}", started.tool)),
        }
    }

    fn finished(&self, finished: &CallFinished) {
        let detail: Value = finished.detail.as_ref().and_then(|detail| detail.read().ok()).unwrap_or_default();
        if let Some(output) = detail["aggregatedOutput"].as_str() {
            let lines: Vec<&str> = output.lines().collect();
            for line in lines.iter().take(LINES) {
                self.say("0", &format!("  {line}"));
            }
            if lines.len() > LINES {
                self.say("2", &format!("  … {} more lines", lines.len() - LINES));
            }
        }
        let end = match finished.outcome {
            CallOutcome::Completed => match detail["exitCode"].as_i64() {
                Some(0) | None => return,
                Some(code) => format!("exit code {code}"),
            },
            CallOutcome::Failed => detail["error"].as_str().unwrap_or("it failed").to_owned(),
            CallOutcome::Declined => "declined".into(),
            CallOutcome::Lost => "lost: nobody knows what became of it".into(),
            CallOutcome::Aborted => "stopped".into(),
        };
        self.say("31", &format!("  {end}"));
    }

    /// The answer, or what went wrong.
    #[expect(clippy::print_stdout, reason = "this is where the program speaks to people")]
    pub fn end(&self, end: &Option<TurnFinished>) {
        if let Some(answer) = &self.answer {
            println!("{answer}");
        }
        let Some(end) = end.as_ref().filter(|end| end.status != TurnStatus::Completed) else { return };
        let error: Value = end.error.as_ref().and_then(|error| error.read().ok()).unwrap_or_default();
        let what = error["message"].as_str().unwrap_or(match end.status {
            TurnStatus::Interrupted => "the turn was interrupted",
            _ => "the turn failed",
        });
        self.say("31", &format!("outpost: {what}"));
    }

    #[expect(clippy::print_stderr, reason = "this is where the program speaks to people")]
    fn say(&self, style: &str, text: &str) {
        if self.colours && style != "0" { eprintln!("\x1b[{style}m{text}\x1b[0m") } else { eprintln!("{text}") }
    }
}
