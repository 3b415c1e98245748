//! How texts are written: see "How we write" in docs/glossary.md.

use super::{Finding, Source};

/// Words that hide the actor. Name it: the client, the executor, the user, another process.
const FORBIDDEN: &[&str] = &["whoever", "whomever", "somebody", "someone", "nobody", "anybody", "everybody"];

/// Error texts that another protocol prescribes.
const PRESCRIBED: &[&str] = &["crates/wire/src/base64.rs"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let is_code = source.crate_name().is_some() || source.path.starts_with("xtask/src/");
        let is_page = source.path.ends_with(".md") && !source.path.contains("fixtures/");
        for (number, line) in source.text.lines().enumerate() {
            let readers_text = if is_page {
                Some(line)
            } else if is_code {
                doc_comment(line).or_else(|| error_text(line))
            } else {
                None
            };
            if let Some(word) = readers_text.and_then(forbidden) {
                findings.push(source.finding(number + 1, format!("`{word}` hides the actor: name it")));
            }
            if let (true, Some(text)) = (is_code && !PRESCRIBED.contains(&source.path.as_str()), error_text(line)) {
                if begins_a_sentence(text) {
                    findings.push(source.finding(number + 1, "an error text starts in lower case: it stands after \"error: \"".to_owned()));
                }
                if text.ends_with('.') && !text.ends_with("..") {
                    findings.push(source.finding(number + 1, "an error text ends without a full stop".to_owned()));
                }
            }
        }
    }
    findings
}

fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// The text in `#[error("…")]`.
fn error_text(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("#[error(\"")?;
    rest.rfind('"').map(|end| &rest[..end])
}

fn forbidden(text: &str) -> Option<&'static str> {
    text.split(|c: char| !c.is_alphanumeric()).find_map(|word| FORBIDDEN.iter().find(|bad| word.eq_ignore_ascii_case(bad)).copied())
}

/// Begins with a capital that is not part of an abbreviation or a variable's name (`MCP`, `OUTPOST_HOME`).
fn begins_a_sentence(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(char::is_uppercase) && letters.next().is_some_and(char::is_lowercase)
}

#[cfg(test)]
mod tests {
    use super::super::tests::source;
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[source(path, text)]).len()
    }

    #[test]
    fn words_that_hide_the_actor_are_found_in_comments_errors_and_pages() {
        assert_eq!(count("crates/a/src/lib.rs", "/// Somebody waits."), 1);
        assert_eq!(count("crates/a/src/lib.rs", "//! For whoever reads."), 1);
        assert_eq!(count("crates/a/src/lib.rs", "    #[error(\"held by nobody\")]"), 1);
        assert_eq!(count("docs/a.md", "Nobody has it."), 1);
        assert_eq!(count("crates/a/src/lib.rs", "let user = \"nobody\";"), 0);
        assert_eq!(count("fixtures/a.txt", "Nobody has it."), 0);
    }

    #[test]
    fn error_texts_are_fragments() {
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"Cannot read\")]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"cannot read.\")]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"MCP server `{0}` has ended\")]"), 0);
    }
}
