//! The keeper of `local`: one executor for all programs of a home that run threads on this machine. A killed program loses nothing;
//! the next one finds its commands here.
//!
//! Each keeper listens at a socket of its own name, and a link leads to the one that takes new sessions. A program of another
//! version starts its own keeper and moves the link; the older keeper goes on with what runs in it, and goes when that has ended.
//! Each session runs in the place of the program that asked for it, with that program's variables, directory and settings.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_executor::{CallerConfig, Executor, ExecutorConfig, Lifetime};
use outpost_listener::auth::Auth;
use outpost_listener::listen::{ListenAddr, Listener};
use outpost_rpc::Link;
use outpost_rpc::link::unix;
use outpost_rpc::link::ws::ClientOptions;
use outpost_runtime::secrets::Secrets;
use outpost_sandbox::Launcher;
use outpost_wire::exec::session::CallerContext;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::surroundings::surroundings;
use super::{LONELY, Note, START, job, leave_session, lock, lonely, seat};
use crate::ProcessContext;
use crate::commands::executor::{peer_options, stop_signal};
use crate::confinement::configured_limits;
use crate::home::Home;
use crate::local::{ExecutorSettings, executor_config};
use crate::out::with_causes;
use crate::reach::local_settings;
use crate::variables::{VisibleVariables, own_program};

/// What a keeper says when it listens.
const READY: &str = "ready";
/// How long a keeper that nothing leads to any more lets those in that were on their way.
const LAST_CALL: Duration = Duration::from_millis(200);
/// How often a keeper looks whether it can still be found.
const LOOK: Duration = Duration::from_secs(10);

/// How programs of a home find the keeper of `local`, and start it.
pub(crate) struct LocalKeeper {
    run: PathBuf,
    surroundings: String,
    program: String,
    variables: VisibleVariables,
}

impl LocalKeeper {
    pub(crate) fn of(home: &Home, own: &ProcessContext) -> anyhow::Result<Self> {
        let seat = home.seat(&own.variables)?;
        seat.make_run().with_context(|| format!("cannot make {}", seat.run.display()))?;
        Ok(Self { run: seat.run, surroundings: surroundings(), program: program()?, variables: own.variables.clone() })
    }

    /// A link to the keeper that has a session, or else to the one that takes new ones; that is started if need be.
    pub(crate) async fn reach(&self, session: Option<&str>) -> anyhow::Result<Link> {
        if let Some(keeper) = session.and_then(keeper_of)
            && let Ok(link) = connect(&socket(&self.run, keeper)).await
        {
            return Ok(link);
        }
        if let Some(link) = self.current().await {
            return Ok(link);
        }
        // One at a time: a program that waited here for the lock finds the keeper that was started meanwhile.
        let path = self.run.join("local.lock");
        let _lock = tokio::task::spawn_blocking(move || lock(&path)).await??;
        match self.current().await {
            Some(link) => Ok(link),
            None => {
                self.start().await?;
                self.current().await.context("the keeper ended right after its start")
            }
        }
    }

    /// The keeper that takes new sessions of this very program.
    async fn current(&self) -> Option<Link> {
        let named = fs::read_link(leading_link(&self.run, &self.surroundings)).ok()?;
        let socket = self.run.join(named);
        Note::read(&socket).filter(|note| note.program.as_ref() == Some(&self.program))?;
        connect(&socket).await.ok()
    }

    async fn start(&self) -> anyhow::Result<()> {
        // Neither secrets nor a directory of this program: each session brings its own.
        let mut keeper = Command::new(own_program())
            .args(["__keeper", "--local"])
            .env_clear()
            .envs(self.variables.in_sight())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("the keeper cannot be started")?;
        let stdout = keeper.stdout.take().context("the keeper has no standard output")?;
        let mut said = String::new();
        let spoken = timeout(START, BufReader::new(stdout).read_line(&mut said)).await;
        tokio::spawn(async move { keeper.wait().await });
        match (spoken, said.trim()) {
            (Err(_), _) => bail!("the keeper did not listen within {START:?}; is the disk full?"),
            (Ok(Err(error)), _) => Err(error).context("the keeper cannot be heard"),
            (Ok(Ok(_)), READY) => Ok(()),
            (Ok(Ok(_)), "") => bail!("the keeper ended without a message"),
            (Ok(Ok(_)), why) => bail!("{why}"),
        }
    }
}

async fn connect(socket: &Path) -> Result<Link, outpost_rpc::LinkError> {
    unix::connect(socket, &ClientOptions::default()).await
}

fn socket(run: &Path, keeper: u32) -> PathBuf {
    run.join(format!("k{keeper}.sock"))
}

/// Which keeper a session is in.
fn keeper_of(session: &str) -> Option<u32> {
    session.strip_prefix('k')?.split_once('.')?.0.parse().ok()
}

fn leading_link(run: &Path, surroundings: &str) -> PathBuf {
    run.join(format!("local-{surroundings}"))
}

/// The very program that runs here.
fn program() -> anyhow::Result<String> {
    let file = fs::metadata("/proc/self/exe").context("this program cannot be found again")?;
    let (version, seconds, nanoseconds) = (env!("CARGO_PKG_VERSION"), file.mtime(), file.mtime_nsec());
    Ok(format!("{version} {}:{} {seconds}.{nanoseconds}", file.dev(), file.ino()))
}

/// The keeper itself.
pub(super) async fn keep(own: &ProcessContext) -> anyhow::Result<()> {
    leave_session();
    let listening = listen(own).await;
    // It is heard by the program that started it, and by no other.
    let word = listening.as_ref().err().map_or_else(|| READY.to_owned(), |error| with_causes(error).replace('\n', " "));
    let mut out = io::stdout();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    let nothing = fs::File::options().write(true).open("/dev/null");
    let _ = nothing.map(|nothing| rustix::stdio::dup2_stdout(&nothing));
    let Listening { executor, listener, place, callers, place_of_job } = listening?;
    let is_leaving = Arc::new(AtomicBool::new(false));
    let (serving, leaving) = (executor.clone(), is_leaving.clone());
    let on_link = move |link| {
        // A client whose link is dropped asks again, and finds or starts the next keeper.
        if !leaving.load(Ordering::Acquire) {
            let executor = serving.clone();
            tokio::spawn(async move { executor.serve(link, Lifetime::Grace).await });
        }
    };
    let stop = stop_signal()?;
    let _serving = AbortOnDropHandle::new(tokio::spawn(async move { match listener.serve(Auth::Open, on_link).await {} }));
    tokio::select! {
        () = stop => {}
        () = unneeded(&executor, &place, &is_leaving) => {}
        () = unfindable(&executor, &place) => tracing::info!("the home is gone"),
        () = job::over(&place_of_job) => tracing::info!("the job is over"),
    }
    place.leave();
    executor.shut_down().await;
    callers.leave().await;
    Ok(())
}

struct Listening {
    executor: Executor,
    listener: Listener,
    place: KeeperPlace,
    callers: Arc<Callers>,
    place_of_job: outpost_executor::place::HostPlace,
}

async fn listen(own: &ProcessContext) -> anyhow::Result<Listening> {
    let (seat, surroundings, pid) = (seat(own)?, surroundings(), std::process::id());
    seat.make_run().with_context(|| format!("cannot make {}", seat.run.display()))?;
    sweep(&seat.run);
    let place = KeeperPlace { socket: socket(&seat.run, pid), leading: leading_link(&seat.run, &surroundings), run: seat.run.clone() };
    let callers = Arc::new(Callers { secrets: own.secrets.clone(), launchers: Mutex::default() });
    // A later keeper answers for the commands of one that was killed.
    let kept = ExecutorSettings {
        keeps_fates: true,
        listener: format!("local {surroundings}"),
        peer: peer_options(Some(&ListenAddr::Unix(place.socket.clone()))),
        ..local_settings(configured_limits(&own.settings)?, &own.settings)?
    };
    let config = ExecutorConfig {
        ids: Arc::new(move || format!("k{pid}.{}", Uuid::new_v4())),
        for_caller: Some(callers.clone().config()),
        ..executor_config(kept, &own.variables)?
    };
    let executor = Executor::new(config);
    let listener = Listener::unix(&place.socket).await.with_context(|| format!("cannot listen on {}", place.socket.display()))?;
    Note { pid, ceiling: None, version: Some(env!("CARGO_PKG_VERSION").into()), program: Some(program()?) }.write(&place.socket)?;
    place.lead_here()?;
    Ok(Listening { executor, listener, place, callers, place_of_job: seat.place })
}

/// Where a keeper is found.
struct KeeperPlace {
    run: PathBuf,
    socket: PathBuf,
    leading: PathBuf,
}

impl KeeperPlace {
    /// New sessions come here from now on.
    fn lead_here(&self) -> anyhow::Result<()> {
        let name = self.socket.file_name().context("the socket has no name")?;
        let aside = self.run.join(format!("local.{}", std::process::id()));
        let _ = fs::remove_file(&aside);
        let led = symlink(name, &aside).and_then(|()| fs::rename(&aside, &self.leading));
        led.with_context(|| format!("cannot make {}", self.leading.display()))
    }

    /// Nothing leads here any more.
    fn leave(&self) {
        if fs::read_link(&self.leading).is_ok_and(|named| Some(named.as_os_str()) == self.socket.file_name()) {
            let _ = fs::remove_file(&self.leading);
        }
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(Note::path(&self.socket));
    }
}

/// Waits until nothing is left to keep and no client is on its way.
async fn unneeded(executor: &Executor, place: &KeeperPlace, is_leaving: &AtomicBool) {
    loop {
        lonely(executor).await;
        place.leave();
        sleep(LAST_CALL).await;
        is_leaving.store(true, Ordering::Release);
        if executor.is_idle() {
            return;
        }
        // One was on its way. Others do not find it here, and it is served to its end.
        is_leaving.store(false, Ordering::Release);
    }
}

/// Waits until no program can come back: its home was removed, and none is connected.
async fn unfindable(executor: &Executor, place: &KeeperPlace) {
    loop {
        sleep(LOOK).await;
        if !place.run.exists() && !executor.has_clients() {
            return;
        }
    }
}

/// Removes what killed keepers left.
fn sweep(run: &Path) {
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix('k')?.strip_suffix(".json")?.parse::<i32>().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { continue };
        if rustix::process::test_kill_process(pid).is_err() {
            let _ = fs::remove_file(path.with_extension("sock"));
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes the configuration of each session from what its program says about itself.
struct Callers {
    secrets: Secrets,
    /// Those of sessions with the same settings share one.
    launchers: Mutex<HashMap<String, Launcher>>,
}

impl Callers {
    fn config(self: Arc<Self>) -> CallerConfig {
        Arc::new(move |caller| self.config_of(caller).map_err(|error| with_causes(&error)))
    }

    fn config_of(&self, caller: &CallerContext) -> anyhow::Result<ExecutorConfig> {
        let variables = VisibleVariables::of_caller(&caller.variables.0, caller.open_files);
        variables.register(&self.secrets);
        let cwd = caller.cwd.to_native().context("the directory of the caller is none of this machine")?;
        let settings = local_settings(configured_limits(&caller.settings)?, &caller.settings)?;
        let config = executor_config(settings, &variables)?;
        let mut launchers = self.launchers.lock().unwrap_or_else(PoisonError::into_inner);
        let launcher = launchers.entry(format!("{:?}", config.launcher.settings())).or_insert_with(|| config.launcher.clone()).clone();
        Ok(ExecutorConfig { cwd, launcher, ..config })
    }

    /// Leaves nothing of sandboxes on the machine.
    async fn leave(&self) {
        let launchers: Vec<Launcher> = self.launchers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for launcher in launchers {
            let _ = timeout(LONELY, launcher.tidied()).await;
            launcher.leave();
        }
    }
}
