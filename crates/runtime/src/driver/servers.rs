//! The MCP servers that a thread keeps, and what they ask the user in the middle of a call.
//!
//! Such a question is a fact as any other, under its own id, so that clients that come later see it. It does not outlive the
//! call that asks it: there would be no receiver of the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use outpost_store::Need;
use outpost_thread::{ApprovalAnswered, ApprovalAsked, ApprovalId, ApprovalKind, CallId, Decision, Fact, Raw};
use outpost_wire::SharedError;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::{Driver, Stop};
use crate::TOLD;
use crate::live::ThreadEvent;
use crate::mcp::{Binding, ElicitationAnswer, McpEvent};
use crate::tools::mcp::CallQuestion;

/// A call that waits for the user.
pub(super) struct Waiting {
    call: CallId,
    reply: oneshot::Sender<ElicitationAnswer>,
}

/// What a client says to a question of a server.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    content: Option<Value>,
}

impl Waiting {
    pub(super) fn answer(self, decision: Decision, detail: Option<&Raw>) {
        let said = detail.and_then(|detail| detail.read::<Said>().ok()).unwrap_or_default();
        let answer = match decision {
            Decision::Approved | Decision::ApprovedForThread => ElicitationAnswer::Accepted(said.content),
            Decision::Denied => ElicitationAnswer::Declined,
            Decision::Aborted | Decision::TimedOut => ElicitationAnswer::Cancelled,
        };
        // A call that has ended meanwhile needs no answer.
        let _ = self.reply.send(answer);
    }
}

impl Driver {
    /// Keeps these servers running instead of those before, and tells what is new about them.
    pub(super) fn keep_servers(&mut self, servers: Arc<Binding>) {
        let before: BTreeMap<&str, (&str, Option<&SharedError>)> = self.servers.iter().flat_map(|old| old.standing()).collect();
        for (name, (state, problem)) in servers.standing() {
            if before.get(name) == Some(&(state, problem)) {
                continue;
            }
            let event = McpEvent::Startup { server: name.to_owned(), state: state.to_owned(), error: problem.map(ToString::to_string) };
            self.audience.feed.publish(ThreadEvent::Mcp(event), 256);
        }
        for problem in &servers.problems {
            if self.servers.as_ref().is_none_or(|old| !old.problems.contains(problem)) {
                tracing::warn!(target: TOLD, thread = %self.thread.id, problem, "declarations of MCP servers cannot be used");
                self.audience.feed.publish(ThreadEvent::Mcp(McpEvent::Warning { message: problem.clone() }), 256);
            }
        }
        self.servers = Some(servers);
    }

    /// Writes down what a running call asks the user.
    pub(super) async fn ask_user(&mut self, question: CallQuestion) -> Result<(), Stop> {
        let CallQuestion { call, environment, detail, reply } = question;
        let turn = self.thread.turn.as_ref().filter(|_| self.calls.running.contains_key(&call)).map(|turn| turn.id.clone());
        // Without its call there is no receiver of the answer; dropping the reply says so.
        let Some(turn) = turn else { return Ok(()) };
        let approval = ApprovalId((self.shared.ids)());
        // It is no question whether the call may run, so it does not stand before the call.
        let asked = ApprovalAsked {
            turn,
            approval: approval.clone(),
            call: None,
            environment,
            kind: ApprovalKind::McpElicitation,
            detail: Some(detail.into()),
        };
        self.calls.elicitations.insert(approval, Waiting { call, reply });
        self.record(vec![asked.into()], Need::Stored).await
    }

    /// The questions of a call that has ended.
    pub(super) fn end_questions(&mut self, call: &CallId) -> Vec<Fact> {
        let over: Vec<ApprovalId> =
            self.calls.elicitations.iter().filter(|(_, waiting)| waiting.call == *call).map(|(approval, _)| approval.clone()).collect();
        for approval in &over {
            self.calls.elicitations.remove(approval);
        }
        over.into_iter().map(unanswered).collect()
    }

    /// Questions without a waiting call: those of calls that did not survive a restart.
    pub(super) async fn end_orphans(&mut self) -> Result<(), Stop> {
        let open = self.thread.turn.iter().flat_map(|turn| &turn.approvals);
        let orphans: Vec<ApprovalId> = open
            .filter(|approval| approval.asked.kind == ApprovalKind::McpElicitation && !self.calls.elicitations.contains_key(&approval.id))
            .map(|approval| approval.id.clone())
            .collect();
        self.record(orphans.into_iter().map(unanswered).collect(), Need::Stored).await
    }
}

fn unanswered(approval: ApprovalId) -> Fact {
    ApprovalAnswered { approval, decision: Decision::TimedOut, detail: None, by: None }.into()
}
