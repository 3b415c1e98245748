//! What the executor tells about its machine.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use outpost_wire::PathUri;
use outpost_wire::exec::environment::{Capabilities, EnvironmentInfo, Limit, SandboxRow, Shell};

use sha2::{Digest, Sha256};

use crate::config::ExecutorConfig;

/// Only what works.
fn capabilities() -> Capabilities {
    Capabilities {
        fs_watch_missing: true,
        http_header_env_vars: true,
        file_write_streaming: true,
        idempotent_start: true,
        session_takeover: true,
        session_end: true,
        process_resize: true,
        stdin_close: true,
        process_signals: true,
        process_list: true,
        output_gaps: true,
        fs_rename: true,
        atomic_writes: true,
        sandboxed_file_streaming: true,
        fs_watch: true,
        file_attributes: true,
        capability_discovery_sandbox: true,
        capability_discovery_v2: true,
        environment_config_read: true,
        shell_snapshot_v2: true,
        capability_digests: true,
        call_follow: true,
        write_mode: true,
        process_adopt: true,
        file_packs: true,
        walk_pages: true,
        process_connect: true,
        ..Capabilities::default()
    }
}

fn variable<'a>(config: &'a ExecutorConfig, name: &str) -> Option<&'a OsString> {
    config.variables.get(OsStr::new(name)).filter(|value| !value.is_empty())
}

/// Everything that is known without trying anything.
pub(crate) fn gather(config: &ExecutorConfig, instance_id: String) -> EnvironmentInfo {
    let variable = |name| variable(config, name);
    let uri = |path: &Path| PathUri::from_native(&config.cwd.join(path)).ok();
    let temporary = variable("TMPDIR").map(PathBuf::from);
    EnvironmentInfo {
        shell: shell(variable("SHELL").map(Path::new)),
        executor_version: Some(config.version.clone()),
        provider_id: config.executor_id.as_ref().map(|id| provider_id(id)),
        cwd: uri(&config.cwd),
        user_home_dir: variable("HOME").and_then(|home| uri(Path::new(home))),
        platform_os: Some(std::env::consts::OS.into()),
        prepend_path_dirs: Some(Vec::new()),
        temporary_directories: Some(temporary.iter().filter_map(|path| uri(path)).collect()),
        temp_dir: uri(temporary.as_deref().unwrap_or(Path::new("/tmp"))),
        capabilities: capabilities(),
        executor_id: config.executor_id.clone(),
        instance_id: Some(instance_id),
        limits: Vec::new(),
        sandbox: Vec::new(),
    }
}

/// Adds what sandboxes hold, and what holds the limits of a session: both are tried first.
pub(crate) fn with_card(info: EnvironmentInfo, config: &ExecutorConfig) -> EnvironmentInfo {
    let mut card = outpost_sandbox::told(&config.launcher);
    card.rows.push(config.git.row(variable(config, "PATH").map(OsString::as_os_str), card.level));
    let limits = config.launcher.limits().into_iter().map(limit).collect();
    EnvironmentInfo { limits, sandbox: card.rows.into_iter().map(sandbox_row).collect(), ..info }
}

fn sandbox_row(row: outpost_sandbox::PromiseRow) -> SandboxRow {
    SandboxRow { promise: row.promise.into(), holds: row.holds, mechanism: row.mechanism, reason: row.reason }
}

/// A limit as it is told.
pub(crate) fn limit(limit: outpost_sandbox::EffectiveLimit) -> Limit {
    Limit { what: limit.what.into(), value: limit.value, mechanism: limit.mechanism.name().into() }
}

/// The user's shell if it is one that clients know, else the best there is.
fn shell(preferred: Option<&Path>) -> Shell {
    let candidates = preferred.into_iter().chain(["/bin/bash", "/usr/bin/bash", "/bin/sh"].map(Path::new));
    for path in candidates {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if matches!(name, "bash" | "zsh" | "sh") && path.is_absolute() && path.exists() {
            return Shell { name: name.into(), path: path.display().to_string() };
        }
    }
    Shell { name: "sh".into(), path: "/bin/sh".into() }
}

/// Opaque to clients, the same in every run of one install.
fn provider_id(executor_id: &str) -> String {
    let digest = Sha256::digest(executor_id.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
