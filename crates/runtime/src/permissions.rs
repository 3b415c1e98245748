//! What work in an environment may do: the thread's sandbox mode, as a request tells it to an executor.

use outpost_environment::{Fence, Narrowing};
use outpost_wire::PathUri;
use outpost_wire::exec::policy::{
    Access, EntryPath, FileSystem, MissingPath, Network, Permissions, PolicyEntry, SandboxContext, SpecialRoot, WindowsSandboxLevel,
};
use outpost_wire::intent::Attachment;
use serde::{Deserialize, Serialize};

/// As clients and `config.toml` spell it, and as threads remember it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum SandboxMode {
    DangerFullAccess,
    ReadOnly {
        #[serde(default)]
        network_access: bool,
    },
    WorkspaceWrite {
        /// Besides the workspace roots of an environment; absolute paths there.
        #[serde(default)]
        writable_roots: Vec<String>,
        #[serde(default)]
        network_access: bool,
        #[serde(default)]
        exclude_tmpdir_env_var: bool,
        #[serde(default)]
        exclude_slash_tmp: bool,
    },
    /// The executor is confined from outside.
    ExternalSandbox {
        #[serde(default)]
        network_access: ExternalNetwork,
    },
    /// Never written; the mode without a choice.
    #[default]
    #[serde(skip)]
    Unset,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExternalNetwork {
    #[default]
    Restricted,
    Enabled,
}

impl SandboxMode {
    pub fn workspace_write() -> Self {
        Self::WorkspaceWrite { writable_roots: vec![], network_access: false, exclude_tmpdir_env_var: false, exclude_slash_tmp: false }
    }

    /// From one of the three short names.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "read-only" => Some(Self::ReadOnly { network_access: false }),
            "workspace-write" => Some(Self::workspace_write()),
            "danger-full-access" => Some(Self::DangerFullAccess),
            _ => None,
        }
    }

    /// The short name; an external sandbox has none of its own.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ReadOnly { .. } => "read-only",
            Self::WorkspaceWrite { .. } | Self::Unset => "workspace-write",
            Self::DangerFullAccess => "danger-full-access",
            Self::ExternalSandbox { .. } => "external",
        }
    }

    /// What it means, for the user who is asked about something in it.
    pub fn words(&self) -> String {
        let network = |is_on: &bool| if *is_on { "network" } else { "no network" };
        match self {
            Self::DangerFullAccess => "none".into(),
            Self::ExternalSandbox { .. } => "none of ours: the executor is confined by others".into(),
            Self::ReadOnly { network_access } => format!("read-only, {}", network(network_access)),
            Self::WorkspaceWrite { network_access, writable_roots, .. } => {
                let more: String = writable_roots.iter().map(|root| format!(", writes {root}")).collect();
                format!("workspace-write, {}{more}", network(network_access))
            }
            Self::Unset => Self::workspace_write().words(),
        }
    }

    pub fn is_full_access(&self) -> bool {
        matches!(self, Self::DangerFullAccess | Self::ExternalSandbox { .. })
    }

    /// What an environment's own entry leaves of it.
    #[must_use]
    pub fn within(&self, narrowing: &Narrowing) -> Self {
        if !narrowing.is_bounded() {
            return self.clone();
        }
        let network = |is_on: bool| is_on && !narrowing.no_network;
        let is_read_only = narrowing.sandbox == Some(Fence::ReadOnly);
        match self {
            Self::Unset => Self::workspace_write().within(narrowing),
            Self::ReadOnly { network_access } => Self::ReadOnly { network_access: network(*network_access) },
            Self::WorkspaceWrite { network_access, .. } if is_read_only => Self::ReadOnly { network_access: network(*network_access) },
            Self::WorkspaceWrite { writable_roots, network_access, exclude_tmpdir_env_var, exclude_slash_tmp } => Self::WorkspaceWrite {
                writable_roots: writable_roots.clone(),
                network_access: network(*network_access),
                exclude_tmpdir_env_var: *exclude_tmpdir_env_var || narrowing.writable_roots.is_some(),
                exclude_slash_tmp: *exclude_slash_tmp,
            },
            // Without a sandbox nothing of this could be held.
            Self::DangerFullAccess | Self::ExternalSandbox { .. } => {
                let network_access = !matches!(self, Self::ExternalSandbox { network_access: ExternalNetwork::Restricted });
                let (roots, excludes) = (Vec::new(), narrowing.writable_roots.is_some());
                Self::WorkspaceWrite { writable_roots: roots, network_access, exclude_tmpdir_env_var: excludes, exclude_slash_tmp: false }
                    .within(narrowing)
            }
        }
    }

    /// What the executor of an environment is told whose entry says this.
    pub fn context_in(&self, attachment: &Attachment, narrowing: &Narrowing) -> Option<SandboxContext> {
        let mut context = self.within(narrowing).context(attachment)?;
        if let Some(roots) = &narrowing.writable_roots {
            let roots: Vec<PathUri> = roots.iter().filter_map(|root| PathUri::from_syntax(root).ok()).collect();
            write_only_below(&mut context, &roots);
        }
        context.devices.clone_from(&narrowing.devices);
        Some(context)
    }

    /// What the executor of an environment is told. Nothing means that it runs without a sandbox.
    pub fn context(&self, attachment: &Attachment) -> Option<SandboxContext> {
        let permissions = match self {
            Self::DangerFullAccess => return None,
            Self::ExternalSandbox { network_access } => {
                let network = if *network_access == ExternalNetwork::Enabled { Network::Enabled } else { Network::Restricted };
                Permissions::External { network }
            }
            Self::ReadOnly { network_access } => managed(vec![special(SpecialRoot::Root, Access::Read)], *network_access),
            Self::WorkspaceWrite { writable_roots, network_access, exclude_tmpdir_env_var, exclude_slash_tmp } => {
                let mut entries = workspace();
                let roots = writable_roots.iter().filter_map(|root| PathUri::from_native(root.as_ref()).ok());
                entries.extend(roots.map(|path| PolicyEntry {
                    path: EntryPath::Path { path },
                    access: Access::Write,
                    missing_path_behavior: Some(MissingPath::Skip),
                    grant: None,
                }));
                if !exclude_slash_tmp {
                    entries.push(special(SpecialRoot::SlashTmp, Access::Write));
                }
                if !exclude_tmpdir_env_var {
                    entries.push(special(SpecialRoot::Tmpdir, Access::Write));
                }
                managed(entries, *network_access)
            }
            Self::Unset => return Self::workspace_write().context(attachment),
        };
        Some(SandboxContext {
            permissions,
            cwd: Some(attachment.cwd.clone()),
            workspace_roots: Some(attachment.workspace_roots.clone()),
            windows_sandbox_level: WindowsSandboxLevel::Disabled,
            windows_sandbox_proxy_settings_mode: None,
            use_legacy_landlock: false,
            user_home_dir: None,
            temporary_directories: None,
            sandbox_override: None,
            devices: Vec::new(),
        })
    }
}

/// Takes away what may be written elsewhere. The sandbox's own `/tmp` stays.
fn write_only_below(context: &mut SandboxContext, roots: &[PathUri]) {
    let workspace = context.workspace_roots.clone().unwrap_or_default();
    let Permissions::Managed { file_system: FileSystem::Restricted { entries, .. }, .. } = &mut context.permissions else { return };
    let is_tmp = |entry: &PolicyEntry| matches!(entry.path, EntryPath::Special { value: SpecialRoot::SlashTmp });
    let mut kept = Vec::new();
    for entry in std::mem::take(entries) {
        if entry.access != Access::Write || is_tmp(&entry) {
            kept.push(entry);
            continue;
        }
        let places = match &entry.path {
            EntryPath::Path { path } => vec![path.clone()],
            EntryPath::Special { value: SpecialRoot::ProjectRoots { subpath: None } } => workspace.clone(),
            _ => Vec::new(),
        };
        for place in &places {
            for root in roots {
                let inner = if place.is_within(root) {
                    place
                } else if root.is_within(place) {
                    root
                } else {
                    continue;
                };
                let path = EntryPath::Path { path: inner.clone() };
                kept.push(PolicyEntry { path, access: Access::Write, missing_path_behavior: Some(MissingPath::Skip), grant: None });
            }
        }
    }
    *entries = kept;
}

fn managed(entries: Vec<PolicyEntry>, network_access: bool) -> Permissions {
    let network = if network_access { Network::Enabled } else { Network::Restricted };
    Permissions::Managed { file_system: FileSystem::Restricted { entries, glob_scan_max_depth: None }, network }
}

fn special(value: SpecialRoot, access: Access) -> PolicyEntry {
    PolicyEntry { path: EntryPath::Special { value }, access, missing_path_behavior: None, grant: None }
}

/// Reads everywhere, writes in the workspace, and not in what decides how the workspace is built, run and configured.
fn workspace() -> Vec<PolicyEntry> {
    // A directory of this machine need not be there on another one. What else is there can still be read.
    let roots = PolicyEntry {
        missing_path_behavior: Some(MissingPath::Skip),
        ..special(SpecialRoot::ProjectRoots { subpath: None }, Access::Write)
    };
    let mut entries = vec![special(SpecialRoot::Root, Access::Read), roots];
    let protected = |name: &str| special(SpecialRoot::ProjectRoots { subpath: Some(name.into()) }, Access::Read);
    entries.extend([".git", ".codex", ".agents"].map(protected));
    // No program reads it where it was not before, so its name need not be taken.
    entries.push(PolicyEntry { missing_path_behavior: Some(MissingPath::Skip), ..protected(".outpost") });
    entries
}

#[cfg(test)]
mod tests {
    use outpost_wire::intent::EnvironmentId;

    use super::*;

    fn attachment() -> Attachment {
        Attachment::new(EnvironmentId::local(), PathUri::from_native("/w".as_ref()).unwrap())
    }

    #[test]
    fn modes_as_clients_spell_them() {
        let read = |text: &str| serde_json::from_str::<SandboxMode>(text).unwrap();
        assert_eq!(read(r#"{"type":"dangerFullAccess"}"#), SandboxMode::DangerFullAccess);
        assert_eq!(read(r#"{"type":"readOnly","networkAccess":true}"#), SandboxMode::ReadOnly { network_access: true });
        assert_eq!(read(r#"{"type":"workspaceWrite"}"#), SandboxMode::workspace_write());
        for name in ["read-only", "workspace-write", "danger-full-access"] {
            assert_eq!(SandboxMode::named(name).unwrap().name(), name);
        }
        assert_eq!(SandboxMode::named("everything"), None);
    }

    #[test]
    fn an_environment_narrows_every_mode_and_widens_none() {
        let narrowing = |sandbox, no_network, roots: Option<&str>| Narrowing {
            sandbox,
            no_network,
            writable_roots: roots.map(|root| vec![root.to_owned()]),
            ..Narrowing::default()
        };
        let words = |mode: &SandboxMode, narrowing: &Narrowing| mode.within(narrowing).words();
        let read_only = narrowing(Some(Fence::ReadOnly), false, None);
        let modes = ["read-only", "workspace-write", "danger-full-access"].map(|name| SandboxMode::named(name).unwrap());
        assert_eq!(
            modes.each_ref().map(|mode| words(mode, &read_only)),
            ["read-only, no network", "read-only, no network", "read-only, network"]
        );
        let work = narrowing(Some(Fence::WorkspaceWrite), true, None);
        let expected = ["read-only, no network", "workspace-write, no network", "workspace-write, no network"];
        assert_eq!(modes.each_ref().map(|mode| words(mode, &work)), expected);
        assert_eq!(modes.each_ref().map(|mode| mode.within(&Narrowing::default())), modes);
        // Of what a thread may write, what the environment names is left.
        let writes = |root: &str| {
            let context = SandboxMode::Unset.context_in(&attachment(), &narrowing(None, false, Some(root))).unwrap();
            let Permissions::Managed { file_system: FileSystem::Restricted { entries, .. }, .. } = context.permissions else { panic!() };
            let written = entries.into_iter().filter(|entry| entry.access == Access::Write).map(|entry| match entry.path {
                EntryPath::Path { path } => path.to_syntax(),
                other => format!("{other:?}"),
            });
            written.collect::<Vec<_>>()
        };
        assert_eq!(writes("/w/build")[0], "/w/build");
        assert_eq!(writes("/")[0], "/w");
        assert_eq!((writes("/elsewhere").len(), writes("/w").len()), (1, 2));
    }

    #[test]
    fn full_access_asks_for_no_sandbox_and_everything_else_for_one() {
        assert_eq!(SandboxMode::DangerFullAccess.context(&attachment()), None);
        let context = SandboxMode::Unset.context(&attachment()).unwrap();
        assert!(!context.leaves_files_open());
        assert_eq!(context.workspace_roots, Some(vec![attachment().cwd]));
        let read_only = SandboxMode::named("read-only").unwrap().context(&attachment()).unwrap();
        let Permissions::Managed { file_system: FileSystem::Restricted { entries, .. }, network } = read_only.permissions else { panic!() };
        assert!(entries.iter().all(|entry| entry.access == Access::Read) && network == Network::Restricted);
    }
}
