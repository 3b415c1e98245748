//! The command line of `outpost thread`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(crate) const THREAD_HELP: &str = "\
Examples:
  outpost thread list --search 'flaky test'     threads in which these words occur, newest first
  outpost thread show 4f21                      the last turns; the end of an id will do
  outpost thread rename 4f21 'flaky test'       a name, which can be used in the place of the id
  outpost thread fork 4f21 --before-message 2   a new thread that shares what is before message 2
  outpost thread import ~/.codex                every session of Codex; again changes nothing
  outpost thread export 4f21 -o thread.jsonl    one file with all of it; `import` reads it
  outpost thread verify                         reads every byte and names what is wrong

Threads are in $OUTPOST_HOME (~/.outpost), or in the database that `store` in its config.toml or --store names.";

#[derive(Args)]
pub(crate) struct ThreadArguments {
    /// Where threads are: `local`, or postgres://USER@HOST/DATABASE; by default what config.toml says
    #[arg(long, value_name = "STORE", global = true)]
    pub store: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: ThreadCommand,
}

#[derive(Subcommand)]
pub(crate) enum ThreadCommand {
    /// List threads, the one that changed last at the top
    #[command(visible_alias = "ls")]
    List(ThreadListArguments),
    /// Show the last turns of a thread
    Show(ShowArguments),
    /// Fork a thread; the history is shared, not copied
    Fork(ForkArguments),
    /// Give a thread a name; an empty one takes it away
    Rename(RenameArguments),
    /// Hide threads from the list
    Archive(NameArguments),
    /// Show archived threads in the list again
    Unarchive(NameArguments),
    /// Remove threads for good; forks of them first get their own copy of what they share
    #[command(visible_alias = "remove")]
    Rm(RemoveArguments),
    /// Read every byte of threads (all of them, if none is named) and name what is wrong
    Verify(VerifyArguments),
    /// Rewrite a damaged thread from what is whole; the damaged file is kept beside it
    Repair(RepairArguments),
    /// Import Codex rollouts, Claude Code sessions or exported threads
    Import(ThreadImportArguments),
    /// Write a thread into one file that needs nothing else
    Export(ExportArguments),
    /// Say why each capability root of a thread is in its next step, or why not
    Why(Name),
    /// Take a thread from the program that writes it; that program's next write fails
    Takeover(NameArguments),
}

#[derive(Args)]
pub(crate) struct ThreadListArguments {
    /// Only threads in whose messages all these words occur, or whose names hold this text; the last word may be a beginning
    #[arg(short, long, value_name = "WORDS")]
    pub search: Option<String>,
    /// Archived threads, too
    #[arg(short, long, conflicts_with = "archived")]
    pub all: bool,
    /// Only archived threads
    #[arg(long)]
    pub archived: bool,
    /// Only threads that were started by this (cli, exec, vscode, subagent, …); may be given several times
    #[arg(long, value_name = "SOURCE")]
    pub source: Vec<String>,
    /// Only threads that work in this directory; may be given several times
    #[arg(long, value_name = "DIR")]
    pub cwd: Vec<String>,
    /// Only sub-agents of this thread
    #[arg(long, value_name = "THREAD", conflicts_with = "below")]
    pub children_of: Option<String>,
    /// Only sub-agents of this thread, and theirs
    #[arg(long, value_name = "THREAD")]
    pub below: Option<String>,
    /// By which time to order
    #[arg(long, value_enum, default_value_t = By::Updated)]
    pub by: By,
    /// The oldest at the top
    #[arg(short, long)]
    pub reverse: bool,
    /// How many to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// The cursor that the last line of a page names
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum By {
    Updated,
    Created,
    /// When the last turn began
    Recency,
}

#[derive(Args)]
pub(crate) struct ShowArguments {
    /// An id, a unique beginning or end of one, or a name
    pub thread: String,
    /// How many turns to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
    /// All turns
    #[arg(short, long, conflicts_with_all = ["turns", "before"])]
    pub all: bool,
    /// Show what comes before this entry
    #[arg(long, value_name = "ORDINAL")]
    pub before: Option<u64>,
    /// Show whole outputs of calls, not only their beginning
    #[arg(long)]
    pub full: bool,
}

#[derive(Args)]
pub(crate) struct ForkArguments {
    /// An id, a unique beginning or end of one, or a name
    pub thread: String,
    /// Fork before this message of the user, counted from 0
    #[arg(long, value_name = "N", group = "point")]
    pub before_message: Option<u64>,
    /// Fork after this turn
    #[arg(long, value_name = "TURN", group = "point")]
    pub after_turn: Option<String>,
    /// Fork before this turn
    #[arg(long, value_name = "TURN", group = "point")]
    pub before_turn: Option<String>,
    /// A name for the new thread
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

#[derive(Args)]
pub(crate) struct RenameArguments {
    /// An id, a unique beginning or end of one, or a name
    pub thread: String,
    /// The new name
    pub name: String,
}

#[derive(Args)]
pub(crate) struct Name {
    /// An id, a unique beginning or end of one, or a name
    pub thread: String,
}

#[derive(Args)]
pub(crate) struct NameArguments {
    /// Ids, unique beginnings or ends of ids, or names
    #[arg(required = true)]
    pub threads: Vec<String>,
}

#[derive(Args)]
pub(crate) struct RemoveArguments {
    /// Ids, unique beginnings or ends of ids, or names
    #[arg(required = true)]
    pub threads: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Even if another program holds its lease
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub(crate) struct VerifyArguments {
    /// Ids, unique beginnings or ends of ids, or names; all threads if none is given
    pub threads: Vec<String>,
}

#[derive(Args)]
pub(crate) struct RepairArguments {
    /// An id, a unique beginning or end of one, or a name
    pub thread: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Even if another program holds its lease
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub(crate) struct ThreadImportArguments {
    /// Files, or folders that hold such files anywhere below
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ExportArguments {
    /// An id, a unique beginning or end of one, or a name
    pub thread: String,
    /// Where to write; standard output if not given
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Text to read, not to import again
    #[arg(long)]
    pub markdown: bool,
}
