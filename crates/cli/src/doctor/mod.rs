//! The self-check: what this program finds on this machine, and what to do about it.
//!
//! A section is a function that returns its findings; a new one is added in [`examine`]. Sections only look: they change
//! nothing, leave nothing behind but the home, and print nothing.

mod access;
mod configuration;
mod environments;
mod host;
mod model;
mod sandbox;
mod servers;
mod threads;

use std::fmt::Write;

use outpost_runtime::secrets::Secrets;
use serde::Serialize;

use crate::ProcessContext;
use crate::home::Home;

/// What sections may look at.
pub(crate) struct Patient<'a> {
    pub home: Option<Home>,
    pub own: &'a ProcessContext,
}

/// Looks at everything. What is elsewhere is looked at at the same time, because some of it may be slow.
pub(crate) async fn examine(patient: &Patient<'_>) -> Report {
    let (environments, threads, model, servers) =
        tokio::join!(environments::findings(patient), threads::findings(patient), model::findings(patient), servers::findings(patient));
    Report {
        version: env!("CARGO_PKG_VERSION"),
        sections: vec![
            Section { name: "host", findings: host::findings(patient) },
            Section { name: "access", findings: access::findings(patient) },
            Section { name: "sandbox", findings: sandbox::findings(patient) },
            Section { name: "configuration", findings: configuration::findings(patient).await },
            Section { name: "environments", findings: environments },
            Section { name: "MCP servers", findings: servers },
            Section { name: "threads", findings: threads },
            Section { name: "model", findings: model },
        ],
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    version: &'static str,
    sections: Vec<Section>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Section {
    name: &'static str,
    findings: Vec<Finding>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    what: String,
    verdict: FindingLevel,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_do: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FindingLevel {
    Good,
    /// Works, but the user should know.
    Weak,
    /// A promise does not hold here.
    Broken,
}

impl Finding {
    pub(crate) fn good(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: FindingLevel::Good, detail: detail.into(), to_do: None }
    }

    pub(crate) fn weak(what: impl Into<String>, detail: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: FindingLevel::Weak, detail: detail.into(), to_do: Some(to_do.into()) }
    }

    pub(crate) fn broken(what: impl Into<String>, detail: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { verdict: FindingLevel::Broken, ..Self::weak(what, detail, to_do) }
    }
}

/// What could not be looked at because a file cannot be read. What is wrong with it is told where it is read.
fn not_looked_at(what: &str, file: &str) -> Vec<Finding> {
    vec![Finding::weak(what, format!("not looked at, because {file} cannot be read"), format!("put {file} right and ask again"))]
}

/// Findings that say the same of different things, told once: of thirty machines behind one broken network there is one line.
fn told_once(findings: &[Finding]) -> Vec<Finding> {
    /// More names than this are counted.
    const NAMES: usize = 6;
    // What to do names the thing, so that is left out of the comparison.
    let general = |finding: &Finding| finding.to_do.as_ref().map(|to_do| to_do.replace(&finding.what, "NAME"));
    let mut groups: Vec<(&Finding, Vec<&str>)> = Vec::new();
    for finding in findings {
        let is_same = |known: &Finding| {
            known.verdict == finding.verdict
                && known.verdict != FindingLevel::Good
                && known.detail.replace(&known.what, "NAME") == finding.detail.replace(&finding.what, "NAME")
                && general(known) == general(finding)
        };
        match groups.iter_mut().find(|(known, _)| is_same(known)) {
            Some((_, names)) => names.push(&finding.what),
            None => groups.push((finding, vec![&finding.what])),
        }
    }
    let merged = |(first, names): (&Finding, Vec<&str>)| {
        if names.len() == 1 {
            return first.clone();
        }
        let more = names.len().saturating_sub(NAMES);
        let mut what = names[..names.len() - more].join(", ");
        if more > 0 {
            let _ = write!(what, " and {more} more");
        }
        Finding { what, detail: first.detail.replace(&first.what, "NAME"), to_do: general(first), verdict: first.verdict }
    };
    groups.into_iter().map(merged).collect()
}

impl Report {
    /// Whether nothing is broken: every promise of the default policy holds here, and everything can be read and reached.
    pub(crate) fn holds(&self) -> bool {
        self.sections.iter().flat_map(|section| &section.findings).all(|finding| finding.verdict != FindingLevel::Broken)
    }

    /// For people: a line per finding, and what to do below those that need something.
    pub(crate) fn text(&self, secrets: &Secrets) -> String {
        let mut text = format!("outpost {}\n", self.version);
        for section in &self.sections {
            let _ = writeln!(text, "\n{}", section.name);
            for finding in told_once(&section.findings) {
                let mark = match finding.verdict {
                    FindingLevel::Good => "ok  ",
                    FindingLevel::Weak => "weak",
                    FindingLevel::Broken => "FAIL",
                };
                let _ = writeln!(text, "  {mark}  {}: {}", finding.what, finding.detail);
                if let Some(to_do) = &finding.to_do {
                    let _ = writeln!(text, "        -> {to_do}");
                }
            }
        }
        let last = if self.holds() {
            "nothing is broken: every promise of the default policy holds here"
        } else {
            "something is broken; the lines that begin with FAIL say what, and what to do"
        };
        let _ = writeln!(text, "\n{last}");
        secrets.redact(&text).into_owned()
    }

    pub(crate) fn json(&self, secrets: &Secrets) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "version": self.version, "holds": self.holds(), "sections": self.sections,
        }))?;
        Ok(secrets.redact(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report { version: "1", sections: vec![Section { name: "s", findings }] }
    }

    #[test]
    fn a_broken_promise_counts_and_a_weak_one_does_not() {
        assert!(report(vec![Finding::good("a", "b"), Finding::weak("c", "d", "e")]).holds());
        assert!(!report(vec![Finding::good("a", "b"), Finding::broken("c", "d", "e")]).holds());
    }

    #[test]
    fn what_is_the_same_of_many_is_one_line() {
        let down = |name: &str| Finding::broken(name, format!("{name} is unreachable: no route"), format!("look at {name}"));
        let mut findings: Vec<Finding> = (0..36).map(|number| down(&format!("machine-{number:02}"))).collect();
        findings.push(Finding::broken("other", "another reason", "look at other"));
        let text = report(findings).text(&Secrets::default());
        assert_eq!(text.matches("no route").count(), 1, "{text}");
        assert!(
            text.contains("machine-00, machine-01") && text.contains("and 30 more: NAME is unreachable") && text.contains("look at NAME"),
            "{text}"
        );
        assert!(text.contains("other: another reason"), "{text}");
    }

    #[test]
    fn both_faces_are_without_secrets() {
        let secrets = Secrets::default();
        secrets.register("very-secret-value");
        let report = report(vec![Finding::weak("a", "it is very-secret-value", "hide very-secret-value")]);
        for text in [report.text(&secrets), report.json(&secrets).unwrap()] {
            assert!(text.contains("[redacted]") && !text.contains("very-secret-value"), "{text}");
        }
    }
}
