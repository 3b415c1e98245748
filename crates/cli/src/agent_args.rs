//! The command line of the verbs that run an agent.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(crate) const EXEC_HELP: &str = "\
Examples:
  outpost exec '$ make test'                    no key needed: the offline provider runs this
  outpost exec -e local -e box=/srv/app '$ uname -a
    @box $ uname -a'                            on two machines at once
  OPENAI_API_KEY=… outpost exec 'why does the build fail?'
  outpost exec --provider ollama --model qwen3 'explain main.rs'
  git diff | outpost exec 'review this change'  what is piped in follows the prompt
  outpost exec resume ID 'and now fix it'       the same thread, the same environments
  outpost exec --detach 'fix the tests'         goes on in the background; `chat resume` attaches
  outpost exec --server wss://hub 'run it'      a thread of a running `outpost serve`
  outpost exec resume --last                    finishes a turn that was cut off

What happens is told on standard error, the answer is on standard output; with --json all of it is on standard output, \
one event a line (see docs/exec.md). No questions are asked: what would need an answer is refused. An interrupted \
turn (Ctrl-C, SIGTERM) leaves a thread that can be resumed. Exit code 0 if the turn was completed, 1 if not, 2 for \
wrong usage, 3 if an environment was unreachable.";

#[derive(Args)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct ExecArguments {
    #[command(flatten)]
    options: ExecOptions,
    /// The prompt; `-` or nothing reads it from standard input
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    #[command(subcommand)]
    command: Option<ExecCommand>,
}

#[derive(Subcommand)]
enum ExecCommand {
    /// Continue a thread
    Resume {
        #[command(flatten)]
        options: Box<ExecOptions>,
        /// The thread that changed last, instead of ID
        #[arg(long)]
        last: bool,
        /// Accepted for compatibility; no effect
        #[arg(long, hide = true)]
        all: bool,
        /// The thread: an id, a unique beginning or end of one, or a name
        #[arg(value_name = "ID", required_unless_present = "last")]
        id: Option<String>,
        /// What to say to it; without it, an unfinished turn is finished
        #[arg(value_name = "PROMPT")]
        prompt: Option<String>,
    },
}

pub(crate) const CHAT_HELP: &str = "\
Examples:
  outpost chat                                  with the model of config.toml, or the offline one
  outpost chat --provider ollama --model qwen3 -e local -e box=/srv/app
  outpost chat resume                           choose a thread from a list
  outpost chat resume ID                        continue a thread
  outpost chat resume --last
  printf 'first\\nsecond\\n' | outpost chat     one turn for each line

On a terminal you edit what you type, with a history for each directory; Esc stops the turn, Ctrl-C twice leaves, and \
`/help` lists keys and commands (docs/terminal.md). Without a terminal, with --plain, NO_COLOR or TERM=dumb, and in 40 \
columns or fewer, lines come one after the other; there, Ctrl-C stops the turn, and where none runs it leaves. What you type \
while a turn runs is told to the agent at its next step. `!COMMAND` runs a command of yours, without a sandbox and without \
the model. The thread stays: `outpost chat resume ID` and \
`outpost exec resume ID` go on with it.";

#[derive(Args, Default)]
pub(crate) struct ChatOptions {
    #[command(flatten)]
    agent: AgentOptions,
    /// Lines one after the other, without redraws: for screen readers and logs. OUTPOST_PLAIN=1 does the same
    #[arg(long)]
    plain: bool,
}

/// What is to be talked about, and how.
pub(crate) struct ChatRequest {
    pub options: AgentOptions,
    pub which: Which,
    pub plain: bool,
}

#[derive(Args)]
pub(crate) struct ChatArguments {
    #[command(flatten)]
    options: ChatOptions,
    #[command(subcommand)]
    command: Option<ChatCommand>,
}

#[derive(Subcommand)]
enum ChatCommand {
    /// Continue a thread
    Resume {
        #[command(flatten)]
        options: Box<ChatOptions>,
        /// The thread that changed last, instead of ID
        #[arg(long)]
        last: bool,
        /// The thread: an id, a unique beginning or end of one, or a name. Without it, you choose one from a list
        #[arg(value_name = "ID", conflicts_with = "last")]
        id: Option<String>,
    },
}

impl ChatArguments {
    pub(crate) fn request(self) -> ChatRequest {
        let ChatOptions { agent, plain } = self.options;
        match self.command {
            None => ChatRequest { options: agent, which: Which::New, plain },
            Some(ChatCommand::Resume { options, id, last }) => {
                let which = if last { Which::Last } else { id.map_or(Which::Pick, Which::Id) };
                ChatRequest { options: options.agent.within(agent), which, plain: plain || options.plain }
            }
        }
    }
}

/// Which thread is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    New,
    Last,
    Id(String),
    /// One that the user chooses from a list.
    Pick,
}

/// What is to be done, wherever on the command line its parts stood.
pub(crate) struct ExecRequest {
    pub options: ExecOptions,
    pub which: Which,
    pub prompt: Option<String>,
}

impl ExecArguments {
    pub(crate) fn request(self) -> ExecRequest {
        let Self { options, prompt, command } = self;
        match command {
            None => ExecRequest { options, which: Which::New, prompt },
            Some(ExecCommand::Resume { options: inner, last, id, prompt, .. }) => {
                // With --last there is no id, and the only word is the prompt.
                let (which, prompt) = match (last, id) {
                    (false, Some(id)) => (Which::Id(id), prompt),
                    (_, word) => (Which::Last, word.or(prompt)),
                };
                ExecRequest { options: inner.within(options), which, prompt }
            }
        }
    }
}

// Options of `exec`. They may stand before or after `resume ID`. No comment for the documentation: it would be the help of the verb.
#[derive(Args, Default)]
pub(crate) struct ExecOptions {
    /// Print one JSON event a line on standard output, for programs
    #[arg(long, visible_alias = "experimental-json")]
    pub json: bool,
    #[command(flatten)]
    pub agent: AgentOptions,
    /// Show all output of commands; without it, the first and the last lines of what a model runs
    #[arg(long)]
    pub full: bool,
    /// A file with a JSON schema that the answer must follow
    #[arg(long, value_name = "FILE")]
    pub output_schema: Option<PathBuf>,
    /// Also write the answer into this file
    #[arg(short, long, value_name = "FILE")]
    pub output_last_message: Option<PathBuf>,
    /// Show a picture to the model (PNG, JPEG, GIF or WebP); may be given several times
    #[arg(short, long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// Keep the thread only as long as the program runs
    #[arg(long)]
    pub ephemeral: bool,
    /// Also wait for commands that the turn left running, and show their output; with `resume ID` and without a prompt, nothing else.
    /// Ctrl-C leaves them running
    #[arg(long)]
    pub wait: bool,
    /// Stop commands that the turn left running; with `resume ID` and without a prompt, nothing else
    #[arg(long, conflicts_with = "wait")]
    pub stop: bool,
    /// Run the turn in the background: print the thread id and exit; `chat resume ID` attaches
    #[arg(long)]
    pub detach: bool,
    /// Source label, shown by `thread list --json`
    #[arg(long, value_name = "WORD")]
    pub thread_source: Option<String>,
    /// When to use colours on standard error
    #[arg(long, value_name = "WHEN")]
    pub color: Option<Colour>,
    /// Accepted for compatibility; no effect
    #[arg(long, hide = true)]
    pub skip_git_repo_check: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
}

// Options of every verb that runs an agent. No comment for the documentation: it would be the help of the verb.
#[derive(Args, Default)]
pub(crate) struct AgentOptions {
    /// The model provider: `offline`, `openai`, `ollama`, or one of config.toml
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// The model
    #[arg(short, long, value_name = "NAME")]
    pub model: Option<String>,
    /// An environment to work in, and where in it; may be given several times. The first one is the primary. `*` alone is every
    /// configured one; without this option the default environment is used
    #[arg(short, long = "environment", value_name = "ENV[=CWD]")]
    pub environments: Vec<String>,
    /// An executor that is not configured, under a name for -e; may be given several times. A token is taken from OUTPOST_TOKEN
    #[arg(long = "attach", value_name = "NAME=URL")]
    pub attached: Vec<String>,
    /// The directory to work in on this machine
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cd: Option<PathBuf>,
    /// Another directory of this machine in which commands may write; may be given several times
    #[arg(long = "add-dir", value_name = "DIR")]
    pub add_dirs: Vec<PathBuf>,
    /// A folder in an environment that offers skills or a plugin; may be given several times
    #[arg(long = "root", value_name = "[ID=]ENV:PATH")]
    pub roots: Vec<String>,
    /// What commands may do
    #[arg(short, long, value_name = "MODE", value_parser = ["read-only", "workspace-write", "danger-full-access"])]
    pub sandbox: Option<String>,
    /// Run every command without a sandbox and without asking; only where something else confines this program
    #[arg(long, alias = "yolo", conflicts_with = "sandbox")]
    pub dangerously_bypass_approvals_and_sandbox: bool,
    /// Commands on this machine end with this program, also when it is killed: for the demo, which leaves nothing
    #[arg(long, hide = true)]
    pub unkept: bool,
    /// Short for `--provider ollama`
    #[arg(long, hide = true, conflicts_with = "provider")]
    pub oss: bool,
    /// Nothing of a command's output is left out.
    #[arg(skip)]
    pub full_output: bool,
}

impl AgentOptions {
    pub(crate) fn provider(&self) -> Option<String> {
        self.provider.clone().or_else(|| self.oss.then(|| "ollama".to_owned()))
    }

    /// The sandbox that was asked for by name.
    pub(crate) fn sandbox(&self) -> Option<&str> {
        if self.dangerously_bypass_approvals_and_sandbox { Some("danger-full-access") } else { self.sandbox.as_deref() }
    }

    /// These, and where they say nothing the others.
    fn within(self, outer: Self) -> Self {
        Self {
            provider: self.provider.or(outer.provider),
            model: self.model.or(outer.model),
            environments: joined(outer.environments, self.environments),
            attached: joined(outer.attached, self.attached),
            cd: self.cd.or(outer.cd),
            add_dirs: joined(outer.add_dirs, self.add_dirs),
            roots: joined(outer.roots, self.roots),
            sandbox: self.sandbox.or(outer.sandbox),
            dangerously_bypass_approvals_and_sandbox: self.dangerously_bypass_approvals_and_sandbox
                || outer.dangerously_bypass_approvals_and_sandbox,
            unkept: self.unkept || outer.unkept,
            oss: self.oss || outer.oss,
            full_output: self.full_output || outer.full_output,
        }
    }
}

impl ExecOptions {
    fn within(self, outer: Self) -> Self {
        Self {
            json: self.json || outer.json,
            full: self.full || outer.full,
            agent: self.agent.within(outer.agent),
            output_schema: self.output_schema.or(outer.output_schema),
            output_last_message: self.output_last_message.or(outer.output_last_message),
            images: joined(outer.images, self.images),
            ephemeral: self.ephemeral || outer.ephemeral,
            wait: self.wait || outer.wait,
            stop: self.stop || outer.stop,
            detach: self.detach || outer.detach,
            thread_source: self.thread_source.or(outer.thread_source),
            color: self.color.or(outer.color),
            skip_git_repo_check: self.skip_git_repo_check || outer.skip_git_repo_check,
        }
    }
}

fn joined<T>(mut first: Vec<T>, second: Vec<T>) -> Vec<T> {
    first.extend(second);
    first
}
