//! The command line.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::agent_args::{CHAT_HELP, ChatArguments, EXEC_HELP, ExecArguments};
use crate::compat_flags::{Habits, feature};
use crate::env_args::{ENV_HELP, EnvCommand};
use crate::executor_args::{APP_SERVER_HELP, AppServerArguments, EXECUTOR_HELP, ExecutorArguments, KeeperArguments};
use crate::forward_args::{FORWARD_HELP, ForwardArguments};
use crate::serve_args::{SERVE_HELP, ServeArguments, TOKEN_HELP, TokenCommand};
use crate::settings_args::{CONFIG_HELP, ConfigCommand, MCP_HELP, McpCommand};
use crate::thread_args::{THREAD_HELP, ThreadArguments};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

/// The longest that anything is waited for, in seconds.
pub(crate) const YEAR: u64 = 366 * 24 * 3600;

/// Runs a coding agent here and its commands on your other machines; conversations survive crashes, commands survive disconnects.
#[derive(Parser)]
#[command(name = "outpost", version, disable_help_subcommand = true, after_help = FIRST_STEPS)]
pub(crate) struct Arguments {
    /// A setting of config.toml for this run, such as model="qwen3" or budgets.turn_tokens=5000; may be given several times,
    /// before or after the verb. Values that are not valid TOML are treated as strings
    #[arg(short = 'c', long = "config", value_name = "KEY=VALUE", global = true)]
    pub settings: Vec<String>,
    /// Work with the threads and environments of a running `outpost serve` (ws://HOST:PORT, wss://HOST, unix:///PATH) instead of those
    /// of this home: `env list`, `exec`, `chat` and `thread`. The token is taken from OUTPOST_TOKEN, or from `token_file` of [client]
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// Print only results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log what happens inside; twice for details. OUTPOST_LOG selects by module
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    #[command(flatten)]
    pub habits: Habits,
    #[command(subcommand)]
    pub command: Verb,
}

/// What has no key is wrong usage; whether the key is known is reported by the code that reads it.
fn setting(text: &str) -> Result<String, &'static str> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("a setting is written key=value"),
    }
}

/// How much is said besides what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    Quiet,
    Usual,
    Info,
    Debug,
}

impl Arguments {
    pub(crate) fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, 0) => Verbosity::Usual,
            (_, 1) => Verbosity::Info,
            _ => Verbosity::Debug,
        }
    }

    /// Those of this process. Ends it if they make no sense, or if help is asked for.
    pub(crate) fn of_this_process() -> Self {
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
    // At a terminal there is one thing that people want most.
    if words.len() == 1 && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        words.push("chat".into());
    }
    if words.get(1).is_some_and(|word| word == "help") {
        let is_verb = |word: &OsString| word.to_str().is_some_and(|name| Arguments::command().find_subcommand(name).is_some());
        match words.get(2) {
            Some(word) if word == "page" && words.len() > 3 => return vec![words[0].clone(), PAGE.into(), words[3].clone()],
            Some(word) if !is_verb(word) && !word.to_string_lossy().starts_with('-') => {
                return vec![words[0].clone(), PAGE.into(), word.clone()];
            }
            _ => {}
        }
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

/// The verb behind `outpost help TOPIC`.
const PAGE: &str = "__page";

const FIRST_STEPS: &str = "\
First steps:
  outpost demo                          a short demo on this machine
  outpost exec '$ make test'            one turn; without a key, what you write is run
  outpost chat                          talk with an agent
  outpost env add box --ssh you@host    another machine to work on
  outpost doctor                        what is wrong, and what to do about it
  outpost help topics                   the documentation, inside the program

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 3 an environment was unreachable, 70 a bug of ours. `run` and \
`shell` exit with the command's own code, or 125 for a failure of ours.";

// The arguments of a verb are only put together where it is the one that was typed.
#[derive(Subcommand)]
#[command(defer = true)]
pub(crate) enum Verb {
    /// Run a short demo on this machine; needs no key and no server
    #[command(after_help = DEMO_HELP)]
    Demo(DemoArguments),
    /// Let an agent work on a prompt, and show what it does
    #[command(after_help = EXEC_HELP)]
    Exec(Box<ExecArguments>),
    /// Talk with an agent; `outpost` alone does the same on a terminal
    #[command(after_help = CHAT_HELP)]
    Chat(Box<ChatArguments>),
    /// List, add, remove, check and watch environments
    #[command(after_help = ENV_HELP)]
    Env {
        #[command(subcommand)]
        command: EnvCommand,
    },
    /// Run a command in an environment; it survives lost connections
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Open a terminal in an environment that survives a lost connection
    #[command(after_help = SHELL_HELP)]
    Shell(ShellArguments),
    /// Copy files and directories between environments
    #[command(after_help = CP_HELP)]
    Cp(CpArguments),
    /// Forward ports of an environment, or of a thread's sandbox, to this machine
    #[command(after_help = FORWARD_HELP)]
    Forward(ForwardArguments),
    /// List, show, fork, check, import and export threads
    #[command(after_help = THREAD_HELP)]
    Thread(ThreadArguments),
    /// List, add and remove MCP servers of config.toml
    #[command(after_help = MCP_HELP)]
    Mcp {
        #[command(subcommand)]
        command: McpCommand,
    },
    /// Show and change settings of config.toml
    #[command(after_help = CONFIG_HELP)]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Check this machine, its configuration, environments and threads, and suggest fixes
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
    /// List and delete sandbox home layers
    #[command(after_help = SANDBOX_HELP)]
    Sandbox {
        #[command(subcommand)]
        command: SandboxCommand,
    },
    /// Serve this machine's processes and files to a client
    #[command(visible_alias = "exec-server", after_help = EXECUTOR_HELP)]
    Executor(Box<ExecutorArguments>),
    /// Serve threads to clients of the app protocol: SDKs, editors, terminal UIs
    #[command(after_help = APP_SERVER_HELP)]
    AppServer(Box<AppServerArguments>),
    /// Print the JSON Schema of the app and exec protocols
    #[command(after_help = SCHEMA_HELP)]
    Schema(SchemaArguments),
    /// Generate shell completions
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// What the last of these words can be; asked by the scripts of `completions`
    #[command(name = "__complete", hide = true)]
    Complete {
        #[arg(last = true)]
        words: Vec<String>,
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
    /// A page of the documentation; `outpost help TOPIC` says this
    #[command(name = PAGE, hide = true)]
    Page { name: String },
    /// The page about config.toml, for `cargo xtask docs`
    #[command(name = "__reference", hide = true)]
    Reference,
}

const SANDBOX_HELP: &str = "\
Examples:
  outpost sandbox list             workspaces with a layer, and how large each is
  outpost sandbox clear .          forget what commands left in the layer of this workspace
  outpost sandbox clear --all      the same for every workspace";

#[derive(Subcommand)]
pub(crate) enum SandboxCommand {
    /// Workspaces whose commands left something in a layer over the home
    #[command(visible_alias = "ls")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the layer of a workspace; your own files stay as they are
    Clear {
        /// The workspace
        #[arg(conflicts_with = "all", required_unless_present = "all")]
        workspace: Option<PathBuf>,
        /// Every workspace
        #[arg(long)]
        all: bool,
    },
}

const SCHEMA_HELP: &str = "\
Examples:
  outpost schema                   both on standard output, as {\"app\": …, \"exec\": …}
  outpost schema --out schemas     schemas/app.json and schemas/exec.json";

#[derive(Args)]
pub(crate) struct SchemaArguments {
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
pub(crate) struct DemoArguments {
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
It looks at the host, the listeners' tokens, the sandbox, the configuration, every configured environment, \
the newest threads and the model provider. A sandbox is tried out, environments are connected, the provider is asked \
for its models; nothing is changed. What looks like a secret is not shown. It exits with 1 if something is broken: a \
promise of the default policy (workspace-write), a file, a machine.";

#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON: {version, holds, sections: [{name, findings: [{what, verdict: good|weak|broken, detail, toDo?}]}]}
    #[arg(long)]
    pub json: bool,
}

impl Verb {
    /// Whether it runs unattended, so that what it says on standard error is a log.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self, Self::Executor(_) | Self::AppServer(_) | Self::Keeper(_) | Self::Serve(_))
    }

    /// Why it cannot work with the threads and environments of a server, if it cannot.
    pub(crate) fn not_remote(&self) -> Option<&'static str> {
        match self {
            Self::Exec(_) | Self::Chat(_) | Self::Thread(_) => None,
            Self::Env { command: EnvCommand::List(_) } => None,
            Self::Env { .. } => {
                Some("environments are added, checked and watched where they are configured; run this on the server's machine")
            }
            Self::Run(_) | Self::Shell(_) | Self::Cp(_) | Self::Forward(_) => Some(
                "this verb connects to environments of this home by itself; `outpost exec --server URL '$ COMMAND'` runs a command there",
            ),
            _ => Some("this verb is about this machine; --server is for `env list`, `exec`, `chat` and `thread`"),
        }
    }

    /// Whether commands of others become children of this process, which must not find secrets in its environment. The
    /// command behind `--via` is the user's own and may need them.
    pub(crate) fn serves_commands(&self) -> bool {
        match self {
            Self::Executor(_) | Self::AppServer(_) | Self::Keeper(_) => true,
            Self::Run(arguments) => arguments.place.is_here(),
            Self::Shell(arguments) => arguments.place.is_here(),
            // The executor of this process takes the place of a keeper that cannot be had.
            Self::Forward(arguments) => arguments.via.is_none(),
            Self::Exec(_) | Self::Chat(_) | Self::Serve(_) => true,
            Self::Demo(_)
            | Self::Reference
            | Self::Page { .. }
            | Self::Kept
            | Self::EndKeeper
            | Self::Schema(_)
            | Self::Completions { .. }
            | Self::Complete { .. }
            | Self::Doctor(_) => false,
            Self::Mcp { .. } | Self::Config { .. } => false,
            Self::Env { .. } | Self::Cp(_) | Self::Thread(_) | Self::Token { .. } | Self::Sandbox { .. } => false,
        }
    }
}

// Which environment a verb works in. What is said of arguments in a comment for the documentation would be printed as the help of the verb.
#[derive(Args)]
pub(crate) struct PlaceArguments {
    /// The environment: a name from environments.toml, ws://HOST:PORT or unix://PATH. Without one, this machine
    #[arg(short, long, value_name = "ENV", conflicts_with = "via")]
    pub environment: Option<String>,
    /// The environment, without a flag
    #[arg(value_name = "ENV", conflicts_with_all = ["environment", "via"])]
    pub named: Option<String>,
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
  outpost run box -- make test                       on a machine of `outpost env add`, as -e box
  outpost run -e ws://127.0.0.1:7000 -- make test    on an executor that listens
  outpost run --via 'ssh -T box outpost executor --listen stdio --keep' -- make test
  outpost run -t -- top                              on a terminal of its own
  outpost run --sandbox workspace-write -- make test as an agent's command would run

The command acts as you: without --sandbox it runs without a sandbox, with your rights, your network and your files. \
An executor with a ceiling refuses that; say --sandbox there. Standard input, signals and the size of the window are passed on; the exit code is the command's own (128 + the signal \
if one killed it). On a terminal, what its output would make the terminal do is shown instead; -t passes it on. A lost connection is taken up again and no byte of output is lost or doubled. A token for -e ws:// \
is taken from OUTPOST_TOKEN, or for this machine from OUTPOST_HOME/tokens/executor.";

impl PlaceArguments {
    /// The environment, however it was named.
    pub(crate) fn environment(&self) -> Option<&String> {
        self.environment.as_ref().or(self.named.as_ref())
    }

    /// Whether this very process is the executor.
    pub(crate) fn is_here(&self) -> bool {
        self.environment().is_none() && self.via.is_none()
    }
}

#[derive(Args)]
pub(crate) struct RunArguments {
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
  outpost shell box
  outpost shell --via 'docker exec -i web outpost executor --listen stdio --keep'

The shell acts as you, without a sandbox; an executor with a ceiling refuses it. \
Your own shell is started there as a login shell, on a terminal that has the size of this one. A lost connection \
is taken up again and the shell never notices. At the beginning of a line, `~.` leaves at once, also while there is no \
connection; `~~` types a tilde and `~?` lists these keys. The exit code is the shell's own, or 125 for a failure of \
ours.";

#[derive(Args)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    pub place: PlaceArguments,
    /// The directory to start in; by default the home there
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cd: Option<PathBuf>,
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
pub(crate) struct CpArguments {
    /// What to copy: ENV:PATH or a path of this machine
    #[arg(value_name = "SRC")]
    pub source: OsString,
    /// Where to: ENV:PATH or a path of this machine. Into it, if it is a directory
    #[arg(value_name = "DST")]
    pub destination: OsString,
    /// Copy a directory with everything in it
    #[arg(short, long)]
    pub recursive: bool,
    /// Leave out what has this name, or this path below SRC: * and ? stand for parts of a name, ** for directories
    #[arg(long, value_name = "PATTERN", requires = "recursive")]
    pub exclude: Vec<String>,
    /// Remove what is in the directory at DST and not in SRC
    #[arg(long, requires = "recursive")]
    pub delete: bool,
    /// Change nothing, and print what would be written and removed
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// End only when the copy would survive a power cut there: one sync for all of it
    #[arg(long)]
    pub sync: bool,
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

    /// Arguments are put together after the verb has said what it does, and must not say something else.
    #[test]
    fn a_verb_says_what_it_does() {
        let (plain, mut whole) = (Arguments::command(), Arguments::command());
        whole.build();
        for verb in plain.get_subcommands() {
            let built = whole.find_subcommand(verb.get_name()).unwrap();
            let says = |verb: &clap::Command| (verb.get_about().map(ToString::to_string), verb.get_long_about().map(ToString::to_string));
            assert_eq!(says(verb), says(built), "{}", verb.get_name());
        }
    }

    /// Paragraphs are wrapped when printed; wrapping twice breaks lines in the middle.
    #[test]
    fn help_is_not_torn() {
        let mut found = Vec::new();
        let mut command = Arguments::command();
        command.build();
        helps(&command, "outpost", &mut found);
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
