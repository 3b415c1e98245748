//! The arguments of `outpost serve` and `outpost token`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use outpost_listener::listen::ListenAddr;
use outpost_server::people::Role;
use outpost_thread::ThreadId;
use outpost_wire::EnvironmentId;

use crate::executor_args::AuthArguments;

pub(crate) const SERVE_HELP: &str = "\
Examples:
  outpost serve                               this machine only, at ws://127.0.0.1:7633
  outpost serve --listen ws://0.0.0.0:443 --allow-host hub.example.org \\
    --tls-cert chain.pem --tls-key key.pem    for a team
  outpost serve --listen ws://10.0.0.5:7000 --behind-proxy --allow-host hub.example.org
                                              a proxy in front of it speaks TLS

The first line of standard output is the URL to connect to. Executors dial in with `outpost executor --join URL --id \
ID` and a token from `outpost token create --executor ID`; clients and other servers use one from `outpost token \
create --client`. All flags but those of --ws-auth and --no-auth can be keys of `[serve]` in config.toml. Behind the \
same address: the page for browsers, /metrics for Prometheus, /readyz and /healthz, and /executors/reach/ID for other \
Outposts.";

#[derive(Args)]
pub(crate) struct ServeArguments {
    /// Where to listen [default: ws://127.0.0.1:7633]
    #[arg(long, value_name = "ws://IP:PORT")]
    pub listen: Option<ListenAddr>,
    /// The server's certificate and those that lead to one that clients trust, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Listen beyond this machine without TLS, because a proxy in front of it speaks TLS
    #[arg(long, conflicts_with = "tls_cert")]
    pub behind_proxy: bool,
    /// Where other servers of the same database reach this one [default: where it listens, if that is loopback]
    #[arg(long, value_name = "ws[s]://HOST[:PORT]")]
    pub advertise: Option<String>,
    /// What this server is called among those of the same database [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    #[command(flatten)]
    pub auth: AuthArguments,
}

pub(crate) const TOKEN_HELP: &str = "\
Examples:
  outpost token create --executor gpu      for `outpost executor --join … --id gpu` only
  outpost token create --client            for clients, which may do everything
  outpost token create --client --name anna --role viewer
                                           for a person: viewer, operator or admin
  outpost token create --metrics           for reading /metrics, and nothing else
  outpost token list
  outpost token revoke 3f9c2a51d07e        closes what is open by it within a second

Only digests are kept, in OUTPOST_HOME/tokens or, with a Postgres store, there for all its nodes: a secret is shown once. An executor's id belongs to the install that \
first joins with it, until all its tokens are revoked.";

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print its secret, once
    Create(CreateToken),
    /// List issued tokens
    #[command(visible_alias = "ls")]
    List {
        /// Print JSON: [{name, scope, createdAt, note?, boundTo?}]
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token and close its connections
    Revoke {
        /// As `outpost token list` shows it; its beginning is enough
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Args)]
pub(crate) struct CreateToken {
    #[command(flatten)]
    pub scope: TokenScope,
    /// Name of the holder, recorded with each action
    #[arg(long, value_name = "NAME", requires = "client")]
    pub name: Option<String>,
    /// What a client may do: viewer, operator or admin [default: admin]
    #[arg(long, value_name = "ROLE", requires = "client")]
    pub role: Option<Role>,
    /// Only threads that work in this environment; may be given several times
    #[arg(long, value_name = "ID", requires = "client")]
    pub environment: Vec<EnvironmentId>,
    /// Only this thread; may be given several times
    #[arg(long, value_name = "ID", requires = "client")]
    pub thread: Vec<ThreadId>,
    /// What it is for, to be shown in the list
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TokenScope {
    /// For the executor that joins under this id
    #[arg(long, value_name = "ID")]
    pub executor: Option<String>,
    /// For a client
    #[arg(long)]
    pub client: bool,
    /// For reading metrics
    #[arg(long)]
    pub metrics: bool,
}
