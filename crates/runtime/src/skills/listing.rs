//! What the model is told about skills and capability roots: everything at first, afterwards only what has changed.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::Skill;
use crate::capabilities::{RootReport, StepCapabilities};

/// All skills together may take so many bytes in a message.
const BUDGET: usize = 8 << 10;
/// A description is cut to this before a skill is left out.
const SHORT: usize = 120;

const FIRST: &str = "Skills are instructions for particular kinds of work. When one fits the task, or the user names it (often as $name), read it \
                     with read_skill before you begin, and follow it. It may name other files of its folder; read_skill reads those as well.";

/// A skill as the model was told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToldSkill {
    pub name: String,
    pub description: String,
    pub locator: String,
    pub environment: String,
}

/// A root that the model could not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToldRoot {
    pub id: String,
    pub why: String,
}

/// Everything that the model was told last. It is kept with the step, so that a resumed thread goes on where it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToldCapabilities {
    pub skills: Vec<ToldSkill>,
    /// Skills for which there was no room.
    #[serde(skip_serializing_if = "is_zero")]
    pub unlisted: usize,
    /// Roots that are out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub out: Vec<ToldRoot>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl ToldCapabilities {
    /// What the model is to know of a step.
    pub fn of(step: &StepCapabilities) -> Self {
        let listed: Vec<&Skill> = step.skills.iter().filter(|skill| skill.is_listed).collect();
        let whole: usize = listed.iter().map(|skill| skill.line_length(usize::MAX)).sum();
        let longest = if whole <= BUDGET { usize::MAX } else { SHORT };
        let mut told = Self { out: step.roots.iter().filter_map(ToldRoot::of).collect(), ..Self::default() };
        let mut left = BUDGET;
        for skill in listed {
            match left.checked_sub(skill.line_length(longest)) {
                Some(rest) => {
                    left = rest;
                    told.skills.push(skill.told(longest));
                }
                None => told.unlisted += 1,
            }
        }
        told
    }

    /// The text of the message, or nothing if the model knows it all. `before` is what it was told last.
    pub fn message(&self, before: Option<&Self>) -> Option<String> {
        let nothing = Self::default();
        let known = before.unwrap_or(&nothing);
        if known == self {
            return None;
        }
        let is_first = known.skills.is_empty();
        let mut text = String::from("<skills>\n");
        if is_first && !self.skills.is_empty() {
            let _ = writeln!(text, "{FIRST}");
        }
        let news: Vec<&ToldSkill> = self.skills.iter().filter(|skill| !known.skills.contains(skill)).collect();
        let gone: Vec<&ToldSkill> =
            known.skills.iter().filter(|old| self.skills.iter().all(|skill| skill.locator != old.locator)).collect();
        if !news.is_empty() {
            text.push_str(if is_first { "Available skills:\n" } else { "New or changed skills:\n" });
            news.iter().for_each(|skill| skill.line(&mut text));
        }
        if self.unlisted != known.unlisted && self.unlisted > 0 {
            let _ = writeln!(text, "There are {} more that do not fit here; the user may name them.", self.unlisted);
        }
        if !gone.is_empty() {
            text.push_str("Not available any more:\n");
            for skill in gone {
                let _ = writeln!(text, "- {} ({})", skill.name, skill.locator);
            }
        }
        if self.skills.is_empty() && !is_first {
            text.push_str("No skills are available now.\n");
        }
        for root in self.out.iter().filter(|root| !known.out.contains(root)) {
            let _ = writeln!(text, "Capability root `{}` cannot be used now: {}.", root.id, root.why);
        }
        for root in known.out.iter().filter(|old| self.out.iter().all(|root| root.id != old.id)) {
            let _ = writeln!(text, "Capability root `{}` is not left out any more.", root.id);
        }
        text.push_str("</skills>");
        Some(text)
    }
}

impl ToldRoot {
    /// In a few words: what exactly went wrong changes from one attempt to the next, and is told to clients.
    fn of(report: &RootReport) -> Option<Self> {
        let reason = report.reason.as_ref()?;
        let brief = reason.split(": ").next().unwrap_or(reason);
        Some(Self { id: report.id.clone(), why: one_line(brief) })
    }
}

impl ToldSkill {
    fn line(&self, text: &mut String) {
        let _ = writeln!(text, "- {}: {} ({}, environment `{}`)", self.name, self.description, self.locator, self.environment);
    }
}

impl Skill {
    fn told(&self, longest: usize) -> ToldSkill {
        let description =
            if longest == usize::MAX { &self.description } else { self.short_description.as_ref().unwrap_or(&self.description) };
        ToldSkill {
            name: one_line(&self.name),
            description: one_line(&cut(description, longest)),
            locator: one_line(&self.locator),
            environment: self.environment.to_string(),
        }
    }

    fn line_length(&self, longest: usize) -> usize {
        let mut text = String::new();
        self.told(longest).line(&mut text);
        text.len()
    }
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A name cannot end the message, nor begin another line.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(name: &str) -> ToldSkill {
        ToldSkill { name: name.into(), description: "does it".into(), locator: format!("skill://r/{name}"), environment: "box".into() }
    }

    fn told(skills: &[&str], out: &[&str]) -> ToldCapabilities {
        let out = out.iter().map(|id| ToldRoot { id: (*id).into(), why: "environment `box` is starting".into() });
        ToldCapabilities { skills: skills.iter().map(|name| skill(name)).collect(), unlisted: 0, out: out.collect() }
    }

    #[test]
    fn everything_first_and_then_only_news() {
        assert_eq!(told(&[], &[]).message(None), None);
        let first = told(&["a", "b"], &[]);
        let text = first.message(None).unwrap();
        assert!(text.starts_with("<skills>\nSkills are") && text.contains("- a: does it (skill://r/a, environment `box`)"), "{text}");
        assert_eq!(first.message(Some(&first)), None);
        let text = told(&["b", "c"], &[]).message(Some(&first)).unwrap();
        assert!(text.contains("New or changed skills:\n- c:") && text.contains("Not available any more:\n- a ("), "{text}");
        assert!(!text.contains("- b:"), "{text}");
        let text = told(&[], &["r"]).message(Some(&first)).unwrap();
        assert!(text.contains("No skills are available now.") && text.contains("`r` cannot be used now: environment `box` is starting."));
        let text = first.message(Some(&told(&[], &["r"]))).unwrap();
        assert!(text.contains("Available skills:\n- a:") && text.contains("`r` is not left out any more."), "{text}");
    }
}
