//! `request_permissions`: the model asks for more than the sandbox gives, the user grants some of it or nothing.
//!
//! What is granted becomes a fact with the end of the call, and only after the environment has shown that it can give it: a
//! grant that no executor takes would stand in the way of everything after it.

use outpost_environment::{Environment, EnvironmentError, Repeat, Workplace};
use outpost_thread::{
    ApprovalAsked, ApprovalDetail, ApprovalKind, CallId, CallOutcome, Decision, Fact, GrantScope, PermissionsGranted, Raw, TurnId,
};
use outpost_wire::PathUri;
use outpost_wire::app::permission::{PermissionProfile, PermissionScope};
use outpost_wire::exec::files::{GetMetadata, GetMetadataParams};
use outpost_wire::exec::policy::{Grant, SandboxContext};
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{function, string};
use super::narrow;
use super::{CallContext, CallEnd, CallPlan, Consent, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::approvals::Bound;
use crate::extra_permissions::ExtraPermissions;
use crate::model::ToolSpec;
use crate::policy::ApprovalPolicy;

pub(super) const TOOL: OwnTool =
    OwnTool { name: "request_permissions", spec: |offer| offer.permissions.then(spec), read: WrittenCall::call::<RequestPermissions> };

/// What can be asked for on top of the sandbox.
pub(super) fn permissions(description: &str) -> Value {
    let paths = |what: &str| json!({"type": "array", "items": {"type": "string"}, "description": what});
    json!({
        "type": "object", "description": description,
        "properties": {
            "network": {"type": "object", "properties": {"enabled": {"type": "boolean"}}, "additionalProperties": false},
            "file_system": {
                "type": "object",
                "properties": {
                    "read": paths("Files and directories to read."),
                    "write": paths("Files and directories to write, with all that is below them. They must exist."),
                },
                "additionalProperties": false,
            },
        },
        "additionalProperties": false,
    })
}

fn spec() -> ToolSpec {
    let properties = json!({
        "reason": string("One sentence for the user that says why."),
        "environment_id": string("The environment that they are for, by its id. Without it, the primary one."),
        "permissions": permissions("As little as the task needs. Relative paths start at the environment's directory."),
    });
    function(
        "request_permissions",
        "Asks the user to let commands and patches in one environment do more than its sandbox allows: read or write certain paths, use the \
         network. The answer says what was granted, and for how long; it may be less than you asked for, or nothing.",
        properties,
        &["permissions"],
    )
}

/// As the model writes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestPermissions {
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    environment_id: Option<String>,
    permissions: Value,
}

/// What a command wants of the sandbox, as the model writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SandboxPermissions {
    UseDefault,
    WithAdditionalPermissions,
    RequireEscalated,
}

/// What a command wants on top of the sandbox; an error is a sentence for the model.
pub(super) fn additional(wish: Option<SandboxPermissions>, permissions: Option<&Value>, cwd: &PathUri) -> Result<ExtraPermissions, String> {
    match (wish, permissions) {
        (Some(SandboxPermissions::WithAdditionalPermissions), Some(permissions)) => {
            ExtraPermissions::asked(permissions, cwd).map_err(|error| error.to_string())
        }
        (Some(SandboxPermissions::WithAdditionalPermissions), None) => {
            Err("`with_additional_permissions` needs `additional_permissions` that say what is needed".into())
        }
        (_, Some(_)) => Err("`additional_permissions` count only with `sandbox_permissions`: `with_additional_permissions`".into()),
        (_, None) => Ok(ExtraPermissions::default()),
    }
}

/// A grant that is to be tried.
struct PermitRun {
    place: Granted,
    environment: Environment,
    cwd: PathUri,
    /// The sandbox as it is without the grant.
    sandbox: SandboxContext,
    permits: ExtraPermissions,
    scope: GrantScope,
    result: ResultType,
}

/// Where a grant holds: an environment, and the executor that answers behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Granted {
    environment: EnvironmentId,
    executor: Option<String>,
    generation: Option<u64>,
}

impl Granted {
    fn at(place: &Workplace<'_>) -> Self {
        let executor = place.handle.identity().and_then(|identity| identity.executor_id);
        // Without an identity machines cannot be told apart, and the handle is all there is.
        let generation = if executor.is_none() { Some(place.handle.generation()) } else { None };
        Self { environment: place.attachment.environment_id.clone(), executor, generation }
    }
}

/// What the user answered, as the driver completes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    permissions: PermissionProfile,
    #[serde(default)]
    scope: Option<PermissionScope>,
    /// Of the place that was asked about.
    key: String,
}

/// Completes an answer with what the question said, so that it stands on its own: without permissions, all that was asked
/// for; without a scope, the turn unless the decision says more.
pub(crate) fn complete(asked: &ApprovalAsked, decision: Decision, answer: Option<&Raw>) -> Option<Raw> {
    let question = asked.detail.as_ref()?.read();
    let given: Value = answer.and_then(|answer| answer.read().ok()).unwrap_or_default();
    let or = |given: &Value, usual: Value| if given.is_null() { usual } else { given.clone() };
    let scope = if decision == Decision::ApprovedForThread { "session" } else { "turn" };
    Some(Raw::from(json!({
        "permissions": or(&given["permissions"], json!(question.permissions)), "scope": or(&given["scope"], scope.into()), "key": question.key,
    })))
}

/// What of the thread's grants holds in a place.
pub(super) fn held(grants: &[PermissionsGranted], place: &Workplace<'_>) -> ExtraPermissions {
    let here = Granted::at(place);
    let mut permits = ExtraPermissions::default();
    for grant in grants {
        let (environment, executor) = (grant.environment.clone(), grant.executor.clone());
        if (Granted { environment, executor, generation: grant.generation }) == here
            && let Ok(granted) = grant.permissions.read()
        {
            permits.join(&granted);
        }
    }
    // What was granted before the environment's entry was changed does not outlast that.
    narrow::left(&permits, place.handle.narrowing())
}

/// Why permissions may not be asked for, if so.
pub(crate) fn silence(policy: ApprovalPolicy) -> Option<&'static str> {
    match policy {
        ApprovalPolicy::Never => Some("the approval policy is `never`"),
        ApprovalPolicy::Granular(own) if !own.granular.request_permissions => Some("questions for permissions are switched off"),
        _ => None,
    }
}

impl OwnCall for RequestPermissions {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_permissions(asked, *self)
    }
}

impl StepTools {
    fn plan_permissions(&self, asked: &RequestedCall<'_>, request: RequestPermissions) -> CallPlan {
        let place = match self.place(request.environment_id.as_deref()) {
            Ok(place) => place,
            Err(why) => return asked.fail(why),
        };
        let wanted = match ExtraPermissions::asked(&request.permissions, &place.attachment.cwd) {
            Ok(wanted) => wanted,
            Err(error) => return asked.fail(error),
        };
        let tell = |text: &str| CallPlan::End(CallEnd::completed(asked.result(), &asked.call.id, text, None));
        let Some(sandbox) = self.sandbox(&place) else { return tell("There is no sandbox here; nothing has to be granted.") };
        let wanted = wanted.beyond_on_machine(&sandbox);
        if wanted.is_empty() {
            return tell("All of that is allowed already; nothing has to be granted.");
        }
        if let Some(why) = self.forbidden(place.handle, &wanted) {
            return nothing(asked, &format!("Nothing was granted, and no question was asked. {why}"));
        }
        if let Some(why) = self.silence_in(place.handle) {
            return nothing(asked, &format!("Nothing was granted, and no question was asked: {why}. Go on without it."));
        }
        let id = place.attachment.environment_id.clone();
        let bound = Bound::exactly(&place, &json!(["permissions", wanted.profile()]), Some(&sandbox));
        let question = || {
            let detail = ApprovalDetail {
                environment_id: Some(id.to_string()),
                cwd: Some(place.attachment.cwd.to_syntax()),
                permissions: Raw::of(&wanted.profile()).ok(),
                words: wanted.words(),
                reason: request.reason.clone(),
                sandbox: Some(self.around(&place, true)),
                ..ApprovalDetail::default()
            };
            asked.bound_question(ApprovalKind::Permissions, Some(id.clone()), &bound, detail)
        };
        let answer = match &asked.consent {
            Consent::Open => return question(),
            Consent::Given { answer, .. } => answer.as_ref().and_then(|answer| answer.read::<Answer>().ok()),
            Consent::Begun => None,
        };
        let Some(answer) = answer else { return nothing(asked, "Nothing was granted: the answer cannot be read.") };
        if answer.key != bound.exact {
            return question();
        }
        let permits = wanted.within(&ExtraPermissions::granted(&answer.permissions, place.attachment));
        if permits.is_empty() {
            return nothing(asked, "The user granted nothing of it. Do not try the same by other means; ask, or go on without it.");
        }
        let here = Granted::at(&place);
        // What cannot be told from another machine is trusted no longer than a turn.
        let is_lasting = answer.scope == Some(PermissionScope::Session) && here.executor.is_some();
        let run = PermitRun {
            place: here,
            environment: place.handle.clone(),
            cwd: place.attachment.cwd.clone(),
            sandbox,
            permits,
            scope: if is_lasting { GrantScope::Thread } else { GrantScope::Turn },
            result: asked.result(),
        };
        asked.run(Some(id), true, None, Box::new(run))
    }
}

/// A no that the turn goes on with.
fn nothing(asked: &RequestedCall<'_>, text: &str) -> CallPlan {
    let items = vec![asked.result().item(&asked.call.id, text)];
    CallPlan::End(CallEnd { outcome: CallOutcome::Declined, items, report: None, facts: vec![] })
}

impl Work for PermitRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.grant(call, context))
    }
}

impl PermitRun {
    async fn grant(self, call: &CallId, context: &CallContext) -> CallEnd {
        let (mut given, mut refused) = (ExtraPermissions::default(), Vec::new());
        for part in self.permits.parts() {
            match self.attempt(&part).await {
                Ok(()) => given.join(&part),
                Err(error) => refused.push(format!("{part}: {error}")),
            }
        }
        let refusals = refused.iter().map(|refusal| format!("\n- {refusal}")).collect::<String>();
        if given.is_empty() {
            return CallEnd::failed(self.result, call, format!("The user agreed, but the environment cannot give it:{refusals}"));
        }
        let until = match self.scope {
            GrantScope::Turn => "until this turn ends",
            GrantScope::Thread => "for the rest of this thread",
        };
        let list: String = given.words().iter().map(|word| format!("\n- {word}")).collect();
        let mut text = format!("Granted in environment `{}`, {until}:{list}", self.place.environment);
        let rest = if given == self.permits { "" } else { "\nThe environment could not give this:" };
        text.push_str(rest);
        text.push_str(&refusals);
        match self.fact(&context.turn, call, &given) {
            Ok(fact) => CallEnd { facts: vec![fact], ..CallEnd::completed(self.result, call, text, None) },
            Err(error) => CallEnd::failed(self.result, call, format!("The grant could not be written down: {error}")),
        }
    }

    /// Does something harmless in the sandbox that a part of the grant makes.
    async fn attempt(&self, part: &ExtraPermissions) -> Result<(), EnvironmentError> {
        let mut sandbox = self.sandbox.clone();
        part.widen(&mut sandbox, Grant::Required);
        let params = GetMetadataParams { path: self.cwd.clone(), follow_symlinks: None, sandbox: Some(sandbox) };
        match self.environment.call::<GetMetadata>(&params, Repeat::Harmless).await {
            // The sandbox was made; that there is nothing in it is another matter.
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn fact(&self, turn: &TurnId, call: &CallId, given: &ExtraPermissions) -> Result<Fact, serde_json::Error> {
        let Granted { environment, executor, generation } = self.place.clone();
        let permissions = Raw::of(given)?;
        let (turn, call, scope) = (turn.clone(), Some(call.clone()), self.scope);
        Ok(PermissionsGranted { turn, call, environment, executor, generation, scope, permissions }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{AllowedQuestions, Granular};

    #[test]
    fn an_answer_stands_on_its_own() {
        let question = json!({"key": "here", "permissions": {"network": {"enabled": true}}});
        let asked = ApprovalAsked {
            turn: "t".into(),
            approval: "a".into(),
            call: None,
            environment: None,
            kind: ApprovalKind::Permissions,
            detail: Some(Raw::from(question.clone()).into()),
        };
        let complete = |decision, answer: Option<Value>| {
            let answer = complete(&asked, decision, answer.map(Raw::from).as_ref()).unwrap();
            answer.read::<Value>().unwrap()
        };
        let whole = |scope: &str| json!({"permissions": question["permissions"], "scope": scope, "key": "here"});
        assert_eq!(complete(Decision::Approved, None), whole("turn"));
        assert_eq!(complete(Decision::ApprovedForThread, None), whole("session"));
        let part = complete(Decision::Approved, Some(json!({"permissions": {}, "scope": "session", "key": "elsewhere"})));
        assert_eq!(part, json!({"permissions": {}, "scope": "session", "key": "here"}));
    }

    #[test]
    fn only_some_policies_forbid_questions() {
        let granular = |request_permissions| {
            ApprovalPolicy::Granular(Granular { granular: AllowedQuestions { request_permissions, ..AllowedQuestions::default() } })
        };
        for policy in [ApprovalPolicy::OnRequest, ApprovalPolicy::Untrusted, granular(true)] {
            assert_eq!(silence(policy), None, "{policy:?}");
        }
        assert!(silence(ApprovalPolicy::Never).is_some() && silence(granular(false)).is_some());
    }

    #[test]
    fn additional_permissions_come_with_the_word_for_them() {
        let cwd = PathUri::root();
        let permissions = json!({"network": {"enabled": true}});
        let ask = |wish, permissions: Option<&Value>| additional(wish, permissions, &cwd);
        assert!(ask(Some(SandboxPermissions::WithAdditionalPermissions), Some(&permissions)).unwrap().network);
        assert!(ask(Some(SandboxPermissions::WithAdditionalPermissions), None).is_err());
        assert!(ask(Some(SandboxPermissions::RequireEscalated), Some(&permissions)).is_err());
        assert!(ask(None, None).unwrap().is_empty());
    }
}
