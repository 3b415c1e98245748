//! `outpost run`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_environment::{Connector, Environment, EnvironmentOptions, ProcessEvent, ProcessStart, RemoteProcess, State, Target};
use outpost_executor::{Executor, Lifetime};
use outpost_rpc::PeerOptions;
use outpost_rpc::link::memory;
use outpost_wire::PathUri;
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::process::{EnvPolicy, Inherit, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{OURS, complain};
use crate::args::RunArguments;
use crate::local::{Confinement, ExecutorSettings, executor_config};
use crate::signals::{self, Forwarding, Signals};
use crate::terminal::RawTerminal;
use crate::variables::Variables;
use crate::{Process, tokens};

/// What a shell says of a command whose reader went away.
const BROKEN_PIPE: u8 = 128 + 13;
/// A lost connection that is back sooner is not worth a word.
const NOTICEABLE: Duration = Duration::from_secs(2);

pub async fn run(arguments: RunArguments, own: &Process) -> ExitCode {
    match run_to_end(arguments, own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => complain(&error, OURS),
    }
}

async fn run_to_end(arguments: RunArguments, own: &Process) -> anyhow::Result<u8> {
    let set = named_variables(&arguments, &own.variables)?;
    let place = Place::of(&arguments, own)?;
    let options = EnvironmentOptions {
        client_name: "outpost-run".into(),
        patience: Duration::from_secs(arguments.patience),
        jitter_seed: u64::from(std::process::id()),
        ..EnvironmentOptions::default()
    };
    let environment = Environment::new(place.connector, options);
    let info = environment.info().await?;
    let terminal = if arguments.tty { RawTerminal::enter() } else { None };
    let pipe_stdin = arguments.tty || info.capabilities.stdin_close || !signals::stdin_is_null();
    let start = ProcessStart { pipe_stdin, env: set, ..start(&arguments, &info, place.executor.is_some())? };
    let what = format!("cannot run `{}` in {} on {}", arguments.command[0], start.cwd, environment.name());
    let listening = Signals::listen().context("signals cannot be passed on")?;
    let process = Arc::new(environment.start(start).await.context(what)?);
    let forwarding = Forwarding { process: process.clone(), environment: environment.clone(), capabilities: info.capabilities.clone() };
    let _signals = AbortOnDropHandle::new(tokio::spawn(signals::forward(forwarding, listening, arguments.tty)));
    let _input = pipe_stdin.then(|| AbortOnDropHandle::new(tokio::spawn(forward_input(process.clone(), info.clone()))));
    let _notices = AbortOnDropHandle::new(tokio::spawn(tell_outages(environment.clone())));
    let outcome = copy_output(&process).await;
    drop(terminal);
    let _ = environment.end().await;
    if let Some(executor) = place.executor {
        executor.shut_down().await;
    }
    outcome
}

/// Where the command runs.
struct Place {
    connector: Connector,
    /// The executor of this very process, if that is where.
    executor: Option<Executor>,
}

impl Place {
    fn of(arguments: &RunArguments, own: &Process) -> anyhow::Result<Self> {
        if let Some(command) = &arguments.via {
            return Ok(Self { connector: Connector::command(command), executor: None });
        }
        if let Some(target) = &arguments.environment {
            let token = tokens::for_url(target, &own.variables)?;
            token.iter().for_each(|token| own.secrets.register(token));
            let target: Target = target.parse()?;
            return Ok(Self { connector: Connector::target(target, token), executor: None });
        }
        let settings = ExecutorSettings {
            grace: Duration::from_secs(600),
            spool: 64 << 20,
            peer: PeerOptions::default(),
            keeps_fates: false,
            listener: "this process".into(),
            http_allow: Vec::new(),
            confinement: Confinement::default(),
        };
        let executor = Executor::new(executor_config(settings, &own.variables)?);
        let serving = executor.clone();
        let connector = Connector::new("this machine", move || {
            let (ours, theirs) = memory::pair();
            let executor = serving.clone();
            tokio::spawn(async move { executor.serve(theirs, Lifetime::Grace).await });
            std::future::ready(Ok(ours))
        });
        Ok(Self { connector, executor: Some(executor) })
    }
}

/// The variables that were asked for by name, with the values of those that are this process's own.
fn named_variables(arguments: &RunArguments, own: &Variables) -> anyhow::Result<BTreeMap<String, String>> {
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

fn start(arguments: &RunArguments, info: &EnvironmentInfo, is_here: bool) -> anyhow::Result<ProcessStart> {
    let here = std::env::current_dir().context("the current directory is gone")?;
    let cwd = match &arguments.cd {
        Some(directory) if is_here => PathUri::from_native(&here.join(directory))?,
        Some(directory) => PathUri::from_native(directory).context("-C needs an absolute path on another machine")?,
        None if is_here => PathUri::from_native(&here)?,
        None => info.cwd.clone().or_else(|| info.user_home_dir.clone()).context("the executor tells no directory; give one with -C")?,
    };
    let env_policy =
        EnvPolicy { inherit: Inherit::All, ignore_default_excludes: false, exclude: vec![], set: BTreeMap::new(), include_only: vec![] };
    Ok(ProcessStart {
        id: format!("run-{}", Uuid::new_v4()),
        argv: arguments.command.clone(),
        cwd,
        env_policy: Some(env_policy),
        env: BTreeMap::new(),
        tty: arguments.tty,
        pipe_stdin: false,
    })
}

/// Copies what the command writes to where it belongs, and returns its exit code.
async fn copy_output(process: &RemoteProcess) -> anyhow::Result<u8> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    let (mut code, mut lost) = (None, Vec::new());
    while let Some(event) = process.next().await {
        match event {
            ProcessEvent::Output { stream, bytes } => {
                let written = match stream {
                    Stream::Stderr => write(&mut stderr, &bytes).await,
                    Stream::Stdout | Stream::Pty => write(&mut stdout, &bytes).await,
                };
                if written.is_err() {
                    // Whoever read our output is gone, as would be the command if it had written there itself.
                    let _ = tokio::time::timeout(Duration::from_secs(1), process.terminate()).await;
                    return Ok(BROKEN_PIPE);
                }
            }
            ProcessEvent::Gap { bytes: Some(bytes) } => lost.push(format!("{bytes} bytes")),
            ProcessEvent::Gap { bytes: None } => lost.push("an unknown number of bytes".into()),
            ProcessEvent::Exited { code: exit } => code = Some(exit),
            ProcessEvent::Closed => break,
            ProcessEvent::Lost { reason } => bail!("nobody knows what became of the command: {reason}"),
        }
    }
    if !lost.is_empty() {
        bail!("output was lost because nobody read it in time: {}", lost.join(", "));
    }
    let code = code.context("the command ended without an exit code")?;
    Ok(u8::try_from(code).unwrap_or(OURS))
}

async fn write(out: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    out.write_all(bytes).await?;
    out.flush().await
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

/// Says so when the connection is gone for longer than a moment.
#[expect(clippy::print_stderr, reason = "this is where the program speaks to people")]
async fn tell_outages(environment: Environment) {
    let mut state = environment.watch();
    loop {
        let Ok(lost) = state.wait_for(|state| matches!(state, State::Recovering { .. })).await.map(|state| state.clone()) else { return };
        let back = state.wait_for(|state| !matches!(state, State::Recovering { .. }));
        if tokio::time::timeout(NOTICEABLE, back).await.is_ok() {
            continue;
        }
        if let State::Recovering { reason } = lost {
            eprintln!("outpost: connection to {} lost ({reason}); trying to get it back", environment.name());
        }
        if state.wait_for(|state| matches!(state, State::Ready(_))).await.is_err() {
            return;
        }
        eprintln!("outpost: connected again");
    }
}
