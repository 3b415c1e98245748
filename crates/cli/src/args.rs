//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use outpost_executor::HttpTarget;
use outpost_rpc::door::{HostName, Origin};
use outpost_rpc::listen::ListenAddr;

/// The longest that anything is waited for, in seconds.
const YEAR: u64 = 366 * 24 * 3600;

/// Runs one agent across many machines: durable threads here, sandboxed hands there.
#[derive(Parser)]
#[command(name = "outpost", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 the work failed, 2 wrong usage, 3 an environment was unreachable, 70 a bug of ours.
`run` exits with the command's own code, or 125 for a failure of ours.";

#[derive(Subcommand)]
pub enum Command {
    /// Serve this machine's processes and files to a client
    #[command(visible_alias = "exec-server", after_help = EXECUTOR_HELP)]
    Executor(Box<ExecutorArguments>),
    /// The detached executor behind `--keep`; started by it
    #[command(name = "__keeper", hide = true)]
    Keeper(KeeperArguments),
    /// Run a command in an environment and stay with it, whatever happens to the connection
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Look at this machine: what is enforced here by what, and what to do about the rest
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArguments),
}

const DOCTOR_HELP: &str = "\
A sandbox is tried out; nothing is changed. It exits with 1 if a promise of the default policy (workspace-write) cannot be held here, else with 0.";

#[derive(Args)]
pub struct DoctorArguments {
    /// For programs: {version, holds, sections: [{name, findings: [{what, verdict: good|weak|broken, detail, toDo?}]}]}
    #[arg(long)]
    pub json: bool,
}

impl Command {
    /// Whether commands of others become children of this process, which must not find secrets in its environment. The
    /// command behind `--via` is the user's own and may need them.
    pub fn serves_commands(&self) -> bool {
        match self {
            Self::Executor(_) | Self::Keeper(_) => true,
            Self::Run(arguments) => arguments.environment.is_none() && arguments.via.is_none(),
            Self::Doctor(_) => false,
        }
    }
}

const EXECUTOR_HELP: &str = "\
Examples:
  outpost executor                                        this machine only; clients show the token of its home
  outpost executor --no-auth                              this machine only, nobody is asked who they are
  outpost executor --listen unix:///run/user/1000/x.sock  only this user can connect
  outpost executor --listen ws://10.0.0.5:7000 --ws-auth capability-token --ws-token-file /etc/outpost/token
  ssh -T box outpost executor --listen stdio --keep       for `outpost run --via`; sessions survive a dropped ssh

The first line of standard output is the URL to connect to. GET /readyz answers 200 once it serves. Without --ws-auth
and --no-auth, a websocket asks for the token in OUTPOST_HOME/tokens/executor, which is made on the first start;
`outpost run -e ws://127.0.0.1:PORT` finds it there, other clients send it as `Authorization: Bearer TOKEN`.";

#[derive(Args)]
pub struct ExecutorArguments {
    /// Where to listen: ws://IP:PORT, unix://PATH or stdio
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:0")]
    pub listen: ListenAddr,
    /// With stdio: keep sessions when the connection is lost. A detached executor then serves them; it is started when it
    /// is needed and goes when nothing is left in it
    #[arg(long)]
    pub keep: bool,
    /// Let so many requests of one connection run at once (1: strictly one after the other). Without this, requests
    /// start in order and those that wait step aside
    #[arg(long, value_name = "N")]
    pub concurrent_requests: Option<NonZeroUsize>,
    /// Keep a session so many seconds after its connection was lost
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub grace: u64,
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

#[derive(Args, Clone)]
pub struct ConfinementArguments {
    /// A file that says what no request can exceed: network, read, write and deny (see docs/sandbox.md)
    #[arg(long, value_name = "FILE")]
    pub ceiling: Option<PathBuf>,
    /// As root: run sandboxed commands as this user, who must have been given the workspace. Without this, each session
    /// gets a user of its own and the workspace is mapped to it
    #[arg(long, value_name = "NAME")]
    pub sandbox_user: Option<String>,
    /// Change what a session may use; may be given several times. NAME is processes, memory, open-files, file-size, free-space
    /// or cpu-seconds; VALUE a number (with K, M, G or T for bytes) or `none`
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    pub limits: Vec<(String, Option<u64>)>,
}

const LIMITS: [&str; 6] = ["processes", "memory", "open-files", "file-size", "free-space", "cpu-seconds"];

fn limit(text: &str) -> Result<(String, Option<u64>), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    if !LIMITS.contains(&name) {
        return Err(format!("`{name}` is no limit; there are {}", LIMITS.join(", ")));
    }
    if value == "none" {
        return Ok((name.to_owned(), None));
    }
    let digits = value.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &value[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        other => return Err(format!("`{other}` is no unit")),
    };
    let number: u64 = digits.parse().map_err(|error| format!("`{value}`: {error}"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(|| format!("`{value}` is not a sensible limit"))?;
    Ok((name.to_owned(), Some(bytes)))
}

#[derive(Args)]
pub struct KeeperArguments {
    #[arg(long)]
    pub grace: u64,
    #[arg(long)]
    pub spool: u64,
    #[arg(long)]
    pub http_allow: Vec<HttpTarget>,
    #[command(flatten)]
    pub confinement: ConfinementArguments,
}

#[derive(Args)]
pub struct AuthArguments {
    /// Ask nobody who they are; only for a loopback address. Every user of this machine can then run commands as you
    #[arg(long)]
    pub no_auth: bool,
    /// Let pages of this origin (https://example.com) connect from a browser; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<Origin>,
    /// Let the listener be called by this name (the Host header), besides loopback and its own address; may be given
    /// several times
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<HostName>,
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
pub enum WsAuth {
    CapabilityToken,
    SignedBearerToken,
}

const RUN_HELP: &str = "\
Examples:
  outpost run -- uname -a                            here
  outpost run -e ws://127.0.0.1:7000 -- make test    on an executor that listens
  outpost run --via 'ssh -T box outpost executor --listen stdio --keep' -- make test
  outpost run -t -- top                              on a terminal of its own

Standard input, signals and the size of the window are passed on; the exit code is the command's own (128 + the signal
if one killed it). A lost connection is taken up again and no byte of output is lost or doubled. A token for -e ws://
is taken from OUTPOST_TOKEN, or for this machine from OUTPOST_HOME/tokens/executor.";

#[derive(Args)]
pub struct RunArguments {
    /// The executor to use: ws://HOST:PORT or unix://PATH. Without one, this machine
    #[arg(short, long, value_name = "TARGET", conflicts_with = "via")]
    pub environment: Option<String>,
    /// A command whose standard input and output are an executor
    #[arg(long, value_name = "COMMAND")]
    pub via: Option<String>,
    /// The directory to run in; by default this one here, and the executor's own elsewhere
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cd: Option<PathBuf>,
    /// Set a variable for the command, or pass on the one of that name here; may be given several times. Variables
    /// whose names look like secrets (*KEY*, *SECRET*, *TOKEN*) are not inherited otherwise
    #[arg(long = "set-env", value_name = "NAME[=VALUE]", value_parser = name_and_value)]
    pub set: Vec<(String, Option<String>)>,
    /// Run it on a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// How long to try to get a lost connection back, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub patience: u64,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A name alone means the variable of that name here.
fn name_and_value(text: &str) -> Result<(String, Option<String>), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("a variable needs a name".into()),
        Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
        None => Ok((text.to_owned(), None)),
    }
}
