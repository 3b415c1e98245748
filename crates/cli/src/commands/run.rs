//! `outpost run`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_config::Config;
use outpost_environment::{EnvironmentError, FirstStart, OutputTail, ProcessEvent, ProcessStart, RemoteProcess};
use outpost_runtime::denial;
use outpost_runtime::permissions::SandboxMode;
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{EnvPolicy, Inherit, Signal, Stream};
use outpost_wire::shown::{Form, Showing};
use outpost_wire::{Attachment, EnvironmentId, PathUri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{OURS, complain};
use crate::ProcessContext;
use crate::args::RunArguments;
use crate::connection_notices;
use crate::home::Home;
use crate::out::say;
use crate::reach::{self, Reached};
use crate::signals::{self, ForwardedSignals, Forwarding};
use crate::terminal::RawTerminal;
use crate::variables::VisibleVariables;

/// What a shell says of a command whose reader went away.
const BROKEN_PIPE: u8 = 128 + 13;

pub(crate) async fn run(arguments: RunArguments, own: &ProcessContext) -> ExitCode {
    match run_to_end(arguments, own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => complain(&error, OURS),
    }
}

async fn run_to_end(arguments: RunArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let set = named_variables(&arguments, &own.variables)?;
    let reached = reach::reach(&arguments.place, "outpost-run", own).await?;
    let environment = reached.environment.clone();
    // Where nothing has to be known of the machine before, the command goes along with the connection.
    if !arguments.tty && arguments.sandbox.is_none() {
        return run_at_once(&arguments, set, reached).await;
    }
    let info = reached.connect().await?;
    let terminal = if arguments.tty { RawTerminal::enter() } else { None };
    let line_end = if terminal.is_some() { "\r\n" } else { "\n" };
    // Programs look at what their input is: one that is given nothing searches its directory, one that is given a pipe reads it.
    let pipe_stdin = arguments.tty || !signals::stdin_is_null();
    let start = ProcessStart { pipe_stdin, env: set, ..start(&arguments, &info, reached.is_here())? };
    let what = format!("cannot run `{}` in {} on {}", arguments.command[0], start.cwd.to_syntax(), environment.name());
    let mut listening = ForwardedSignals::listen().context("signals cannot be passed on")?;
    let sandbox = arguments.sandbox.as_deref().map(|name| configured(name, own)).transpose()?;
    let confined = sandbox.and_then(|mode| Confined::new(mode, &start.cwd));
    let context = confined.as_ref().map(|confined| confined.context.clone());
    let (started, early) = match signals::unless_stopped(environment.start_within(start, context), &mut listening).await {
        Ok(done) => done,
        Err(code) => {
            drop(terminal);
            reached.leave().await;
            say("given up: the command may or may not have been started");
            return Ok(code);
        }
    };
    let running = Running { process: Arc::new(started.context(what)?), info, early, listening, pipe_stdin };
    running.finish(&arguments, reached, (terminal, line_end), confined.as_ref()).await
}

/// Connects and starts in one go.
async fn run_at_once(arguments: &RunArguments, env: BTreeMap<String, String>, reached: Reached) -> anyhow::Result<u8> {
    let environment = reached.environment.clone();
    let pipe_stdin = !signals::stdin_is_null();
    let cwd = directory(arguments, reached.is_here())?;
    let place = cwd.as_ref().map(|cwd| format!(" in {}", cwd.to_syntax())).unwrap_or_default();
    let what = format!("cannot run `{}`{place} on {}", arguments.command[0], environment.name());
    let start = ProcessStart { pipe_stdin, env, ..plain_start(arguments, PathUri::root()) };
    let mut listening = ForwardedSignals::listen().context("signals cannot be passed on")?;
    let starting = environment.connect_and_start(FirstStart { start, cwd, session_id: Uuid::new_v4().to_string() });
    let (started, early) = match signals::unless_stopped(starting, &mut listening).await {
        Ok(done) => done,
        Err(code) => {
            reached.leave().await;
            say("given up: the command may or may not have been started");
            return Ok(code);
        }
    };
    let (info, process) = match started {
        Ok(started) => started,
        // What is wrong with the connection has nothing to do with the command.
        Err(error @ EnvironmentError::Fault(_)) => return Err(error).context(what),
        Err(error) => return Err(error.into()),
    };
    let running = Running { process: Arc::new(process), info, early, listening, pipe_stdin };
    running.finish(arguments, reached, (None, "\n"), None).await
}

/// A command that was started.
struct Running {
    process: Arc<RemoteProcess>,
    info: EnvironmentInfo,
    /// What was to be passed on before there was a command.
    early: Option<Signal>,
    listening: ForwardedSignals,
    pipe_stdin: bool,
}

impl Running {
    async fn finish(
        self,
        arguments: &RunArguments,
        reached: Reached,
        (terminal, line_end): (Option<RawTerminal>, &'static str),
        confined: Option<&Confined>,
    ) -> anyhow::Result<u8> {
        let Self { process, info, early, listening, pipe_stdin } = self;
        let environment = reached.environment.clone();
        let forwarding = Forwarding { process: process.clone(), environment: environment.clone(), capabilities: info.capabilities.clone() };
        if let Some(signal) = early {
            forwarding.send(signal).await;
        }
        let given_up = AbortOnDropHandle::new(tokio::spawn(signals::forward(forwarding, listening, arguments.tty)));
        let _input = pipe_stdin.then(|| AbortOnDropHandle::new(tokio::spawn(forward_input(process.clone(), info.clone()))));
        let _notices = AbortOnDropHandle::new(tokio::spawn(connection_notices::tell(environment.clone(), line_end)));
        // Who asks for a terminal there asks for what programs do with one, as with ssh.
        let passing = if arguments.tty { Passing::AsItIs } else { Passing::ShownOnTerminals };
        let outcome = tokio::select! {
            outcome = copy_output(&process, passing) => outcome,
            Ok(code) = given_up => Ok(RunOutcome { code, ..RunOutcome::default() }),
        };
        drop(terminal);
        reached.leave().await;
        let ended = outcome?;
        if let (Some(confined), Some(printed)) = (confined, &ended.refused) {
            confined.explain(printed);
        }
        ended.whole()
    }
}

/// The sandbox that a command runs in.
struct Confined {
    mode: SandboxMode,
    context: SandboxContext,
    cwd: PathUri,
}

impl Confined {
    /// Nothing where the mode confines nothing.
    fn new(mode: SandboxMode, cwd: &PathUri) -> Option<Self> {
        let context = mode.context(&Attachment::new(EnvironmentId::local(), cwd.clone()))?;
        Some(Self { mode, context, cwd: cwd.clone() })
    }

    /// Says what would allow what the sandbox probably refused.
    fn explain(&self, printed: &[u8]) {
        say(&denial::hint(&String::from_utf8_lossy(printed), &self.mode, &self.context, &self.cwd));
    }
}

/// The sandbox that an agent's command would get, with the writable roots and the network of the configuration.
fn configured(name: &str, own: &ProcessContext) -> anyhow::Result<SandboxMode> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(Config::read(file.as_deref(), &own.settings)?.sandbox_named(name)?)
}

/// The variables that were asked for by name, with the values of those that are this process's own.
fn named_variables(arguments: &RunArguments, own: &VisibleVariables) -> anyhow::Result<BTreeMap<String, String>> {
    let mut named = BTreeMap::new();
    for (name, value) in &arguments.set {
        let value = match value {
            Some(value) => value.clone(),
            None => {
                let value = own.get(name).with_context(|| format!("--set-env {name}: there is no such variable here"))?;
                value.to_str().with_context(|| format!("--set-env {name}: its value is not UTF-8"))?.to_owned()
            }
        };
        named.insert(name.clone(), value);
    }
    if arguments.tty
        && let Some(term) = own.get("TERM").and_then(|term| term.to_str())
    {
        named.entry("TERM".into()).or_insert(term.into());
    }
    Ok(named)
}

/// Where the command runs, if that can be said without asking there.
fn directory(arguments: &RunArguments, is_here: bool) -> anyhow::Result<Option<PathUri>> {
    let here = std::env::current_dir().context("the current directory is gone")?;
    Ok(match &arguments.cd {
        Some(directory) if is_here => Some(PathUri::from_native(&here.join(directory))?),
        Some(directory) => Some(PathUri::from_native(directory).context("-C needs an absolute path on another machine")?),
        None if is_here => Some(PathUri::from_native(&here)?),
        None => None,
    })
}

fn start(arguments: &RunArguments, info: &EnvironmentInfo, is_here: bool) -> anyhow::Result<ProcessStart> {
    let usual = || info.cwd.clone().or_else(|| info.user_home_dir.clone());
    let cwd = directory(arguments, is_here)?.or_else(usual).context("the executor tells no directory; give one with -C")?;
    Ok(plain_start(arguments, cwd))
}

fn plain_start(arguments: &RunArguments, cwd: PathUri) -> ProcessStart {
    ProcessStart {
        id: format!("run-{}", Uuid::new_v4()),
        argv: arguments.command.clone(),
        cwd,
        env_policy: Some(everything()),
        env: BTreeMap::new(),
        tty: arguments.tty,
        pipe_stdin: false,
        profiles: None,
        adoption: None,
    }
}

/// What a program on a terminal must know of it.
pub(crate) fn terminal_kind() -> Option<(String, String)> {
    Some(("TERM".into(), std::env::var("TERM").ok()?))
}

/// The executor's own variables, except those that look like secrets.
pub(crate) fn everything() -> EnvPolicy {
    EnvPolicy { inherit: Inherit::All, ignore_default_excludes: false, exclude: vec![], set: BTreeMap::new(), include_only: vec![] }
}

/// How a command ended.
#[derive(Default)]
pub(crate) struct RunOutcome {
    pub code: u8,
    /// How much of its output was not read in time.
    pub lost: Vec<String>,
    /// The end of what it printed, if its sandbox probably refused something.
    refused: Option<Vec<u8>>,
}

/// So much of the end of an output is looked at for what was refused.
const LOOKED_AT: usize = 64 << 10;

impl RunOutcome {
    /// The exit code, if nothing is missing.
    fn whole(self) -> anyhow::Result<u8> {
        if self.lost.is_empty() {
            return Ok(self.code);
        }
        bail!("output was lost because it was not read in time: {}", self.lost.join(", "))
    }
}

/// What becomes of a command's output on its way to a terminal of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    AsItIs,
    /// What a terminal would obey is made visible instead.
    ShownOnTerminals,
}

impl Passing {
    fn to(self, is_terminal: bool) -> Option<Showing> {
        (is_terminal && self == Self::ShownOnTerminals).then(|| Showing::new(Form::Text))
    }
}

/// Copies what the command writes to where it belongs, and tells how it ended.
pub(crate) async fn copy_output(process: &RemoteProcess, passing: Passing) -> anyhow::Result<RunOutcome> {
    let mut stdout = Pipe { to: tokio::io::stdout(), showing: passing.to(std::io::stdout().is_terminal()) };
    let mut stderr = Pipe { to: tokio::io::stderr(), showing: passing.to(std::io::stderr().is_terminal()) };
    let (mut code, mut lost, mut tail, mut is_refused) = (None, Vec::new(), OutputTail::new(LOOKED_AT), false);
    while let Some(event) = process.next().await {
        match event {
            ProcessEvent::Output { stream, bytes } => {
                tail.push(&bytes);
                let written = match stream {
                    Stream::Stderr => stderr.write(&bytes).await,
                    Stream::Stdout | Stream::Pty => stdout.write(&bytes).await,
                };
                if written.is_err() {
                    // The reader of our output is gone, as would be the command if it had written there itself.
                    let _ = tokio::time::timeout(Duration::from_secs(1), process.terminate()).await;
                    return Ok(RunOutcome { code: BROKEN_PIPE, lost, refused: None });
                }
            }
            ProcessEvent::Gap { bytes: Some(bytes) } => lost.push(format!("{bytes} bytes")),
            ProcessEvent::Gap { bytes: None } => lost.push("an unknown number of bytes".into()),
            ProcessEvent::Exited { code: exit, limit, notices, denied } => {
                is_refused = denied && limit.is_none();
                if exit < 0 {
                    say("the exit status of the command is not known: the process that waited for it was killed");
                }
                code = Some(exit);
                if let Some(limit) = limit {
                    tracing::warn!("the command was stopped by {limit}");
                }
                notices.iter().for_each(|notice| tracing::warn!("{notice}"));
            }
            ProcessEvent::Closed => break,
            ProcessEvent::Lost { reason } => bail!("the outcome of the command is unknown: {reason}"),
        }
    }
    // A reader that is gone by now has missed nothing.
    let _ = stdout.end().await;
    let _ = stderr.end().await;
    let code = code.context("the command ended without an exit code")?;
    Ok(RunOutcome { code: u8::try_from(code).unwrap_or(OURS), lost, refused: is_refused.then(|| tail.bytes().to_vec()) })
}

/// Where one of the streams goes.
struct Pipe<W> {
    to: W,
    /// How it goes on, if it is shown.
    showing: Option<Showing>,
}

impl<W: AsyncWriteExt + Unpin> Pipe<W> {
    async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.showing {
            None => self.to.write_all(bytes).await?,
            Some(showing) => {
                let mut shown = String::with_capacity(bytes.len());
                showing.bytes(bytes, &mut shown);
                self.to.write_all(shown.as_bytes()).await?;
            }
        }
        self.to.flush().await
    }

    async fn end(&mut self) -> std::io::Result<()> {
        let mut shown = String::new();
        self.showing.iter_mut().for_each(|showing| showing.end(&mut shown));
        self.to.write_all(shown.as_bytes()).await?;
        self.to.flush().await
    }
}

/// Copies our standard input to the command's.
async fn forward_input(process: Arc<RemoteProcess>, info: EnvironmentInfo) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stdin.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            // The command's own end says more than a write that failed because of it.
            Ok(length) => {
                if process.write(buffer[..length].to_vec().into()).await.is_err() {
                    return;
                }
            }
        }
    }
    if info.capabilities.stdin_close {
        let _ = process.close_stdin().await;
    } else {
        tracing::warn!("this executor cannot be told that the input has ended");
    }
}
