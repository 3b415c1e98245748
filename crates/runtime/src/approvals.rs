//! Questions to the user, the answers that hold for longer than one call, and what an answer is bound to.

use std::collections::HashSet;

use outpost_environment::{Environment, Workplace};
use outpost_store::Digest;
use outpost_thread::{ApprovalAsked, ApprovalDetail, ApprovalKind};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::intent::EnvironmentId;
use serde_json::{Value, json};

/// A question that stands before a call.
#[derive(Debug, Clone)]
pub(crate) struct ApprovalQuestion {
    pub kind: ApprovalKind,
    pub environment: Option<EnvironmentId>,
    pub detail: ApprovalDetail,
}

/// What an answer is bound to. A yes to one of these is no yes to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Digests of exactly what will run, of where, and of the sandbox around it.
    pub exact: String,
    /// What an answer for the whole thread is remembered under.
    pub lasting: String,
}

/// The parts of a binding, in words and in their order.
const PARTS: [&str; 3] = ["what runs", "where it runs", "the sandbox"];

impl Bound {
    /// Bound to exactly this, also for the thread.
    pub(crate) fn exactly(place: &Workplace<'_>, what: &Value, sandbox: Option<&SandboxContext>) -> Self {
        let exact = exact(&whereabouts(Some(&place.attachment.environment_id), Some(place.handle)), what, sandbox);
        Self { lasting: exact.clone(), exact }
    }

    /// Bound to exactly this; an answer for the thread is remembered under something wider.
    pub(crate) fn within(lasting: String, what: &Value, sandbox: Option<&SandboxContext>) -> Self {
        // The wider key names the machine.
        let place = Value::from(lasting.as_str());
        Self { exact: exact(&place, what, sandbox), lasting }
    }

    /// Puts both into the detail of a question.
    pub(crate) fn write(&self, detail: &mut ApprovalDetail) {
        detail.key = Some(self.exact.clone());
        detail.lasting = (self.lasting != self.exact).then(|| self.lasting.clone());
    }
}

fn exact(place: &Value, what: &Value, sandbox: Option<&SandboxContext>) -> String {
    let parts = [what.to_string(), place.to_string(), json!(sandbox).to_string()];
    parts.map(|part| Digest::of(part.as_bytes()).to_string()).join(" ")
}

/// What is different from when the user was asked, in words.
pub(crate) fn changed(asked: &str, now: &str) -> Vec<&'static str> {
    let (asked, now): (Vec<&str>, Vec<&str>) = (asked.split(' ').collect(), now.split(' ').collect());
    if asked.len() != PARTS.len() || now.len() != PARTS.len() {
        return vec!["how questions are recorded"];
    }
    PARTS.into_iter().zip(asked.into_iter().zip(now)).filter(|(_, (asked, now))| asked != now).map(|(part, _)| part).collect()
}

/// What the user allowed for the life of this thread in this program. It is keyed by the executor that answers behind an
/// environment, so that another machine under the same name starts with nothing.
#[derive(Debug, Default)]
pub(crate) struct SessionApprovals(HashSet<String>);

impl SessionApprovals {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn holds(&self, key: &str) -> bool {
        self.0.contains(key)
    }

    pub(crate) fn remember(&mut self, asked: &ApprovalAsked) {
        let question = asked.question();
        self.0.extend(question.lasting.or(question.key));
        self.0.extend(question.keys);
    }
}

/// What a question is about, where its answer is bound to something.
pub(crate) fn key_in(asked: &ApprovalAsked) -> Option<String> {
    asked.question().key
}

/// What an answer for the thread is remembered under: which machine, and what was asked.
pub(crate) fn key(place: &Workplace<'_>, what: &Value) -> String {
    key_of(Some(&place.attachment.environment_id), Some(place.handle), what)
}

pub(crate) fn key_of(id: Option<&EnvironmentId>, handle: Option<&Environment>, what: &Value) -> String {
    json!([whereabouts(id, handle), what]).to_string()
}

/// Which machine, as far as machines can be told apart.
fn whereabouts(id: Option<&EnvironmentId>, handle: Option<&Environment>) -> Value {
    let executor = handle.and_then(|handle| handle.identity()?.executor_id);
    // Without an identity machines cannot be told apart, and the handle is all there is.
    let generation = if executor.is_none() { handle.map(Environment::generation) } else { None };
    json!([id, executor, generation])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_binding_counts() {
        let read_only = crate::permissions::SandboxMode::ReadOnly { network_access: false };
        let path = outpost_wire::PathUri::root();
        let sandbox = read_only.context(&outpost_wire::Attachment::new(EnvironmentId::local(), path));
        let bind = |place: &str, what: &str, sandbox| exact(&json!(place), &json!([what]), sandbox);
        let asked = bind("here", "ls", sandbox.as_ref());
        assert_eq!(changed(&asked, &bind("here", "ls", sandbox.as_ref())), [""; 0]);
        assert_eq!(changed(&asked, &bind("here", "ls ", sandbox.as_ref())), ["what runs"]);
        assert_eq!(changed(&asked, &bind("there", "ls", None)), ["where it runs", "the sandbox"]);
        assert_eq!(changed("[\"local\",null]", &asked), ["how questions are recorded"]);
    }
}
