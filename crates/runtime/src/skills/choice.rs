//! Which skills a user does not want, as `[[skills.config]]` of `config.toml` says it.

use outpost_wire::intent::EnvironmentId;
use serde::{Deserialize, Serialize};

use super::Skill;
use super::host::lock;
use crate::runtime::{Runtime, RuntimeShared};

/// A skill that is wanted or not: by its name wherever it is, or by the path of its file on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillChoice {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub enabled: bool,
}

impl SkillChoice {
    /// Whether both speak of the same skill.
    pub fn is_about(&self, other: &Self) -> bool {
        (&self.name, &self.path) == (&other.name, &other.path)
    }

    fn fits(&self, name: &str, environment: &EnvironmentId, path: &str) -> bool {
        self.name.as_deref() == Some(name) || (environment.is_local() && self.path.as_deref() == Some(path))
    }
}

/// What is said last counts; a skill of which nothing is said is wanted.
pub(super) fn is_wanted(choices: &[SkillChoice], name: &str, environment: &EnvironmentId, path: &str) -> bool {
    choices.iter().rev().find(|choice| choice.fits(name, environment, path)).is_none_or(|choice| choice.enabled)
}

impl Runtime {
    /// From the next step on; they replace those that held before.
    pub fn set_skill_choices(&self, choices: Vec<SkillChoice>) {
        *lock(&self.0.skills.host.choices) = choices;
        self.0.skills.host.tell_change();
    }
}

impl RuntimeShared {
    /// Leaves only those skills that the user wants.
    pub(crate) fn keep_wanted(&self, skills: &mut Vec<Skill>) {
        let choices = lock(&self.skills.host.choices);
        if !choices.is_empty() {
            skills.retain(|skill| is_wanted(&choices, &skill.name, &skill.environment, &skill.path.to_syntax()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_paths_are_those_of_this_machine() {
        let by_name = |enabled| SkillChoice { name: Some("greet".into()), path: None, enabled };
        let by_path = |enabled| SkillChoice { name: None, path: Some("/s/SKILL.md".into()), enabled };
        let (here, there) = (EnvironmentId::local(), EnvironmentId::parse("box").unwrap());
        assert!(is_wanted(&[], "greet", &here, "/s/SKILL.md"));
        assert!(!is_wanted(&[by_name(false)], "greet", &there, "/elsewhere"));
        assert!(is_wanted(&[by_name(false), by_path(true)], "greet", &here, "/s/SKILL.md"));
        assert!(!is_wanted(&[by_path(true), by_name(false)], "greet", &here, "/s/SKILL.md"));
        assert!(is_wanted(&[by_path(false)], "greet", &there, "/s/SKILL.md"));
    }
}
