//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::agent_args::{CHAT_HELP, ChatArguments, EXEC_HELP, ExecArguments};
use crate::config::limits::Limit;
use crate::habits::{Habits, feature};
use crate::serve_args::{SERVE_HELP, ServeArguments, TOKEN_HELP, TokenCommand};
use crate::thread_args::{THREAD_HELP, ThreadArguments};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use outpost_environment::Target;
use outpost_executor::HttpTarget;
use outpost_rpc::door::{HostName, Origin};
use outpost_rpc::listen::ListenAddr;

/// The longest that anything is waited for, in seconds.
const YEAR: u64 = 366 * 24 * 3600;

/// Runs one agent across many machines: durable threads here, sandboxed hands there.
#[derive(Parser)]
#[command(name = "outpost", version, disable_help_subcommand = true, after_help = FIRST_STEPS)]
pub struct Arguments {
    /// A setting of config.toml for this run, such as model="qwen3" or budgets.turn_tokens=5000; may be given several times,
    /// before or after the verb. A value that is no TOML is a text
    #[arg(short = 'c', long = "config", value_name = "KEY=VALUE", global = true)]
    pub settings: Vec<String>,
    #[command(flatten)]
    pub habits: Habits,
    #[command(subcommand)]
    pub command: Command,
}

/// What has no key is wrong usage; whether the key is known is reported by the code that reads it.
fn setting(text: &str) -> Result<String, &'static str> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("a setting is written key=value"),
    }
}

impl Arguments {
    /// Those of this process. Ends it if they make no sense, or if help is asked for.
    pub fn of_this_process() -> Self {
        // Of a global flag clap keeps only what stands behind the innermost verb, so settings are collected as they are read.
        let settings = Arc::new(Mutex::new(Vec::new()));
        let collect = |read: fn(&str) -> Result<String, &'static str>| {
            let collected = settings.clone();
            move |text: &str| {
                collected.lock().unwrap_or_else(PoisonError::into_inner).push(read(text)?);
                Ok::<_, &'static str>(text.to_owned())
            }
        };
        let command = Self::command()
            .mut_arg("settings", |argument| argument.value_parser(collect(setting)))
            .mut_arg("enable", |argument| argument.value_parser(collect(|name| feature(name, true))))
            .mut_arg("disable", |argument| argument.value_parser(collect(|name| feature(name, false))));
        let mut arguments =
            Self::from_arg_matches(&command.get_matches_from(words(std::env::args_os()))).unwrap_or_else(|error| error.exit());
        let mut collected = std::mem::take(&mut *settings.lock().unwrap_or_else(PoisonError::into_inner));
        // They are read verb by verb; what counts is where they stand.
        let given: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        collected.sort_by_cached_key(|setting| given.iter().rposition(|word| word.ends_with(setting.as_str())));
        arguments.settings = [arguments.habits.settings(), collected].concat();
        arguments
    }
}

/// `outpost help VERB` is what people type; `help` as a verb of its own would stand in the way of prompts.
fn words(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = given.collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    // As kubectl itself writes it; everywhere else this letter is a setting.
    let is_pod = |word: &OsString| word.to_str().is_some_and(|word| word == "--kubectl" || word.starts_with("--kubectl="));
    if words.get(1).is_some_and(|word| word == "env") && words.iter().any(is_pod) {
        words.iter_mut().filter(|word| *word == "-c").for_each(|word| *word = "--container".into());
    }
    words
}

const FIRST_STEPS: &str = "\
First steps:
  outpost demo                          see it work, on this machine alone
  outpost exec '$ make test'            one turn; without a key, what you write is run
  outpost chat                          talk with an agent
  outpost env add box --ssh you@host    another machine to work on
  outpost doctor                        what is wrong, and what to do about it

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 3 an environment was unreachable, 70 a bug of ours. `run` and \
`shell` exit with the command's own code, or 125 for a failure of ours.";

#[derive(Subcommand)]
pub enum Command {
    /// See it work, on this machine alone: no key, no server, under half a minute
    #[command(after_help = DEMO_HELP)]
    Demo(DemoArguments),
    /// Let an agent work on a prompt, and show what it does
    #[command(after_help = EXEC_HELP)]
    Exec(Box<ExecArguments>),
    /// Talk with an agent, line by line
    #[command(after_help = CHAT_HELP)]
    Chat(Box<ChatArguments>),
    /// List, add, remove, check and watch environments
    #[command(after_help = ENV_HELP)]
    Env {
        #[command(subcommand)]
        command: EnvCommand,
    },
    /// Run a command in an environment and stay with it, whatever happens to the connection
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Open a terminal in an environment that survives a lost connection
    #[command(after_help = SHELL_HELP)]
    Shell(ShellArguments),
    /// Copy files and directories between environments
    #[command(after_help = CP_HELP)]
    Cp(CpArguments),
    /// List, show, fork, check, import and export threads
    #[command(after_help = THREAD_HELP)]
    Thread(ThreadArguments),
    /// Look at this machine, its configuration, environments and threads, and say what to do about what is wrong
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArguments),
    /// Serve clients, a page for browsers, executors that dial in and metrics on one address
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArguments>),
    /// Make, list and revoke tokens for clients and for executors that dial in
    #[command(after_help = TOKEN_HELP)]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Serve this machine's processes and files to a client
    #[command(visible_alias = "exec-server", after_help = EXECUTOR_HELP)]
    Executor(Box<ExecutorArguments>),
    /// Serve threads to clients of the app protocol: SDKs, editors, terminal UIs
    #[command(after_help = APP_SERVER_HELP)]
    AppServer(Box<AppServerArguments>),
    /// Write JSON Schema of both protocols: what clients say to threads, and what is said to executors
    #[command(after_help = SCHEMA_HELP)]
    Schema(SchemaArguments),
    /// Print what a shell needs to complete the words of this program
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The detached executor behind `--keep`; started by it
    #[command(name = "__keeper", hide = true)]
    Keeper(KeeperArguments),
    /// Tells by its exit code whether a keeper runs here.
    #[command(name = "__kept", hide = true)]
    Kept,
    /// Ends the keeper that runs here.
    #[command(name = "__end-keeper", hide = true)]
    EndKeeper,
    /// The page about config.toml, for `cargo xtask docs`
    #[command(name = "__reference", hide = true)]
    Reference,
}

const SCHEMA_HELP: &str = "\
Examples:
  outpost schema                   both on standard output, as {\"app\": …, \"exec\": …}
  outpost schema --out schemas     schemas/app.json and schemas/exec.json";

#[derive(Args)]
pub struct SchemaArguments {
    /// Write app.json and exec.json into this directory; it is made if there is none
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

const DEMO_HELP: &str = "\
A second executor is started as `worker` in a throw-away directory. One thread works here and there with the offline \
model, which only runs what it is told; the connection is cut, the program is killed, the thread is resumed and \
forked. Everything but the thread is removed at the end. Where the sandbox cannot be held, the demo says so and goes \
on without one.";

#[derive(Args)]
pub struct DemoArguments {
    /// Where the demo plays that another program of ours watches over
    #[arg(long, hide = true, value_name = "DIR")]
    pub stage: Option<PathBuf>,
}

const COMPLETIONS_HELP: &str = "\
Examples:
  outpost completions bash > ~/.local/share/bash-completion/completions/outpost
  outpost completions zsh  > ~/.zfunc/_outpost              with ~/.zfunc in fpath
  outpost completions fish > ~/.config/fish/completions/outpost.fish";

const DOCTOR_HELP: &str = "\
It looks at the host, the listeners' tokens, the sandbox, the configuration, every environment that is written down, \
the newest threads and the model provider. A sandbox is tried out, environments are connected, the provider is asked \
for its models; nothing is changed. What looks like a secret is not shown. It exits with 1 if something is broken: a \
promise of the default policy (workspace-write), a file, a machine.";

#[derive(Args)]
pub struct DoctorArguments {
    /// For programs: {version, holds, sections: [{name, findings: [{what, verdict: good|weak|broken, detail, toDo?}]}]}
    #[arg(long)]
    pub json: bool,
}

impl Command {
    /// Whether it runs unattended, so that what it says on standard error is a log.
    pub fn is_server(&self) -> bool {
        matches!(self, Self::Executor(_) | Self::AppServer(_) | Self::Keeper(_) | Self::Serve(_))
    }

    /// Whether commands of others become children of this process, which must not find secrets in its environment. The
    /// command behind `--via` is the user's own and may need them.
    pub fn serves_commands(&self) -> bool {
        match self {
            Self::Executor(_) | Self::AppServer(_) | Self::Keeper(_) => true,
            Self::Run(arguments) => arguments.place.is_here(),
            Self::Shell(arguments) => arguments.place.is_here(),
            Self::Exec(_) | Self::Chat(_) | Self::Serve(_) => true,
            Self::Demo(_)
            | Self::Reference
            | Self::Kept
            | Self::EndKeeper
            | Self::Schema(_)
            | Self::Completions { .. }
            | Self::Doctor(_) => false,
            Self::Env { .. } | Self::Cp(_) | Self::Thread(_) | Self::Token { .. } => false,
        }
    }
}

const EXECUTOR_HELP: &str = "\
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
pub struct ExecutorArguments {
    /// Where to listen: ws://IP:PORT, unix://PATH or stdio [default: ws://127.0.0.1:0, or nowhere with --join]
    #[arg(long, value_name = "URL")]
    pub listen: Option<ListenAddr>,
    /// Dial in to an `outpost serve` instead of waiting for it to come (ws://HOST:PORT, wss://HOST); may be given several times
    #[arg(long, value_name = "URL", requires = "id")]
    pub join: Vec<Target>,
    /// With --join: the id under which this machine is known there
    #[arg(long, value_name = "ID", requires = "join")]
    pub id: Option<String>,
    /// With --join: a file with the token that the server handed out; one for all servers, or one for each in the same order.
    /// Without it OUTPOST_TOKEN counts
    #[arg(long, value_name = "FILE", requires = "join")]
    pub token_file: Vec<PathBuf>,
    /// With stdio: keep sessions when the connection is lost. A detached executor then serves them; it is started when it
    /// is needed and goes when nothing is left in it
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
    /// Keep a session so many seconds after its connection was lost [default: 600, or what --profile says]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub grace: Option<u64>,
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

const APP_SERVER_HELP: &str = "\
Examples:
  outpost app-server                                for a client that starts it: a message a line
  outpost app-server --listen ws://127.0.0.1:7001   clients show the token of this home
  outpost app-server --listen off                   for this user, at OUTPOST_HOME/run/app.sock

With a websocket the first line of standard output is the URL to connect to. GET /readyz answers 200 once it serves. \
Without --ws-auth and --no-auth a websocket asks for the token in OUTPOST_HOME/tokens/app, which is made on the first \
start. A server on standard input and output ends with its input.";

#[derive(Args)]
pub struct AppServerArguments {
    /// Where to listen: stdio://, ws://IP:PORT, unix://PATH or off
    #[arg(long, value_name = "URL", default_value = "stdio://")]
    pub listen: AppListen,
    /// Accepted for programs that pass it: this is where a server listens that is told nothing else
    #[arg(long, hide = true, conflicts_with = "listen")]
    pub stdio: bool,
    /// Accepted for programs that pass it: nothing is counted and sent home here, whatever they say
    #[arg(long, hide = true)]
    pub analytics_default_enabled: bool,
    #[command(flatten)]
    pub auth: AuthArguments,
}

/// Where an app server listens.
#[derive(Clone)]
pub enum AppListen {
    At(ListenAddr),
    /// Only at the socket of its home.
    Off,
}

impl std::str::FromStr for AppListen {
    type Err = outpost_rpc::listen::ListenAddrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" { Ok(Self::Off) } else { text.parse().map(Self::At) }
    }
}

#[derive(Args, Clone)]
pub struct ConfinementArguments {
    /// What this machine is: `own-machine` (yours alone), `shared-host` (others work here, too) or `container` (made for this). Sets
    /// ceiling, limits and grace at once; what is given besides counts before it (see docs/executor.md)
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
    /// Change what a session may use; may be given several times. NAME is processes, memory, open-files, file-size, free-space
    /// or cpu-seconds; VALUE a number (with K, M, G or T for bytes) or `none`. Without it, `[limits]` of config.toml counts
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    pub limits: Vec<(String, Limit)>,
}

const LIMITS: [&str; 6] = ["processes", "memory", "open-files", "file-size", "free-space", "cpu-seconds"];

fn limit(text: &str) -> Result<(String, Limit), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    if !LIMITS.contains(&name) {
        return Err(format!("`{name}` is no limit; there are {}", LIMITS.join(", ")));
    }
    Ok((name.to_owned(), Limit::parse(value)?))
}

/// What kind of machine an executor is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    OwnMachine,
    SharedHost,
    Container,
}

#[derive(Args)]
pub struct KeeperArguments {
    #[arg(long, default_value_t = 600)]
    pub grace: u64,
    #[arg(long, default_value_t = 64 << 20)]
    pub spool: u64,
    #[arg(long)]
    pub http_allow: Vec<HttpTarget>,
    #[command(flatten)]
    pub confinement: ConfinementArguments,
}

#[derive(Args)]
pub struct AuthArguments {
    /// No authentication; only for a loopback address. Every user of this machine can then run commands as you
    #[arg(long)]
    pub no_auth: bool,
    /// Let pages of this origin (https://example.com) connect from a browser; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<Origin>,
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
pub enum WsAuth {
    CapabilityToken,
    SignedBearerToken,
}

/// Which environment a verb works in.
#[derive(Args)]
pub struct PlaceArguments {
    /// The environment: a name from environments.toml, ws://HOST:PORT or unix://PATH. Without one, this machine
    #[arg(short, long, value_name = "ENV", conflicts_with = "via")]
    pub environment: Option<String>,
    /// A command whose standard input and output are an executor
    #[arg(long, value_name = "COMMAND")]
    pub via: Option<String>,
    /// How long to try to get a lost connection back, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub patience: u64,
}

const RUN_HELP: &str = "\
Examples:
  outpost run -- uname -a                            here
  outpost run -e box -- make test                    in an environment of `outpost env add`
  outpost run -e ws://127.0.0.1:7000 -- make test    on an executor that listens
  outpost run --via 'ssh -T box outpost executor --listen stdio --keep' -- make test
  outpost run -t -- top                              on a terminal of its own
  outpost run --sandbox workspace-write -- make test as an agent's command would run

The command acts as you: without --sandbox it runs without a sandbox, with your rights, your network and your files. \
An executor with a ceiling refuses that; say --sandbox there. Standard input, signals and the size of the window are passed on; the exit code is the command's own (128 + the signal \
if one killed it). On a terminal, what its output would make the terminal do is shown instead; -t passes it on. A lost connection is taken up again and no byte of output is lost or doubled. A token for -e ws:// \
is taken from OUTPOST_TOKEN, or for this machine from OUTPOST_HOME/tokens/executor.";

impl PlaceArguments {
    /// Whether this very process is the executor.
    pub fn is_here(&self) -> bool {
        self.environment.is_none() && self.via.is_none()
    }
}

#[derive(Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The directory to run in; by default this one here, and the executor's own elsewhere
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cd: Option<PathBuf>,
    /// Set a variable for the command, or pass on the one of that name here; may be given several times. Variables
    /// whose names look like secrets (*KEY*, *SECRET*, *TOKEN*) are not inherited otherwise
    #[arg(long = "set-env", value_name = "NAME[=VALUE]", value_parser = name_and_value)]
    pub set: Vec<(String, Option<String>)>,
    /// Confine it as an agent's command would be; without this it runs as you, without a sandbox
    #[arg(short, long, value_name = "MODE", value_parser = ["read-only", "workspace-write", "danger-full-access"])]
    pub sandbox: Option<String>,
    /// Run it on a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const SHELL_HELP: &str = "\
Examples:
  outpost shell -e box
  outpost shell --via 'docker exec -i web outpost executor --listen stdio --keep'

The shell acts as you, without a sandbox; an executor with a ceiling refuses it. \
Your own shell is started there as a login shell, on a terminal that has the size of this one. A lost connection \
is taken up again and the shell never notices. At the beginning of a line, `~.` leaves at once, also while there is no \
connection; `~~` types a tilde and `~?` lists these keys. The exit code is the shell's own, or 125 for a failure of \
ours.";

#[derive(Args)]
pub struct ShellArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The directory to start in; by default the home there
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cd: Option<PathBuf>,
}

const ENV_HELP: &str = "\
Examples:
  outpost env add box --ssh me@box.example.org     copies this program there, writes the entry
  outpost env add gpu --url wss://gpu.example.org --token-file ~/.outpost/tokens/gpu
  outpost env add web --docker web                 a container, by its name or that of an image
  outpost env add dev --ssh box --devcontainer /home/me/project
  outpost env import ssh                           hosts of ~/.ssh/config, to choose from
  outpost env login box                            for a host that asks for a second factor
  outpost env upgrade --all                        brings this version everywhere
  outpost env check                                connects to all and tells how they are
  outpost env watch box                            connects, and tells every change
  outpost env remove box

Environments are written down in environments.toml in OUTPOST_HOME (by default ~/.outpost), which may be edited by \
hand; comments and order are kept. `run -e NAME`, `shell -e NAME` and `cp NAME:PATH` use them.";

#[derive(Subcommand)]
pub enum EnvCommand {
    /// Show what is written down; nothing is connected
    List(ListArguments),
    /// Write an environment down
    #[command(after_help = ADD_HELP)]
    Add(Box<AddArguments>),
    /// Forget an environment; nothing is removed on the machine itself
    Remove {
        /// Its name
        name: String,
    },
    /// Connect and tell what is there; exits with 3 if one cannot be reached
    Check(CheckArguments),
    /// Follow how environments stand, and changes of the file, until interrupted
    Watch(WatchArguments),
    /// Write hosts of another program's configuration down
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArguments),
    /// Log in to a machine behind ssh once, for all connections that follow
    #[command(after_help = LOGIN_HELP)]
    Login(LoginArguments),
    /// Bring the version of this program to environments
    #[command(after_help = UPGRADE_HELP)]
    Upgrade(UpgradeArguments),
}

const IMPORT_HELP: &str = "\
Examples:
  outpost env import ssh                shows the hosts of ~/.ssh/config and asks which
  outpost env import ssh box gpu        these two
  outpost env import ssh --all

Patterns with wildcards are left out. Everything that the ssh configuration says of a host keeps its effect, because ssh is \
called by that name.";

#[derive(Args)]
pub struct ImportArguments {
    /// Whose configuration
    #[arg(value_enum)]
    pub from: ImportFrom,
    /// Hosts to write down; without any, those that there are are shown
    #[arg(value_name = "HOST")]
    pub hosts: Vec<String>,
    /// All hosts that are not written down yet
    #[arg(long, conflicts_with = "hosts")]
    pub all: bool,
    /// Another configuration of ssh
    #[arg(long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// Only write them down: nothing is connected, and no program is copied
    #[arg(long)]
    pub offline: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ImportFrom {
    Ssh,
}

const LOGIN_HELP: &str = "\
ssh is started on this terminal and asks what it always asks: a password, a passphrase, a second factor. The connection \
then stays open in the background, and everything that Outpost does with this machine goes through it, until it is lost \
or ended with --end.";

#[derive(Args)]
pub struct LoginArguments {
    /// The environment
    pub name: String,
    /// End the shared connection
    #[arg(long)]
    pub end: bool,
}

const UPGRADE_HELP: &str = "\
The program is copied as `env add` does it; a command that runs keeps running. A keeper of the older version goes on until \
its sessions have ended; --now ends it, and what runs in it, at once.";

#[derive(Args)]
pub struct UpgradeArguments {
    /// Environments
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// All that a program can be copied to
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// End keepers of other versions and what runs in them
    #[arg(long)]
    pub now: bool,
    /// The program to copy, if not this one or the static one beside it
    #[arg(long, value_name = "PATH")]
    pub binary: Option<PathBuf>,
}

#[derive(Args)]
pub struct ListArguments {
    /// Only those with this label; may be given several times
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CheckArguments {
    /// Names or addresses; all that are written down if none is given
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct WatchArguments {
    /// Only these; they are connected, which others are only if they say so
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// One JSON object a line, for programs
    #[arg(long)]
    pub json: bool,
}

const ADD_HELP: &str = "\
Examples:
  outpost env add box --ssh me@box.example.org
  outpost env add web --docker web -u dev          a container, started when it is needed
  outpost env add tmp --podman localhost/dev:1 --run-arg=--network=none --idle-stop 30m
                                                   an image: a container is made of it
  outpost env add dev --devcontainer .             what devcontainer.json says
  outpost env add api --kubectl api-0 -c app -n prod
  outpost env add gpu --ssh login --slurm 4711     joins a job that runs; ends with it
  outpost env add in --ssh box --docker web --setup 'apt-get update' --label ci

--ssh, --slurm and one kind of container lead into each other in that order. A program is copied into containers and jobs, too.

With --ssh, ssh is asked what kind of machine is there, and a fitting program is copied into the far home \
(~/.outpost/bin, checked by its digest) unless it is there already. Nothing else is needed there: no root, no network. \
Whether the machine is the right one is decided by ssh and its known hosts alone; later connections ask for nothing, \
so a key or an agent is needed (BatchMode).";

#[derive(Args, Default)]
pub struct AddArguments {
    /// The name that it gets: letters, digits, `-` and `_`
    pub name: String,
    #[command(flatten)]
    pub way: WayArguments,
    /// A file that holds the token for --url; it is read for every connection
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
    /// The user in a container of --docker or --podman
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// An argument for `docker run` or `podman run`, where a container is made of an image; may be given several times
    #[arg(long = "run-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub run_args: Vec<String>,
    /// What --devcontainer makes containers with: docker (the default) or podman
    #[arg(long, value_name = "ENGINE", requires = "devcontainer")]
    pub engine: Option<String>,
    /// The container of the pod; with --kubectl also -c
    #[arg(long, value_name = "CONTAINER", requires = "kubectl")]
    pub container: Option<String>,
    /// The namespace of the pod
    #[arg(short, long, value_name = "NAMESPACE", requires = "kubectl")]
    pub namespace: Option<String>,
    /// A command that a new place is prepared with, once; may be given several times
    #[arg(long, value_name = "COMMAND")]
    pub setup: Vec<String>,
    /// How long all --setup commands together may take [default: 600]
    #[arg(long, value_name = "SECONDS", requires = "setup")]
    pub setup_timeout: Option<u64>,
    /// Stop a container that no client has used for so long (90, 30m, 2h)
    #[arg(long, value_name = "TIME")]
    pub idle_stop: Option<String>,
    /// A label to choose it by; may be given several times
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// The program to copy, if not this one or the static one beside it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["url", "via"])]
    pub binary: Option<PathBuf>,
    /// An argument for ssh itself, such as -p or 2222; may be given several times
    #[arg(long = "ssh-arg", value_name = "ARG", requires = "ssh", allow_hyphen_values = true)]
    pub ssh_args: Vec<String>,
    /// When it is connected: by itself, when it is first used (the default), or only when asked for by name
    #[arg(long, value_name = "WHEN")]
    pub connect: Option<Connect>,
    /// Only write it down: nothing is connected, and no program is copied
    #[arg(long, conflicts_with_all = ["url", "via"])]
    pub offline: bool,
}

/// How it is reached.
#[derive(Args, Default)]
#[group(required = true, multiple = true)]
pub struct WayArguments {
    /// By ssh: user@host, or a name from the ssh configuration
    #[arg(long, value_name = "DESTINATION")]
    pub ssh: Option<String>,
    /// By its address: ws://HOST:PORT, wss://HOST or unix:///PATH
    #[arg(long, value_name = "URL", conflicts_with_all = ["ssh", "via", "slurm", "docker", "podman", "devcontainer", "kubectl"])]
    pub url: Option<String>,
    /// By a command whose standard input and output are an executor
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["ssh", "slurm", "docker", "podman", "devcontainer", "kubectl"])]
    pub via: Option<String>,
    /// In a Slurm job that runs, by its number
    #[arg(long, value_name = "JOBID")]
    pub slurm: Option<String>,
    /// In a container of docker, by its name, or one that is made of this image
    #[arg(long, value_name = "NAME|IMAGE", conflicts_with_all = ["podman", "devcontainer", "kubectl"])]
    pub docker: Option<String>,
    /// The same with podman
    #[arg(long, value_name = "NAME|IMAGE", conflicts_with_all = ["devcontainer", "kubectl"])]
    pub podman: Option<String>,
    /// In the dev container of a folder; needs the `devcontainer` program
    #[arg(long, value_name = "DIR", conflicts_with = "kubectl")]
    pub devcontainer: Option<String>,
    /// In a pod of Kubernetes
    #[arg(long, value_name = "POD")]
    pub kubectl: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Connect {
    Eager,
    Lazy,
    Manual,
}

impl Connect {
    pub fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Manual => "manual",
        }
    }
}

const CP_HELP: &str = "\
Examples:
  outpost cp notes.txt box:                          into the home of that environment
  outpost cp -r box:/srv/data ./data                 a whole directory
  outpost cp alpha:/var/log/app.log beta:/tmp/       from one environment to another
  outpost cp x ws://127.0.0.1:7000:/tmp/x            to an executor that listens
  outpost cp --via 'docker exec -i web outpost executor --listen stdio' via:/etc/hosts .

ENV:PATH is a path in an environment; PATH is absolute, or begins in the home there. Anything else, and whatever has a \
slash before its first colon, is a path of this machine. Permissions are kept and links inside a directory stay links. \
Files are read and written as you, without a sandbox. What is there is replaced in one step when the copy is whole; nothing half-written is left in its place. A lost \
connection is taken up again where it broke.";

#[derive(Args)]
pub struct CpArguments {
    /// What to copy: ENV:PATH or a path of this machine
    #[arg(value_name = "SRC")]
    pub source: OsString,
    /// Where to: ENV:PATH or a path of this machine. Into it, if it is a directory
    #[arg(value_name = "DST")]
    pub destination: OsString,
    /// Copy a directory with everything in it
    #[arg(short, long)]
    pub recursive: bool,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// A command whose standard input and output are an executor; it is named `via` in SRC and DST
    #[arg(long, value_name = "COMMAND")]
    pub via: Option<String>,
    /// How long to try to get a lost connection back, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub patience: u64,
}

/// A name alone means the variable of that name here.
fn name_and_value(text: &str) -> Result<(String, Option<String>), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("a variable needs a name".into()),
        Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
        None => Ok((text.to_owned(), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As wide as help is printed.
    const WIDTH: usize = 100;

    fn helps(command: &clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        found.push((path.to_owned(), command.get_after_help().map(ToString::to_string).unwrap_or_default()));
        for inner in command.get_subcommands() {
            helps(inner, &format!("{path} {}", inner.get_name()), found);
        }
    }

    #[test]
    fn a_container_of_a_pod_is_written_as_kubectl_writes_it() {
        let words = |text: &str| words(text.split(' ').map(OsString::from)).join(&OsString::from(" "));
        assert_eq!(words("outpost env add x --kubectl p -c app"), "outpost env add x --kubectl p --container app");
        assert_eq!(words("outpost env add x --ssh p -c a=b"), "outpost env add x --ssh p -c a=b");
    }

    #[test]
    fn help_may_be_asked_for_as_a_verb() {
        let words = |text: &str| words(text.split(' ').map(OsString::from)).join(&OsString::from(" "));
        assert_eq!(words("outpost help"), "outpost --help");
        assert_eq!(words("outpost help env add"), "outpost env add --help");
        assert_eq!(words("outpost exec help"), "outpost exec help");
    }

    /// Paragraphs are wrapped when printed; wrapping twice breaks lines in the middle.
    #[test]
    fn help_is_not_torn() {
        let mut found = Vec::new();
        helps(&Arguments::command(), "outpost", &mut found);
        assert!(found.len() > 30);
        for (path, help) in found {
            let lines: Vec<&str> = help.lines().collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                assert!(!line.starts_with(' ') || line.chars().count() <= WIDTH, "{path}: this example is too wide: {line}");
                let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
                assert!(!is_prose(line) || !is_prose(next), "{path}: a paragraph is one line: {line}");
            }
        }
    }
}
