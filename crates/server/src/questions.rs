//! What clients are asked: one number per question, the same for every client and for as long as this program runs.
//!
//! The question itself is in the journal of its thread; here is only under which number it was asked, and who said that they
//! cannot answer it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outpost_rpc::frame::decode_value;
use outpost_thread::{ApprovalId, Decision, Raw, ThreadId};
use outpost_wire::app::approval::{
    ApprovalDecision, CommandApprovalResponse, ElicitationAction, McpElicitationResponse, ToolCallResponse, UserInputRequestResponse,
};
use outpost_wire::app::permission::{PermissionProfile, PermissionScope, PermissionsApprovalResponse};
use outpost_wire::{Fault, RequestId, SharedError};
use serde_json::json;
use tokio::runtime::Handle;

use crate::connection::ClientConnection;
use crate::projection::QuestionKind;
use crate::server::ServerShared;

/// So many questions are remembered; older ones that come back get another number.
const REMEMBERED: usize = 4096;

#[derive(Default)]
pub(crate) struct ClientQuestions(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    next: i64,
    numbers: HashMap<(ThreadId, ApprovalId), i64>,
    open: HashMap<i64, Question>,
    order: VecDeque<i64>,
}

#[derive(Clone)]
struct Question {
    thread: ThreadId,
    approval: ApprovalId,
    kind: QuestionKind,
    /// Clients that answered that they cannot, and what the last of them said.
    unable: HashSet<u64>,
    why: String,
    /// An answer is on its way to the thread. The first one counts, whatever comes after it.
    is_answered: bool,
}

impl ClientQuestions {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a question; a new one if it was never asked here.
    pub(crate) fn number(&self, thread: ThreadId, approval: &ApprovalId, kind: QuestionKind) -> i64 {
        let mut asked = self.lock();
        if let Some(number) = asked.numbers.get(&(thread, approval.clone())) {
            return *number;
        }
        let number = asked.next;
        asked.next += 1;
        asked.numbers.insert((thread, approval.clone()), number);
        let (unable, why) = Default::default();
        asked.open.insert(number, Question { thread, approval: approval.clone(), kind, unable, why, is_answered: false });
        asked.order.push_back(number);
        if asked.order.len() > REMEMBERED
            && let Some(old) = asked.order.pop_front()
            && let Some(question) = asked.open.remove(&old)
        {
            asked.numbers.remove(&(question.thread, question.approval));
        }
        number
    }

    /// The number under which a question was asked, if it was.
    pub(crate) fn known(&self, thread: ThreadId, approval: &ApprovalId) -> Option<i64> {
        self.lock().numbers.get(&(thread, approval.clone())).copied()
    }

    fn get(&self, number: i64) -> Option<Question> {
        self.lock().open.get(&number).cloned()
    }

    /// Takes a question for the one answer that it gets. False if another answer was first.
    fn claim(&self, question: &Question) -> bool {
        let mut asked = self.lock();
        let number = asked.numbers.get(&(question.thread, question.approval.clone())).copied();
        let open = number.and_then(|number| asked.open.get_mut(&number));
        open.is_some_and(|open| !std::mem::replace(&mut open.is_answered, true))
    }

    /// The answer did not reach the thread: the next one may.
    fn release(&self, question: &Question) {
        let mut asked = self.lock();
        let number = asked.numbers.get(&(question.thread, question.approval.clone())).copied();
        if let Some(open) = number.and_then(|number| asked.open.get_mut(&number)) {
            open.is_answered = false;
        }
    }

    /// Notes that a client cannot answer.
    fn cannot(&self, number: i64, client: u64, fault: Fault) {
        if let Some(question) = self.lock().open.get_mut(&number) {
            question.unable.insert(client);
            question.why = fault.message;
        }
    }

    /// Questions of a thread that one client could not answer, and none of these can.
    fn unanswerable(&self, thread: ThreadId, present: &[u64]) -> Vec<Question> {
        let is_hopeless = |question: &&Question| {
            let Question { unable, is_answered, .. } = question;
            question.thread == thread && !is_answered && !unable.is_empty() && present.iter().all(|client| unable.contains(client))
        };
        self.lock().open.values().filter(is_hopeless).cloned().collect()
    }
}

/// A decision and what else the answer says.
type Verdict = (Decision, Option<Raw>);

/// Takes what a client answered. An answer to a question that was answered already is no error: two were asked.
pub(crate) fn take_answer(connection: &ClientConnection, id: RequestId, answer: Result<Bytes, Fault>) {
    let RequestId::Number(number) = id else { return };
    let Some(question) = connection.server.questions.get(number) else { return };
    let given = GivenAnswer {
        server: connection.server.clone(),
        client: connection.id,
        number,
        answer,
        by: connection.identity.name.clone(),
        is_limited: connection.identity.is_limited(),
    };
    if !given.is_limited {
        return given.take(question);
    }
    // The numbers of questions that it was never asked are easily guessed.
    let opened = connection.opened_for(question.thread);
    let (Some(opened), Ok(tasks)) = (opened, Handle::try_current()) else {
        tracing::warn!(client = given.by, thread = %question.thread, "a client answered a question that it was not asked; that does not count");
        return;
    };
    let identity = connection.identity.clone();
    tasks.spawn(async move {
        match identity.may_answer(&given.server, question.thread, opened).await {
            Ok(true) => given.take(question),
            Ok(false) => {
                tracing::warn!(client = given.by, thread = %question.thread, "a client answered beyond the limits of its token; that does not count");
            }
            Err(fault) => {
                let why = fault.message;
                tracing::warn!(client = given.by, thread = %question.thread, why, "the limits of a token cannot be checked; its answer does not count");
            }
        }
    });
}

/// An answer of a client, whatever it is.
struct GivenAnswer {
    server: Arc<ServerShared>,
    client: u64,
    number: i64,
    answer: Result<Bytes, Fault>,
    by: Option<String>,
    is_limited: bool,
}

impl GivenAnswer {
    fn take(self, question: Question) {
        let verdict = match self.answer.and_then(|result| read(question.kind, &result)) {
            Ok(verdict) if self.is_limited => without_rule(question.kind, verdict),
            Ok(verdict) => verdict,
            Err(fault) => {
                self.server.questions.cannot(self.number, self.client, fault);
                settle(&self.server, question.thread);
                return;
            }
        };
        conclude(&self.server, question, verdict, self.by);
    }
}

/// Refuses questions that no subscriber of a thread can answer: checked when a client cannot, and when one leaves. Without any
/// subscriber, the next one is asked.
pub(crate) fn settle(server: &Arc<ServerShared>, thread: ThreadId) {
    let present: Vec<u64> = server.subscribers(thread).iter().map(|client| client.id).collect();
    if present.is_empty() {
        return;
    }
    for question in server.questions.unanswerable(thread, &present) {
        let verdict = refused(question.kind, &question.why);
        conclude(server, question, verdict, None);
    }
}

fn conclude(server: &Arc<ServerShared>, question: Question, (decision, detail): Verdict, by: Option<String>) {
    let Some(live) = server.runtime.get(question.thread) else { return };
    // A client may leave because the whole program ends.
    let Ok(tasks) = Handle::try_current() else { return };
    // Here, in the order in which answers come: the tasks below have none.
    if !server.questions.claim(&question) {
        tracing::debug!(thread = %question.thread, "a question was answered twice; the first answer counts");
        return;
    }
    let server = Arc::clone(server);
    tasks.spawn(async move {
        if let Err(error) = live.answer_by(question.approval.clone(), decision, detail, by).await {
            tracing::debug!(thread = %question.thread, %error, "an answer came too late");
            server.questions.release(&question);
        }
    });
}

fn read(kind: QuestionKind, result: &[u8]) -> Result<Verdict, Fault> {
    let wrong = |why: SharedError| Fault::invalid_request(why);
    Ok(match kind {
        QuestionKind::Command | QuestionKind::FileChange => {
            let response: CommandApprovalResponse = decode_value(result).map_err(wrong)?;
            decided(response.decision)
        }
        QuestionKind::Permissions => {
            let response: PermissionsApprovalResponse = decode_value(result).map_err(wrong)?;
            granted(&response)
        }
        QuestionKind::DynamicTool => {
            let response: ToolCallResponse = decode_value(result).map_err(wrong)?;
            (Decision::Approved, Raw::of(&response).ok())
        }
        QuestionKind::UserInput => {
            let response: UserInputRequestResponse = decode_value(result).map_err(wrong)?;
            (Decision::Approved, Raw::of(&response).ok())
        }
        QuestionKind::McpElicitation | QuestionKind::McpTool => {
            let response: McpElicitationResponse = decode_value(result).map_err(wrong)?;
            let lasts = response.meta.as_ref().is_some_and(|meta| matches!(meta["persist"].as_str(), Some("session" | "always")));
            match response.action {
                ElicitationAction::Accept if lasts && kind == QuestionKind::McpTool => (Decision::ApprovedForThread, None),
                ElicitationAction::Accept => (Decision::Approved, Some(Raw::from(json!({"content": response.content})))),
                ElicitationAction::Decline => (Decision::Denied, None),
                // A server gets an empty answer; instead of a tool the turn is stopped.
                ElicitationAction::Cancel if kind == QuestionKind::McpElicitation => (Decision::TimedOut, None),
                ElicitationAction::Cancel => (Decision::Aborted, None),
            }
        }
    })
}

fn decided(decision: ApprovalDecision) -> Verdict {
    match decision {
        ApprovalDecision::Accept | ApprovalDecision::ApplyNetworkPolicyAmendment { .. } => (Decision::Approved, None),
        ApprovalDecision::AcceptForSession => (Decision::ApprovedForThread, None),
        ApprovalDecision::AcceptWithExecpolicyAmendment { execpolicy_amendment } => {
            (Decision::ApprovedForThread, Some(Raw::from(json!({"prefix": execpolicy_amendment}))))
        }
        ApprovalDecision::Decline => (Decision::Denied, None),
        ApprovalDecision::Cancel => (Decision::Aborted, None),
    }
}

/// A rule counts for every thread of this server: from a client that is limited it is a yes for this one.
fn without_rule(kind: QuestionKind, (decision, detail): Verdict) -> Verdict {
    (decision, detail.filter(|_| !matches!(kind, QuestionKind::Command | QuestionKind::FileChange)))
}

/// Nothing at all is a no. How much of it was asked for is the loop's business.
fn granted(response: &PermissionsApprovalResponse) -> Verdict {
    if response.permissions == PermissionProfile::default() {
        return (Decision::Denied, None);
    }
    let scope = response.scope.unwrap_or_default();
    let decision = if scope == PermissionScope::Session { Decision::ApprovedForThread } else { Decision::Approved };
    (decision, Some(Raw::from(json!({"permissions": response.permissions, "scope": scope}))))
}

/// No connected client can answer.
fn refused(kind: QuestionKind, why: &str) -> Verdict {
    match kind {
        QuestionKind::Command
        | QuestionKind::FileChange
        | QuestionKind::Permissions
        | QuestionKind::McpElicitation
        | QuestionKind::McpTool => (Decision::Denied, None),
        QuestionKind::DynamicTool | QuestionKind::UserInput => {
            let text = format!("The client could not answer: {why}");
            let answer = json!({"success": false, "contentItems": [{"type": "inputText", "text": text}]});
            (Decision::Approved, Some(Raw::from(answer)))
        }
    }
}
