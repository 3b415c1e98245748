//! `outpost app-server`: threads for clients of the app protocol.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use outpost_config::Config;
use outpost_listener::access::WebsocketAccess;
use outpost_listener::listen::{ListenAddr, Listener};
use outpost_rpc::link::stdio;
use outpost_server::{Facts, Server, ServerParts};
use outpost_wire::PathUri;

use super::executor::{announce, stop_signal, websocket_access};
use super::{FAILED, USAGE, cannot_listen, complain};
use crate::assembly::{Assembly, NodeRole, RuntimeOptions};
use crate::executor_args::{AppListen, AppServerArguments};
use crate::home::{APP, Home};
use crate::lock::Lock;
use crate::notify::Notifier;
use crate::notify::turns::Notifying;
use crate::out::{say, with_causes};
use crate::owner::{self, Clients};
use crate::{ProcessContext, store};

pub(crate) async fn run(arguments: AppServerArguments, own: &ProcessContext) -> ExitCode {
    let rules = match &arguments.listen {
        AppListen::At(address) => match websocket_access(&arguments.auth, address, APP, &own.secrets) {
            Ok(rules) => Some(WebsocketAccess { ready: &["/readyz", "/healthz"], ..rules }),
            Err(error) => return complain(&error, USAGE),
        },
        AppListen::Off => None,
    };
    if arguments.until_idle
        && let Err(error) = rustix::process::setsid()
    {
        // It leads a group already, and the terminal is not its own any more.
        tracing::debug!(%error, "no session of its own");
    }
    match serve(&arguments, rules, own).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

async fn serve(arguments: &AppServerArguments, rules: Option<WebsocketAccess>, own: &ProcessContext) -> anyhow::Result<()> {
    let listen = &arguments.listen;
    let stop = stop_signal()?;
    let home = Home::from_environment().context("there is no home: set OUTPOST_HOME")?;
    let notifier = Notifier::new(&Config::read(Some(&home.config()), &own.settings)?.notify, own)?;
    let (assembly, server) = assemble(&home, own, NodeRole::Single).await?;
    let socket = match (own_socket(&home, own).await, listen) {
        (Err(error), AppListen::Off) => {
            assembly.shut_down().await;
            return Err(error.context("with --listen off this server is reached at the socket of its home only"));
        }
        (socket, _) => socket.inspect_err(|error| tracing::debug!("this server is not found at run/app.sock: {}", with_causes(error))).ok(),
    };
    let (clients, mut notifying) = (Clients::default(), Notifying::new(notifier));
    let at_home = async {
        match socket {
            Some(socket) => {
                let (server, clients) = (server.clone(), clients.clone());
                let on_link = move |link| {
                    let (server, client) = (server.clone(), clients.enter());
                    tokio::spawn(async move {
                        server.serve(link).await;
                        drop(client);
                    });
                };
                match socket.serve(outpost_listener::auth::Auth::Open, on_link).await {}
            }
            None => std::future::pending::<()>().await,
        }
    };
    let serving = async {
        match (listen, rules) {
            (AppListen::At(ListenAddr::Stdio), _) => {
                let link = stdio::link(tokio::io::stdin(), tokio::io::stdout(), "app-server stdio");
                let sink = link.tx.clone();
                server.serve(link).await;
                // The last answers are still on their way.
                sink.flushed().await;
                Ok(())
            }
            (AppListen::At(address), Some(rules)) => {
                let listener = match address {
                    ListenAddr::Ws(address) => Listener::ws(*address).await,
                    ListenAddr::Unix(path) => Listener::unix(path).await,
                    ListenAddr::Stdio => std::future::pending().await,
                };
                let listener = listener.map_err(|error| cannot_listen(address, error))?;
                announce(listener.address())?;
                match listener.serve(rules, on_link(server.clone())).await {}
            }
            (AppListen::At(_), None) | (AppListen::Off, _) => std::future::pending().await,
        }
    };
    let idle = async {
        match arguments.until_idle {
            true => owner::until_idle(&assembly.runtime, &clients, &mut notifying).await,
            false => notifying.run(&assembly.runtime).await,
        }
    };
    let served = tokio::select! {
        () = idle => Ok(()),
        served = serving => served,
        () = at_home => Ok(()),
        () = stop => Ok(()),
    };
    assembly.shut_down().await;
    // Also of turns that this end interrupted.
    notifying.finish().await;
    served
}

/// The server of this home, and what it stands on.
pub(crate) async fn assemble(home: &Home, own: &ProcessContext, role: NodeRole) -> anyhow::Result<(Assembly, Server)> {
    let config = crate::configuration::load(Some(&home.config()), &own.settings)?;
    let shown = config.shown();
    let wish = RuntimeOptions { questions: true, keeps_sessions: true, follows_environments: true, role, ..RuntimeOptions::of(config) };
    let assembly = Assembly::new(home, wish, own).await?;
    if let Some(note) = &assembly.note {
        say(note);
    }
    let here = std::env::current_dir().context("the current directory is gone")?;
    let facts = Facts {
        home: std::path::absolute(home.path()).context("the home has no absolute path")?,
        cwd: PathUri::from_native(&here)?,
        version: env!("CARGO_PKG_VERSION").into(),
        config: shown,
        check_config: Config::check,
        requirements: Lock::read()?.shown(),
    };
    let server = Server::new(ServerParts { runtime: assembly.runtime.clone(), facts, clock: Arc::new(store::now) });
    Ok((assembly, server))
}

/// Where the verbs of this user find a server that runs. A second server of the same home is not found there.
pub(crate) async fn own_socket(home: &Home, own: &ProcessContext) -> anyhow::Result<Listener> {
    let seat = home.seat(&own.variables)?;
    let path = seat.run.join("app.sock");
    seat.make_run().context("there is no place for the socket of this server")?;
    Listener::unix(&path).await.map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => ": another server of this home listens there; stop it first",
            std::io::ErrorKind::InvalidFilename | std::io::ErrorKind::InvalidInput => {
                ": the path is too long for a socket; choose a shorter OUTPOST_HOME"
            }
            _ => "",
        };
        anyhow::Error::new(error).context(format!("cannot listen on {}{advice}", path.display()))
    })
}

pub(crate) fn on_link(server: Server) -> impl Fn(outpost_rpc::Link) + Send + Sync + 'static {
    move |link| {
        let server = server.clone();
        tokio::spawn(async move { server.serve(link).await });
    }
}
