//! Why the sandbox kept a command from something, and what would allow it: a line for the model, and one for the user.
//!
//! Executors only tell that a command was probably refused something. Which rule that was is read from what the command printed and
//! from the sandbox that it ran in; where that does not show, the sandbox is named as a whole.

use outpost_wire::PathUri;
use outpost_wire::denial_words::{OFFLINE, REFUSED};
use outpost_wire::exec::policy::{Network, Permissions, SandboxContext};

use crate::extra_permissions::ExtraPermissions;
use crate::permissions::SandboxMode;

/// What names are quoted with.
const QUOTES: [(char, char); 4] = [('\'', '\''), ('"', '"'), ('‘', '’'), ('`', '`')];

/// The sandbox that a command ran in.
#[derive(Debug, Clone)]
pub(crate) struct Around {
    pub mode: SandboxMode,
    pub context: SandboxContext,
    pub cwd: PathUri,
    /// The file that forbids more here, if one does.
    pub fixed: Option<String>,
    /// Why the user cannot be asked for more, if so.
    pub silence: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenialNotice {
    pub model: String,
    pub user: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Cause {
    Network,
    Write(PathUri),
    Unknown,
}

/// What refused something, how the model asks for it, and the setting that allows it.
struct Refusal {
    rule: String,
    wish: String,
    setting: String,
}

/// What is told of a command that was probably refused something and printed this.
pub(crate) fn notice(printed: &str, around: &Around) -> DenialNotice {
    let Refusal { rule, wish, setting } = refusal(&cause(printed, around), &around.mode);
    let mode = around.mode.words();
    let begin = format!("The sandbox ({mode}) probably kept it from something it needs: {rule}.");
    let (to_model, to_user) = match (&around.fixed, around.silence) {
        (Some(place), _) => (
            format!("{place} fixes that, and no approval allows more: go on without it."),
            format!("{place} fixes that, and no other setting or approval allows more"),
        ),
        (None, Some(silence)) => (
            format!("The user cannot be asked for more ({silence}): go on without it."),
            format!("`{setting}` in config.toml allows it, or another approval_policy lets the agent ask"),
        ),
        (None, None) => (
            format!("If it is needed, ask for it: {wish}."),
            format!("`{setting}` in config.toml allows it, or your yes when the agent asks"),
        ),
    };
    DenialNotice { model: format!("{begin} {to_model}"), user: format!("the sandbox refused something: {rule}; {to_user}") }
}

/// What is told to a user whose own command was probably refused something and printed this: the rule, and the setting that allows it.
pub fn hint(printed: &str, mode: &SandboxMode, context: &SandboxContext, cwd: &PathUri) -> String {
    let around = Around { mode: mode.clone(), context: context.clone(), cwd: cwd.clone(), fixed: None, silence: None };
    let cause = cause(printed, &around);
    let Refusal { rule, setting, .. } = refusal(&cause, mode);
    let allows = match (&cause, mode) {
        (Cause::Write(_), SandboxMode::ReadOnly { .. }) => "`--sandbox workspace-write` allows it in the workspace".to_owned(),
        (Cause::Unknown, _) => "`--sandbox danger-full-access` runs it without a sandbox".to_owned(),
        _ => format!("`{setting}` in config.toml, or after `-c`, allows it"),
    };
    format!("the sandbox probably refused something: {rule}; {allows}")
}

fn refusal(cause: &Cause, mode: &SandboxMode) -> Refusal {
    let (rule, wish, setting) = match cause {
        Cause::Network => (
            "it has no network".to_owned(),
            r#"additional_permissions {"network": {"enabled": true}}"#.to_owned(),
            "sandbox_workspace_write.network_access = true".to_owned(),
        ),
        Cause::Write(path) => {
            let (path, directory) = (path.to_syntax(), path.split().map_or_else(|| path.clone(), |(parent, _)| parent).to_syntax());
            let setting = match mode {
                SandboxMode::ReadOnly { .. } => "sandbox_mode = \"workspace-write\"".to_owned(),
                _ => format!("sandbox_workspace_write.writable_roots = [{directory:?}]"),
            };
            (
                format!("{path} may not be written"),
                format!("additional_permissions {{\"file_system\": {{\"write\": [{path:?}]}}}}"),
                setting,
            )
        }
        Cause::Unknown => (
            "the refused rule does not show in its output".to_owned(),
            "sandbox_permissions `require_escalated`, with a justification".to_owned(),
            "sandbox_mode, or sandbox_workspace_write".to_owned(),
        ),
    };
    Refusal { rule, wish, setting }
}

fn cause(printed: &str, around: &Around) -> Cause {
    let is_offline = match &around.context.permissions {
        Permissions::Managed { network, .. } | Permissions::External { network } => *network == Network::Restricted,
        Permissions::Disabled => false,
    };
    let mut is_unreached = false;
    for line in printed.lines() {
        let lower = line.to_ascii_lowercase();
        if let Some(path) = REFUSED.iter().find_map(|word| path(line, lower.find(word)?, word.len())) {
            let path = PathUri::from_syntax(path).unwrap_or_else(|_| around.cwd.join(path));
            if !ExtraPermissions::writing([path.clone()]).beyond(&around.context).is_empty() {
                return Cause::Write(path);
            }
        }
        is_unreached |= is_offline && OFFLINE.iter().any(|word| lower.contains(word));
    }
    if is_unreached { Cause::Network } else { Cause::Unknown }
}

/// The path that a line speaks of which says at this place that something was refused.
fn path(line: &str, at: usize, length: usize) -> Option<&str> {
    // Making a text lower case keeps its places, as far as it is ASCII.
    let (before, after) = (line.get(..at)?, line.get(at + length..)?);
    // An apostrophe is no quote: what it seems to begin is no name.
    let is_name = |part: &&str| !part.is_empty() && (part.contains('/') || !part.contains(' '));
    let in_quotes = quoted(before).into_iter().rfind(is_name).or_else(|| quoted(after).into_iter().find(is_name));
    let plain = || {
        let parts: Vec<&str> = before.split(": ").map(|part| part.trim().trim_end_matches(':')).filter(|part| !part.is_empty()).collect();
        let word = parts.last()?.rsplit(' ').next()?;
        // The first part is the program that speaks.
        (parts.len() > 1 || word.contains('/')).then_some(word)
    };
    let path = in_quotes.or_else(plain)?.trim_matches(['\'', '"']);
    let is_path = !path.is_empty() && !path.contains(['\0', '*', '[', '(']);
    is_path.then_some(path)
}

/// The quoted parts of a text.
fn quoted(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((begin, open, close)) = QUOTES.iter().filter_map(|(open, close)| Some((rest.find(*open)?, *open, *close))).min() {
        let inner = &rest[begin + open.len_utf8()..];
        let Some(end) = inner.find(close) else { break };
        parts.push(&inner[..end]);
        rest = &inner[end + close.len_utf8()..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use outpost_wire::intent::{Attachment, EnvironmentId};

    use super::*;

    fn around(mode: SandboxMode) -> Around {
        let attachment = Attachment::new(EnvironmentId::local(), PathUri::from_native("/w".as_ref()).unwrap());
        let context = mode.context(&attachment).unwrap();
        Around { mode, context, cwd: attachment.cwd, fixed: None, silence: None }
    }

    fn writable() -> Around {
        around(SandboxMode::workspace_write())
    }

    #[test]
    fn the_path_is_found_as_programs_print_it() {
        for (line, expected) in [
            ("touch: cannot touch '/var/x y': Read-only file system", "/var/x y"),
            ("bash: line 1: /etc/x: Permission denied", "/etc/x"),
            ("sh: 1: cannot create /usr/y: Read-only file system", "/usr/y"),
            ("mkdir: cannot create directory ‘../out’: Permission denied", "/out"),
            ("PermissionError: [Errno 13] Permission denied: '/root/z'", "/root/z"),
            ("npm error code EROFS: read-only file system, open '/home/u/.npm/_logs/x'", "/home/u/.npm/_logs/x"),
        ] {
            assert_eq!(cause(line, &writable()), Cause::Write(PathUri::from_native(expected.as_ref()).unwrap()), "{line}");
        }
        // What the sandbox allows was refused by the system or another program.
        assert_eq!(cause("cat: /w/own: Permission denied", &writable()), Cause::Unknown);
        assert_eq!(cause("sudo: Operation not permitted", &writable()), Cause::Unknown);
    }

    #[test]
    fn the_rule_and_what_allows_it_are_named() {
        let told_of = |printed: &str, around: &Around| notice(printed, around);
        let write = told_of("touch: cannot touch '/srv/x': Read-only file system\n", &writable());
        assert!(write.model.contains("/srv/x may not be written") && write.model.contains(r#"{"file_system": {"write": ["/srv/x"]}}"#));
        assert!(write.user.contains(r#"`sandbox_workspace_write.writable_roots = ["/srv"]`"#), "{write:?}");
        let network = told_of("curl: (6) Could not resolve host: example.org", &writable());
        assert!(network.model.contains("no network") && network.model.contains(r#"{"network": {"enabled": true}}"#), "{network:?}");
        assert!(network.user.contains("sandbox_workspace_write.network_access = true"), "{network:?}");
        let read_only = told_of("touch: /w/x: Read-only file system", &around(SandboxMode::ReadOnly { network_access: false }));
        assert!(read_only.user.contains("sandbox_mode = \"workspace-write\""), "{read_only:?}");
        let fixed = Around { fixed: Some("environment `box` in environments.toml".into()), ..writable() };
        let fixed = told_of("touch: /srv/x: Read-only file system", &fixed);
        assert!(fixed.model.contains("environments.toml") && !fixed.model.contains("ask"), "{fixed:?}");
        let silent =
            told_of("touch: /srv/x: Read-only file system", &Around { silence: Some("the approval policy is `never`"), ..writable() });
        assert!(silent.model.contains("The user cannot be asked") && silent.model.contains("`never`"), "{silent:?}");
        for told in [write, network, read_only, fixed, silent] {
            assert!(!told.model.contains('\n') && !told.user.contains('\n'));
        }
    }

    #[test]
    fn a_command_that_was_typed_gets_a_line_as_well() {
        let typed = |printed: &str, mode: SandboxMode| {
            let around = around(mode);
            hint(printed, &around.mode, &around.context, &around.cwd)
        };
        let write = typed("touch: cannot touch '/srv/x': Read-only file system\n", SandboxMode::workspace_write());
        assert!(write.contains("/srv/x may not be written"), "{write}");
        assert!(write.contains(r#"`sandbox_workspace_write.writable_roots = ["/srv"]` in config.toml, or after `-c`"#), "{write}");
        let network = typed("curl: (6) Could not resolve host: example.org", SandboxMode::workspace_write());
        assert!(network.contains("no network") && network.contains("network_access = true"), "{network}");
        let read_only = typed("touch: /w/x: Read-only file system", SandboxMode::ReadOnly { network_access: false });
        assert!(read_only.contains("`--sandbox workspace-write`"), "{read_only}");
        let unknown = typed("sudo: Operation not permitted", SandboxMode::workspace_write());
        assert!(unknown.contains("danger-full-access") && !unknown.contains('\n'), "{unknown}");
    }
}
