//! The keeper: an executor that outlives the command it was reached through.
//!
//! `outpost executor --listen stdio --keep` is only a bridge. Behind it, one detached executor per home, and per host, job or
//! container that uses this home, listens on a socket that only its user can open; a dropped ssh is then a lost link and not
//! the end of a session. It is started when it is first needed, and goes when nothing is left in it or its job is over.

mod job;
mod local;
mod surroundings;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::StreamExt;
use outpost_environment::TAKEN_OVER_EXIT;
use outpost_executor::seat::LocalSeat;
use outpost_executor::{Executor, Lifetime};
use outpost_listener::auth::Auth;
use outpost_listener::listen::{ListenAddr, Listener};
use outpost_rpc::link::ws::ClientOptions;
use outpost_rpc::link::{stdio, unix};
use outpost_rpc::{Close, Link, LinkError};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::SignalKind;
use tokio::time::sleep;

pub(crate) use local::LocalKeeper;

use super::executor::{settings, stop_signal};
use super::{FAILED, complain};
use crate::ProcessContext;
use crate::confinement::http_allow;
use crate::executor_args::{ExecutorArguments, KeeperArguments};
use crate::home::Home;
use crate::local::executor_config;
use crate::signals::Watched;

/// How long a keeper may take until it listens.
const START: Duration = Duration::from_secs(10);
/// How long a keeper without sessions waits for a client.
const LONELY: Duration = Duration::from_secs(5);
/// The longest path that a socket can have.
const MAX_SOCKET_PATH: usize = 107;
/// How long a bridge that is asked to end waits for what the keeper says last: a job that ends asks both at once.
const LAST_WORDS: Duration = Duration::from_secs(4);

/// Bridges standard input and output to the keeper.
pub(crate) async fn bridge(arguments: &ExecutorArguments, own: &ProcessContext) -> ExitCode {
    let here = stdio::link(tokio::io::stdin(), tokio::io::stdout(), "exec-server stdio");
    let there = match reach(arguments, own).await {
        Ok(link) => link,
        Err(error) => return complain(&error.context("sessions cannot be kept here; without --keep they end with the connection"), FAILED),
    };
    let asked_to_end = async {
        match Watched::new(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
        sleep(LAST_WORDS).await;
    };
    tokio::select! {
        closed = pump(here, there) => match closed {
            Some(close) if close.code == Close::TAKEN_OVER => ExitCode::from(TAKEN_OVER_EXIT),
            _ => ExitCode::SUCCESS,
        },
        () = asked_to_end => ExitCode::SUCCESS,
    }
}

/// Whether a keeper runs here.
pub(crate) async fn is_running(own: &ProcessContext) -> ExitCode {
    let runs = match seat(own).and_then(|seat| socket_path(&seat)) {
        Ok(socket) => unix::connect(&socket, &ClientOptions::default()).await.is_ok(),
        Err(_) => false,
    };
    if runs { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Asks the keeper that runs here to end, and waits until it has.
pub(crate) async fn end(own: &ProcessContext) -> ExitCode {
    match end_running(own).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

async fn end_running(own: &ProcessContext) -> anyhow::Result<()> {
    let socket = socket_path(&seat(own)?)?;
    let Ok(link) = unix::connect(&socket, &ClientOptions::default()).await else { return Ok(()) };
    drop(link);
    let note = Note::read(&socket).context("the keeper that runs has left no note of its process")?;
    let pid =
        i32::try_from(note.pid).ok().and_then(rustix::process::Pid::from_raw).context("the keeper's note (run/keeper.json) is damaged")?;
    // By a descriptor: the number alone could be another process by now.
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(io::Error::from)?;
    let is_ours = std::fs::read(format!("/proc/{}/cmdline", note.pid))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|part| part == b"__keeper"));
    ensure!(is_ours, "process {} is not a keeper", note.pid);
    rustix::process::pidfd_send_signal(&process, rustix::process::Signal::TERM).map_err(io::Error::from)?;
    let gone = tokio::time::timeout(START, async {
        while unix::connect(&socket, &ClientOptions::default()).await.is_ok() {
            sleep(Duration::from_millis(50)).await;
        }
    });
    gone.await.with_context(|| format!("the keeper, process {}, did not end within {START:?}", note.pid))
}

/// Copies frames both ways until either side ends. Returns why the keeper closed the link, if it did.
async fn pump(mut here: Link, mut there: Link) -> Option<Close> {
    loop {
        tokio::select! {
            frame = async { there.tx.room(1 << 20).await; here.rx.next().await } => match frame {
                Some(Ok(frame)) if there.tx.send(frame.clone()) => {}
                _ => {
                    there.tx.close(Close::new(Close::NORMAL, ""));
                    there.tx.flushed().await;
                    return None;
                }
            },
            frame = async { here.tx.room(1 << 20).await; there.rx.next().await } => match frame {
                Some(Ok(frame)) if here.tx.send(frame.clone()) => {}
                Some(Err(LinkError::Closed(close))) => {
                    here.tx.flushed().await;
                    return Some(close);
                }
                _ => {
                    here.tx.flushed().await;
                    return None;
                }
            },
        }
    }
}

/// Connects to the keeper, and starts it if there is none.
async fn reach(arguments: &ExecutorArguments, own: &ProcessContext) -> anyhow::Result<Link> {
    let seat = seat(own)?;
    let socket = socket_path(&seat)?;
    if let Ok(link) = unix::connect(&socket, &ClientOptions::default()).await {
        check_ceiling(&socket, arguments)?;
        return Ok(link);
    }
    if arguments.kept_elsewhere {
        return wait_for(&socket).await;
    }
    // One at a time: a program that waited here for the lock finds the keeper that was started meanwhile.
    let lock = lock(&socket.with_extension("lock"))?;
    let link = match unix::connect(&socket, &ClientOptions::default()).await {
        Ok(link) => {
            check_ceiling(&socket, arguments)?;
            link
        }
        Err(_) => {
            start(arguments, own)?;
            wait_for(&socket).await?
        }
    };
    drop(lock);
    Ok(link)
}

/// What a keeper says about itself, in a file beside its socket.
#[derive(Serialize, Deserialize)]
struct Note {
    pid: u32,
    /// The text of the file that it was started with.
    ceiling: Option<String>,
    #[serde(default)]
    version: Option<String>,
    /// The very program that runs: an upgrade is another one, also under the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
}

impl Note {
    fn path(socket: &Path) -> PathBuf {
        socket.with_extension("json")
    }

    fn read(socket: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(Self::path(socket)).ok()?).ok()
    }

    fn write(&self, socket: &Path) -> anyhow::Result<()> {
        let path = Self::path(socket);
        let text = serde_json::to_vec(self)?;
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(&text)).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A client that asks for a ceiling must not get a keeper that has none, or another one. Without a note, as older keepers left none, there is
/// no ceiling that one could rely on.
fn check_ceiling(socket: &Path, arguments: &ExecutorArguments) -> anyhow::Result<()> {
    let Some(asked) = arguments.confinement.ceiling_text()? else { return Ok(()) };
    let note = Note::read(socket);
    let running = match &note {
        Some(Note { ceiling: Some(ceiling), .. }) if *ceiling == asked => return Ok(()),
        Some(Note { ceiling: Some(_), .. }) => "with another ceiling",
        Some(Note { ceiling: None, .. }) | None => "without a ceiling",
    };
    let who = note.map_or_else(|| "the keeper of this home".into(), |note| format!("the keeper of this home, process {},", note.pid));
    bail!(
        "{who} runs {running}, and --ceiling counts only for one that is started; it ends by itself when its sessions have ended, and a \
         TERM signal ends it and them at once"
    )
}

fn seat(own: &ProcessContext) -> anyhow::Result<LocalSeat> {
    let home = Home::from_environment().context("there is neither OUTPOST_HOME nor HOME")?;
    Ok(home.seat(&own.variables)?)
}

fn socket_path(seat: &LocalSeat) -> anyhow::Result<PathBuf> {
    seat.make_run().with_context(|| format!("cannot make {}", seat.run.display()))?;
    let socket = seat.run.join("keeper.sock");
    let length = socket.as_os_str().len();
    ensure!(length <= MAX_SOCKET_PATH, "{} is longer than a socket's path can be; set XDG_RUNTIME_DIR to a shorter one", socket.display());
    Ok(socket)
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Starts a keeper that has nothing to do with us any more: no terminal, no descriptor of ours, no directory but home.
fn start(arguments: &ExecutorArguments, own: &ProcessContext) -> anyhow::Result<()> {
    // The keeper itself has no terminal, so errors are reported here.
    arguments.confinement.read(&own.settings)?;
    let (grace, running, spool) = (arguments.grace().to_string(), arguments.grace_running().to_string(), arguments.spool.to_string());
    let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir()).unwrap_or_else(|| "/".into());
    Command::new(std::env::current_exe().context("this program cannot be found again")?)
        .args(["__keeper", "--grace", &grace, "--grace-running", &running, "--spool", &spool])
        .args(arguments.http_allow.iter().flat_map(|target| ["--http-allow".into(), target.to_string()]))
        .envs(own.variables.secrets())
        .args(arguments.confinement.arguments()?)
        .args(own.settings.iter().flat_map(|setting| ["-c", setting]))
        .current_dir(arguments.cd.clone().unwrap_or_else(home))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("the keeper cannot be started")?;
    Ok(())
}

async fn wait_for(socket: &Path) -> anyhow::Result<Link> {
    let connected = tokio::time::timeout(START, async {
        loop {
            if let Ok(link) = unix::connect(socket, &ClientOptions::default()).await {
                return link;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    connected.await.with_context(|| format!("no keeper listened on {} within {START:?}; is the disk full?", socket.display()))
}

/// The keeper itself.
pub(crate) async fn run(arguments: KeeperArguments, own: &ProcessContext) -> ExitCode {
    let kept = if arguments.local { local::keep(own).await } else { keep(arguments, own).await };
    match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

/// Out of the session of whatever started us: when that ends, its processes are hung up.
fn leave_session() {
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(error = %io::Error::from(error), "already a session of its own");
    }
}

async fn keep(arguments: KeeperArguments, own: &ProcessContext) -> anyhow::Result<()> {
    leave_session();
    let seat = seat(own)?;
    let socket = socket_path(&seat)?;
    let listen = ListenAddr::Unix(socket.clone());
    let confinement = arguments.confinement.read(&own.settings)?;
    let mut settings = settings((arguments.grace, arguments.grace_running), arguments.spool, Some(&listen), confinement);
    settings.http_allow = http_allow(arguments.http_allow, &own.settings)?;
    let ceiling = arguments.confinement.ceiling_text()?;
    let executor = Executor::new(executor_config(settings, &own.variables)?);
    let listener = Listener::unix(&socket).await.with_context(|| format!("cannot listen on {}", socket.display()))?;
    // Before any client is served.
    Note { pid: std::process::id(), ceiling, version: Some(env!("CARGO_PKG_VERSION").into()), program: None }.write(&socket)?;
    let stop = stop_signal()?;
    let serving = executor.clone();
    let on_link = move |link| {
        let executor = serving.clone();
        tokio::spawn(async move { executor.serve(link, Lifetime::Grace).await });
    };
    tokio::select! {
        never = listener.serve(Auth::Open, on_link) => match never {},
        () = stop => {}
        () = lonely(&executor) => {}
        () = job::over(&seat.place) => tracing::info!("the job is over"),
    }
    executor.shut_down().await;
    Ok(())
}

/// Waits until nothing was left to keep for a while.
async fn lonely(executor: &Executor) {
    loop {
        sleep(LONELY).await;
        if executor.is_idle() {
            return;
        }
        executor.idle().await;
    }
}
