//! Going a route to its end: carrying the program to where there is none, preparing a new place, and using a login.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outpost_rpc::LinkError;
use outpost_wire::SharedError;
use sha2::{Digest, Sha256};

use super::command::{self, NoExecutor};
use super::{CommandLine, MonitoredLink};
use crate::bootstrap::ScriptTransport;
use crate::definition::{BEGIN, NO_PROGRAM, NO_SETUP, Setup};
use crate::route::{Errand, Manner, Route, master_name};

/// How often the state of the login is checked.
const LOOK: Duration = Duration::from_secs(1);
/// How long stopping may take.
const STOP: Duration = Duration::from_secs(60);

/// What the rim lends to all routes.
#[derive(Debug, Clone, Default)]
pub struct Means {
    /// Where shared ssh connections have their sockets.
    pub masters: Option<PathBuf>,
    /// Who brings a program to a place that has none. Without it that is an error.
    pub carrier: Option<Carrier>,
    /// How many files a program that carries a connection may have open.
    pub open_files: Option<u64>,
}

type Carrying = Pin<Box<dyn Future<Output = Result<(), SharedError>> + Send>>;

/// Brings a program to a place.
#[derive(Clone)]
pub struct Carrier(Arc<dyn Fn(ScriptTransport) -> Carrying + Send + Sync>);

impl Carrier {
    pub fn new<F, Fut>(carry: F) -> Self
    where
        F: Fn(ScriptTransport) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), SharedError>> + Send + 'static,
    {
        Self(Arc::new(move |transport| Box::pin(carry(transport))))
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Carrier")
    }
}

/// A route, and what is to be found at its end.
#[derive(Debug, Clone)]
pub struct Journey {
    pub route: Route,
    pub ceiling: Option<String>,
    pub setup: Setup,
    pub means: Means,
}

impl Journey {
    /// The socket of a shared ssh connection to the first machine of the way, whether there is one now or not.
    fn master(&self) -> Option<PathBuf> {
        Some(self.means.masters.as_ref()?.join(master_name(self.route.ssh.as_ref()?)))
    }

    fn manner(&self) -> Manner {
        Manner { master: self.master().filter(|master| master.exists()), ..Manner::default() }
    }

    fn transport(&self) -> ScriptTransport {
        ScriptTransport { route: self.route.clone(), manner: self.manner() }
    }

    pub(super) async fn link(&self) -> Result<MonitoredLink, LinkError> {
        let line = self.command_line();
        let missing = match command::start(&line).await {
            Err(error) => match NoExecutor::of(&error) {
                Some(missing @ (NoExecutor::NoProgram | NoExecutor::NoSetup)) => missing.clone(),
                _ => return Err(error),
            },
            Ok(line) => return Ok(line),
        };
        if missing == NoExecutor::NoProgram && !self.route.is_inside() {
            // A machine stays the same; a container may be a new one every day.
            return Err(missing.into());
        }
        if missing == NoExecutor::NoProgram {
            let carrier = self.means.carrier.as_ref().ok_or(missing)?;
            tracing::info!(route = %self.route, "the program is carried there");
            (carrier.0)(self.transport()).await.map_err(io::Error::other)?;
        }
        if !self.setup.commands.is_empty() {
            tracing::info!(route = %self.route, "it is set up");
            self.transport().set_up(&self.setup).await.map_err(io::Error::other)?;
        }
        command::start(&line).await
    }

    /// The command that ends in an executor, or says what is missing for one.
    fn command_line(&self) -> CommandLine {
        let program = "p=$HOME/.outpost/bin/outpost; [ -x \"$p\" ] || p=$(command -v outpost)";
        let ceiling = self.ceiling.as_ref().map(|ceiling| format!(" --ceiling {}", crate::route::quoted(ceiling))).unwrap_or_default();
        // A container is entered in the directory that it is for; anything else in the home.
        let directory = match self.route.container {
            Some(_) => " --cd \"$d\"",
            None => "",
        };
        let setup = match self.setup.commands.as_slice() {
            [] => String::new(),
            _ => format!("if [ ! -e \"$HOME/.outpost/{}\" ]; then echo {NO_SETUP}; exit 0; fi; ", marker(&self.setup)),
        };
        let keeper_step = self.route.slurm.is_some() && self.route.container.is_none();
        let kept = if keeper_step { " --kept-elsewhere" } else { "" };
        let script = format!(
            "{program}; d=$PWD; [ \"$d\" != / ] || d=$HOME; echo; if [ -z \"$p\" ]; then echo {NO_PROGRAM}; exit 0; fi; {setup}\
             echo {BEGIN}; exec \"$p\" executor --listen stdio --keep{kept}{directory}{ceiling}"
        );
        let companion = format!("{program}; \"$p\" __kept || exec \"$p\" __keeper{ceiling}");
        let errand = Errand { script: &script, companion: keeper_step.then_some(companion.as_str()) };
        let open_files = self.means.open_files;
        CommandLine { begins_after: Some(BEGIN.into()), open_files, ..self.route.command_line(errand, &self.manner()) }
    }

    /// Waits until another shared connection was opened than the one there is now, if any.
    pub(super) async fn login(&self) {
        let Some(master) = self.master() else { return std::future::pending().await };
        let seen = || -> Option<(u64, SystemTime)> {
            let found = fs::metadata(&master).ok()?;
            Some((found.ino(), found.modified().ok()?))
        };
        let before = seen();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = seen();
            if now.is_some() && now != before {
                return;
            }
        }
    }

    /// A command of its own waits, and stops it if it was not used since.
    pub(super) fn stop_later(&self, idle: Duration) {
        let Some(line) = self.route.stop_line(Some(idle), &self.manner()) else { return };
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", "sleep \"$1\"; shift; exec \"$@\"", "sh"]).arg(idle.as_secs().to_string()).arg(&line.program).args(&line.args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        if let Err(error) = command.spawn() {
            tracing::warn!(route = %self.route, %error, "nothing will stop it");
        }
    }

    pub(super) async fn stop(&self) {
        let Some(line) = self.route.stop_line(None, &self.manner()) else { return };
        let mut command = tokio::process::Command::new(&line.program);
        command.args(&line.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match tokio::time::timeout(STOP, command.kill_on_drop(true).status()).await {
            Ok(Ok(status)) if status.success() => tracing::info!(route = %self.route, "stopped, because no client used it"),
            other => tracing::warn!(route = %self.route, ?other, "it could not be stopped"),
        }
    }
}

/// The file that says that these very commands were run.
pub(crate) fn marker(setup: &Setup) -> String {
    let mut digest = Sha256::new();
    for command in &setup.commands {
        digest.update((command.len() as u64).to_le_bytes());
        digest.update(command);
    }
    let hex: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("setup-{hex}")
}
