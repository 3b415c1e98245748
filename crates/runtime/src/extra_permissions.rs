//! Permissions beyond the sandbox: what a model asks for, what a user grants of it, and what a sandbox becomes by it.
//!
//! Pure: paths are compared as they are written. That a path is what it says, and that the operator allows it, is the
//! executor's business (`Grant` on the wire). Everything here only ever adds to a sandbox, and only what was asked for.

use std::collections::BTreeMap;
use std::fmt;

use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::app::permission::{FilePermissions, NetworkPermissions, PermissionEntry, PermissionPath, PermissionProfile};
use outpost_wire::exec::policy::{Access, EntryPath, FileSystem, Grant, Network, Permissions, PolicyEntry, SandboxContext, SpecialRoot};
use outpost_wire::intent::Attachment;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// So many paths can be asked for at once: a person has to read them.
const MOST_PATHS: usize = 32;

/// What may be done with a path. Writing includes reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathUse {
    Read,
    Write,
}

/// More than a sandbox gives: absolute paths of one environment, and the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtraPermissions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub network: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<PathUri, PathUse>,
}

/// Why a model's permissions are none; sentences for the model.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PermitError {
    #[error(
        "the permissions cannot be read: {0}. They look like {{\"network\": {{\"enabled\": true}}, \"file_system\": {{\"read\": [\"PATH\"], \"write\": [\"PATH\"]}}}}"
    )]
    Malformed(#[source] SharedError),
    #[error("the permissions ask for nothing; name paths to read or write, or the network")]
    Nothing,
    #[error("{0:?} is not a path that can be asked for: name one file or directory")]
    Path(String),
    #[error("{0} paths are more than can be asked for at once (at most {MOST_PATHS}); ask for directories that hold them")]
    TooMany(usize),
}

/// As the model writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    network: Option<WrittenNetwork>,
    #[serde(default, alias = "fileSystem")]
    file_system: Option<WrittenFiles>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNetwork {
    #[serde(default)]
    enabled: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFiles {
    #[serde(default)]
    read: Option<Vec<String>>,
    #[serde(default)]
    write: Option<Vec<String>>,
}

impl ExtraPermissions {
    /// What a model asks for; relative paths begin at `cwd`.
    pub fn asked(permissions: &Value, cwd: &PathUri) -> Result<Self, PermitError> {
        let written: Written = Written::deserialize(permissions).map_err(|error| PermitError::Malformed(SharedError::new(error)))?;
        let mut permits = Self { network: written.network.is_some_and(|network| network.enabled == Some(true)), ..Self::default() };
        if let Some(WrittenFiles { read, write }) = written.file_system {
            for (paths, wanted) in [(read, PathUse::Read), (write, PathUse::Write)] {
                for path in paths.into_iter().flatten() {
                    // A pattern would be taken for a name that does not exist, and a line break would be shown as another line.
                    let is_odd = |c: char| c.is_control() || matches!(c, '*' | '?');
                    let is_usable = !path.trim().is_empty() && !path.contains(is_odd) && !path.starts_with('~');
                    if !is_usable {
                        return Err(PermitError::Path(path));
                    }
                    let place = PathUri::from_syntax(&path).unwrap_or_else(|_| cwd.join(&path));
                    permits.add(place, wanted);
                }
            }
        }
        match permits.files.len() {
            0 if !permits.network => Err(PermitError::Nothing),
            count if count > MOST_PATHS => Err(PermitError::TooMany(count)),
            _ => Ok(permits),
        }
    }

    /// Writing these files.
    pub fn writing(paths: impl IntoIterator<Item = PathUri>) -> Self {
        Self { network: false, files: paths.into_iter().map(|path| (path, PathUse::Write)).collect() }
    }

    /// What a client says; what cannot be understood, or takes something away, grants nothing. Where lists and entries are
    /// both given, only what both say counts: a client that shortens one of them means it.
    pub fn granted(profile: &PermissionProfile, attachment: &Attachment) -> Self {
        let network = profile.network.as_ref().is_some_and(|network| network.enabled == Some(true));
        let Some(files) = &profile.file_system else { return Self { network, ..Self::default() } };
        let mut lists = Self { network, ..Self::default() };
        for (paths, wanted) in [(&files.read, PathUse::Read), (&files.write, PathUse::Write)] {
            for path in paths.iter().flatten().filter_map(|path| PathUri::parse_either(path).ok()) {
                lists.add(path, wanted);
            }
        }
        let Some(entries) = &files.entries else { return lists };
        let mut listed = Self { network, ..Self::default() };
        for PermissionEntry { path, access } in entries {
            let wanted = match access {
                Access::Read => PathUse::Read,
                Access::Write => PathUse::Write,
                Access::Deny => continue,
            };
            for path in places(path, attachment) {
                listed.add(path, wanted);
            }
        }
        if files.read.is_none() && files.write.is_none() { listed } else { listed.within(&lists) }
    }

    fn add(&mut self, path: PathUri, wanted: PathUse) {
        self.files.entry(path).and_modify(|known| *known = wanted.max(*known)).or_insert(wanted);
    }

    pub fn is_empty(&self) -> bool {
        !self.network && self.files.is_empty()
    }

    /// Adds what another one has.
    pub fn join(&mut self, other: &Self) {
        self.network |= other.network;
        for (path, wanted) in &other.files {
            self.add(path.clone(), *wanted);
        }
    }

    /// What both have: of two paths the inner one, of two uses the lesser.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        let mut both = Self { network: self.network && other.network, ..Self::default() };
        for (mine, my_use) in &self.files {
            for (theirs, their_use) in &other.files {
                let inner = if mine.is_within(theirs) {
                    mine
                } else if theirs.is_within(mine) {
                    theirs
                } else {
                    continue;
                };
                both.add(inner.clone(), *my_use.min(their_use));
            }
        }
        both
    }

    /// What of it a sandbox does not give yet. Without it a grant could take away: a place that may be read, inside of one
    /// that may be written; and what lies where the agent may write could be made a link to something else.
    #[must_use]
    pub fn beyond(&self, context: &SandboxContext) -> Self {
        self.lacking(context, held)
    }

    /// The same for files of the machine: `/tmp` in a sandbox is the session's own, so what lies below the machine's is not there
    /// yet, whatever the sandbox says about `/tmp`.
    #[must_use]
    pub fn beyond_on_machine(&self, context: &SandboxContext) -> Self {
        self.lacking(context, held_of_machine)
    }

    fn lacking(&self, context: &SandboxContext, held: fn(&[PolicyEntry], &SandboxContext, &PathUri) -> Option<PathUse>) -> Self {
        let Permissions::Managed { file_system, network } = &context.permissions else { return Self::default() };
        let mut rest = Self { network: self.network && *network == Network::Restricted, ..Self::default() };
        if let FileSystem::Restricted { entries, .. } = file_system {
            let missing = self.files.iter().filter(|(path, wanted)| held(entries, context, path) < Some(**wanted));
            rest.files = missing.map(|(path, wanted)| (path.clone(), *wanted)).collect();
        }
        rest
    }

    /// Adds exactly this to a sandbox.
    pub fn widen(&self, context: &mut SandboxContext, grant: Grant) {
        let more = self.beyond_on_machine(context);
        let Permissions::Managed { file_system, network } = &mut context.permissions else { return };
        if more.network {
            *network = Network::Enabled;
        }
        if let FileSystem::Restricted { entries, .. } = file_system {
            entries.extend(more.files.into_iter().map(|(path, wanted)| PolicyEntry {
                path: EntryPath::Path { path },
                access: if wanted == PathUse::Write { Access::Write } else { Access::Read },
                missing_path_behavior: None,
                grant: Some(grant),
            }));
        }
    }

    /// Each of its parts on its own.
    pub fn parts(&self) -> impl Iterator<Item = Self> {
        let files = self.files.iter().map(|(path, wanted)| Self { network: false, files: BTreeMap::from([(path.clone(), *wanted)]) });
        self.network.then(|| Self { network: true, ..Self::default() }).into_iter().chain(files)
    }

    /// As clients are shown it.
    pub fn profile(&self) -> PermissionProfile {
        let paths = |wanted: PathUse| {
            let paths: Vec<String> = self.files.iter().filter(|(_, own)| **own == wanted).map(|(path, _)| path.to_syntax()).collect();
            (!paths.is_empty()).then_some(paths)
        };
        let entry = |(path, wanted): (&PathUri, &PathUse)| PermissionEntry {
            path: PermissionPath::Path { path: path.to_syntax() },
            access: if *wanted == PathUse::Write { Access::Write } else { Access::Read },
        };
        let files = || FilePermissions {
            read: paths(PathUse::Read),
            write: paths(PathUse::Write),
            glob_scan_max_depth: None,
            entries: Some(self.files.iter().map(entry).collect()),
        };
        PermissionProfile {
            network: self.network.then_some(NetworkPermissions { enabled: Some(true) }),
            file_system: (!self.files.is_empty()).then(files),
        }
    }

    /// In words, one for each part.
    pub fn words(&self) -> Vec<String> {
        let file = |(path, wanted): (&PathUri, &PathUse)| match wanted {
            PathUse::Read => format!("read {}", path.to_syntax()),
            PathUse::Write => format!("write {}", path.to_syntax()),
        };
        self.network.then(|| "network".to_owned()).into_iter().chain(self.files.iter().map(file)).collect()
    }
}

impl fmt::Display for ExtraPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(", "))
    }
}

/// The paths that a client means.
fn places(path: &PermissionPath, attachment: &Attachment) -> Vec<PathUri> {
    match path {
        PermissionPath::Path { path } => PathUri::parse_either(path).into_iter().collect(),
        PermissionPath::GlobPattern { .. } => vec![],
        PermissionPath::Special { value } => special(value, &attachment.workspace_roots),
    }
}

/// What is known here of a special path; the executor's own temporary directory is not.
fn special(value: &SpecialRoot, roots: &[PathUri]) -> Vec<PathUri> {
    match value {
        SpecialRoot::Root => vec![PathUri::root()],
        SpecialRoot::SlashTmp => vec![PathUri::root().join("tmp")],
        SpecialRoot::ProjectRoots { subpath: None } => roots.to_vec(),
        SpecialRoot::ProjectRoots { subpath: Some(below) } => {
            // What leads out of a root is refused by executors.
            let inside = roots.iter().map(|root| (root, root.join(below)));
            inside.filter(|(root, path)| path.is_within(root)).map(|(_, path)| path).collect()
        }
        SpecialRoot::Minimal | SpecialRoot::Tmpdir | SpecialRoot::Unknown { .. } => vec![],
    }
}

/// What a sandbox lets be done with a path as the machine has it.
fn held_of_machine(entries: &[PolicyEntry], context: &SandboxContext, path: &PathUri) -> Option<PathUse> {
    let temporary = PathUri::root().join("tmp");
    let is_below = |path: &PathUri| path.is_within(&temporary) && *path != temporary;
    // Only a sandbox that may write everywhere has the machine's.
    if !is_below(path) || held(entries, context, &PathUri::root()) == Some(PathUse::Write) {
        return held(entries, context, path);
    }
    strongest(entries, context, path, is_below)
}

/// What a sandbox lets be done with a path.
fn held(entries: &[PolicyEntry], context: &SandboxContext, path: &PathUri) -> Option<PathUse> {
    strongest(entries, context, path, |_| true)
}

/// The longest entry decides, of those that count, and among equal ones as an executor decides.
fn strongest(entries: &[PolicyEntry], context: &SandboxContext, path: &PathUri, counts: impl Fn(&PathUri) -> bool) -> Option<PathUse> {
    let roots: Vec<PathUri> = match &context.workspace_roots {
        Some(roots) => roots.clone(),
        None => context.cwd.iter().cloned().collect(),
    };
    let mut best: Option<(usize, Access)> = None;
    for entry in entries {
        let places = match &entry.path {
            EntryPath::Path { path } => vec![path.clone()],
            EntryPath::Special { value } => special(value, &roots),
            EntryPath::GlobPattern { .. } => vec![],
        };
        for place in places.iter().filter(|place| path.is_within(place) && counts(place)) {
            let length = if *place == PathUri::root() { 0 } else { place.to_string().len() };
            best = Some(match best {
                Some((known, access)) if known > length => (known, access),
                Some((known, access)) if known == length => (length, stronger(access, entry.access)),
                _ => (length, entry.access),
            });
        }
    }
    match best? {
        (_, Access::Deny) => None,
        (_, Access::Read) => Some(PathUse::Read),
        (_, Access::Write) => Some(PathUse::Write),
    }
}

/// Of two entries for one path a denial counts, then what gives more.
fn stronger(one: Access, other: Access) -> Access {
    match (one, other) {
        (Access::Deny, _) | (_, Access::Deny) => Access::Deny,
        (Access::Write, _) | (_, Access::Write) => Access::Write,
        _ => Access::Read,
    }
}

#[cfg(test)]
mod tests {
    use outpost_wire::intent::EnvironmentId;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::permissions::SandboxMode;

    fn uri(path: &str) -> PathUri {
        PathUri::from_syntax(path).unwrap()
    }

    fn attachment() -> Attachment {
        Attachment::new(EnvironmentId::local(), uri("/w"))
    }

    fn ask(permissions: Value) -> Result<ExtraPermissions, PermitError> {
        ExtraPermissions::asked(&permissions, &uri("/w"))
    }

    fn writing(paths: &[&str]) -> ExtraPermissions {
        ExtraPermissions::writing(paths.iter().map(|path| uri(path)))
    }

    fn workspace() -> SandboxContext {
        let mode = SandboxMode::WorkspaceWrite {
            writable_roots: vec![],
            network_access: false,
            exclude_tmpdir_env_var: true,
            exclude_slash_tmp: true,
        };
        mode.context(&attachment()).unwrap()
    }

    #[test]
    fn relative_paths_begin_at_the_working_directory() {
        let asked = ask(json!({"file_system": {"read": ["../r", "/etc/hosts"], "write": ["out", "a/../../b"]}})).unwrap();
        assert_eq!(asked.words(), ["write /b", "read /etc/hosts", "read /r", "write /w/out"]);
        assert_eq!(ask(json!({"network": {"enabled": true}})).unwrap().words(), ["network"]);
        assert_eq!(ask(json!({"fileSystem": {"write": ["/x"]}})).unwrap(), writing(&["/x"]));
    }

    #[test]
    fn what_is_malformed_is_said() {
        let why = |permissions: Value| ask(permissions).unwrap_err().to_string();
        assert!(why(json!("everything")).contains("cannot be read"));
        assert!(why(json!({"filesystem": {"write": ["/x"]}})).contains("filesystem"));
        assert!(why(json!({"file_system": {"write": "/x"}})).contains("sequence"));
        assert!(why(json!({"file_system": {"execute": ["/x"]}})).contains("execute"));
        for empty in [json!({}), json!({"network": {"enabled": false}}), json!({"file_system": {"read": []}})] {
            assert_eq!(ask(empty).unwrap_err(), PermitError::Nothing);
        }
        for path in ["", " ", "/data/*", "~/x", "a\0b", "/x\ny"] {
            assert_eq!(ask(json!({"file_system": {"write": [path]}})).unwrap_err(), PermitError::Path(path.into()));
        }
        let many: Vec<String> = (0..40).map(|number| format!("/x/{number}")).collect();
        assert_eq!(ask(json!({"file_system": {"write": many}})).unwrap_err(), PermitError::TooMany(40));
    }

    #[test]
    fn a_client_grants_what_it_says_and_no_more_than_was_asked() {
        let asked = ask(json!({"network": {"enabled": true}, "file_system": {"read": ["/r"], "write": ["/x", "/y"]}})).unwrap();
        let grant = |profile: Value| {
            let profile: PermissionProfile = serde_json::from_value(profile).unwrap();
            asked.within(&ExtraPermissions::granted(&profile, &attachment())).to_string()
        };
        // The whole of it comes back as it went out.
        assert_eq!(asked.within(&ExtraPermissions::granted(&asked.profile(), &attachment())), asked);
        assert_eq!(grant(json!({})), "");
        assert_eq!(grant(json!({"fileSystem": {"write": ["/"]}, "network": {"enabled": true}})), "network, read /r, write /x, write /y");
        assert_eq!(grant(json!({"fileSystem": {"write": ["/x/sub", "/z"]}})), "write /x/sub");
        assert_eq!(grant(json!({"fileSystem": {"read": ["/x"]}})), "read /x");
        assert_eq!(grant(json!({"fileSystem": {"write": ["/r"]}})), "read /r");
        assert_eq!(grant(json!({"fileSystem": {"write": ["x", "../y"]}})), "");
        let entry = |path: Value, access: &str| json!({"path": path, "access": access});
        let path = |path: &str| json!({"type": "path", "path": path});
        assert_eq!(grant(json!({"fileSystem": {"entries": [entry(path("/y"), "write"), entry(path("/x"), "deny")]}})), "write /y");
        let root = json!({"type": "special", "value": {"kind": "root"}});
        assert_eq!(grant(json!({"fileSystem": {"entries": [entry(root, "read")]}})), "read /r, read /x, read /y");
        // Whichever of the two forms a client shortens, it is shortened.
        let mut shortened = serde_json::to_value(asked.profile()).unwrap();
        shortened["fileSystem"]["write"] = json!(["/x"]);
        assert_eq!(grant(shortened), "network, read /r, write /x");
        let mut shortened = serde_json::to_value(asked.profile()).unwrap();
        shortened["fileSystem"]["entries"] = json!([]);
        assert_eq!(grant(shortened), "network");
    }

    #[test]
    fn a_sandbox_is_asked_only_for_what_it_does_not_give() {
        let asked = ask(json!({"file_system": {"read": ["/etc", "src"], "write": ["src", ".git", ".git/hooks", "/data"]}})).unwrap();
        assert_eq!(asked.beyond(&workspace()).words(), ["write /data", "write /w/.git", "write /w/.git/hooks"]);
        let mut widened = workspace();
        asked.widen(&mut widened, Grant::Required);
        assert!(asked.beyond(&widened).is_empty());
        // What is inside of a grant is granted, too.
        assert!(writing(&["/data/deep"]).beyond(&widened).is_empty());
        assert!(!writing(&["/database"]).beyond(&widened).is_empty());
        // Where nothing is confined there is nothing to give.
        let open = SandboxContext { permissions: Permissions::Disabled, ..workspace() };
        assert!(asked.beyond(&open).is_empty());
    }

    /// `/tmp` inside is not the machine's: what lies there has to be granted, and a patch may write there all the same.
    #[test]
    fn what_lies_below_the_machines_tmp_is_not_given_by_a_tmp_of_the_sessions_own() {
        let asked = writing(&["/tmp/shared/file", "/tmp"]);
        let own = SandboxMode::WorkspaceWrite {
            writable_roots: vec![],
            network_access: false,
            exclude_tmpdir_env_var: true,
            exclude_slash_tmp: false,
        };
        let mut context = own.context(&attachment()).unwrap();
        assert!(asked.beyond(&context).is_empty());
        assert_eq!(asked.beyond_on_machine(&context).words(), ["write /tmp/shared/file"]);
        asked.widen(&mut context, Grant::Required);
        assert!(asked.beyond_on_machine(&context).is_empty());
        let reading = ask(json!({"file_system": {"read": ["/tmp/shared/file", "/etc"]}})).unwrap();
        let context = SandboxMode::ReadOnly { network_access: false }.context(&attachment()).unwrap();
        assert_eq!(reading.beyond_on_machine(&context).words(), ["read /tmp/shared/file"]);
    }

    #[test]
    fn only_what_was_granted_is_added() {
        let (mut widened, before) = (workspace(), workspace());
        writing(&["/data", "/w/src"]).widen(&mut widened, Grant::Optional);
        let entries = |context: &SandboxContext| match &context.permissions {
            Permissions::Managed { file_system: FileSystem::Restricted { entries, .. }, network } => (entries.clone(), *network),
            _ => panic!(),
        };
        let ((old, _), (new, network)) = (entries(&before), entries(&widened));
        assert_eq!((&new[..old.len()], network), (&old[..], Network::Restricted));
        let added: Vec<String> = new[old.len()..].iter().map(|entry| serde_json::to_string(entry).unwrap()).collect();
        assert_eq!(added, [r#"{"path":{"type":"path","path":"file:///data"},"access":"write","grant":"optional"}"#]);
        ExtraPermissions { network: true, ..ExtraPermissions::default() }.widen(&mut widened, Grant::Optional);
        assert_eq!(entries(&widened).1, Network::Enabled);
    }

    #[test]
    fn it_is_kept_as_it_is() {
        let asked = ask(json!({"network": {"enabled": true}, "file_system": {"read": ["/r"], "write": ["/x y"]}})).unwrap();
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(text, r#"{"network":true,"files":{"file:///r":"read","file:///x%20y":"write"}}"#);
        assert_eq!(serde_json::from_str::<ExtraPermissions>(&text).unwrap(), asked);
    }

    fn permits() -> impl Strategy<Value = ExtraPermissions> {
        let path = prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", ".git"]), 0..4);
        let file = (path, prop::sample::select(vec![PathUse::Read, PathUse::Write]));
        (any::<bool>(), prop::collection::vec(file, 0..6)).prop_map(|(network, files)| {
            let mut permits = ExtraPermissions { network, ..ExtraPermissions::default() };
            files.into_iter().for_each(|(path, wanted)| permits.add(uri(&format!("/{}", path.join("/"))), wanted));
            permits
        })
    }

    /// Whether a use of a path is in it.
    fn gives(permits: &ExtraPermissions, path: &PathUri, wanted: PathUse) -> bool {
        permits.files.iter().any(|(own, has)| path.is_within(own) && *has >= wanted)
    }

    proptest! {
        /// Whatever a client answers, nothing comes out that was not asked for, and nothing is lost that both have.
        #[test]
        fn an_answer_never_exceeds_the_question(asked in permits(), answer in permits(), probe in permits()) {
            let granted = asked.within(&answer);
            prop_assert!(!granted.network || (asked.network && answer.network));
            for path in granted.files.keys().chain(asked.files.keys()).chain(answer.files.keys()).chain(probe.files.keys()) {
                for wanted in [PathUse::Read, PathUse::Write] {
                    let both = gives(&asked, path, wanted) && gives(&answer, path, wanted);
                    prop_assert_eq!(gives(&granted, path, wanted), both, "{} of {} and {}", path, &asked, &answer);
                }
            }
        }

        /// A widened sandbox gives all that it gave, and all of the grant.
        #[test]
        fn a_grant_never_takes_away(grant in permits(), probe in permits()) {
            let before = workspace();
            let mut after = before.clone();
            grant.widen(&mut after, Grant::Required);
            prop_assert!(grant.beyond(&after).is_empty());
            let had = |context: &SandboxContext, one: &ExtraPermissions| one.parts().filter(|part| part.beyond(context).is_empty()).count();
            prop_assert!(had(&after, &probe) >= had(&before, &probe));
            for part in probe.parts().filter(|part| part.beyond(&after).is_empty()) {
                let is_new = !part.beyond(&before).is_empty();
                let is_given = part.files.iter().all(|(path, wanted)| gives(&grant, path, *wanted)) && (grant.network || !part.network);
                prop_assert!(!is_new || is_given, "{} by {}", part, &grant);
            }
        }
    }
}
