//! Calls that only tell or ask: the plan, questions to the user, tools that the client runs.

use outpost_thread::{
    ApprovalDetail, ApprovalKind, CallDetail, CallId, CallOutcome, CallReport, PlanDetail, PlannedStep, PlannedStepStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{function, string};
use super::{CallEnd, CallPlan, RequestedCall, ResultType, StepTools};
use crate::model::ToolSpec;

pub(super) const UPDATE: OwnTool = OwnTool { name: "update_plan", spec: |_| Some(update_plan()), read: WrittenCall::call::<UpdatePlan> };

pub(super) const QUESTIONS: OwnTool =
    OwnTool { name: "request_user_input", spec: |offer| offer.questions.then(request_user_input), read: WrittenCall::call::<Questions> };

fn update_plan() -> ToolSpec {
    let step = json!({
        "type": "object",
        "properties": {"step": {"type": "string"}, "status": {"enum": ["pending", "in_progress", "completed"]}},
        "required": ["step", "status"],
    });
    let properties = json!({"explanation": {"type": "string"}, "plan": {"type": "array", "items": step}});
    function("update_plan", "Shows the user your plan; at most one step is in progress.", properties, &["plan"])
}

fn request_user_input() -> ToolSpec {
    let option = json!({
        "type": "object", "properties": {"label": {"type": "string"}, "description": {"type": "string"}},
        "required": ["label", "description"], "additionalProperties": false,
    });
    let question = json!({
        "type": "object",
        "properties": {
            "id": string("A name for the answer."),
            "header": string("At most twelve characters."),
            "question": string("One sentence."),
            "options": {"type": "array", "items": option, "minItems": 2, "maxItems": 3},
        },
        "required": ["id", "header", "question", "options"], "additionalProperties": false,
    });
    let properties = json!({"questions": {"type": "array", "items": question, "minItems": 1, "maxItems": 3}});
    function("request_user_input", "Asks the user one to three short questions and waits for the answers.", properties, &["questions"])
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdatePlan {
    #[serde(default)]
    explanation: Option<String>,
    plan: Vec<PlanStep>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PlanStep {
    step: String,
    status: PlanStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PlanStatus {
    Pending,
    InProgress,
    Completed,
}

impl From<PlanStatus> for PlannedStepStatus {
    fn from(status: PlanStatus) -> Self {
        match status {
            PlanStatus::Pending => Self::Pending,
            PlanStatus::InProgress => Self::InProgress,
            PlanStatus::Completed => Self::Completed,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Questions {
    questions: Vec<Value>,
}

impl OwnCall for UpdatePlan {
    fn plan(self: Box<Self>, _step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        update(asked, *self)
    }
}

impl OwnCall for Questions {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        if !step.questions {
            return asked.fail("no user is there to answer questions");
        }
        asked.question(ApprovalKind::UserInput, ApprovalDetail { questions: self.questions, ..ApprovalDetail::default() })
    }
}

/// Notes the plan. It has no effect but to be seen.
fn update(asked: &RequestedCall<'_>, plan: UpdatePlan) -> CallPlan {
    if plan.plan.iter().filter(|step| step.status == PlanStatus::InProgress).count() > 1 {
        return asked.fail("at most one step of a plan is in progress");
    }
    let planned = |step: PlanStep| PlannedStep { step: step.step, status: step.status.into() };
    let detail = CallDetail::Plan(PlanDetail { explanation: plan.explanation, plan: plan.plan.into_iter().map(planned).collect() });
    let end = CallEnd::completed(asked.result(), &asked.call.id, "The plan is noted.", None);
    asked.run(None, true, Some(detail), Box::new(end))
}

/// What the user, or the client, answered, as the model is told it. A client may answer with parts of its own.
pub(super) fn answered(result: ResultType, call: &CallId, answer: &Value) -> CallEnd {
    let success = answer["success"].as_bool().unwrap_or(true);
    let output = match &answer["contentItems"] {
        Value::Array(parts) => Value::Array(parts.iter().map(part).collect()),
        _ if answer.is_null() => "There is no answer.".into(),
        _ => answer.to_string().into(),
    };
    let outcome = if success { CallOutcome::Completed } else { CallOutcome::Failed };
    CallEnd {
        outcome,
        items: vec![result.item(call, output)],
        report: Some(CallReport { answer: Some(answer.clone()), ..CallReport::default() }.into()),
        facts: vec![],
    }
}

/// A part of an answer, from the client's spelling to the model's.
fn part(part: &Value) -> Value {
    match part["type"].as_str() {
        Some("inputImage") => json!({"type": "input_image", "image_url": part["imageUrl"]}),
        _ => json!({"type": "input_text", "text": part["text"].as_str().unwrap_or_default()}),
    }
}
