//! The beginning of a SKILL.md, which executors and clients both read: what the skill is called and what it is for.
//!
//! It is YAML between two lines of three dashes. Only what people write there is understood: keys with plain, quoted or block
//! texts, and one level of nesting. Lists and everything else are passed over.

use std::collections::BTreeMap;

use thiserror::Error;

/// The longest name and the longest description, in characters.
pub const MAX_NAME: usize = 64;
pub const MAX_DESCRIPTION: usize = 1024;

/// What a skill says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillHead {
    pub name: String,
    pub description: String,
    pub short_description: Option<String>,
}

/// Why a text is no skill.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum SkillError {
    #[error("it does not begin with front matter: a line `---`, then `name:` and `description:`, then a line `---`")]
    NoFrontMatter,
    #[error("its front matter has no `{0}`")]
    Missing(&'static str),
    #[error("its {what} is longer than {limit} characters")]
    Long { what: &'static str, limit: usize },
}

impl SkillHead {
    /// Reads the front matter of a SKILL.md.
    pub fn read(text: &str) -> Result<Self, SkillError> {
        let (front, _) = split(text).ok_or(SkillError::NoFrontMatter)?;
        let mut values = yaml(front);
        let mut take = |key: &'static str, limit| {
            let value =
                values.remove(key).map(|value| one_line(&value)).filter(|value| !value.is_empty()).ok_or(SkillError::Missing(key))?;
            if value.chars().count() > limit { Err(SkillError::Long { what: key, limit }) } else { Ok(value) }
        };
        let name = take("name", MAX_NAME)?;
        let description = take("description", MAX_DESCRIPTION)?;
        let short_description = values.remove("metadata.short-description").map(|value| one_line(&value)).filter(|value| !value.is_empty());
        Ok(Self { name, description, short_description })
    }
}

/// What comes after the front matter; the whole text if there is none.
pub fn body(text: &str) -> &str {
    split(text).map_or(text, |(_, body)| body)
}

/// Whether the file beside a skill lets a model use it without being told to. Most say nothing, which means yes.
pub fn allows_implicit_invocation(metadata: &str) -> Option<bool> {
    yaml(metadata).get("policy.allow_implicit_invocation").and_then(|value| value.parse().ok())
}

/// The front matter and what follows it.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rest = text.strip_prefix("---")?;
    let rest = rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n'))?;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The texts of a mapping, keys of nested ones joined with a dot.
fn yaml(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut above: Option<(usize, String)> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = indentation(line);
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') || content.starts_with("- ") {
            continue;
        }
        let Some((key, value)) = content.split_once(':').filter(|(_, value)| value.is_empty() || value.starts_with(' ')) else { continue };
        if above.as_ref().is_some_and(|(outer, _)| indent <= *outer) {
            above = None;
        }
        let key = unquote(key.trim());
        let full = match &above {
            Some((_, outer)) => format!("{outer}.{key}"),
            None => key,
        };
        let value = value.trim();
        let mut deeper = Vec::new();
        while let Some(next) = lines.next_if(|next| next.trim().is_empty() || indentation(next) > indent && is_text(value)) {
            deeper.push(next.trim());
        }
        match value.chars().next() {
            None | Some('#') if deeper.iter().all(|line| line.is_empty()) => above = Some((indent, full)),
            Some('|') => drop(values.insert(full, deeper.join("\n"))),
            Some('>') => drop(values.insert(full, deeper.join(" "))),
            _ => {
                let whole = std::iter::once(value).chain(deeper).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
                values.insert(full, unquote(&whole));
            }
        }
    }
    values
}

/// Whether deeper lines go on with a value rather than begin a mapping.
fn is_text(value: &str) -> bool {
    !value.is_empty() && !value.starts_with('#')
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn unquote(text: &str) -> String {
    if let Some(inner) = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        return inner.replace("''", "'");
    }
    if let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        let mut out = String::new();
        let mut characters = inner.chars();
        while let Some(c) = characters.next() {
            match (c, c == '\\') {
                (_, true) => match characters.next() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(other) => out.push(other),
                    None => {}
                },
                (c, false) => out.push(c),
            }
        }
        return out;
    }
    // A comment begins with a space before it.
    text.split(" #").next().unwrap_or(text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(front: &str) -> Result<SkillHead, SkillError> {
        SkillHead::read(&format!("---\n{front}\n---\nbody\n"))
    }

    #[test]
    fn texts_are_read_as_people_write_them() {
        for (front, description) in [
            ("name: a\ndescription: plain text: with a colon", "plain text: with a colon"),
            ("name: a\ndescription: 'it''s quoted' ", "it's quoted"),
            ("name: \"a\"\ndescription: \"two \\\"words\\\"\"", "two \"words\""),
            ("name: a # not part of it\ndescription: >\n  folded\n  over lines\nlicense: MIT", "folded over lines"),
            ("name: a\ndescription: |-\n  kept\n\n  apart", "kept apart"),
            ("name: a\ndescription: goes on\n  in the next line", "goes on in the next line"),
            ("# first\nname: a\nallowed-tools:\n  - x\n  - y\ndescription: d", "d"),
        ] {
            let read = head(front).unwrap();
            assert_eq!((read.name.as_str(), read.description.as_str()), ("a", description), "{front}");
        }
        let read = head("name: a\nmetadata:\n  short-description: short\n  other: 1\ndescription: d").unwrap();
        assert_eq!(read.short_description.as_deref(), Some("short"));
    }

    #[test]
    fn what_is_no_skill_says_why() {
        assert_eq!(SkillHead::read("just text"), Err(SkillError::NoFrontMatter));
        assert_eq!(SkillHead::read("---\nname: a\nno end"), Err(SkillError::NoFrontMatter));
        assert_eq!(head("name: a"), Err(SkillError::Missing("description")));
        assert_eq!(head("name:\ndescription: d"), Err(SkillError::Missing("name")));
        assert!(matches!(head(&format!("name: {}\ndescription: d", "x".repeat(65))), Err(SkillError::Long { what: "name", .. })));
    }

    #[test]
    fn the_body_comes_after_the_front_matter() {
        assert_eq!(body("---\nname: a\n---\nrest\n---\nmore"), "rest\n---\nmore");
        assert_eq!(body("no front"), "no front");
        assert_eq!(body("\u{feff}---\r\nname: a\r\n---\r\nrest"), "rest");
    }

    #[test]
    fn a_policy_may_forbid_use_without_being_told() {
        let text = "interface:\n  display_name: X\npolicy:\n  allow_implicit_invocation: false\n";
        assert_eq!(allows_implicit_invocation(text), Some(false));
        assert_eq!(allows_implicit_invocation("interface: {}\n"), None);
    }
}
