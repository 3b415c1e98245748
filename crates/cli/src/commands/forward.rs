//! `outpost forward`: ports here that lead to ports of a loopback there.

mod loopback;
mod stream;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use outpost_environment::{Environment, EnvironmentError};
use outpost_wire::EnvironmentId;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use self::loopback::Loopback;
use super::{USAGE, complain, failure};
use crate::args::PlaceArguments;
use crate::confinement::configured_limits;
use crate::forward_args::{ForwardArguments, PortPair};
use crate::home::Home;
use crate::out::{on_line, print, say, with_causes};
use crate::reach::{self, Caller, Reached};
use crate::signals::ForwardedSignals;
use crate::{ProcessContext, connection_notices};

const CLIENT: &str = "outpost-forward";
/// So many connections are open at once; more wait.
const AT_ONCE: usize = 64;
/// After a connection could not be accepted, which is for want of descriptors.
const BREATH: Duration = Duration::from_millis(100);

pub(crate) async fn run(arguments: ForwardArguments, own: &ProcessContext) -> ExitCode {
    let (place, ports) = match arguments.place() {
        Ok(place) => place,
        Err(error) => return complain(&anyhow::anyhow!(error), USAGE),
    };
    match forward(&arguments, &place, &ports, own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure(&error),
    }
}

async fn forward(arguments: &ForwardArguments, place: &PlaceArguments, ports: &[PortPair], own: &ProcessContext) -> anyhow::Result<u8> {
    let loopback = Loopback::find(arguments, place, own).await?;
    // A port that is taken here is told before anything is connected.
    let mut listening = Vec::new();
    for pair in ports {
        listening.push(ForwardedPort::open(SocketAddr::new(arguments.bind, pair.here), pair.there).await?);
    }
    if is_own_loopback(arguments, place) {
        refuse_circles(&listening)?;
    }
    let reached = reached(arguments, place, own).await?;
    let environment = reached.environment.clone();
    let name = place.environment.clone().unwrap_or_else(|| environment.name().to_owned());
    // From here on there is something to leave in order.
    let mut signals = match ForwardedSignals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            reached.leave().await;
            return Err(anyhow::Error::new(error).context("signals cannot be taken"));
        }
    };
    let connected = tokio::select! {
        connected = reached.connect() => connected,
        code = signals.stop() => {
            reached.leave().await;
            return Ok(code);
        }
    };
    let info = match connected {
        Ok(info) => info,
        Err(error) => {
            reached.leave().await;
            return Err(error);
        }
    };
    if !info.capabilities.process_connect {
        reached.leave().await;
        bail!("the executor of {name} cannot forward ports: it must be one of Outpost, as new as this program; upgrade it there");
    }
    let told: String = listening.iter().map(|port| format!("{} -> port {} of {}\n", port.address, port.there, on_line(&name))).collect();
    if let Err(error) = print(&told) {
        reached.leave().await;
        return Err(error);
    }
    if !arguments.bind.is_loopback() {
        say(&format!("every machine that reaches {} can use these ports", arguments.bind));
    }
    if std::io::stderr().is_terminal() && !own.is_quiet() {
        say("Ctrl-C ends it");
    }
    let _notices = AbortOnDropHandle::new(tokio::spawn(connection_notices::tell(environment.clone(), "\n")));
    let traffic = Arc::new(Traffic { environment, name, loopback, room: Arc::new(Semaphore::new(AT_ONCE)), said: Mutex::default() });
    let tasks = TaskTracker::new();
    let accepting: Vec<_> =
        listening.into_iter().map(|port| AbortOnDropHandle::new(tokio::spawn(accept(port, traffic.clone(), tasks.clone())))).collect();
    let code = signals.stop().await;
    drop(accepting);
    // What is still connected ends with the session.
    reached.leave().await;
    Ok(code)
}

/// The environment. Commands of threads run in the keeper of this machine, not in an executor of this process.
async fn reached(arguments: &ForwardArguments, place: &PlaceArguments, own: &ProcessContext) -> anyhow::Result<Reached> {
    let is_local = place.environment.as_deref() == Some(EnvironmentId::local().as_str());
    if !(is_local && arguments.is_of_thread()) {
        return reach::reach(place, CLIENT, own).await;
    }
    let home = Home::from_environment().context("there is no home: set OUTPOST_HOME")?;
    let (connector, executor) = reach::kept_local(&home, configured_limits(&own.settings)?, own)?;
    let caller = Caller { client: CLIENT, patience: Duration::from_secs(place.patience) };
    Ok(Reached::kept(Environment::new(connector, caller.options(own)), executor))
}

/// Whether connections lead to the addresses that are listened on.
fn is_own_loopback(arguments: &ForwardArguments, place: &PlaceArguments) -> bool {
    let is_local = place.environment.as_deref() == Some(EnvironmentId::local().as_str());
    let bind = arguments.bind;
    let is_met = bind.is_unspecified() || [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&bind);
    is_local && !arguments.is_of_thread() && is_met
}

/// A port that leads to one that is listened on would connect with this program, without an end.
fn refuse_circles(listening: &[ForwardedPort]) -> anyhow::Result<()> {
    let circle = listening.iter().find(|port| listening.iter().any(|own| own.address.port() == port.there));
    match circle.map(|port| port.there) {
        Some(port) => bail!(
            "port {port} of `local` is this program itself: it is on this machine and can be used as it is; choose another port here with \
             PORT:{port}, or name a thread with --thread"
        ),
        None => Ok(()),
    }
}

/// A port that is listened on.
struct ForwardedPort {
    listener: TcpListener,
    address: SocketAddr,
    there: u16,
}

impl ForwardedPort {
    async fn open(address: SocketAddr, there: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, there, error))?;
        let address = listener.local_addr()?;
        ensure!(address.port() != 0, "the system gave no port");
        Ok(Self { listener, address, there })
    }
}

fn cannot_listen(address: SocketAddr, there: u16, error: std::io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("; another program listens there: choose another port here with PORT:{there}, or 0:{there}")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("; ports below 1024 need root or CAP_NET_BIND_SERVICE: choose another one with PORT:{there}")
        }
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address".to_owned(),
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address}{advice}"))
}

/// What all connections share.
struct Traffic {
    environment: Environment,
    /// As the user calls it.
    name: String,
    loopback: Loopback,
    room: Arc<Semaphore>,
    /// What was said last of each port: a browser that tries again and again is told once.
    said: Mutex<Vec<(u16, String)>>,
}

async fn accept(port: ForwardedPort, traffic: Arc<Traffic>, tasks: TaskTracker) {
    loop {
        match port.listener.accept().await {
            Ok((connection, _)) => {
                // Not asked for before: every port would hold a place that no connection has.
                let Ok(room) = traffic.room.clone().acquire_owned().await else { return };
                let traffic = traffic.clone();
                tasks.spawn(async move {
                    traffic.carry(connection, port.there).await;
                    drop(room);
                });
            }
            Err(error) => {
                traffic.tell(port.there, Some(format!("a connection to {} cannot be accepted: {error}", port.address)));
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

impl Traffic {
    async fn carry(&self, connection: TcpStream, port: u16) {
        let process = match self.loopback.connect(&self.environment, port).await {
            Ok(process) => process,
            Err(error) => return self.tell(port, Some(format!("{}; the connection is closed", self.refusal(port, &error)))),
        };
        self.tell(port, None);
        if let Err(why) = stream::carry(connection, process).await {
            self.tell(port, Some(format!("a connection to port {port} of {} broke: {why}", self.name)));
        }
    }

    fn refusal(&self, port: u16, error: &anyhow::Error) -> String {
        match error.downcast_ref() {
            Some(EnvironmentError::Fault(fault)) if fault.os_error() == Some(Errno::CONNREFUSED.raw_os_error()) => {
                format!("nothing listens on port {port} of {}{}", self.name, self.loopback.hint())
            }
            _ => format!("port {port} of {}: {}", self.name, with_causes(error)),
        }
    }

    /// Says what is wrong with a port, unless it was said already; nothing if it is well again.
    fn tell(&self, port: u16, what: Option<String>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|(of, text)| *of != port || Some(text) == what.as_ref());
        let Some(what) = what else { return };
        if !said.iter().any(|(of, _)| *of == port) {
            say(&what);
            said.push((port, what));
        }
    }
}
