//! `outpost`: arguments, wiring and printing. Anything worth a unit test lives in another crate.

mod args;
mod commands;
mod confinement;
mod home;
mod local;
mod signals;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Arguments, Command};

const MIN_THREADS: usize = 4;

fn main() -> ExitCode {
    if let Some(code) = outpost_sandbox::stage::run_if_asked(std::env::args_os()) {
        return code;
    }
    let arguments = Arguments::parse();
    start_logging();
    // Quick file calls run where they are asked for; a few more threads than cores keep a slow one from being felt.
    let threads = std::thread::available_parallelism().map_or(MIN_THREADS, |cores| cores.get().max(MIN_THREADS));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return commands::complain(&error.into(), commands::FAILED),
    };
    let code = runtime.block_on(async {
        match arguments.command {
            Command::Executor(arguments) => commands::executor::run(arguments).await,
            Command::Keeper(arguments) => commands::keeper::run(arguments).await,
            Command::Run(arguments) => commands::run::run(arguments).await,
        }
    });
    // A thread may still be waiting for a line of standard input that never comes.
    runtime.shutdown_background();
    code
}

fn start_logging() {
    let filter = EnvFilter::try_from_env("OUTPOST_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
}
