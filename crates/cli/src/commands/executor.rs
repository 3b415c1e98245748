//! `outpost executor`.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use outpost_executor::{Executor, Lifetime};
use outpost_rpc::auth::{Auth, SignedBearer};
use outpost_rpc::link::stdio;
use outpost_rpc::listen::{ListenAddr, Listener};
use outpost_rpc::{Dispatch, PeerOptions};

use super::{FAILED, USAGE, complain};
use crate::args::{AuthArguments, ExecutorArguments, WsAuth};
use crate::local::{Confinement, ExecutorSettings, executor_config};
use crate::signals::Signals;

pub async fn run(arguments: ExecutorArguments) -> ExitCode {
    let auth = match auth(&arguments.auth, &arguments.listen) {
        Ok(auth) => auth,
        Err(error) => return complain(&error, USAGE),
    };
    if arguments.keep {
        if arguments.listen != ListenAddr::Stdio {
            return complain(&anyhow!("--keep goes with --listen stdio; other listeners keep sessions anyway"), USAGE);
        }
        return super::keeper::bridge(&arguments).await;
    }
    match serve(&arguments, auth).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

async fn serve(arguments: &ExecutorArguments, auth: Auth) -> anyhow::Result<()> {
    let mut settings = settings(arguments.grace, arguments.spool, &arguments.listen);
    settings.peer.dispatch = dispatch(arguments);
    settings.confinement = arguments.confinement.read()?;
    // On stdio a session ends with its link, so there is nothing that a later start could be asked about.
    settings.keeps_fates = arguments.listen != ListenAddr::Stdio;
    let executor = Executor::new(executor_config(settings)?);
    if !arguments.http_allow.is_empty() {
        tracing::info!("--http-allow has no effect yet: nothing is blocked");
    }
    let stop = stop_signal()?;
    let listener = match &arguments.listen {
        ListenAddr::Stdio => {
            let link = stdio::link(tokio::io::stdin(), tokio::io::stdout(), "exec-server stdio");
            let sink = link.tx.clone();
            tokio::select! {
                _ = executor.serve(link, Lifetime::Link) => {}
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
    .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    announce(listener.address())?;
    let serving = executor.clone();
    let on_link = move |link| {
        let executor = serving.clone();
        tokio::spawn(async move { executor.serve(link, Lifetime::Grace).await });
    };
    tokio::select! {
        never = listener.serve(auth, on_link) => match never {},
        () = stop => {}
    }
    executor.shut_down().await;
    Ok(())
}

/// Launchers read this line to know where to connect.
fn announce(address: &ListenAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}").and_then(|()| out.flush()).context("cannot tell where it listens")
}

pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut signals = Signals::listen()?;
    Ok(async move { signals.stop().await })
}

/// Settings that all listeners share.
pub fn settings(grace: u64, spool: u64, listen: &ListenAddr) -> ExecutorSettings {
    let peer = PeerOptions { malformed: malformed(listen), ..PeerOptions::default() };
    ExecutorSettings {
        grace: Duration::from_secs(grace),
        spool,
        peer,
        keeps_fates: true,
        listener: listen.to_string(),
        confinement: Confinement::default(),
    }
}

fn dispatch(arguments: &ExecutorArguments) -> Dispatch {
    match arguments.concurrent_requests {
        None => Dispatch::StepAside,
        Some(one) if one.get() == 1 => Dispatch::InOrder,
        Some(permits) => Dispatch::Lanes(permits),
    }
}

fn malformed(listen: &ListenAddr) -> &'static str {
    match listen {
        ListenAddr::Stdio => "failed to parse JSON-RPC message from",
        ListenAddr::Ws(_) | ListenAddr::Unix(_) => "failed to parse websocket JSON-RPC message from",
    }
}

fn auth(arguments: &AuthArguments, listen: &ListenAddr) -> anyhow::Result<Auth> {
    let (token_file, digest, secret) = (&arguments.ws_token_file, &arguments.ws_token_sha256, &arguments.ws_shared_secret_file);
    let ListenAddr::Ws(address) = listen else {
        ensure!(arguments.ws_auth.is_none(), "--ws-auth goes with a ws:// listener; {listen} is protected by the system");
        return Ok(Auth::Open);
    };
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
            open_auth(arguments.no_auth, address)
        }
    }
}

fn open_auth(no_auth: bool, address: &SocketAddr) -> anyhow::Result<Auth> {
    ensure!(no_auth, "a ws:// listener needs --ws-auth, or --no-auth on a loopback address");
    ensure!(address.ip().is_loopback(), "--no-auth is for loopback addresses only, and {} is not one; use --ws-auth", address.ip());
    Ok(Auth::Open)
}
