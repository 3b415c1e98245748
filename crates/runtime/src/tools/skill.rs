//! `read_skill`: what a skill says, through the environment that it is in.

use outpost_thread::{CallDetail, CallId, SkillDetail};
use serde::Deserialize;

use super::{CallEnd, CallPlan, RequestedCall, ResultType, StepTools, Work};
use crate::skills::Skill;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadSkill {
    skill: String,
    #[serde(default)]
    file: Option<String>,
}

pub(crate) struct SkillRun {
    skill: Skill,
    file: Option<String>,
    result: ResultType,
}

impl StepTools {
    pub(super) fn plan_skill(&self, asked: &RequestedCall<'_>, read: ReadSkill) -> CallPlan {
        let skill = match self.find_skill(&read.skill) {
            Ok(skill) => skill.clone(),
            Err(why) => return asked.fail(&why),
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
        asked.run(environment, true, Some(detail), Work::Skill(Box::new(run)))
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

impl SkillRun {
    pub(crate) async fn execute(self, call: &CallId) -> CallEnd {
        match self.skill.read(self.file.as_deref()).await {
            Ok(text) => CallEnd::completed(self.result, call, text, None),
            Err(error) => CallEnd::failed(self.result, call, &error.to_string()),
        }
    }
}
