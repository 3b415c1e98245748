//! The environment of a child.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use outpost_wire::exec::process::{EnvPolicy, Inherit};
use outpost_wire::secret_names::{is_secret, matches};

/// What `inherit: core` takes over.
const CORE: [&str; 11] = ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"];
/// By what else a login shell finds its profiles, or decides what they do.
const LOGIN: [&str; 4] = ["ZDOTDIR", "TERM", "XDG_CONFIG_HOME", "XDG_DATA_DIRS"];
/// Never handed to a child, not even on request: they authenticate the executor itself.
const NEVER: [&str; 6] = [
    "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
];
/// Ours; handed on only when a request names them.
const OWN: &str = "OUTPOST_*";

/// Keys to providers of models: for those who ask models, not for the commands that models ask for. Handed on only when
/// a request names them, whatever else its policy says.
const PROVIDER_KEYS: [&str; 20] = [
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "AZURE_OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "MISTRAL_API_KEY",
    "GROQ_API_KEY",
    "OPENROUTER_API_KEY",
    "DEEPSEEK_API_KEY",
    "XAI_API_KEY",
    "TOGETHER_API_KEY",
    "FIREWORKS_API_KEY",
    "COHERE_API_KEY",
    "PERPLEXITY_API_KEY",
    "CEREBRAS_API_KEY",
    "OLLAMA_API_KEY",
];

/// Credentials of this machine, which no request may send elsewhere.
const GUARDED: [&str; 5] =
    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS"];

/// Whether a variable must not be used in a request of a client.
pub(crate) fn is_guarded(name: &str) -> bool {
    GUARDED.iter().chain(&PROVIDER_KEYS).chain(&NEVER).chain([&OWN]).any(|pattern| matches(pattern, OsStr::new(name)))
}

/// Builds the environment of a child: `exact` alone without a policy, an overlay over what the policy lets through
/// with one.
pub(crate) fn build(
    own: &BTreeMap<OsString, OsString>,
    policy: Option<&EnvPolicy>,
    exact: &BTreeMap<String, String>,
) -> Vec<(OsString, OsString)> {
    let mut result: BTreeMap<OsString, OsString> = BTreeMap::new();
    if let Some(policy) = policy {
        let excluded = |name: &OsStr| {
            (!policy.ignore_default_excludes && is_secret(name)) || policy.exclude.iter().any(|pattern| matches(pattern, name))
        };
        let named = |name: &OsStr| policy.include_only.iter().any(|wanted| name.eq_ignore_ascii_case(wanted));
        let withheld = |name: &OsStr| is_withheld(name) && !named(name);
        result.extend(
            own.iter()
                .filter(|(name, _)| inherits(policy.inherit, name) && !excluded(name) && !withheld(name))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        result.extend(policy.set.iter().map(|(name, value)| (name.into(), value.into())));
        if !policy.include_only.is_empty() {
            result.retain(|name, _| policy.include_only.iter().any(|pattern| matches(pattern, name)));
        }
    }
    result.extend(exact.iter().map(|(name, value)| (name.into(), value.into())));
    result.retain(|name, _| !NEVER.iter().any(|never| matches(never, name)));
    result.into_iter().collect()
}

/// Of the variables that a request sets, those that decide what profiles find: where home is, who the user is, and whatever takes the
/// place of something that a child here would have anyway.
pub(crate) fn for_login(
    own: &BTreeMap<OsString, OsString>,
    policy: Option<&EnvPolicy>,
    exact: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let inherited = build(own, policy, &BTreeMap::new());
    let is_inherited = |name: &str| inherited.iter().any(|(other, _)| other == name);
    let decides = |name: &str| LOGIN.contains(&name) || inherits(Inherit::Core, OsStr::new(name)) || is_inherited(name);
    exact.iter().filter(|(name, _)| decides(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The environment of a child that begins with what a shell's profiles left behind. The policy filters that like everything else,
/// and what the request says counts.
pub(crate) fn restore(
    left: &[(OsString, OsString)],
    policy: Option<&EnvPolicy>,
    exact: &BTreeMap<String, String>,
) -> Vec<(OsString, OsString)> {
    let left: BTreeMap<OsString, OsString> = left.iter().cloned().collect();
    let all =
        EnvPolicy { inherit: Inherit::All, ignore_default_excludes: true, exclude: vec![], set: BTreeMap::new(), include_only: vec![] };
    let policy = policy.map_or(all, |policy| EnvPolicy { inherit: Inherit::All, ..policy.clone() });
    build(&left, Some(&policy), exact)
}

fn inherits(inherit: Inherit, name: &OsStr) -> bool {
    match inherit {
        Inherit::None => false,
        Inherit::Core => CORE.iter().any(|core| matches(core, name)),
        Inherit::All => true,
    }
}

/// Ours, and keys to providers of models.
fn is_withheld(name: &OsStr) -> bool {
    PROVIDER_KEYS.iter().chain([&OWN]).any(|pattern| matches(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> BTreeMap<OsString, OsString> {
        [("PATH", "/bin"), ("HOME", "/h"), ("PLAIN", "p"), ("MY_API_KEY", "k"), ("DB_PASSWORD", "w"), ("OUTPOST_HOME", "o"), ("lang", "C")]
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn policy(inherit: Inherit) -> EnvPolicy {
        EnvPolicy { inherit, ignore_default_excludes: false, exclude: vec![], set: BTreeMap::new(), include_only: vec![] }
    }

    fn names(policy: Option<&EnvPolicy>, exact: &[(&str, &str)]) -> Vec<String> {
        let exact = exact.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        build(&own(), policy, &exact).into_iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn without_a_policy_nothing_is_inherited() {
        assert_eq!(names(None, &[("X", "1")]), ["X=1"]);
        assert_eq!(names(None, &[("openai_identity_token_file", "f"), ("X", "1")]), ["X=1"]);
    }

    #[test]
    fn inheritance_has_three_widths() {
        assert_eq!(names(Some(&policy(Inherit::All)), &[]), ["HOME=/h", "PATH=/bin", "PLAIN=p", "lang=C"]);
        assert_eq!(names(Some(&policy(Inherit::Core)), &[]), ["HOME=/h", "PATH=/bin", "lang=C"]);
        assert_eq!(names(Some(&policy(Inherit::None)), &[]), [""; 0]);
    }

    #[test]
    fn the_steps_apply_in_order() {
        let mut all = policy(Inherit::All);
        all.ignore_default_excludes = true;
        all.exclude = vec!["p?th".into(), "HO*".into()];
        all.set = [("SET".to_owned(), "s".to_owned()), ("X".to_owned(), "policy".to_owned())].into();
        assert_eq!(
            names(Some(&all), &[("X", "overlay"), ("PATH", "/own")]),
            ["DB_PASSWORD=w", "MY_API_KEY=k", "PATH=/own", "PLAIN=p", "SET=s", "X=overlay", "lang=C"]
        );
        all.include_only = vec!["PL*".into()];
        assert_eq!(names(Some(&all), &[("KEPT", "1")]), ["KEPT=1", "PLAIN=p"]);
    }

    #[test]
    fn keys_to_models_and_our_own_variables_are_handed_on_by_name_only() {
        let own: BTreeMap<OsString, OsString> =
            ["OPENAI_API_KEY", "anthropic_api_key", "OUTPOST_TOKEN", "MY_API_KEY"].map(|name| (name.into(), "v".into())).into();
        let names = |policy: &EnvPolicy, exact: &[(&str, &str)]| {
            let exact = exact.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            build(&own, Some(policy), &exact).into_iter().map(|(name, _)| name.display().to_string()).collect::<Vec<_>>()
        };
        let mut all = EnvPolicy { ignore_default_excludes: true, ..policy(Inherit::All) };
        assert_eq!(names(&all, &[]), ["MY_API_KEY"]);
        assert_eq!(names(&all, &[("OPENAI_API_KEY", "given")]), ["MY_API_KEY", "OPENAI_API_KEY"]);
        all.include_only = vec!["*".into()];
        assert_eq!(names(&all, &[]), ["MY_API_KEY"]);
        all.include_only = vec!["openai_api_key".into(), "OUTPOST_TOKEN".into()];
        assert_eq!(names(&all, &[]), ["OPENAI_API_KEY", "OUTPOST_TOKEN"]);
    }
}
