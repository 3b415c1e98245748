//! A process in an environment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use outpost_wire::exec::adoption::{Adopt, AdoptParams, AdoptionClaim};
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{
    CloseStdin, EnvPolicy, PortConnection, ProcessParams, Read, ReadParams, Resize, ResizeParams, SendSignal, ShellSnapshot, Signal,
    SignalParams, Start, StartParams, TerminalSize, Terminate, Write, WriteParams, WriteStatus,
};
use outpost_wire::fault::NOT_ADOPTABLE;
use outpost_wire::{Fault, Method, PathUri};

use crate::environment::{Environment, EnvironmentError};
use crate::process_event_buffer::{ProcessEvent, ProcessEventBuffer};
use crate::state::Connected;

/// How long to wait for a process that is not quite there, at first.
const NOT_YET: Duration = Duration::from_millis(5);
/// So much of a process that is pulled is read at once, and a read waits so long for something to come.
const PULLED: usize = 512 << 10;
const PULL_WAIT: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Debug, Clone)]
pub struct ProcessStart {
    /// Chosen by the caller; a repeated start under one id is the same start.
    pub id: String,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    pub env_policy: Option<EnvPolicy>,
    pub env: BTreeMap<String, String>,
    pub tty: bool,
    pub pipe_stdin: bool,
    /// Login shells of one scope read their profiles once, silently, where the executor can do that; without a scope each one reads
    /// them, and what they print is part of its output.
    pub profiles: Option<String>,
    /// Who may have it when this program is gone, where the executor can do that.
    pub adoption: Option<AdoptionClaim>,
}

impl ProcessStart {
    /// As the wire says it, without a sandbox and a terminal's size.
    pub(crate) fn params(&self, shell_snapshot: Option<ShellSnapshot>) -> StartParams {
        StartParams {
            process_id: self.id.clone(),
            metadata: None,
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            env_policy: self.env_policy.clone(),
            env: self.env.clone(),
            shell_snapshot,
            tty: self.tty,
            pipe_stdin: self.pipe_stdin,
            arg0: None,
            sandbox: None,
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            terminal_size: None,
            adoption: None,
            connect: None,
        }
    }

    /// How the executor is asked to read the profiles of a login shell.
    fn shell_snapshot(&self, info: &EnvironmentInfo) -> Option<ShellSnapshot> {
        let scope_id = self.profiles.clone()?;
        let is_login = matches!(&self.argv[..], [program, flags, _, ..] if *program == info.shell.path && flags == "-lc");
        let is_known = ["bash", "zsh", "sh"].contains(&info.shell.name.as_str());
        let is_possible = is_login && is_known && info.capabilities.shell_snapshot_v2;
        is_possible.then(|| ShellSnapshot { scope_id, shell: info.shell.clone() })
    }
}

/// A process that was started. Dropping it does not end it.
pub struct RemoteProcess {
    pub(crate) environment: Environment,
    pub(crate) id: String,
    pub(crate) inbox: Arc<ProcessEventBuffer>,
    pub(crate) writes: AtomicU64,
    /// The session that it was started in. It is in no other.
    pub(crate) session: u64,
    /// Its output is read when it is asked for, and not before: what the caller does not ask for stays there, and holds up nothing else.
    pub(crate) is_pulled: bool,
}

impl Environment {
    /// Starts a process, once, whatever happens to the connection meanwhile.
    pub async fn start(&self, start: ProcessStart) -> Result<RemoteProcess, EnvironmentError> {
        self.start_within(start, None).await
    }

    /// The same on a terminal of a certain size.
    pub async fn start_sized(
        &self,
        start: ProcessStart,
        sandbox: Option<SandboxContext>,
        size: TerminalSize,
    ) -> Result<RemoteProcess, EnvironmentError> {
        let process = self.start_with(start, sandbox, Some(size)).await?;
        // An executor that does not know sizes at the start may know them now; to one that knows neither it does not matter.
        if self.shared().ready().await?.info.capabilities.process_resize {
            process.resize(size.rows, size.cols).await?;
        }
        Ok(process)
    }

    /// The same, in a sandbox.
    pub async fn start_within(&self, start: ProcessStart, sandbox: Option<SandboxContext>) -> Result<RemoteProcess, EnvironmentError> {
        self.start_with(start, sandbox, None).await
    }

    async fn start_with(
        &self,
        start: ProcessStart,
        sandbox: Option<SandboxContext>,
        terminal_size: Option<TerminalSize>,
    ) -> Result<RemoteProcess, EnvironmentError> {
        let connected = self.shared().ready().await?;
        let shell_snapshot = start.shell_snapshot(&connected.info);
        let adoption = start.adoption.clone().filter(|_| connected.info.capabilities.process_adopt);
        let params = StartParams { sandbox, terminal_size, adoption, ..start.params(shell_snapshot) };
        self.begin(params, connected.session).await
    }

    /// Connects with a port there: a process of the executor's own, whose input and output are the connection. Its output is pulled.
    /// Refused where the executor cannot do that.
    pub async fn connect_port(&self, id: String, connect: PortConnection) -> Result<RemoteProcess, EnvironmentError> {
        let connected = self.shared().ready().await?;
        if !connected.info.capabilities.process_connect {
            let why = "the executor there cannot connect with ports: it must be one of Outpost, as new as this program";
            return Err(EnvironmentError::Fault(Fault::invalid_request(why)));
        }
        let start = ProcessStart {
            id,
            argv: vec!["connect".into(), connect.port.to_string()],
            cwd: PathUri::root(),
            env_policy: None,
            env: BTreeMap::new(),
            tty: false,
            pipe_stdin: true,
            profiles: None,
            adoption: None,
        };
        let connect = PortConnection { pull: true, ..connect };
        self.begin(StartParams { connect: Some(connect), ..start.params(None) }, connected.session).await
    }

    async fn begin(&self, params: StartParams, session: u64) -> Result<RemoteProcess, EnvironmentError> {
        let inbox = Arc::new(ProcessEventBuffer::default());
        let id = params.process_id.clone();
        let is_pulled = params.connect.as_ref().is_some_and(|connect| connect.pull);
        // Its first output may overtake the answer to its start.
        if !is_pulled && !self.shared().processes.add(&id, inbox.clone()) {
            return Err(EnvironmentError::IdInUse { id });
        }
        // Made before the start, so that a cancelled caller leaves nothing behind.
        let process = RemoteProcess { environment: self.clone(), id, inbox, writes: AtomicU64::new(0), session, is_pulled };
        self.start_once(&params, session).await?;
        if !is_pulled {
            self.shared().processes.note_unread(process.inbox.attend());
        }
        Ok(process)
    }

    /// Takes up a process: all of its output that is still kept, and what comes. One of another session is moved into this one, where
    /// the executor can do that and the claim is right; without a claim, only this session's own are found.
    pub async fn adopt(&self, id: &str, claim: Option<AdoptionClaim>) -> Result<RemoteProcess, EnvironmentError> {
        let connected = self.shared().ready().await?;
        let inbox = Arc::new(ProcessEventBuffer::default());
        if !self.shared().processes.add(id, inbox.clone()) {
            return Err(EnvironmentError::IdInUse { id: id.to_owned() });
        }
        let process = RemoteProcess {
            environment: self.clone(),
            id: id.to_owned(),
            inbox,
            writes: AtomicU64::new(0),
            session: connected.session,
            is_pulled: false,
        };
        let claim = claim.filter(|_| connected.info.capabilities.process_adopt);
        let claimed = match claim {
            Some(AdoptionClaim { secret, epoch }) => {
                let params = AdoptParams { process_id: id.to_owned(), secret, epoch };
                Some(self.shared().call_on::<Adopt>(&connected, &params).await)
            }
            None => None,
        };
        match claimed {
            Some(Ok(_)) => {}
            // It may have been started in this session without a claim.
            Some(Err(EnvironmentError::Fault(fault))) if fault.code == NOT_ADOPTABLE => {
                self.find(&connected, id).await.map_err(|error| match error {
                    EnvironmentError::Fault(_) => EnvironmentError::Fault(fault),
                    other => other,
                })?;
            }
            Some(Err(error)) => return Err(error),
            None => self.find(&connected, id).await?,
        }
        self.shared().processes.note_unread(process.inbox.attend());
        self.shared().processes.note_behind(id);
        Ok(process)
    }

    /// Fails if this session has no such process.
    async fn find(&self, connected: &Arc<Connected>, id: &str) -> Result<(), EnvironmentError> {
        let question = ReadParams { process_id: id.to_owned(), max_bytes: Some(0), ..ReadParams::default() };
        self.shared().call_on::<Read>(connected, &question).await.map(drop)
    }

    /// The start is repeated only in the session that may have seen it: in another one, its outcome would be unknown.
    async fn start_once(&self, params: &StartParams, session: u64) -> Result<(), EnvironmentError> {
        let mut is_repeated = false;
        loop {
            let connected = match self.shared().ready_in(session, &params.process_id).await {
                Ok(connected) => connected,
                // It was sent once, and its outcome is unknown.
                Err(_) if is_repeated => return Err(self.unknown::<Start>()),
                Err(error) => return Err(error),
            };
            let is_idempotent = connected.info.capabilities.idempotent_start;
            // An executor that does not know a start when it sees it again must be asked whether it has seen it.
            if is_repeated && !is_idempotent {
                match self.is_there(&connected, &params.process_id).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(EnvironmentError::Unknown { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            match self.shared().call_on::<Start>(&connected, params).await {
                // A repeated start may have been answered while the first one is still under way and can fail.
                Ok(_) if is_repeated && is_idempotent => match self.is_there(&connected, &params.process_id).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => return Err(self.unknown::<Start>()),
                    Err(EnvironmentError::Unknown { .. }) => {}
                    Err(error) => return Err(error),
                },
                Ok(_) => return Ok(()),
                Err(EnvironmentError::Unknown { .. }) => is_repeated = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the executor knows a process, once it can tell.
    async fn is_there(&self, connected: &Arc<Connected>, id: &str) -> Result<bool, EnvironmentError> {
        let question = ReadParams { process_id: id.to_owned(), max_bytes: Some(0), ..ReadParams::default() };
        loop {
            match self.shared().call_on::<Read>(connected, &question).await {
                Ok(_) => return Ok(true),
                Err(EnvironmentError::Fault(fault)) if fault.is_starting() => tokio::time::sleep(NOT_YET).await,
                Err(EnvironmentError::Fault(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn unknown<M: Method>(&self) -> EnvironmentError {
        EnvironmentError::Unknown { name: self.name().to_owned(), method: M::NAME }
    }
}

impl RemoteProcess {
    /// Where it runs.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The next thing that the process did; nothing after [`ProcessEvent::Closed`] or [`ProcessEvent::Lost`].
    pub async fn next(&self) -> Option<ProcessEvent> {
        if self.is_pulled {
            return self.pull().await;
        }
        let event = self.inbox.next().await;
        if let Some(ProcessEvent::Output { bytes, .. }) = &event {
            self.environment.shared().processes.note_read(bytes.len());
        }
        event
    }

    /// Reads the next thing there, unless it was read already. Can be given up at any time.
    async fn pull(&self) -> Option<ProcessEvent> {
        loop {
            if let Some(next) = self.inbox.ready() {
                return next;
            }
            let params = ReadParams {
                process_id: self.id.clone(),
                after_seq: Some(self.inbox.last_seq()),
                max_bytes: Some(PULLED),
                wait_ms: u64::try_from(PULL_WAIT.as_millis()).ok(),
            };
            match self.call_again::<Read>(&params).await {
                Ok(answer) => drop(self.inbox.catch_up(answer)),
                Err(EnvironmentError::Fault(fault)) if fault.is_starting() => tokio::time::sleep(NOT_YET).await,
                Err(error) => drop(self.inbox.lose(error.to_string())),
            }
        }
    }

    /// Writes to its standard input, exactly once.
    pub async fn write(&self, bytes: Bytes) -> Result<WriteStatus, EnvironmentError> {
        let write_id = self.writes.fetch_add(1, Ordering::Relaxed).to_string();
        self.write_as(write_id, bytes).await
    }

    /// The same under a name of the caller's own: a write that is repeated under its name is the same write, also by the
    /// next start of the program.
    pub async fn write_as(&self, write_id: String, bytes: Bytes) -> Result<WriteStatus, EnvironmentError> {
        let params = WriteParams { process_id: self.id.clone(), chunk: bytes.into(), write_id };
        let mut wait = NOT_YET;
        loop {
            match self.call_again::<Write>(&params).await?.status {
                // A start that was repeated after a lost connection may have been answered before the process is there.
                // Nothing was written then.
                WriteStatus::Starting => tokio::time::sleep(wait).await,
                status => return Ok(status),
            }
            wait = (wait * 2).min(NOT_YET * 20);
        }
    }

    /// Ends its standard input. Not asked twice: on a terminal it is a key that is pressed.
    pub async fn close_stdin(&self) -> Result<(), EnvironmentError> {
        self.call_once::<CloseStdin>(&ProcessParams { process_id: self.id.clone() }).await?;
        Ok(())
    }

    pub async fn signal(&self, signal: Signal) -> Result<(), EnvironmentError> {
        self.call_once::<SendSignal>(&SignalParams { process_id: self.id.clone(), signal }).await?;
        // It may have ended long ago without our having heard of it.
        self.environment.shared().processes.note_behind(&self.id);
        Ok(())
    }

    pub async fn resize(&self, rows: u16, cols: u16) -> Result<(), EnvironmentError> {
        self.call_again::<Resize>(&ResizeParams { process_id: self.id.clone(), rows, cols }).await?;
        Ok(())
    }

    /// One attempt, and only in the session that knows the process.
    async fn call_once<M: Method>(&self, params: &M::Params) -> Result<M::Output, EnvironmentError> {
        let shared = self.environment.shared();
        let connected = shared.ready_in(self.session, &self.id).await?;
        shared.call_on::<M>(&connected, params).await
    }

    async fn call_again<M: Method>(&self, params: &M::Params) -> Result<M::Output, EnvironmentError> {
        loop {
            match self.call_once::<M>(params).await {
                Err(EnvironmentError::Unknown { .. }) => {}
                other => return other,
            }
        }
    }

    /// Kills it and its group. False if it had ended.
    pub async fn terminate(&self) -> Result<bool, EnvironmentError> {
        let running = self.call_again::<Terminate>(&ProcessParams { process_id: self.id.clone() }).await?.running;
        if !running {
            // Its end is known there; it may not be known here.
            self.environment.shared().processes.note_behind(&self.id);
        }
        Ok(running)
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        let processes = &self.environment.shared().processes;
        processes.remove(&self.id, &self.inbox);
        // Unread output is no longer waited for.
        let unread = self.inbox.discard();
        processes.note_read(unread);
    }
}
