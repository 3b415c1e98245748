//! What an environment's own entry leaves of a step's policy: of its sandbox, of what is granted, and of when the user is asked.

use outpost_environment::{Environment, Fence, NarrowedApproval, Narrowing};
use outpost_wire::PathUri;

use super::StepTools;
use super::permit::silence;
use crate::extra_permissions::{ExtraPermissions, PathUse};
use crate::permissions::SandboxMode;
use crate::policy::{ApprovalPolicy, ApprovalRequest, Course, decide};
use crate::rules::RulesVerdict;

/// When the user is asked there, as the environment's entry says.
pub(crate) fn approval(handle: &Environment) -> Option<ApprovalPolicy> {
    handle.narrowing().approval_policy.map(|asking| match asking {
        NarrowedApproval::Untrusted => ApprovalPolicy::Untrusted,
        NarrowedApproval::OnRequest => ApprovalPolicy::OnRequest,
        NarrowedApproval::Never => ApprovalPolicy::Never,
    })
}

/// What of permissions can be given where an environment says this.
pub(crate) fn left(permits: &ExtraPermissions, narrowing: &Narrowing) -> ExtraPermissions {
    let roots: Option<Vec<PathUri>> =
        narrowing.writable_roots.as_ref().map(|roots| roots.iter().filter_map(|root| PathUri::from_syntax(root).ok()).collect());
    let may_write = |path: &PathUri| match (narrowing.sandbox, &roots) {
        (Some(Fence::ReadOnly), _) => false,
        (_, Some(roots)) => roots.iter().any(|root| path.is_within(root)),
        (Some(Fence::WorkspaceWrite), None) => false,
        (None, None) => true,
    };
    let files = permits.files.iter().filter(|(path, wanted)| **wanted == PathUse::Read || may_write(path));
    ExtraPermissions {
        network: permits.network && !narrowing.no_network,
        files: files.map(|(path, wanted)| (path.clone(), *wanted)).collect(),
    }
}

impl StepTools {
    /// The sandbox mode of work in an environment.
    pub(crate) fn mode_in(&self, handle: &Environment) -> SandboxMode {
        self.mode.within(handle.narrowing())
    }

    /// The file that forbids more there, if one does.
    pub(crate) fn fixed(&self, handle: &Environment) -> Option<String> {
        let narrowing = handle.narrowing();
        let entry = || format!("the entry of environment `{}` in environments.toml", handle.name());
        narrowing.is_bounded().then(|| narrowing.required_by.clone().unwrap_or_else(entry))
    }

    /// Why some of these permissions cannot be given there, if so; a sentence for the model.
    pub(crate) fn forbidden(&self, handle: &Environment, wanted: &ExtraPermissions) -> Option<String> {
        if left(wanted, handle.narrowing()) == *wanted {
            return None;
        }
        let place = self.fixed(handle)?;
        Some(format!("The sandbox cannot be widened by {wanted}: {place} fixes that ({}). Go on without it.", handle.narrowing().words()))
    }

    /// Why the user may not be asked for permissions there, if so.
    pub(crate) fn silence_in(&self, handle: &Environment) -> Option<&'static str> {
        silence(self.approval).or_else(|| silence(approval(handle)?))
    }

    /// What becomes of a call there: the stricter of what the thread's policy and the environment's say.
    pub(crate) fn course(&self, handle: &Environment, verdict: &RulesVerdict<'_>, request: ApprovalRequest) -> Course {
        let own = decide(self.approval, verdict, request);
        let Some(there) = approval(handle) else { return own };
        let other = decide(there, verdict, request);
        let of_environment = |why: &str| format!("{why}, as the entry of environment `{}` in environments.toml says", handle.name());
        match (own, other) {
            (Course::Refuse { why }, _) => Course::Refuse { why },
            (_, Course::Refuse { why }) => Course::Refuse { why: of_environment(&why) },
            (Course::Ask { why, .. }, _) if there == ApprovalPolicy::Never => {
                Course::Refuse { why: format!("{why}, and the approval policy of the environment is `never`") }
            }
            (_, Course::Ask { why, .. }) if self.approval == ApprovalPolicy::Never => {
                Course::Refuse { why: format!("{}; and the approval policy of the thread is `never`", of_environment(&why)) }
            }
            (Course::Ask { sandboxed, why }, _) => Course::Ask { sandboxed, why },
            (_, Course::Ask { sandboxed, why }) => Course::Ask { sandboxed, why: of_environment(&why) },
            (run, Course::Run { .. }) => run,
        }
    }

    /// What the model is told of the sandbox in an environment.
    pub(crate) fn permissions_told(&self, handle: Option<&Environment>) -> String {
        let Some(handle) = handle else { return self.mode.name().to_owned() };
        let name = self.mode_in(handle).name();
        let narrowing = handle.narrowing();
        match narrowing.words() {
            words if words.is_empty() => name.to_owned(),
            words => format!("{name} (fixed for this environment: {words})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn grants_stay_within_what_an_environment_allows() {
        let path = |text: &str| PathUri::from_native(text.as_ref()).unwrap();
        let files = [(path("/a/x"), PathUse::Write), (path("/b"), PathUse::Write), (path("/c"), PathUse::Read)];
        let permits = ExtraPermissions { network: true, files: BTreeMap::from(files) };
        assert_eq!(left(&permits, &Narrowing::default()), permits);
        let words = |narrowing: Narrowing| left(&permits, &narrowing).words().join(", ");
        let fence = |sandbox| Narrowing { sandbox: Some(sandbox), ..Narrowing::default() };
        assert_eq!(words(fence(Fence::ReadOnly)), "network, read /c");
        assert_eq!(words(fence(Fence::WorkspaceWrite)), "network, read /c");
        assert_eq!(words(Narrowing { no_network: true, ..Narrowing::default() }), "write /a/x, write /b, read /c");
        let roots = Narrowing { writable_roots: Some(vec!["/a".into()]), ..Narrowing::default() };
        assert_eq!(words(roots), "network, write /a/x, read /c");
    }
}
