//! The arguments of `outpost env`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(crate) const ENV_HELP: &str = "\
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

Environments are configured in environments.toml in OUTPOST_HOME (by default ~/.outpost), which may be edited by \
hand; comments and order are kept. Nodes that share a Postgres store share one set of definitions in the store instead. `run -e NAME`, `shell -e NAME` and `cp NAME:PATH` use them.";

#[derive(Subcommand)]
pub(crate) enum EnvCommand {
    /// List environments; nothing is connected
    #[command(visible_alias = "ls")]
    List(EnvListArguments),
    /// Add an environment
    #[command(after_help = ADD_HELP)]
    Add(Box<AddArguments>),
    /// Remove an environment from the configuration; the machine is not changed
    #[command(visible_alias = "rm")]
    Remove {
        /// Its name
        name: String,
    },
    /// Connect and report the status; exit code 3 if one is unreachable
    Check(CheckArguments),
    /// Watch the state of environments and changes of environments.toml, until interrupted
    Watch(WatchArguments),
    /// Add hosts from another program's configuration, or bring environments.toml into a shared store
    #[command(after_help = IMPORT_HELP)]
    Import(EnvImportArguments),
    /// Log in to a machine behind ssh once, for all connections that follow
    #[command(after_help = LOGIN_HELP)]
    Login(LoginArguments),
    /// Install this version of outpost in environments
    #[command(after_help = UPGRADE_HELP)]
    Upgrade(UpgradeArguments),
}

const IMPORT_HELP: &str = "\
Examples:
  outpost env import ssh                shows the hosts of ~/.ssh/config and asks which
  outpost env import ssh box gpu        these two
  outpost env import ssh --all
  outpost env import file --dry-run     what environments.toml says that the store does not
  outpost env import file               brings it into the store, unless the two contradict
  outpost env import file gpu --replace the store's definition of gpu becomes that of the file

With `store = \"postgres://…\"` environments are defined in the store, and the file is taken over once, by the first program; `file` takes it over again.

Patterns with wildcards are left out. Everything that the ssh configuration says of a host keeps its effect, because ssh is \
called by that name.";

#[derive(Args)]
pub(crate) struct EnvImportArguments {
    /// Whose configuration
    #[arg(value_enum)]
    pub from: ImportFrom,
    /// Hosts to add; without any, the hosts that can be added are listed. With `file`: environments; without any, all
    #[arg(value_name = "HOST")]
    pub hosts: Vec<String>,
    /// All hosts that are not environments yet
    #[arg(long, conflicts_with = "hosts")]
    pub all: bool,
    /// Another configuration of ssh
    #[arg(long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// Only add them: nothing is connected, and no program is copied
    #[arg(long)]
    pub offline: bool,
    /// With `file`: what the store defines differently is replaced
    #[arg(long)]
    pub replace: bool,
    /// With `file`: only show what would change
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFrom {
    /// Hosts of ~/.ssh/config
    Ssh,
    /// environments.toml of this home, where environments are defined in a store that several nodes share
    File,
}

const LOGIN_HELP: &str = "\
ssh is started on this terminal and asks what it always asks: a password, a passphrase, a second factor. The connection \
then stays open in the background, and everything that Outpost does with this machine goes through it, until it is lost \
or ended with --end.";

#[derive(Args)]
pub(crate) struct LoginArguments {
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
pub(crate) struct UpgradeArguments {
    /// Environments
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// All environments that a program can be copied to
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
pub(crate) struct EnvListArguments {
    /// Only those with this label; may be given several times
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Names or addresses; all configured environments if none is given
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub(crate) struct WatchArguments {
    /// Only these; they are connected. Without names, only environments with connect = "eager" are
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Print one JSON object a line
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
  outpost env add prod --ssh prod --sandbox read-only --approval-policy untrusted
  outpost env add gpu2 --ssh gpu2 --device nvidia --writable-root /srv/data

--ssh, --slurm and one kind of container lead into each other in that order. A program is copied into containers and jobs, too.

With --ssh, ssh is asked what kind of machine is there, and a fitting program is copied into the far home \
(~/.outpost/bin, checked by its digest) unless it is there already. Nothing else is needed there: no root, no network. \
Whether the machine is the right one is decided by ssh and its known hosts alone; later connections ask for nothing, \
so a key or an agent is needed (BatchMode).";

#[derive(Args, Default)]
pub(crate) struct AddArguments {
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
    /// A command that prepares a new container, job or machine, once; may be given several times
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
    #[command(flatten)]
    pub policy: PolicyArguments,
    /// The program to copy, if not this one or the static one beside it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["url", "via"])]
    pub binary: Option<PathBuf>,
    /// An argument for ssh itself, such as -p or 2222; may be given several times
    #[arg(long = "ssh-arg", value_name = "ARG", requires = "ssh", allow_hyphen_values = true)]
    pub ssh_args: Vec<String>,
    /// When to connect: eager, lazy or manual [default: lazy]
    #[arg(long, value_name = "WHEN")]
    pub connect: Option<Connect>,
    /// Only add it: nothing is connected, and no program is copied
    #[arg(long, conflicts_with_all = ["url", "via"])]
    pub offline: bool,
}

/// How it is reached.
#[derive(Args, Default)]
#[group(required = true, multiple = true)]
pub(crate) struct WayArguments {
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
    /// A Docker container, or an image to create one from
    #[arg(long, value_name = "NAME|IMAGE", conflicts_with_all = ["podman", "devcontainer", "kubectl"])]
    pub docker: Option<String>,
    /// A Podman container, or an image to create one from
    #[arg(long, value_name = "NAME|IMAGE", conflicts_with_all = ["devcontainer", "kubectl"])]
    pub podman: Option<String>,
    /// In the dev container of a folder; needs the `devcontainer` program
    #[arg(long, value_name = "DIR", conflicts_with = "kubectl")]
    pub devcontainer: Option<String>,
    /// In a pod of Kubernetes
    #[arg(long, value_name = "POD")]
    pub kubectl: Option<String>,
}

/// What is left there of a thread's own policy. It can only narrow.
#[derive(Args, Default)]
pub(crate) struct PolicyArguments {
    /// The most that agents may do there: read-only or workspace-write
    #[arg(long, value_name = "MODE")]
    pub sandbox: Option<String>,
    /// No network for agents there: restricted
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<String>,
    /// An absolute path there; agents write only below those that are given. May be given several times
    #[arg(long = "writable-root", value_name = "PATH")]
    pub writable_roots: Vec<String>,
    /// The loosest approval policy there: untrusted, on-request or never
    #[arg(long, value_name = "POLICY")]
    pub approval_policy: Option<String>,
    /// A device that sandboxed commands see there: nvidia, dri or a path below /dev. May be given several times
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Connect {
    Eager,
    Lazy,
    Manual,
}

impl Connect {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Manual => "manual",
        }
    }
}
