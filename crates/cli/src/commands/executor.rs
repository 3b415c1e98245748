//! `outpost executor`.

mod join;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use outpost_executor::{Executor, Lifetime};
use outpost_listener::access::WebsocketAccess;
use outpost_listener::auth::{Auth, SignedBearer};
use outpost_listener::listen::{ListenAddr, Listener};
use outpost_rpc::link::stdio;
use outpost_rpc::{Dispatch, PeerOptions};
use outpost_runtime::secrets::Secrets;
use tokio_util::task::AbortOnDropHandle;

use super::{FAILED, USAGE, cannot_listen, complain};
use crate::confinement::http_allow;
use crate::executor_args::{AuthArguments, ExecutorArguments, WsAuth};
use crate::home::{EXECUTOR, Home};
use crate::local::{ExecutorSettings, SandboxSettings, executor_config};
use crate::out::say;
use crate::signals::ForwardedSignals;
use crate::{ProcessContext, tokens};

pub(crate) async fn run(arguments: Box<ExecutorArguments>, own: &ProcessContext) -> ExitCode {
    let listen = match (&arguments.listen, arguments.join.is_empty()) {
        (Some(ListenAddr::Stdio), false) => return complain(&anyhow!("--join does not go with --listen stdio"), USAGE),
        (Some(listen), _) => Some(listen.clone()),
        (None, true) => Some(ListenAddr::Ws(([127, 0, 0, 1], 0).into())),
        (None, false) => None,
    };
    let rules = listen.as_ref().map(|listen| websocket_access(&arguments.auth, listen, EXECUTOR, &own.secrets)).transpose();
    let (rules, servers) = match rules.and_then(|rules| Ok((rules, join::servers(&arguments, own)?))) {
        Ok(checked) => checked,
        Err(error) => return complain(&error, USAGE),
    };
    if arguments.keep {
        if listen != Some(ListenAddr::Stdio) {
            return complain(&anyhow!("--keep goes with --listen stdio; other listeners keep sessions anyway"), USAGE);
        }
        return super::keeper::bridge(&arguments, own).await;
    }
    let door = listen.zip(rules);
    match serve(&arguments, door, servers, own).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

/// Serves clients that connect, and servers it dialled in to.
async fn serve(
    arguments: &ExecutorArguments,
    door: Option<(ListenAddr, WebsocketAccess)>,
    servers: Vec<join::JoinTarget>,
    own: &ProcessContext,
) -> anyhow::Result<()> {
    let listen = door.as_ref().map(|(listen, _)| listen.clone());
    let confinement = arguments.confinement.read(&own.settings)?;
    let mut settings = settings((arguments.grace(), arguments.grace_running()), arguments.spool, listen.as_ref(), confinement);
    if let (None, Some(id)) = (&listen, &arguments.id) {
        settings.listener = format!("joined as {id}");
    }
    settings.peer.dispatch = dispatch(arguments);
    settings.http_allow = http_allow(arguments.http_allow.clone(), &own.settings)?;
    // On stdio a session ends with its link, so there is nothing that a later start could be asked about.
    settings.keeps_fates = listen != Some(ListenAddr::Stdio);
    let executor = Executor::new(executor_config(settings, &own.variables)?);
    let install = if servers.is_empty() { String::new() } else { install_id(own)? };
    let stop = stop_signal()?;
    let _joined: Vec<_> = servers
        .into_iter()
        .map(|server| AbortOnDropHandle::new(tokio::spawn(join::stay(executor.clone(), install.clone(), server))))
        .collect();
    let Some((listen, rules)) = door else {
        stop.await;
        executor.shut_down().await;
        return Ok(());
    };
    let listener = match &listen {
        ListenAddr::Stdio => {
            let link = stdio::link(tokio::io::stdin(), tokio::io::stdout(), "exec-server stdio");
            let sink = link.tx.clone();
            // In a task of its own: when this is told to end, the session must end in good order and not with its link.
            let serving = executor.clone();
            let mut serving = tokio::spawn(async move { serving.serve(link, Lifetime::Link).await });
            tokio::select! {
                _ = &mut serving => {}
                () = stop => {}
            }
            executor.shut_down().await;
            // The last answers are still on their way.
            sink.flushed().await;
            return Ok(());
        }
        ListenAddr::Ws(address) => Listener::ws(*address).await,
        ListenAddr::Unix(path) => Listener::unix(path).await,
    }
    .map_err(|error| cannot_listen(&listen, error))?;
    announce(listener.address())?;
    let serving = executor.clone();
    let on_link = move |link| {
        let executor = serving.clone();
        tokio::spawn(async move { executor.serve(link, Lifetime::Grace).await });
    };
    tokio::select! {
        never = listener.serve(rules, on_link) => match never {},
        () = stop => {}
    }
    executor.shut_down().await;
    Ok(())
}

/// A token belongs to the install that used it first, also where its jobs come and go.
fn install_id(own: &ProcessContext) -> anyhow::Result<String> {
    let home = Home::from_environment().context("joining needs an identity; set OUTPOST_HOME")?;
    let id = home.seat(&own.variables).and_then(|seat| seat.install_id());
    id.context("joining needs an identity, and it cannot be kept; is OUTPOST_HOME writable?")
}

/// Launchers read this line to know where to connect.
pub(crate) fn announce(address: &ListenAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}").and_then(|()| out.flush()).context("cannot tell where it listens")
}

pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut signals = ForwardedSignals::listen()?;
    Ok(async move {
        signals.stop().await;
    })
}

/// Settings that all listeners share.
pub(crate) fn settings(
    (grace, grace_running): (u64, u64),
    spool: u64,
    listen: Option<&ListenAddr>,
    confinement: SandboxSettings,
) -> ExecutorSettings {
    ExecutorSettings {
        grace: Duration::from_secs(grace),
        grace_running: Duration::from_secs(grace_running),
        spool,
        peer: peer_options(listen),
        keeps_fates: true,
        listener: listen.map(ToString::to_string).unwrap_or_default(),
        http_allow: Vec::new(),
        confinement,
    }
}

pub(crate) fn peer_options(listen: Option<&ListenAddr>) -> PeerOptions {
    PeerOptions { malformed: malformed(listen), ..PeerOptions::default() }
}

fn dispatch(arguments: &ExecutorArguments) -> Dispatch {
    match arguments.concurrent_requests {
        None => Dispatch::StepAside,
        Some(one) if one.get() == 1 => Dispatch::InOrder,
        Some(permits) => Dispatch::Lanes(permits),
    }
}

fn malformed(listen: Option<&ListenAddr>) -> &'static str {
    match listen {
        Some(ListenAddr::Stdio) => "failed to parse JSON-RPC message from",
        Some(ListenAddr::Ws(_) | ListenAddr::Unix(_)) | None => "failed to parse websocket JSON-RPC message from",
    }
}

/// Who is let in. `name` is that of the token that is asked for if nothing else is said.
pub(crate) fn websocket_access(
    arguments: &AuthArguments,
    listen: &ListenAddr,
    name: &str,
    secrets: &Secrets,
) -> anyhow::Result<WebsocketAccess> {
    let (origins, hosts, proxies) = (arguments.allow_origin.clone(), arguments.allow_host.clone(), arguments.trusted_proxy.clone());
    Ok(WebsocketAccess { origins, hosts, proxies, ..WebsocketAccess::from(auth(arguments, listen, name, secrets)?) })
}

fn auth(arguments: &AuthArguments, listen: &ListenAddr, name: &str, secrets: &Secrets) -> anyhow::Result<Auth> {
    let (token_file, digest, secret) = (&arguments.ws_token_file, &arguments.ws_token_sha256, &arguments.ws_shared_secret_file);
    let ListenAddr::Ws(address) = listen else {
        ensure!(arguments.ws_auth.is_none(), "--ws-auth goes with a ws:// listener; {listen} is protected by the system");
        return Ok(Auth::Open);
    };
    for path in [token_file, secret].into_iter().flatten() {
        // Whether it can be read at all is told below.
        std::fs::read(path).iter().for_each(|secret| secrets.register(secret));
    }
    match arguments.ws_auth {
        Some(WsAuth::CapabilityToken) => match (token_file, digest) {
            (Some(path), None) => Ok(Auth::token_file(path)?),
            (None, Some(hex)) => Ok(Auth::token_digest(hex)?),
            _ => bail!("--ws-auth capability-token needs one of --ws-token-file and --ws-token-sha256"),
        },
        Some(WsAuth::SignedBearerToken) => {
            let path = secret.as_ref().context("--ws-auth signed-bearer-token needs --ws-shared-secret-file")?;
            let skew = Duration::from_secs(arguments.ws_max_clock_skew_seconds);
            Ok(Auth::Signed(SignedBearer::from_file(path, arguments.ws_issuer.clone(), arguments.ws_audience.clone(), skew)?))
        }
        None => {
            let stray = token_file.is_some() || digest.is_some() || secret.is_some();
            ensure!(!stray, "a token or secret was given, but not --ws-auth");
            if arguments.no_auth { open_auth(address) } else { own_token(address, name, secrets) }
        }
    }
}

fn open_auth(address: &SocketAddr) -> anyhow::Result<Auth> {
    ensure!(address.ip().is_loopback(), "--no-auth is for loopback addresses only, and {} is not one; use --ws-auth", address.ip());
    Ok(Auth::Open)
}

/// The token of this home. It is for this machine: to let others in, configure what they must present.
fn own_token(address: &SocketAddr, name: &str, secrets: &Secrets) -> anyhow::Result<Auth> {
    let home = Home::from_environment().context("a token needs a home; set OUTPOST_HOME, or use --ws-auth")?;
    let path = home.token(name);
    ensure!(
        address.ip().is_loopback(),
        "{} is beyond this machine, so say who may connect, for example --ws-auth capability-token --ws-token-file {}",
        address.ip(),
        path.display()
    );
    let token =
        tokens::obtain(&path).with_context(|| format!("there is no token to ask for; use --ws-auth, or make {} usable", path.display()))?;
    secrets.register(&token);
    say(&format!("clients show the token in {}", path.display()));
    Ok(Auth::token(&token))
}
