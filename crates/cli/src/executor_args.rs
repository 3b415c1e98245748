//! The arguments of `outpost executor`, `outpost app-server` and what they share with other servers.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use outpost_config::limits::LimitSetting;
use outpost_environment::ExecutorAddress;
use outpost_executor::HttpTarget;
use outpost_listener::access::{HostName, WebOrigin};
use outpost_listener::listen::ListenAddr;

use crate::args::YEAR;

pub(crate) const EXECUTOR_HELP: &str = "\
Examples:
  outpost executor                                     this machine only; clients show a token
  outpost executor --no-auth                           this machine only, without authentication
  outpost executor --listen unix:///run/user/1000/x.sock
                                                       only this user can connect
  outpost executor --listen ws://10.0.0.5:7000 \\
    --ws-auth capability-token --ws-token-file /etc/outpost/token
  ssh -T box outpost executor --listen stdio --keep    for `outpost run --via`
  OUTPOST_TOKEN=… outpost executor --join wss://hub.example.org --id gpu
                                                       no port is opened here; the server makes the
                                                       token: `outpost token create --executor gpu`

The first line of standard output is the URL to connect to. GET /readyz answers 200 once it serves. Without --ws-auth \
and --no-auth, a websocket asks for the token in OUTPOST_HOME/tokens/executor, which is made on the first start; \
`outpost run -e ws://127.0.0.1:PORT` finds it there, other clients send it as `Authorization: Bearer TOKEN`.";

#[derive(Args)]
pub(crate) struct ExecutorArguments {
    /// Where to listen: ws://IP:PORT, unix://PATH or stdio [default: ws://127.0.0.1:0, or nowhere with --join]
    #[arg(long, value_name = "URL")]
    pub listen: Option<ListenAddr>,
    /// Connect to an `outpost serve` instead of listening (ws://HOST:PORT, wss://HOST); may be given several times
    #[arg(long, value_name = "URL", requires = "id")]
    pub join: Vec<ExecutorAddress>,
    /// With --join: the id under which this machine is known there
    #[arg(long, value_name = "ID", requires = "join")]
    pub id: Option<String>,
    /// With --join: a file with the token that the server handed out; one for all servers, or one for each in the same order.
    /// Without it OUTPOST_TOKEN counts
    #[arg(long, value_name = "FILE", requires = "join")]
    pub token_file: Vec<PathBuf>,
    /// With stdio: keep sessions when the connection is lost. A detached executor holds them; it starts on demand and exits after its
    /// last session
    #[arg(long)]
    pub keep: bool,
    /// With --keep: wait for a keeper that another process starts
    #[arg(long, hide = true, requires = "keep")]
    pub kept_elsewhere: bool,
    /// With --keep: the directory that a keeper is started in, if not the home
    #[arg(long, value_name = "DIR", requires = "keep")]
    pub cd: Option<PathBuf>,
    /// Let so many requests of one connection run at once (1: strictly one after the other). Without this, requests
    /// start in order and those that wait step aside
    #[arg(long, value_name = "N")]
    pub concurrent_requests: Option<NonZeroUsize>,
    /// Grace in seconds for a session without a connection [default: 600, or that of --profile]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub grace: Option<u64>,
    /// Grace in seconds for a session with a running or unreported command [default: --grace, 86400, or that of --profile]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub grace_running: Option<u64>,
    /// Keep so many bytes of output per process on disk for a client that is away
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(..=1 << 40))]
    pub spool: u64,
    /// Let `http/request` reach this host, network (CIDR) or, with `loopback`, this machine; may be given several times.
    /// Without it only public addresses are reached
    #[arg(long, value_name = "HOST|CIDR|loopback")]
    pub http_allow: Vec<HttpTarget>,
    #[command(flatten)]
    pub confinement: ConfinementArguments,
    #[command(flatten)]
    pub auth: AuthArguments,
}

pub(crate) const APP_SERVER_HELP: &str = "\
Examples:
  outpost app-server                                for a client that starts it: a message a line
  outpost app-server --listen ws://127.0.0.1:7001   clients show the token of this home
  outpost app-server --listen off                   for this user, at OUTPOST_HOME/run/app.sock

With a websocket the first line of standard output is the URL to connect to. GET /readyz answers 200 once it serves. \
Without --ws-auth and --no-auth a websocket asks for the token in OUTPOST_HOME/tokens/app, which is made on the first \
start. A server on standard input and output ends with its input.";

#[derive(Args)]
pub(crate) struct AppServerArguments {
    /// Where to listen: stdio://, ws://IP:PORT, unix://PATH or off
    #[arg(long, value_name = "URL", default_value = "stdio://")]
    pub listen: AppListen,
    /// End when no turn runs and no client is connected: for turns that `exec --detach` and `/detach` leave behind
    #[arg(long, hide = true)]
    pub until_idle: bool,
    /// Accepted for compatibility; this is the default
    #[arg(long, hide = true, conflicts_with = "listen")]
    pub stdio: bool,
    /// Accepted for compatibility; there is no telemetry
    #[arg(long, hide = true)]
    pub analytics_default_enabled: bool,
    #[command(flatten)]
    pub auth: AuthArguments,
}

/// Where an app server listens.
#[derive(Clone)]
pub(crate) enum AppListen {
    At(ListenAddr),
    /// Only at the socket of its home.
    Off,
}

impl std::str::FromStr for AppListen {
    type Err = outpost_listener::listen::ListenAddrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" { Ok(Self::Off) } else { text.parse().map(Self::At) }
    }
}

#[derive(Args, Clone)]
pub(crate) struct ConfinementArguments {
    /// What this machine is: `own-machine` (yours alone), `shared-host` (others work here, too) or `container` (made for this). Sets
    /// ceiling, limits and grace at once; explicit flags override the profile (see docs/executor.md)
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<Profile>,
    /// For a program that is started in the place of another: where that one was started
    #[arg(long, hide = true)]
    pub profile_directory: Option<PathBuf>,
    /// A file that says what no request can exceed: network, read, write and deny (see docs/sandbox.md)
    #[arg(long, value_name = "FILE")]
    pub ceiling: Option<PathBuf>,
    /// As root: run sandboxed commands as this user, who must have been given the workspace. Without this, each session
    /// gets a user of its own and the workspace is mapped to it
    #[arg(long, value_name = "NAME")]
    pub sandbox_user: Option<String>,
    /// Change what a session may use; may be given several times. NAME is processes, memory, open-files, file-size,
    /// free-space, home-layer or cpu-seconds; VALUE a number (with K, M, G or T for bytes) or `none`. Without it, `[limits]` of config.toml counts
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    pub limits: Vec<(String, LimitSetting)>,
}

const LIMITS: [&str; 7] = ["processes", "memory", "open-files", "file-size", "free-space", "home-layer", "cpu-seconds"];

fn limit(text: &str) -> Result<(String, LimitSetting), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    if !LIMITS.contains(&name) {
        return Err(format!("`{name}` is not a limit; there are {}", LIMITS.join(", ")));
    }
    Ok((name.to_owned(), LimitSetting::parse(value)?))
}

/// What kind of machine an executor is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    OwnMachine,
    SharedHost,
    Container,
}

#[derive(Args)]
pub(crate) struct KeeperArguments {
    /// The keeper of `local`: sessions run in the place of the programs that ask for them
    #[arg(long, conflicts_with_all = ["grace", "grace_running", "spool", "http_allow"])]
    pub local: bool,
    #[arg(long, default_value_t = 600)]
    pub grace: u64,
    #[arg(long, default_value_t = 600)]
    pub grace_running: u64,
    #[arg(long, default_value_t = 64 << 20)]
    pub spool: u64,
    #[arg(long)]
    pub http_allow: Vec<HttpTarget>,
    #[command(flatten)]
    pub confinement: ConfinementArguments,
}

#[derive(Args)]
pub(crate) struct AuthArguments {
    /// No authentication; only for a loopback address. Every user of this machine can then run commands as you
    #[arg(long)]
    pub no_auth: bool,
    /// Let pages of this origin (https://example.com) connect from a browser; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<WebOrigin>,
    /// Let the listener be called by this name (the Host header), besides loopback and its own address; may be given
    /// several times
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<HostName>,
    /// The address of a balancer in front of this listener; may be given several times. Those whom it forwards are told apart by its
    /// X-Forwarded-For header
    #[arg(long, value_name = "ADDRESS")]
    pub trusted_proxy: Vec<IpAddr>,
    /// What a websocket client must present. Without it: the token that is made on the first start
    #[arg(long, value_name = "KIND")]
    pub ws_auth: Option<WsAuth>,
    /// With capability-token: a file that holds the token (absolute path)
    #[arg(long, value_name = "FILE", conflicts_with = "ws_token_sha256")]
    pub ws_token_file: Option<PathBuf>,
    /// With capability-token: the token's SHA-256 digest in hexadecimal
    #[arg(long, value_name = "HEX")]
    pub ws_token_sha256: Option<String>,
    /// With signed-bearer-token: a file that holds the shared secret (absolute path, at least 32 bytes)
    #[arg(long, value_name = "FILE")]
    pub ws_shared_secret_file: Option<PathBuf>,
    /// With signed-bearer-token: the issuer that tokens must name
    #[arg(long, value_name = "NAME")]
    pub ws_issuer: Option<String>,
    /// With signed-bearer-token: the audience that tokens must name
    #[arg(long, value_name = "NAME")]
    pub ws_audience: Option<String>,
    /// With signed-bearer-token: how far clocks may be apart
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub ws_max_clock_skew_seconds: u64,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum WsAuth {
    CapabilityToken,
    SignedBearerToken,
}
