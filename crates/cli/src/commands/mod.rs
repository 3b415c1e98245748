//! One file per verb.

pub(crate) mod app_server;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod exec;
pub(crate) mod executor;
pub(crate) mod forward;
pub(crate) mod keeper;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod shell;
pub(crate) mod thread;
pub(crate) mod token;

use std::process::ExitCode;

use outpost_environment::bootstrap::BootstrapError;
use outpost_environment::{EnvironmentError, InfoError};

use crate::environments;
use crate::out::{self, ReaderGone, say, with_causes};
use crate::topics;

/// The work failed.
pub(crate) const FAILED: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
/// An environment was unreachable.
pub(crate) const UNREACHABLE: u8 = 3;
/// A bug of ours.
pub(crate) const BUG: u8 = 70;
/// A failure of ours where the exit code is otherwise the command's.
pub(crate) const OURS: u8 = 125;

/// Says what went wrong and tells by the exit code whether it is worth trying again.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    let unreachable = error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(is_unreachable)
            || match cause.downcast_ref() {
                Some(InfoError::Environment(error)) => is_unreachable(error),
                Some(InfoError::Slow(_)) => true,
                _ => false,
            }
            || matches!(cause.downcast_ref(), Some(BootstrapError::Ssh { .. } | BootstrapError::NoWay { .. }))
    });
    complain(error, if unreachable { UNREACHABLE } else { FAILED })
}

/// What to look at when an environment that is written down does not answer.
fn advice(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    let own = cause.downcast_ref::<EnvironmentError>();
    let inner =
        cause.downcast_ref::<InfoError>().and_then(|error| if let InfoError::Environment(inner) = error { Some(inner) } else { None });
    match own.or(inner)? {
        EnvironmentError::Unreachable { name, obstacle, .. } => environments::advice(name, *obstacle),
        _ => None,
    }
}

fn is_unreachable(error: &EnvironmentError) -> bool {
    matches!(error, EnvironmentError::Unreachable { .. } | EnvironmentError::Gone { .. } | EnvironmentError::NeedsLogin { .. })
}

/// Why an address cannot be listened on, and what to do about it.
pub(crate) fn cannot_listen(address: &impl std::fmt::Display, error: std::io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        std::io::ErrorKind::AddrInUse => "; another program listens there: stop it, or choose another port with --listen (0 takes any)",
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root or CAP_NET_BIND_SERVICE, and a socket needs a directory of your own"
        }
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address}{advice}"))
}

/// Prints the page about `config.toml`.
pub(crate) fn reference() -> ExitCode {
    printed(&outpost_config::page())
}

/// A page of the documentation, or which one was meant.
pub(crate) fn page(name: &str) -> ExitCode {
    match topics::page(name) {
        Some(text) => printed(&text),
        None => {
            let meant = topics::nearest(name, topics::names()).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            complain(&anyhow::anyhow!("there is neither a verb nor a page `{name}`; {meant}`outpost help topics` lists all pages"), USAGE)
        }
    }
}

/// The end of a verb that only prints something.
pub(crate) fn printed(text: &str) -> ExitCode {
    match out::print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

/// Says what went wrong, with all its causes on one line, and what to look at if we know.
pub(crate) fn complain(error: &anyhow::Error, code: u8) -> ExitCode {
    if error.chain().any(|cause| cause.is::<ReaderGone>()) {
        return ExitCode::SUCCESS;
    }
    say(&with_causes(error));
    if let Some(advice) = error.chain().find_map(advice) {
        say(&advice);
    }
    ExitCode::from(code)
}
