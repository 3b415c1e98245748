//! The administrator's lock: what `/etc/outpost/requirements.toml` says that no configuration of a user loosens.
//!
//! The lists of MCP servers in the same file are read elsewhere (`servers.rs`). A file that cannot be read, or says something that is
//! not known, stops what would run agents or sandboxes: what it would have forbidden is unknown.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use outpost_environment::{EnvironmentAdmission, Narrowing, SOURCES};
use outpost_runtime::policy::{AllowedPolicies, ApprovalPolicy};
use outpost_sandbox::Level;
use outpost_wire::app::config::{ConfigRequirements, NetworkRequirement};
use serde::Deserialize;

/// What the administrator of this machine requires of all its users.
pub(crate) const FILE: &str = "/etc/outpost/requirements.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sandbox_minimum: Option<String>,
    local: Option<bool>,
    environment_sources: Option<Vec<String>>,
    network: Option<String>,
    approval_policies: Option<Vec<String>>,
    /// Read elsewhere.
    #[serde(default, rename = "mcp_servers")]
    _mcp_servers: Option<serde::de::IgnoredAny>,
}

/// Without a file nothing is required.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lock {
    minimum: Option<Level>,
    no_local: bool,
    sources: Option<Vec<String>>,
    no_network: bool,
    approvals: Option<Vec<String>>,
}

impl Lock {
    pub(crate) fn read() -> anyhow::Result<Self> {
        Self::read_from(Path::new(FILE))
    }

    fn read_from(file: &Path) -> anyhow::Result<Self> {
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(&text).with_context(|| format!("the requirements in {} cannot be read", file.display())),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(Self::default()),
            Err(error) => bail!("the requirements in {} cannot be read: {error}", file.display()),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let written: Written = toml::from_str(text)?;
        let minimum = written.sandbox_minimum.map(|name| name.parse::<Level>().map_err(|why| anyhow::anyhow!("sandbox_minimum: {why}")));
        let sources = written.environment_sources;
        for source in sources.iter().flatten() {
            ensure!(SOURCES.contains(&source.as_str()), "environment_sources: `{source}` is none of {}", SOURCES.join(", "));
        }
        let no_network = match written.network.as_deref() {
            None | Some("enabled") => false,
            Some("restricted") => true,
            Some(other) => bail!("network is \"restricted\" or \"enabled\", not \"{other}\""),
        };
        for policy in written.approval_policies.iter().flatten() {
            let known = ["untrusted", "on-request", "never", "granular"];
            ensure!(known.contains(&policy.as_str()), "approval_policies: `{policy}` is none of {}", known.join(", "));
        }
        Ok(Self {
            minimum: minimum.transpose()?,
            no_local: written.local == Some(false),
            sources,
            no_network,
            approvals: written.approval_policies,
        })
    }

    /// The level below which sandboxes are refused, and where that is written if the administrator says so.
    pub(crate) fn minimum(&self, configured: Level) -> (Level, Option<String>) {
        match self.minimum {
            Some(minimum) if minimum >= configured => (minimum, Some(FILE.to_owned())),
            _ => (configured, None),
        }
    }

    /// Which environments there may be.
    pub(crate) fn admission(&self) -> EnvironmentAdmission {
        EnvironmentAdmission { file: FILE.into(), no_local: self.no_local, sources: self.sources.clone() }
    }

    /// What is left of a thread's policy in every environment.
    pub(crate) fn narrowing(&self) -> Narrowing {
        let (confined, no_network) = (self.minimum.is_some(), self.no_network);
        let required_by = (confined || no_network).then(|| FILE.to_owned());
        Narrowing { confined, no_network, required_by, ..Narrowing::default() }
    }

    /// Which approval policies a thread may have.
    pub(crate) fn policies(&self) -> Option<AllowedPolicies> {
        self.approvals.as_ref().map(|names| AllowedPolicies { names: names.clone(), file: FILE.into() })
    }

    /// For clients: what is required; nothing where nothing is.
    pub(crate) fn shown(&self) -> Option<ConfigRequirements> {
        if *self == Self::default() {
            return None;
        }
        let modes = || ["read-only", "workspace-write"].map(str::to_owned).to_vec();
        Some(ConfigRequirements {
            file: FILE.into(),
            sandbox_minimum: self.minimum.map(|minimum| minimum.name().to_owned()),
            allowed_sandbox_modes: self.minimum.map(|_| modes()),
            allowed_approval_policies: self
                .approvals
                .as_ref()
                .map(|names| names.iter().filter(|name| *name != "granular").cloned().collect()),
            network: self.no_network.then_some(NetworkRequirement { enabled: false }),
            local: self.no_local.then_some(false),
            environment_sources: self.sources.clone(),
        })
    }

    /// Refuses an approval policy of the configuration that is not allowed.
    pub(crate) fn check_policy(&self, policy: ApprovalPolicy) -> anyhow::Result<()> {
        match self.policies().and_then(|allowed| allowed.refusal(policy)) {
            Some(why) => bail!("approval_policy: {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_required_is_read_and_mistakes_stop() {
        let text = "sandbox_minimum = 'mounts'\nlocal = false\nenvironment_sources = ['ssh']\nnetwork = 'restricted'\n\
                    approval_policies = ['untrusted', 'on-request']\n[mcp_servers.x.identity]\ncommand = 'y'\n";
        let lock = Lock::parse(text).unwrap();
        assert_eq!(lock.minimum(Level::Landlock), (Level::Mounts, Some(FILE.into())));
        assert_eq!(lock.minimum(Level::Full), (Level::Full, None));
        assert!(lock.admission().no_local && lock.narrowing().no_network && lock.narrowing().confined);
        assert!(lock.check_policy(ApprovalPolicy::Untrusted).is_ok());
        let refused = lock.check_policy(ApprovalPolicy::Never).unwrap_err().to_string();
        assert!(refused.contains(FILE) && refused.contains("`never`") && refused.contains("untrusted, on-request"), "{refused}");
        let shown = serde_json::to_value(lock.shown().unwrap()).unwrap();
        assert_eq!((&shown["file"], &shown["sandboxMinimum"], &shown["local"]), (&json!(FILE), &json!("mounts"), &json!(false)));
        assert_eq!(shown["allowedApprovalPolicies"], json!(["untrusted", "on-request"]));
        assert_eq!(shown["network"], json!({"enabled": false}));
        assert_eq!((Lock::default().shown(), Lock::parse("local = true").unwrap().shown()), (None, None));
        assert_eq!(Lock::parse("").unwrap(), Lock::default());
        assert_eq!(Lock::read_from(Path::new("/nonexistent/requirements.toml")).unwrap(), Lock::default());
        for (text, expected) in [
            ("sandbox_minimun = 'full'", "sandbox_minimun"),
            ("sandbox_minimum = 'most'", "landlock, mounts and full"),
            ("environment_sources = ['telnet']", "`telnet` is none of url"),
            ("network = 'off'", "\"restricted\" or \"enabled\""),
            ("approval_policies = ['always']", "`always` is none of untrusted"),
            ("local = 'no'", "local"),
        ] {
            let why = format!("{:#}", Lock::parse(text).unwrap_err());
            assert!(why.contains(expected), "{why}");
        }
    }
}
