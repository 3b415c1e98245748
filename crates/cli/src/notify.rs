//! `notify` of `config.toml`: a command of the user's that hears when a turn ends, fails or asks something.

use std::process::Stdio;

use outpost_runtime::live::ThreadEvent;
use outpost_thread::{ApprovalAsked, Fact, ThreadId, TurnStatus, said};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::render::why;
use crate::variables::VisibleVariables;

/// So much of a message is passed on; arguments have a limit.
const LONGEST: usize = 16 << 10;

/// Starts the command with one JSON object as its last argument. Nothing waits for it, and its failure is only logged.
#[derive(Clone)]
pub(crate) struct Notifier {
    command: Vec<String>,
    variables: VisibleVariables,
    thread: Option<ThreadId>,
    /// What was said last.
    said: Option<String>,
}

impl Notifier {
    pub(crate) fn new(command: &[String], variables: &VisibleVariables) -> Self {
        Self { command: command.to_vec(), variables: variables.clone(), thread: None, said: None }
    }

    pub(crate) fn of_thread(mut self, thread: ThreadId) -> Self {
        self.thread = Some(thread);
        self
    }

    /// Everything but questions, which only a program that can be answered asks.
    pub(crate) fn event(&mut self, event: &ThreadEvent) {
        let ThreadEvent::Entry(entry) = event else { return };
        match &entry.fact {
            Fact::ModelAnswered(answered) => self.said = answered.items.iter().rev().find_map(said).or_else(|| self.said.take()),
            Fact::TurnFinished(finished) => {
                let kind = match finished.status {
                    TurnStatus::Completed => "turn_completed",
                    TurnStatus::Interrupted => "turn_interrupted",
                    _ => "turn_failed",
                };
                let message = why(finished).or_else(|| self.said.take()).unwrap_or_default();
                self.start(json!({"type": kind, "message": cut(&message)}));
            }
            _ => {}
        }
    }

    pub(crate) fn question(&self, asked: &ApprovalAsked) {
        let question = asked.question();
        let message = question.command.or(question.reason).unwrap_or_default();
        let environment = asked.environment.as_ref().map(ToString::to_string);
        self.start(json!({"type": "question", "kind": asked.kind.as_str(), "message": cut(&message), "environment_id": environment}));
    }

    fn start(&self, mut news: Value) {
        let Some((program, arguments)) = self.command.split_first() else { return };
        news["thread_id"] = self.thread.map(|id| id.to_string()).into();
        let mut command = Command::new(program);
        command.args(arguments).arg(news.to_string()).env_clear().envs(self.variables.for_commands());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The runtime reaps it; it may outlive this program.
        match command.spawn() {
            Ok(child) => drop(child),
            Err(error) => crate::out::say(&format!("notify: `{program}` cannot be started: {error}")),
        }
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}
