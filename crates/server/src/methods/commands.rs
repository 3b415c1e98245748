//! Commands that clients run themselves: `command/exec` and `process/spawn`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{Environment, ProcessStart, RemoteProcess};
use outpost_rpc::HandlerOutcome;
use outpost_runtime::permissions::SandboxMode;
use outpost_wire::app::Nothing;
use outpost_wire::app::commands::{
    CommandExec, CommandExecParams, CommandExecResize, CommandExecResizeParams, CommandExecResponse, CommandExecTerminate,
    CommandExecTerminateParams, CommandExecWrite, CommandExecWriteParams, ProcessExited, ProcessKill, ProcessKillParams, ProcessResizePty,
    ProcessResizePtyParams, ProcessSpawn, ProcessSpawnParams, ProcessWriteStdin, ProcessWriteStdinParams,
};
use outpost_wire::base64::Unchecked;
use outpost_wire::exec::process::{EnvPolicy, Inherit, TerminalSize, WriteStatus};
use outpost_wire::intent::{Attachment, EnvironmentId};
use outpost_wire::{Fault, PathUri};

use super::choices::profile_sandbox;
use super::place::{environment, refused};
use crate::connection::ClientConnection;
use crate::jobs::{Job, JobHandle, JobLabel, JobOutcome, JobRequest};
use crate::projection::same;
use crate::server::ServerShared;
use crate::table::Table;

const DEFAULT_TIMEOUT: i64 = 10_000;
const DEFAULT_CAP: u64 = 1 << 20;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<CommandExec, _, _>(exec)
        .on::<CommandExecWrite, _, _>(exec_write)
        .on::<CommandExecResize, _, _>(exec_resize)
        .on::<CommandExecTerminate, _, _>(exec_terminate)
        .on_call::<ProcessSpawn, _, _>(spawn)
        .on::<ProcessWriteStdin, _, _>(write_stdin)
        .on::<ProcessResizePty, _, _>(resize_pty)
        .on::<ProcessKill, _, _>(kill)
}

async fn exec(connection: Arc<ClientConnection>, params: CommandExecParams) -> Result<CommandExecResponse, Fault> {
    check_command(&params.command)?;
    if params.timeout_ms.is_some() && params.disable_timeout {
        return Err(Fault::invalid_params("command/exec cannot have both `timeoutMs` and `disableTimeout`"));
    }
    if params.output_bytes_cap.is_some() && params.disable_output_cap {
        return Err(Fault::invalid_params("command/exec cannot have both `outputBytesCap` and `disableOutputCap`"));
    }
    let is_streamed = params.tty || params.stream_stdin || params.stream_stdout_stderr;
    if is_streamed && params.process_id.is_none() {
        return Err(Fault::invalid_request("command/exec tty or streaming requires a client-supplied processId"));
    }
    check_size("command/exec", params.tty, params.size)?;
    let timeout = if params.disable_timeout { None } else { Some(milliseconds(params.timeout_ms.unwrap_or(DEFAULT_TIMEOUT))?) };
    let cap = (!params.disable_output_cap).then(|| params.output_bytes_cap.unwrap_or(DEFAULT_CAP));
    let mode = sandbox(&connection.server, &params)?;
    let environment = environment(&connection.server, params.environment_id.as_deref())?;

    // The name is taken before anything is waited for: what the client sends next may be about it.
    let (seat, arrival) = JobHandle::new(params.tty, params.stream_stdin);
    let name = params.process_id.as_deref().map(|id| {
        let taken = connection.belongings.commands.take(id, seat);
        taken.ok_or_else(|| Fault::invalid_request(format!("duplicate active command/exec process id: {id:?}")))
    });
    let _name = name.transpose()?;
    let cwd = directory(&connection.server, &environment, params.cwd.as_deref()).await?;
    let id = environment.id().cloned().unwrap_or_else(EnvironmentId::local);
    let streams = params.tty || params.stream_stdout_stderr;
    let wanted = JobRequest {
        sandbox: mode.context(&Attachment::new(id, cwd.clone())),
        start: process(&connection.server, params.command, cwd, params.env, params.tty, params.stream_stdin),
        environment,
        size: params.size,
        streams: params.process_id.filter(|_| streams).map(JobLabel::Command),
        cap: cap.map(|cap| usize::try_from(cap).unwrap_or(usize::MAX)),
        timeout,
    };
    let job = Job::start(connection, wanted, arrival).await.map_err(not_started)?;
    let JobOutcome { exit_code, stdout, stderr, .. } = job.end().await?;
    Ok(CommandExecResponse { exit_code, stdout: stdout.text(), stderr: stderr.text() })
}

/// Answered when it runs; its end is told.
async fn spawn(connection: Arc<ClientConnection>, params: ProcessSpawnParams) -> Result<HandlerOutcome<Nothing>, Fault> {
    check_command(&params.command)?;
    if params.process_handle.is_empty() {
        return Err(Fault::invalid_request("processHandle must not be empty"));
    }
    check_size("process/spawn", params.tty, params.size)?;
    let timeout = params.timeout_ms.unwrap_or(Some(DEFAULT_TIMEOUT)).map(milliseconds).transpose()?;
    let cap = params.output_bytes_cap.unwrap_or(Some(DEFAULT_CAP)).map(|cap| usize::try_from(cap).unwrap_or(usize::MAX));
    let environment = environment(&connection.server, params.environment_id.as_deref())?;
    let handle = params.process_handle;
    let (seat, arrival) = JobHandle::new(params.tty, params.stream_stdin);
    let name = connection.belongings.processes.take(&handle, seat);
    let name = name.ok_or_else(|| Fault::invalid_request(format!("duplicate active process handle: {handle:?}")))?;
    let wanted = JobRequest {
        environment,
        start: process(&connection.server, params.command, params.cwd.0, params.env, params.tty, params.stream_stdin),
        sandbox: None,
        size: params.size,
        streams: (params.tty || params.stream_stdout_stderr).then(|| JobLabel::Process(handle.clone())),
        cap,
        timeout,
    };
    let job = Job::start(connection.clone(), wanted, arrival).await.map_err(not_started)?;
    let rest = async move {
        let (ended, error) = match job.end().await {
            Ok(ended) => (ended, None),
            Err(fault) => (JobOutcome { exit_code: -1, ..JobOutcome::default() }, Some(fault.message)),
        };
        // A client that was notified of the end may use the name again.
        drop(name);
        connection.tell(
            &ProcessExited {
                process_handle: handle,
                exit_code: ended.exit_code,
                stdout: ended.stdout.text(),
                stdout_cap_reached: ended.stdout.is_cut,
                stderr: ended.stderr.text(),
                stderr_cap_reached: ended.stderr.is_cut,
                output_drain_timed_out: ended.left_behind,
                error,
            }
            .into(),
        );
    };
    Ok(HandlerOutcome { output: Nothing {}, rest: Some(Box::pin(rest)) })
}

fn check_command(command: &[String]) -> Result<(), Fault> {
    if command.is_empty() { Err(Fault::invalid_request("command must not be empty")) } else { Ok(()) }
}

fn check_size(method: &str, tty: bool, size: Option<TerminalSize>) -> Result<(), Fault> {
    match size {
        Some(_) if !tty => Err(Fault::invalid_params(format!("{method}: `size` is only for a terminal; set `tty` as well"))),
        Some(size) => check_cells(size),
        None => Ok(()),
    }
}

fn check_cells(size: TerminalSize) -> Result<(), Fault> {
    if size.rows == 0 || size.cols == 0 { Err(Fault::invalid_params("a terminal has at least one row and one column")) } else { Ok(()) }
}

fn milliseconds(given: i64) -> Result<Duration, Fault> {
    let count = u64::try_from(given).map_err(|_| Fault::invalid_params(format!("timeoutMs cannot be negative, and it is {given}")))?;
    Ok(Duration::from_millis(count))
}

fn not_started(error: outpost_environment::EnvironmentError) -> Fault {
    let Fault { code, message, .. } = refused(error);
    Fault::new(code, format!("the command could not be started: {message}"))
}

/// What a command may do: as the client says, else as it is configured.
fn sandbox(server: &ServerShared, params: &CommandExecParams) -> Result<SandboxMode, Fault> {
    let unclear = || Fault::invalid_request("this sandbox cannot be understood");
    match (&params.sandbox_policy, &params.permission_profile) {
        (Some(_), Some(_)) => Err(Fault::invalid_request("`permissionProfile` cannot be combined with `sandboxPolicy`")),
        (Some(policy), None) => same(policy).ok_or_else(unclear),
        (None, Some(profile)) => profile_sandbox(server, profile)?.read().map_err(|_| unclear()),
        (None, None) => Ok(server.runtime.config().sandbox.clone()),
    }
}

/// The directory of a command: below that of the server, or of the executor elsewhere.
async fn directory(server: &ServerShared, environment: &Environment, given: Option<&str>) -> Result<PathUri, Fault> {
    if let Some(absolute) = given.and_then(|path| PathUri::from_syntax(path).ok()) {
        return Ok(absolute);
    }
    let is_local = environment.id().is_none_or(EnvironmentId::is_local);
    let base = if is_local { Some(server.facts.cwd.clone()) } else { environment.info().await.map_err(refused)?.cwd };
    let nowhere = || Fault::invalid_request(format!("{} does not tell where it works: name an absolute `cwd`", environment.name()));
    let base = base.ok_or_else(nowhere)?;
    Ok(given.map_or_else(|| base.clone(), |path| base.join(path)))
}

/// A process with the machine's own variables, without those that look like secrets, and what the client puts over them.
fn process(
    server: &ServerShared,
    argv: Vec<String>,
    cwd: PathUri,
    env: Option<BTreeMap<String, Option<String>>>,
    tty: bool,
    pipe_stdin: bool,
) -> ProcessStart {
    let (mut env, mut exclude) = (env.unwrap_or_default(), vec![]);
    env.retain(|name, value| {
        if value.is_none() {
            exclude.push(name.clone());
        }
        value.is_some()
    });
    let mut env: BTreeMap<String, String> = env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    if tty && !exclude.iter().any(|name| name == "TERM") {
        env.entry("TERM".into()).or_insert_with(|| "xterm-256color".into());
    }
    let policy = EnvPolicy { inherit: Inherit::All, ignore_default_excludes: false, exclude, set: BTreeMap::new(), include_only: vec![] };
    let id = format!("client-{}", server.runtime.new_id());
    ProcessStart { id, argv, cwd, env_policy: Some(policy), env, tty, pipe_stdin: pipe_stdin && !tty, profiles: None, adoption: None }
}

/// A job as later requests name it.
struct Named {
    seat: Option<Arc<JobHandle>>,
    unknown: Fault,
}

impl Named {
    fn command(connection: &ClientConnection, id: &str) -> Self {
        let unknown = Fault::invalid_request(format!("no active command/exec for process id {id:?}"));
        Self { seat: connection.belongings.commands.get(id), unknown }
    }

    fn process(connection: &ClientConnection, handle: &str) -> Self {
        let unknown = Fault::invalid_request(format!("no active process for process handle {handle:?}"));
        Self { seat: connection.belongings.processes.get(handle), unknown }
    }

    async fn running(self) -> Result<Arc<RemoteProcess>, Fault> {
        let seat = self.seat.ok_or_else(|| self.unknown.clone())?;
        seat.process().await.ok_or(self.unknown)
    }

    async fn write(self, delta: Option<Unchecked>, close: bool) -> Result<Nothing, Fault> {
        let delta =
            delta.map(|delta| delta.0.map_err(|error| Fault::invalid_params(format!("invalid deltaBase64: {error}")))).transpose()?;
        if delta.is_none() && !close {
            return Err(Fault::invalid_params("there is nothing to do: send `deltaBase64` or `closeStdin`"));
        }
        let seat = self.seat.as_ref().ok_or_else(|| self.unknown.clone())?;
        if !seat.has_input {
            return Err(Fault::invalid_request("this command was started without `streamStdin`"));
        }
        let _turn = seat.input.lock().await;
        let process = seat.process().await.ok_or_else(|| self.unknown.clone())?;
        if let Some(bytes) = delta {
            match process.write(bytes).await.map_err(refused)? {
                WriteStatus::Accepted | WriteStatus::Starting => {}
                WriteStatus::StdinClosed => return Err(Fault::invalid_request("stdin is already closed")),
                WriteStatus::UnknownProcess => return Err(self.unknown),
            }
        }
        if close {
            process.close_stdin().await.map_err(refused)?;
        }
        Ok(Nothing {})
    }

    async fn resize(self, size: TerminalSize) -> Result<Nothing, Fault> {
        check_cells(size)?;
        if self.seat.as_ref().is_some_and(|seat| !seat.has_terminal) {
            return Err(Fault::invalid_request("this command has no terminal: it was started without `tty`"));
        }
        self.running().await?.resize(size.rows, size.cols).await.map_err(refused)?;
        Ok(Nothing {})
    }

    async fn kill(self) -> Result<Nothing, Fault> {
        self.running().await?.terminate().await.map_err(refused)?;
        Ok(Nothing {})
    }
}

async fn exec_write(connection: Arc<ClientConnection>, params: CommandExecWriteParams) -> Result<Nothing, Fault> {
    Named::command(&connection, &params.process_id).write(params.delta_base64, params.close_stdin).await
}

async fn exec_resize(connection: Arc<ClientConnection>, params: CommandExecResizeParams) -> Result<Nothing, Fault> {
    Named::command(&connection, &params.process_id).resize(params.size).await
}

async fn exec_terminate(connection: Arc<ClientConnection>, params: CommandExecTerminateParams) -> Result<Nothing, Fault> {
    Named::command(&connection, &params.process_id).kill().await
}

async fn write_stdin(connection: Arc<ClientConnection>, params: ProcessWriteStdinParams) -> Result<Nothing, Fault> {
    Named::process(&connection, &params.process_handle).write(params.delta_base64, params.close_stdin).await
}

async fn resize_pty(connection: Arc<ClientConnection>, params: ProcessResizePtyParams) -> Result<Nothing, Fault> {
    Named::process(&connection, &params.process_handle).resize(params.size).await
}

async fn kill(connection: Arc<ClientConnection>, params: ProcessKillParams) -> Result<Nothing, Fault> {
    Named::process(&connection, &params.process_handle).kill().await
}
