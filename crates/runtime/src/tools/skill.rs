//! `read_skill`: what a skill says, through the environment that it is in.

use outpost_thread::{CallDetail, CallId, SkillDetail};
use serde::Deserialize;
use serde_json::json;

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{function, string};
use super::{CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::model::ToolSpec;
use crate::skills::Skill;

pub(super) const TOOL: OwnTool =
    OwnTool { name: "read_skill", spec: |offer| offer.skills.then(spec), read: WrittenCall::call::<ReadSkill> };

fn spec() -> ToolSpec {
    let properties = json!({
        "skill": string("The skill, by its name, or by its skill:// address where several have the name."),
        "file": string("Another file in the skill's folder, relative to it. Without it, the skill itself is read."),
    });
    function("read_skill", "Reads a skill, or a file that belongs to it.", properties, &["skill"])
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadSkill {
    skill: String,
    #[serde(default)]
    file: Option<String>,
}

struct SkillRun {
    skill: Skill,
    file: Option<String>,
    result: ResultType,
}

impl OwnCall for ReadSkill {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_skill(asked, *self)
    }
}

impl StepTools {
    fn plan_skill(&self, asked: &RequestedCall<'_>, read: ReadSkill) -> CallPlan {
        let skill = match self.find_skill(&read.skill) {
            Ok(skill) => skill.clone(),
            Err(why) => return asked.fail(why),
        };
        let file = read.file.filter(|file| !file.is_empty());
        let detail = CallDetail::SkillRead(SkillDetail {
            skill: skill.name.clone(),
            path: skill.locator.clone(),
            file: file.clone(),
            environment_id: Some(skill.environment.to_string()),
        });
        let environment = Some(skill.environment.clone());
        let run = SkillRun { skill, file, result: asked.result() };
        asked.run(environment, true, Some(detail), Box::new(run))
    }

    /// A skill by its address, or by a name that only one has.
    fn find_skill(&self, name: &str) -> Result<&Skill, String> {
        if let Some(skill) = self.capabilities.skill(name) {
            return Ok(skill);
        }
        let named: Vec<&Skill> = self.capabilities.skills.iter().filter(|skill| skill.name == name).collect();
        match named[..] {
            [skill] => Ok(skill),
            [] => Err(format!("there is no skill `{name}` in this step")),
            _ => {
                let addresses: Vec<&str> = named.iter().map(|skill| skill.locator.as_str()).collect();
                Err(format!("several skills are called `{name}`; say which: {}", addresses.join(", ")))
            }
        }
    }
}

impl Work for SkillRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, _context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.read(call))
    }
}

impl SkillRun {
    async fn read(self, call: &CallId) -> CallEnd {
        match self.skill.read(self.file.as_deref()).await {
            Ok(text) => CallEnd::completed(self.result, call, text, None),
            Err(error) => CallEnd::failed(self.result, call, error),
        }
    }
}
