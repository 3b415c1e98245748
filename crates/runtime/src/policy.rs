//! Whether a call may run, and how: a function of the thread's approval policy, the rules and what the call asks for.

use serde::{Deserialize, Serialize};

use crate::rules::RulesVerdict;

/// When the user is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", expecting = "it is one of untrusted, on-request and never, or a table `granular`")]
pub enum ApprovalPolicy {
    /// Before every command that no rule allows.
    Untrusted,
    /// When the model asks to leave the sandbox, or a rule says so.
    #[default]
    OnRequest,
    Never,
    /// As on-request; each kind of question that is switched off here is answered with no.
    #[serde(untagged)]
    Granular(Granular),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granular {
    pub granular: AllowedQuestions,
}

/// Which questions may be put to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllowedQuestions {
    pub sandbox_approval: bool,
    pub rules: bool,
    pub mcp_elicitations: bool,
    pub request_permissions: bool,
    pub skill_approval: bool,
}

impl Default for AllowedQuestions {
    fn default() -> Self {
        Self { sandbox_approval: true, rules: true, mcp_elicitations: true, request_permissions: true, skill_approval: true }
    }
}

impl ApprovalPolicy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted",
            Self::OnRequest => "on-request",
            Self::Never => "never",
            Self::Granular(_) => "granular",
        }
    }
}

/// The approval policies that an administrator allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPolicies {
    pub names: Vec<String>,
    /// Where that is written down.
    pub file: String,
}

impl AllowedPolicies {
    /// Why a policy is not allowed, if so.
    pub fn refusal(&self, policy: ApprovalPolicy) -> Option<String> {
        let name = policy.name();
        let is_allowed = self.names.iter().any(|allowed| allowed == name);
        (!is_allowed).then(|| format!("{} does not allow the approval policy `{name}`; it allows {}", self.file, self.names.join(", ")))
    }
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// It wants to run outside of the sandbox.
    pub escalated: bool,
    /// It wants more than the sandbox gives, and to stay in it otherwise.
    pub widened: bool,
    /// Its environment is used without a sandbox anyway.
    pub full_access: bool,
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    Run {
        sandboxed: bool,
    },
    /// The user decides; if they agree it runs like this.
    Ask {
        sandboxed: bool,
        why: String,
    },
    Refuse {
        why: String,
    },
}

pub fn decide(policy: ApprovalPolicy, verdict: &RulesVerdict<'_>, request: ApprovalRequest) -> Course {
    let sandboxed = !request.full_access && !request.escalated;
    match verdict {
        RulesVerdict::Forbidden(rule) => Course::Refuse { why: format!("a rule forbids it: {}", rule.describe()) },
        RulesVerdict::Allowed => Course::Run { sandboxed },
        RulesVerdict::Asked(rule) => {
            let why = format!("a rule asks for it: {}", rule.describe());
            match policy {
                ApprovalPolicy::Never => Course::Refuse { why: format!("{why}; and the approval policy is `never`") },
                ApprovalPolicy::Granular(own) if !own.granular.rules => {
                    Course::Refuse { why: format!("{why}; and questions of rules are switched off") }
                }
                _ => Course::Ask { sandboxed, why },
            }
        }
        RulesVerdict::Silent => unmatched(policy, sandboxed, request),
    }
}

fn unmatched(policy: ApprovalPolicy, sandboxed: bool, request: ApprovalRequest) -> Course {
    let leaves = (request.escalated || request.widened) && !request.full_access;
    let wish = if request.escalated { "it wants to leave the sandbox" } else { "it wants more than the sandbox allows" };
    let instead = if request.escalated { "run it without escalation" } else { "run it without additional permissions" };
    let ask = |why: &str| Course::Ask { sandboxed, why: why.to_owned() };
    let refuse = |why: &str| Course::Refuse { why: why.to_owned() };
    match policy {
        ApprovalPolicy::Untrusted => ask("no rule allows it"),
        ApprovalPolicy::OnRequest if leaves => ask(wish),
        ApprovalPolicy::Never if leaves => refuse(&format!("{wish}, and the approval policy is `never`; {instead}")),
        ApprovalPolicy::Granular(own) if leaves && !own.granular.sandbox_approval => {
            refuse(&format!("{wish}, and such questions are switched off; {instead}"))
        }
        ApprovalPolicy::Granular(_) if leaves => ask(wish),
        _ => Course::Run { sandboxed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{CommandRule, RuleDecision, Word};

    const PLAIN: ApprovalRequest = ApprovalRequest { escalated: false, widened: false, full_access: false };
    const ESCALATED: ApprovalRequest = ApprovalRequest { escalated: true, ..PLAIN };
    const WIDENED: ApprovalRequest = ApprovalRequest { widened: true, ..PLAIN };
    const FULL: ApprovalRequest = ApprovalRequest { full_access: true, ..PLAIN };

    fn granular(sandbox_approval: bool, rules: bool) -> ApprovalPolicy {
        ApprovalPolicy::Granular(Granular { granular: AllowedQuestions { sandbox_approval, rules, ..AllowedQuestions::default() } })
    }

    #[test]
    fn every_row_of_the_table() {
        use ApprovalPolicy::{Never, OnRequest, Untrusted};
        let rule = CommandRule { prefix: vec![Word::One("x".into())], decision: RuleDecision::Ask, reason: None, environment: None };
        let (asked, forbidden) = (RulesVerdict::Asked(&rule), RulesVerdict::Forbidden(&rule));
        let rows: [(ApprovalPolicy, &RulesVerdict<'_>, ApprovalRequest, &str); 26] = [
            (Untrusted, &RulesVerdict::Silent, PLAIN, "ask sandboxed"),
            (Untrusted, &RulesVerdict::Silent, ESCALATED, "ask free"),
            (Untrusted, &RulesVerdict::Silent, FULL, "ask free"),
            (Untrusted, &RulesVerdict::Allowed, PLAIN, "run sandboxed"),
            (OnRequest, &RulesVerdict::Silent, PLAIN, "run sandboxed"),
            (OnRequest, &RulesVerdict::Silent, ESCALATED, "ask free"),
            (OnRequest, &RulesVerdict::Silent, FULL, "run free"),
            (OnRequest, &RulesVerdict::Allowed, ESCALATED, "run free"),
            (OnRequest, &asked, PLAIN, "ask sandboxed"),
            (OnRequest, &forbidden, PLAIN, "refuse"),
            (Never, &RulesVerdict::Silent, PLAIN, "run sandboxed"),
            (Never, &RulesVerdict::Silent, ESCALATED, "refuse"),
            (Never, &RulesVerdict::Silent, FULL, "run free"),
            (Never, &asked, PLAIN, "refuse"),
            (Never, &RulesVerdict::Allowed, ESCALATED, "run free"),
            (Untrusted, &RulesVerdict::Silent, WIDENED, "ask sandboxed"),
            (OnRequest, &RulesVerdict::Silent, WIDENED, "ask sandboxed"),
            (OnRequest, &RulesVerdict::Allowed, WIDENED, "run sandboxed"),
            (Never, &RulesVerdict::Silent, WIDENED, "refuse"),
            (granular(false, true), &RulesVerdict::Silent, WIDENED, "refuse"),
            (granular(true, true), &RulesVerdict::Silent, WIDENED, "ask sandboxed"),
            (granular(false, true), &RulesVerdict::Silent, ESCALATED, "refuse"),
            (granular(true, true), &RulesVerdict::Silent, ESCALATED, "ask free"),
            (granular(true, false), &asked, PLAIN, "refuse"),
            (granular(true, true), &asked, PLAIN, "ask sandboxed"),
            (granular(true, true), &RulesVerdict::Silent, PLAIN, "run sandboxed"),
        ];
        for (policy, verdict, request, expected) in rows {
            let course = decide(policy, verdict, request);
            let found = match course {
                Course::Run { sandboxed: true } => "run sandboxed",
                Course::Run { sandboxed: false } => "run free",
                Course::Ask { sandboxed: true, .. } => "ask sandboxed",
                Course::Ask { sandboxed: false, .. } => "ask free",
                Course::Refuse { .. } => "refuse",
            };
            assert_eq!(found, expected, "{policy:?} {verdict:?} {request:?}");
        }
    }

    #[test]
    fn policies_as_on_the_wire() {
        let read = |text: &str| serde_json::from_str::<ApprovalPolicy>(text).unwrap();
        assert_eq!(read("\"on-request\""), ApprovalPolicy::OnRequest);
        assert_eq!(read("\"untrusted\""), ApprovalPolicy::Untrusted);
        let own = read(r#"{"granular":{"mcp_elicitations":true,"rules":false,"sandbox_approval":true}}"#);
        assert_eq!(own, granular(true, false));
        assert_eq!(serde_json::to_string(&ApprovalPolicy::Never).unwrap(), "\"never\"");
        assert!(serde_json::from_str::<ApprovalPolicy>("\"sometimes\"").is_err());
    }
}
