//! `outpost serve`: the app protocol, executors that dial in, and metrics, behind one listener.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use outpost_config::Config;
use outpost_config::ServeTable;
use outpost_listener::access::{AccessRules, HostName, ListenerAccess, WebOrigin};
use outpost_listener::auth::Auth;
use outpost_listener::listen::{ListenAddr, Listener};
use outpost_rpc::tls;
use outpost_server::admission::BrowserAdmission;
use outpost_server::executors::{Executors, JoinLimits};
use outpost_server::metrics::{MetricSources, Metrics};
use outpost_server::people::node_secret;
use outpost_server::site::{ClientAccess, Site};
use outpost_server::web::Sessions;
use outpost_store::{NodeAddress, Store};

use super::app_server::{assemble, on_link, own_socket};
use super::executor::{stop_signal, websocket_access};
use super::{FAILED, USAGE, cannot_listen, complain, token};
use crate::ProcessContext;
use crate::assembly::NodeRole;
use crate::home::{APP, Home};
use crate::notify::Notifier;
use crate::notify::turns::Notifying;
use crate::out::{say, with_causes};
use crate::serve_args::ServeArguments;
use crate::tokens;

pub(crate) async fn run(arguments: Box<ServeArguments>, own: &ProcessContext) -> ExitCode {
    let (home, plan) = match plan(&arguments, own) {
        Ok(checked) => checked,
        Err(error) => return complain(&error, USAGE),
    };
    match serve(home, plan, own).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

/// What was checked before anything is started.
struct Plan {
    address: SocketAddr,
    access: ClientAccess,
    tls: Option<Arc<tls::ServerConfig>>,
    behind_proxy: bool,
    origins: Vec<WebOrigin>,
    hosts: Vec<HostName>,
    proxies: Vec<IpAddr>,
    /// Where other nodes of the store reach this one.
    advertise: Option<String>,
    node: Option<String>,
}

/// Where it listens by default.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7633);

fn plan(arguments: &ServeArguments, own: &ProcessContext) -> anyhow::Result<(Home, Plan)> {
    let home = Home::from_environment().context("serving needs a home; set OUTPOST_HOME")?;
    let ServeTable { listen, tls_cert, tls_key, behind_proxy, allow_host, allow_origin, advertise, node } =
        Config::read(Some(&home.config()), &own.settings)?.serve;
    let listen = arguments.listen.clone().or(listen).unwrap_or(ListenAddr::Ws(USUAL));
    let ListenAddr::Ws(address) = listen else {
        return Err(anyhow!("{listen}: `serve` listens on ws://IP:PORT; `outpost app-server` knows other ways"));
    };
    // What the command line says about TLS counts instead of all that the file says about it.
    let (certificates, key, behind_proxy) = if arguments.tls_cert.is_some() || arguments.behind_proxy {
        (arguments.tls_cert.clone(), arguments.tls_key.clone(), arguments.behind_proxy)
    } else {
        let below_home = |path: Option<PathBuf>| path.map(|path| home.path().join(path));
        (below_home(tls_cert), below_home(tls_key), behind_proxy)
    };
    let tls = match (certificates, key) {
        (Some(certificates), Some(key)) => Some(Arc::new(tls::server(&certificates, &key)?)),
        (None, None) => None,
        _ => return Err(anyhow!("[serve] of config.toml has one of tls_cert and tls_key; TLS needs both")),
    };
    ensure!(tls.is_none() || !behind_proxy, "[serve] of config.toml has both TLS and behind_proxy; only one of them can speak it");
    ensure!(
        address.ip().is_loopback() || tls.is_some() || behind_proxy,
        "{} is beyond this machine: give --tls-cert and --tls-key, or --behind-proxy if a proxy in front of it speaks TLS",
        address.ip()
    );
    ensure!(
        !(arguments.auth.no_auth && behind_proxy),
        "--no-auth is for those on this machine only, and a proxy (--behind-proxy) lets others in; use tokens or --ws-auth"
    );
    let advertise = arguments.advertise.clone().or(advertise);
    if let Some(url) = &advertise {
        ensure!(url.starts_with("ws://") || url.starts_with("wss://"), "--advertise {url}: write ws://HOST:PORT or wss://HOST");
    }
    let node = arguments.node.clone().or(node);
    let access = access(arguments, &listen, &home, own)?;
    let origins = [allow_origin, arguments.auth.allow_origin.clone()].concat();
    let hosts = [allow_host, arguments.auth.allow_host.clone()].concat();
    let proxies = arguments.auth.trusted_proxy.clone();
    Ok((home, Plan { address, access, tls, behind_proxy, origins, hosts, proxies, advertise, node }))
}

fn access(arguments: &ServeArguments, listen: &ListenAddr, home: &Home, own: &ProcessContext) -> anyhow::Result<ClientAccess> {
    if arguments.auth.ws_auth.is_some() || arguments.auth.no_auth {
        return Ok(match websocket_access(&arguments.auth, listen, APP, &own.secrets)?.auth {
            Auth::Open => ClientAccess::Open,
            asked => ClientAccess::Tokens(asked),
        });
    }
    let path = home.token(APP);
    let token = tokens::obtain(&path).with_context(|| format!("there is no token to ask for; make {} usable", path.display()))?;
    own.secrets.register(&token);
    say(&format!("clients show the token in {}, or one that `outpost token create --client` made", path.display()));
    Ok(ClientAccess::Tokens(Auth::token(&token)))
}

async fn serve(home: Home, plan: Plan, own: &ProcessContext) -> anyhow::Result<()> {
    let mut notifying = Notifying::new(Notifier::new(&Config::read(Some(&home.config()), &own.settings)?.notify, own)?);
    let (assembly, server) = assemble(&home, own, NodeRole::Server).await?;
    let stop = stop_signal()?;
    let listener = Listener::ws(plan.address).await.map_err(|error| cannot_listen(&format!("ws://{}", plan.address), error))?;
    let (listener, scheme) = match plan.tls {
        Some(config) => (listener.with_tls(config), "wss"),
        None => (listener, "ws"),
    };
    let (issued, admission) = (token::of_server(&home, own).await?, Arc::new(BrowserAdmission::default()));
    let executors = Executors::new(assembly.runtime.registry().clone(), issued.clone(), admission.clone(), JoinLimits::default());
    let site = Site {
        access: plan.access,
        tokens: issued.clone(),
        admission: admission.clone(),
        executors: executors.clone(),
        on_client: {
            let server = server.clone();
            Arc::new(move |link, identity| {
                let server = server.clone();
                tokio::spawn(async move { server.serve_as(link, identity).await });
            })
        },
        node_secret: node_secret(assembly.runtime.store()).await,
        sessions: Sessions::new(Arc::new(|| tokens::random().ok())),
        store: assembly.runtime.store().clone(),
        is_private: scheme == "wss" || plan.behind_proxy,
        metrics: Metrics::new(MetricSources { server: server.clone(), executors: executors.clone() }),
    };
    let Plan { origins, hosts, proxies, advertise, node, .. } = plan;
    if let Store::Postgres(store) = assembly.runtime.store() {
        let own = match listener.address() {
            ListenAddr::Ws(address) if address.ip().is_loopback() => Some(format!("{scheme}://{address}")),
            _ => None,
        };
        let address = NodeAddress { name: node, url: advertise.or(own) };
        if address.url.is_none() {
            say("other servers of this database cannot reach this one: name its address with --advertise");
        }
        store.announce(address).await.context("the database")?;
    }
    let threshold = AccessRules { origins, hosts, proxies, own_pages: true, ..AccessRules::default() };
    let socket = own_socket(&home, own)
        .await
        .inspect_err(|error| tracing::debug!("this server is not found at run/app.sock: {}", with_causes(error)))
        .ok();
    let at_home = async {
        match socket {
            Some(socket) => match socket.serve(Auth::Open, on_link(server.clone())).await {},
            None => std::future::pending::<()>().await,
        }
    };
    let secret = node_secret(assembly.runtime.store()).await;
    let lending = async {
        match (assembly.runtime.store(), &secret) {
            (Store::Postgres(store), Some(secret)) => executors.follow_nodes(store, secret).await,
            _ => std::future::pending().await,
        }
    };
    announce(scheme, listener.address())?;
    tell_page(scheme, listener.address());
    tokio::select! {
        () = at_home => {}
        never = listener.serve_door(ListenerAccess::to(threshold, Arc::new(site))) => match never {},
        () = executors.follow_tokens() => {}
        () = lending => {}
        () = admission.keep_looking(&issued) => {}
        () = assembly.runtime.take_up_orphans() => {}
        () = notifying.run(&assembly.runtime) => {}
        () = stop => {}
    }
    // Clients try at once to reach the next server; what is left to do here is none of theirs.
    assembly.shut_down_with(|| server.close()).await;
    // Also of turns that this end interrupted.
    notifying.finish().await;
    Ok(())
}

/// People do not read websocket addresses.
fn tell_page(scheme: &str, address: &ListenAddr) {
    if let ListenAddr::Ws(address) = address {
        say(&format!("the page for browsers is {}://{address}", if scheme == "wss" { "https" } else { "http" }));
    }
}

/// Launchers read this line to know where to connect.
fn announce(scheme: &str, address: &ListenAddr) -> anyhow::Result<()> {
    let address = address.to_string();
    let rest = address.strip_prefix("ws").unwrap_or(&address);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{scheme}{rest}").and_then(|()| out.flush()).context("cannot tell where it listens")
}
