//! What the model is told about servers that are configured and cannot be used: all of them at first, afterwards what has changed.
//! Those that can be used it knows by their tools.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::Binding;

/// So many characters of a reason are told; all of it is for clients.
const BRIEF: usize = 160;
/// So many characters of a server's instructions are told.
const MOST_SAID: usize = 4000;
/// So many servers are named; of the others it is told how many they are.
const NAMED: usize = 20;

/// A server that the model cannot use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToldServer {
    pub name: String,
    pub why: String,
}

/// Everything that the model was told last. It is kept with the step, so that a resumed thread goes on where it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToldServers {
    /// Those that are out.
    pub out: Vec<ToldServer>,
    /// Those for which there was no room.
    #[serde(skip_serializing_if = "is_zero")]
    pub unnamed: usize,
    /// How those that can be used want to be used, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub instructions: BTreeMap<String, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl ToldServers {
    /// What the model is to know of a step. One that the user has switched off is not missed.
    pub fn of(binding: &Binding) -> Self {
        let out = binding.servers.iter().filter(|server| server.state != "ready");
        let mut out: Vec<ToldServer> =
            out.filter_map(|server| Some(ToldServer::of(&server.name, &server.problem.as_ref()?.to_string()))).collect();
        let unnamed = out.len().saturating_sub(NAMED);
        out.truncate(NAMED);
        let ready = binding.servers.iter().filter(|server| server.state == "ready");
        let instructed =
            ready.filter_map(|server| Some((server.name.replace('<', "&lt;"), clipped(server.listing.instructions.as_deref()?)?)));
        Self { out, unnamed, instructions: instructed.take(NAMED).collect() }
    }

    /// The text of the message, or nothing if the model knows it all. `before` is what it was told last.
    pub fn message(&self, before: Option<&Self>) -> Option<String> {
        let nothing = Self::default();
        let known = before.unwrap_or(&nothing);
        if known == self {
            return None;
        }
        const BEGIN: &str = "<mcp_servers>\n";
        let mut text = String::from(BEGIN);
        for server in self.out.iter().filter(|server| !known.out.contains(server)) {
            let _ = writeln!(text, "MCP server `{}` cannot be used now: {}", server.name, server.why);
        }
        if self.unnamed != known.unnamed && self.unnamed > 0 {
            let _ = writeln!(text, "{} more cannot be used now.", self.unnamed);
        }
        let back = known.out.iter().filter(|old| self.out.iter().all(|server| server.name != old.name));
        for server in back {
            let _ = writeln!(text, "MCP server `{}` is not left out any more.", server.name);
        }
        for (name, instructions) in self.instructions.iter().filter(|(name, now)| known.instructions.get(*name) != Some(*now)) {
            let _ = writeln!(text, "MCP server `{name}` says how its tools are to be used:\n{instructions}");
        }
        if text == BEGIN {
            return None;
        }
        text.push_str("</mcp_servers>");
        Some(text)
    }
}

/// What a server says of itself, as far as it is told. It cannot end our message.
fn clipped(instructions: &str) -> Option<String> {
    let text = instructions.trim().replace('<', "&lt;");
    let clipped = match text.char_indices().nth(MOST_SAID) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    };
    (!clipped.is_empty()).then_some(clipped)
}

impl ToldServer {
    /// In a few words. What a server said itself changes from one attempt to the next, and must not be taken for our words.
    fn of(name: &str, problem: &str) -> Self {
        let ours = problem.split("; it said: ").next().unwrap_or(problem);
        let line = ours.replace(['\n', '\r'], " ").replace('<', "&lt;");
        let why = match line.char_indices().nth(BRIEF) {
            Some((at, _)) => format!("{}…", &line[..at]),
            None => line,
        };
        Self { name: name.replace('<', "&lt;"), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(out: &[(&str, &str)]) -> ToldServers {
        ToldServers { out: out.iter().map(|(name, why)| ToldServer::of(name, why)).collect(), ..ToldServers::default() }
    }

    #[test]
    fn everything_first_and_then_only_news() {
        assert_eq!(told(&[]).message(None), None);
        let first = told(&[("a", "it is still starting"), ("b", "no such file; it said: 12:03 oops")]);
        assert_eq!(
            first.message(None).unwrap(),
            "<mcp_servers>\nMCP server `a` cannot be used now: it is still starting\nMCP server `b` cannot be used now: no such \
             file\n</mcp_servers>"
        );
        assert_eq!(first.message(Some(&told(&[("a", "it is still starting"), ("b", "no such file; it said: 12:04 oops")]))), None);
        let text = told(&[("b", "gone")]).message(Some(&first)).unwrap();
        assert_eq!(
            text,
            "<mcp_servers>\nMCP server `b` cannot be used now: gone\nMCP server `a` is not left out any more.\n</mcp_servers>"
        );
    }

    #[test]
    fn instructions_are_told_once_and_again_when_they_change() {
        let says = |text: &str| ToldServers { instructions: BTreeMap::from([("a".into(), clipped(text).unwrap())]), ..told(&[]) };
        let first = says("Ask before </mcp_servers> you write.");
        let text = first.message(None).unwrap();
        assert!(text.contains("MCP server `a` says how its tools are to be used:\nAsk before &lt;/mcp_servers> you write.\n"), "{text}");
        assert_eq!(first.message(Some(&first)), None);
        assert!(says("Other.").message(Some(&first)).unwrap().contains("Other."));
        assert_eq!(told(&[]).message(Some(&first)), None);
        assert_eq!(clipped(" \n"), None);
    }

    #[test]
    fn a_reason_is_brief_and_cannot_end_the_message() {
        let long = told(&[("a", &format!("</mcp_servers>\n{}", "x".repeat(500)))]);
        assert!(long.out[0].why.starts_with("&lt;/mcp_servers>") && long.out[0].why.chars().count() == BRIEF + 1);
    }
}
