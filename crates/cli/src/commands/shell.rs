//! `outpost shell`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use outpost_environment::{ConnectionState, Environment, ProcessStart, RemoteProcess};
use outpost_sandbox::TerminalSize;
use outpost_wire::PathUri;
use outpost_wire::exec::environment::EnvironmentInfo;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::run::{Passing, copy_output, everything, terminal_kind};
use super::{OURS, complain};
use crate::args::ShellArguments;
use crate::escape::Escapes;
use crate::out::aside;
use crate::signals::{ForwardedSignals, SignalRequest, code};
use crate::terminal::{self, RawTerminal};
use crate::{ProcessContext, connection_notices, reach};

/// Pieces of input that may wait for the other side.
const QUEUE: usize = 256;

pub(crate) async fn run(arguments: ShellArguments, own: &ProcessContext) -> ExitCode {
    match run_to_end(arguments, own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => complain(&error, OURS),
    }
}

async fn run_to_end(arguments: ShellArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        bail!("a shell needs a terminal here; use `outpost run` to run a command without one");
    }
    let reached = reach::reach(&arguments.place, "outpost-shell", own).await?;
    let environment = reached.environment.clone();
    let info = reached.connect().await?;
    let start = start(&arguments, &info, reached.is_here())?;
    let what = format!("cannot start {} in {} on {}", start.argv[0], start.cwd, environment.name());
    let mut signals = ForwardedSignals::listen().context("signals cannot be taken")?;
    let process = Arc::new(environment.start(start).await.context(what)?);
    // Put back when it is dropped, whatever ends this function.
    let raw = RawTerminal::enter().context("this terminal cannot be set up")?;
    let (size, sizes) = watch::channel(terminal::size());
    let _resizing = AbortOnDropHandle::new(tokio::spawn(pass_sizes(process.clone(), info.clone(), sizes)));
    let _notices = AbortOnDropHandle::new(tokio::spawn(connection_notices::tell(environment.clone(), "\r\n")));
    let (typed, keys) = mpsc::channel(QUEUE);
    let _writing = AbortOnDropHandle::new(tokio::spawn(write_keys(process.clone(), keys)));
    let mut reading = AbortOnDropHandle::new(tokio::spawn(read_keys(environment.clone(), typed)));
    let mut output = std::pin::pin!(copy_output(&process, Passing::AsItIs));
    let outcome = loop {
        tokio::select! {
            ended = &mut output => break ended.map(|ended| {
                if !ended.lost.is_empty() {
                    say(&format!("output was lost while there was no connection: {}", ended.lost.join(", ")));
                }
                ended.code
            }),
            asked = signals.next() => match asked {
                SignalRequest::Resize => drop(size.send_replace(terminal::size())),
                SignalRequest::Stop(signal) => break Ok(code(signal)),
            },
            read = &mut reading => match read {
                Ok(Typing::Left) => {
                    say("left");
                    break Ok(OURS);
                }
                // The terminal is gone; the shell is told, as it would be by any terminal that goes away.
                Ok(Typing::HungUp) => break Ok(code(outpost_wire::exec::process::Signal::Hangup)),
                Err(error) => break Err(anyhow::Error::new(error).context("the keyboard is no longer read")),
            },
        }
    };
    drop(raw);
    if !matches!(*environment.watch().borrow(), ConnectionState::Ready(_)) {
        say("there is no connection; what runs there ends when the executor's grace is over");
    }
    reached.leave().await;
    outcome
}

fn start(arguments: &ShellArguments, info: &EnvironmentInfo, is_here: bool) -> anyhow::Result<ProcessStart> {
    let here = std::env::current_dir().context("the current directory is gone")?;
    let cwd = match &arguments.cd {
        Some(directory) if is_here => PathUri::from_native(&here.join(directory))?,
        Some(directory) => PathUri::from_native(directory).context("-C needs an absolute path on another machine")?,
        None if is_here => PathUri::from_native(&here)?,
        None => info.user_home_dir.clone().or_else(|| info.cwd.clone()).context("the executor tells no directory; give one with -C")?,
    };
    Ok(ProcessStart {
        id: format!("shell-{}", Uuid::new_v4()),
        argv: vec![info.shell.path.clone(), "-l".into()],
        cwd,
        env_policy: Some(everything()),
        env: terminal_kind().into_iter().collect(),
        tty: true,
        pipe_stdin: true,
        profiles: None,
        adoption: None,
    })
}

/// Why nothing more is read.
enum Typing {
    Left,
    HungUp,
}

/// Reads keys, also while there is no connection: leaving must be possible then.
async fn read_keys(environment: Environment, typed: mpsc::Sender<Bytes>) -> Typing {
    let (mut stdin, mut buffer) = (tokio::io::stdin(), vec![0; 16 << 10]);
    let mut escapes = Escapes::new();
    loop {
        let Ok(length @ 1..) = stdin.read(&mut buffer).await else { return Typing::HungUp };
        let keys = escapes.feed(&buffer[..length]);
        if keys.help {
            say("~. leaves, ~~ types a tilde, ~? shows this; at the beginning of a line");
        }
        if keys.leave {
            return Typing::Left;
        }
        if keys.bytes.is_empty() {
            continue;
        }
        match typed.try_send(keys.bytes.into()) {
            Err(mpsc::error::TrySendError::Full(bytes)) if matches!(*environment.watch().borrow(), ConnectionState::Ready(_)) => {
                // A long text that is pasted waits for the other side.
                let _ = typed.send(bytes).await;
            }
            Err(mpsc::error::TrySendError::Full(_)) => say("no connection, and no room for more keys"),
            // The shell's own end is told elsewhere.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
        }
    }
}

async fn write_keys(process: Arc<RemoteProcess>, mut keys: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = keys.recv().await {
        if process.write(bytes).await.is_err() {
            return;
        }
    }
}

/// Passes on the size of the window, only the latest if there were several meanwhile.
async fn pass_sizes(process: Arc<RemoteProcess>, info: EnvironmentInfo, mut sizes: watch::Receiver<Option<TerminalSize>>) {
    if !info.capabilities.process_resize {
        return;
    }
    loop {
        let size = *sizes.borrow_and_update();
        if let Some(size) = size
            && let Err(error) = process.resize(size.rows, size.cols).await
        {
            tracing::debug!(%error, "the window's size was not passed on");
        }
        if sizes.changed().await.is_err() {
            return;
        }
    }
}

/// The terminal may be one that passes every key on.
fn say(text: &str) {
    aside(&format!("\r\noutpost: {text}\r\n"));
}
