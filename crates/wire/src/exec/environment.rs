//! What an executor tells about its machine and itself.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::path::PathUri;
use crate::{encode_with_serde, method};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shell {
    /// One of `bash`, `zsh`, `sh`, `powershell`, `cmd`.
    pub name: String,
    /// Native, not a URI.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentInfo {
    pub shell: Shell,
    #[serde(default)]
    pub executor_version: Option<String>,
    #[serde(default)]
    pub provider_id: Option<String>,
    #[serde(default)]
    pub cwd: Option<PathUri>,
    #[serde(default)]
    pub user_home_dir: Option<PathUri>,
    #[serde(default)]
    pub platform_os: Option<String>,
    #[serde(default)]
    pub prepend_path_dirs: Option<Vec<PathUri>>,
    #[serde(default)]
    pub temporary_directories: Option<Vec<PathUri>>,
    #[serde(default)]
    pub temp_dir: Option<PathUri>,
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Ours: identity of the executor's install, the same after every restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_id: Option<String>,
    /// Ours: this start of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// Ours: what a session may use, and what holds it to that here. Tried first, so only `environment/info` tells it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Ours: what a sandbox holds here, and by what. Tried first, so only `environment/info` tells it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox: Vec<SandboxRow>,
}

/// One limit of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limit {
    pub what: String,
    pub value: u64,
    /// `cgroup v2`, `cgroup v1`, `rlimit` or `watchdog`.
    pub mechanism: String,
}

/// For people and models.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what.strip_prefix("bytes of ") {
            Some(what) if self.value >= 1 << 20 => write!(f, "the limit of {} MiB of {what}", self.value >> 20),
            _ => write!(f, "the limit of {} {}", self.value, self.what),
        }
    }
}

/// One promise of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxRow {
    pub promise: String,
    pub holds: bool,
    pub mechanism: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What works here. A missing flag means no.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Capabilities {
    pub network_proxy_launch: bool,
    pub network_proxy_review_domains: bool,
    pub credential_masking: bool,
    pub credential_masking_custom_providers: bool,
    pub capability_discovery_sandbox: bool,
    pub fs_watch_missing: bool,
    pub capability_discovery_v2: bool,
    pub environment_config_read: bool,
    pub http_header_env_vars: bool,
    pub sandboxed_file_streaming: bool,
    pub file_write_streaming: bool,
    pub shell_snapshot_v2: bool,
    pub windows_mxc: bool,
    pub linux_root_write_preserves_devices: bool,
    pub linux_approved_root_write_preserves_restrictions: bool,
    /// Ours, from here on: a repeated start is the same start.
    pub idempotent_start: bool,
    /// A resume wins over an older connection.
    pub session_takeover: bool,
    pub session_end: bool,
    pub process_resize: bool,
    pub stdin_close: bool,
    pub process_signals: bool,
    pub process_list: bool,
    pub output_gaps: bool,
    pub fs_rename: bool,
    pub atomic_writes: bool,
    pub fs_watch: bool,
    /// Permissions, links, names of any bytes, and files written in parts.
    pub file_attributes: bool,
    /// Discovery tells digests, and leaves out what the client knows.
    pub capability_digests: bool,
    /// `fs/writeFile` takes the permissions of a new file.
    pub write_mode: bool,
    /// Answers are followed, and `initialize` carries calls.
    pub call_follow: bool,
    /// A process can be moved into another session.
    pub process_adopt: bool,
    /// Many files in one message, compressed bytes in packs and blocks, and `fs/sync`.
    pub file_packs: bool,
    /// `fs/walk` takes `after`.
    pub walk_pages: bool,
    /// `process/start` takes `connect`.
    pub process_connect: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentStatus {
    pub status: String,
}

encode_with_serde!(EnvironmentInfo, EnvironmentStatus);

method!(Info = "environment/info", Unit => EnvironmentInfo);
method!(Status = "environment/status", Unit => EnvironmentStatus);

/// Parameters of a method that has none: `null`, nothing, or `{}`.
#[derive(Debug, Clone, Default)]
pub struct Unit;

impl Serialize for Unit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Nothing;
        impl<'de> serde::de::Visitor<'de> for Nothing {
            type Value = Unit;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("unit")
            }
            fn visit_unit<E>(self) -> Result<Unit, E> {
                Ok(Unit)
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Unit, A::Error> {
                match map.next_key::<serde::de::IgnoredAny>()? {
                    None => Ok(Unit),
                    Some(_) => Err(serde::de::Error::invalid_type(serde::de::Unexpected::Map, &self)),
                }
            }
        }
        deserializer.deserialize_any(Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shell_is_required() {
        let info: EnvironmentInfo = serde_json::from_str(r#"{"shell":{"name":"sh","path":"/bin/sh"},"future":1}"#).unwrap();
        assert_eq!(info.capabilities, Capabilities::default());
        assert!(info.cwd.is_none());
    }

    #[test]
    fn no_parameters_may_be_spelled_three_ways() {
        assert!(serde_json::from_str::<Unit>("null").is_ok());
        assert!(serde_json::from_str::<Unit>("{}").is_ok());
        assert!(serde_json::from_str::<Unit>("[]").unwrap_err().to_string().starts_with("invalid type: sequence, expected unit"));
        assert!(serde_json::from_str::<Unit>(r#"{"x":1}"#).unwrap_err().to_string().starts_with("invalid type: map, expected unit"));
    }
}
