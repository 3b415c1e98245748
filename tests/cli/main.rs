//! The command line, as a person or a script meets it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chat;
mod completions;
mod config;
mod cp;
mod demo;
mod detach;
mod doctor;
mod env;
mod exec;
mod executor;
mod expected;
mod forward;
mod import;
mod lock;
mod newcomer;
mod person;
mod profiles;
mod run;
mod sandbox;
mod schema;
mod shell;
mod shown;
mod sources;
mod tasks;
mod thread;
mod ui;
mod world;
mod written;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
/// What the user who runs the tests may have set, and no test is to see.
const OWN_VARIABLES: [&str; 9] = [
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "OPENAI_BASE_URL",
    "OUTPOST_EXEC_SERVER_URL",
    "OUTPOST_TOKEN",
    "OUTPOST_LOG",
    "NO_COLOR",
];

/// What was ignored when the tests were started (by `nohup`, or in the background of a script) is ignored by us as well.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << (number - 1)) != 0
}
