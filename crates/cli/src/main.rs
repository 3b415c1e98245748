//! `outpost`: arguments, home, wiring and printing. What another crate can do lives there.

mod agent_args;
mod agents;
mod agents_remote;
mod args;
mod assembly;
mod commands;
mod compat_flags;
mod configuration;
mod confinement;
mod connection_notices;
mod definitions;
mod doctor;
mod env_args;
mod environments;
mod escape;
mod executor_args;
mod forward_args;
mod frame;
mod home;
mod local;
mod lock;
mod logging;
mod notify;
mod out;
mod owner;
mod panics;
mod progress;
mod reach;
mod remote;
mod render;
mod serve_args;
mod servers;
mod settings_args;
mod shortfall;
mod signals;
mod store;
mod streamed;
mod terminal;
mod thread_args;
mod tokens;
mod topics;
mod variables;

use std::process::ExitCode;

use outpost_runtime::secrets::Secrets;
use outpost_store::SharedRecords;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::sync::OnceCell;

use crate::args::{Arguments, Verb, Verbosity};
use crate::variables::VisibleVariables;

const MIN_THREADS: usize = 4;

fn main() -> ExitCode {
    if let Some(code) = outpost_sandbox::stage::run_if_asked(std::env::args_os(), outpost_executor::serve_files) {
        return code;
    }
    // Other processes of this user may not read our memory or our environment, and no dump is written when we crash.
    let undumpable = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let arguments = Arguments::of_this_process();
    if let (Some(url), Some(why)) = (&arguments.server, arguments.command.not_remote()) {
        return commands::complain(&anyhow::anyhow!("--server {url} has no meaning here: {why}"), commands::USAGE);
    }
    let variables = VisibleVariables::of_this_process().with_keys(configuration::key_variables(&arguments.settings));
    // A program that carries a connection inherits what this process has, so a key under an innocent name is hidden from all.
    let hides = arguments.command.serves_commands() || variables.have_unmarked_keys();
    let hidden = if hides { variables.hide() } else { Ok(()) };
    if let Err(error) = hidden {
        return commands::complain(&anyhow::anyhow!(error).context("secrets cannot be taken out of the environment"), commands::FAILED);
    }
    let secrets = Secrets::default();
    variables.register(&secrets);
    let verbosity = arguments.verbosity();
    logging::start(secrets.clone(), arguments.command.is_server(), verbosity);
    let bugs = panics::watch(secrets.clone());
    if let Err(error) = variables.take_open_files() {
        tracing::warn!(%error, "no more files can be open than at the start");
    }
    if let Err(error) = undumpable {
        tracing::warn!(%error, "the memory of this process can be read by others of its user");
    }
    // Quick file calls run where they are asked for; a few more threads than cores keep a slow one from being felt.
    let threads = std::thread::available_parallelism().map_or(MIN_THREADS, |cores| cores.get().max(MIN_THREADS));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return commands::complain(&error.into(), commands::FAILED),
    };
    let work = async {
        let process = ProcessContext {
            variables,
            secrets,
            settings: arguments.settings,
            server: arguments.server,
            verbosity,
            shared: OnceCell::new(),
        };
        match arguments.command {
            Verb::Executor(arguments) => commands::executor::run(arguments, &process).await,
            Verb::AppServer(arguments) => commands::app_server::run(*arguments, &process).await,
            Verb::Keeper(arguments) => commands::keeper::run(arguments, &process).await,
            Verb::Kept => commands::keeper::is_running(&process).await,
            Verb::EndKeeper => commands::keeper::end(&process).await,
            Verb::Run(arguments) => commands::run::run(arguments, &process).await,
            Verb::Schema(arguments) => commands::schema::run(&arguments),
            Verb::Page { name } => commands::page(&name),
            Verb::Reference => commands::reference(),
            Verb::Doctor(arguments) => commands::doctor::run(&arguments, &process).await,
            Verb::Exec(arguments) => commands::exec::run(*arguments, &process).await,
            Verb::Chat(arguments) => commands::chat::run(*arguments, &process).await,
            Verb::Demo(arguments) => commands::demo::run(arguments, &process).await,
            Verb::Completions { shell } => commands::completions::run(shell),
            Verb::Complete { words } => commands::completions::complete(&words, &process).await,
            Verb::Shell(arguments) => commands::shell::run(arguments, &process).await,
            Verb::Env { command } => commands::env::run(command, &process).await,
            Verb::Forward(arguments) => commands::forward::run(arguments, &process).await,
            Verb::Cp(arguments) => commands::cp::run(arguments, &process).await,
            Verb::Thread(arguments) => commands::thread::run(arguments, &process).await,
            Verb::Serve(arguments) => commands::serve::run(arguments, &process).await,
            Verb::Token { command } => commands::token::run(command, &process).await,
            Verb::Mcp { command } => commands::settings::mcp(command, &process),
            Verb::Config { command } => commands::settings::config(command, &process),
            Verb::Sandbox { command } => commands::sandbox::run(command),
        }
    };
    let code = bugs.run(|| runtime.block_on(work));
    // A thread may still be waiting for a line of standard input that never comes.
    runtime.shutdown_background();
    code
}

/// What every verb is given of this process.
pub struct ProcessContext {
    pub variables: VisibleVariables,
    /// Secrets that must not be written down; code that learns of another one registers it.
    pub secrets: Secrets,
    /// `-c KEY=VALUE`, in order, to be put over config.toml.
    pub settings: Vec<String>,
    /// `--server URL`.
    pub server: Option<String>,
    verbosity: Verbosity,
    /// What the nodes of the configured store share, once it was needed.
    shared: OnceCell<SharedRecords>,
}

impl ProcessContext {
    /// Only what was asked for and what went wrong is to be said.
    pub fn is_quiet(&self) -> bool {
        self.verbosity == Verbosity::Quiet
    }
}
