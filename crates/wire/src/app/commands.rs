//! Commands that a client runs itself, outside any thread: `command/exec` is answered when the command has ended,
//! `process/spawn` as soon as it runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::Nothing;
use super::files::AbsolutePath;
use super::settings::SandboxPolicy;
use crate::base64::{Base64, Unchecked};
use crate::exec::process::TerminalSize;
use crate::{app_method, encode_with_serde};

app_method!(
    /// Runs a command, by default in the server's sandbox. The answer comes with its end, after all of its output.
    CommandExec = "command/exec", CommandExecParams => CommandExecResponse, experimental ["permissionProfile", "environmentId"]
);
app_method!(CommandExecWrite = "command/exec/write", CommandExecWriteParams => Nothing);
app_method!(CommandExecResize = "command/exec/resize", CommandExecResizeParams => Nothing);
app_method!(CommandExecTerminate = "command/exec/terminate", CommandExecTerminateParams => Nothing);
app_method!(
    /// Starts a process without a sandbox.
    ProcessSpawn = "process/spawn", ProcessSpawnParams => Nothing, experimental
);
app_method!(ProcessWriteStdin = "process/writeStdin", ProcessWriteStdinParams => Nothing, experimental);
app_method!(ProcessResizePty = "process/resizePty", ProcessResizePtyParams => Nothing, experimental);
app_method!(ProcessKill = "process/kill", ProcessKillParams => Nothing, experimental);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandExecParams {
    pub command: Vec<String>,
    /// Left out it is the server's own; a relative one is below that.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Over the server's variables; `null` takes one away.
    #[serde(default)]
    pub env: Option<BTreeMap<String, Option<String>>>,
    /// Left out it is ten seconds.
    #[serde(default)]
    pub timeout_ms: Option<i64>,
    #[serde(default)]
    pub disable_timeout: bool,
    /// Of each stream, in bytes; left out it is one MiB.
    #[serde(default)]
    pub output_bytes_cap: Option<u64>,
    #[serde(default)]
    pub disable_output_cap: bool,
    /// The client's own name for it, needed for terminals, streams and everything that comes later.
    #[serde(default)]
    pub process_id: Option<String>,
    #[serde(default)]
    pub tty: bool,
    #[serde(default)]
    pub size: Option<TerminalSize>,
    #[serde(default)]
    pub stream_stdin: bool,
    #[serde(default)]
    pub stream_stdout_stderr: bool,
    /// Left out it is the configured one.
    #[serde(default)]
    pub sandbox_policy: Option<SandboxPolicy>,
    #[serde(default)]
    pub permission_profile: Option<String>,
    /// Ours: where; left out it is this machine.
    #[serde(default)]
    pub environment_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandExecResponse {
    /// 124 if its time was up.
    pub exit_code: i32,
    /// Empty if it was streamed.
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandExecWriteParams {
    pub process_id: String,
    #[serde(default)]
    pub delta_base64: Option<Unchecked>,
    #[serde(default)]
    pub close_stdin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandExecResizeParams {
    pub process_id: String,
    pub size: TerminalSize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandExecTerminateParams {
    pub process_id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OutputStream {
    /// Also all of a terminal.
    Stdout,
    Stderr,
}

/// `command/exec/outputDelta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandExecOutputDelta {
    pub process_id: String,
    pub stream: OutputStream,
    pub delta_base64: Base64,
    /// Nothing more of this stream is told.
    pub cap_reached: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessSpawnParams {
    pub command: Vec<String>,
    pub cwd: AbsolutePath,
    /// The client's own name for it.
    pub process_handle: String,
    #[serde(default)]
    pub env: Option<BTreeMap<String, Option<String>>>,
    /// Left out it is ten seconds; `null` is no limit.
    #[serde(default, deserialize_with = "given")]
    pub timeout_ms: Option<Option<i64>>,
    /// Of each stream, in bytes. Left out it is one MiB; `null` is no limit.
    #[serde(default, deserialize_with = "given")]
    pub output_bytes_cap: Option<Option<u64>>,
    #[serde(default)]
    pub tty: bool,
    #[serde(default)]
    pub size: Option<TerminalSize>,
    #[serde(default)]
    pub stream_stdin: bool,
    #[serde(default)]
    pub stream_stdout_stderr: bool,
    /// Ours: where; left out it is this machine.
    #[serde(default)]
    pub environment_id: Option<String>,
}

/// Keeps a member that is `null` apart from one that is left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessWriteStdinParams {
    pub process_handle: String,
    #[serde(default)]
    pub delta_base64: Option<Unchecked>,
    #[serde(default)]
    pub close_stdin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessResizePtyParams {
    pub process_handle: String,
    pub size: TerminalSize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessKillParams {
    pub process_handle: String,
}

/// `process/outputDelta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessOutputDelta {
    pub process_handle: String,
    pub stream: OutputStream,
    pub delta_base64: Base64,
    pub cap_reached: bool,
}

/// `process/exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessExited {
    pub process_handle: String,
    /// 124 if its time was up; -1 if its fate is unknown.
    pub exit_code: i32,
    pub stdout: String,
    pub stdout_cap_reached: bool,
    pub stderr: String,
    pub stderr_cap_reached: bool,
    /// Something that it left behind still had its output open; that is ended as well.
    pub output_drain_timed_out: bool,
    /// Ours: why its fate is unknown.
    pub error: Option<String>,
}

encode_with_serde!(CommandExecResponse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_not_the_same_as_left_out() {
        let read = |more: &str| -> ProcessSpawnParams {
            serde_json::from_str(&format!(r#"{{"command":["x"],"cwd":"/","processHandle":"h"{more}}}"#)).unwrap()
        };
        assert_eq!(read("").timeout_ms, None);
        assert_eq!(read(r#","timeoutMs":null"#).timeout_ms, Some(None));
        assert_eq!(read(r#","timeoutMs":5,"outputBytesCap":null"#).timeout_ms, Some(Some(5)));
    }
}
