//! Codes and texts of refusals, as clients of this protocol know them. Nearly every mistake of a client has one code; what the
//! machine refuses has another.

use std::fmt;

use outpost_environment::{DefinitionError, InfoError, RegistryError};
use outpost_runtime::live::CommandError;
use outpost_runtime::runtime::ThreadError;
use outpost_store::{AppendError, ClaimError, DeleteError, ForkStoreError, ReadError};
use outpost_thread::ForkError;
use outpost_wire::Fault;

/// The server has too much to do for this client.
pub(crate) const OVERLOADED: i64 = -32001;

pub(crate) fn not_initialized() -> Fault {
    Fault::invalid_request("Not initialized")
}

pub(crate) fn already_initialized() -> Fault {
    Fault::invalid_request("Already initialized")
}

pub(crate) fn overloaded() -> Fault {
    Fault::new(OVERLOADED, "Server overloaded; retry later.")
}

/// The request cannot be understood.
pub(crate) fn invalid(why: impl fmt::Display) -> Fault {
    Fault::invalid_request(format!("Invalid request: {why}"))
}

pub(crate) fn unknown_method(method: &str, known: &[&str]) -> Fault {
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    invalid(format!("unknown variant `{method}`, expected one of {}", known.join(", ")))
}

pub(crate) fn experimental(what: &str) -> Fault {
    Fault::invalid_request(format!("{what} requires experimentalApi capability"))
}

pub(crate) fn thread_id(text: &str) -> Fault {
    Fault::invalid_request(format!("invalid thread id: `{text}` is not a UUID"))
}

/// Of requests to a thread that must be loaded.
pub(crate) fn thread_not_found(id: impl std::fmt::Display) -> Fault {
    Fault::invalid_request(format!("thread not found: {id}"))
}

/// Of requests that read a thread.
pub(crate) fn thread_not_loaded(id: impl std::fmt::Display) -> Fault {
    Fault::invalid_request(format!("thread not loaded: {id}"))
}

/// Of requests to a thread that must be stored.
pub(crate) fn no_rollout(id: impl std::fmt::Display) -> Fault {
    Fault::invalid_request(format!("no rollout found for thread id {id}"))
}

pub(crate) fn no_archived_rollout(id: impl std::fmt::Display) -> Fault {
    Fault::invalid_request(format!("no archived rollout found for thread id {id}"))
}

pub(crate) fn not_materialized(id: impl std::fmt::Display) -> Fault {
    Fault::invalid_request(format!("thread {id} is not materialized yet; it is written down with its first user message"))
}

/// A search term, if it is valid.
pub(crate) fn search_term(term: &str) -> Result<(), Fault> {
    const LONGEST: usize = 4096;
    if term.len() > LONGEST {
        return Err(Fault::invalid_params(format!("searchTerm is {} bytes long, and at most {LONGEST} are searched for", term.len())));
    }
    if term.contains('\0') {
        return Err(Fault::invalid_params("searchTerm holds a NUL character, which no thread does"));
    }
    Ok(())
}

pub(crate) fn cursor(text: &str) -> Fault {
    Fault::invalid_request(format!("invalid cursor: {text}"))
}

pub(crate) fn both_permissions_and_sandbox() -> Fault {
    Fault::invalid_request("`permissions` cannot be combined with `sandbox`")
}

pub(crate) fn unknown_environment(id: &str) -> Fault {
    Fault::invalid_request(format!("unknown environment id `{id}`"))
}

/// A thread's refusal of `turn/interrupt`.
pub(crate) fn interrupt(error: CommandError) -> Fault {
    match error {
        CommandError::OtherTurn { expected, running } => {
            Fault::invalid_request(format!("expected active turn id {expected} but found {running}"))
        }
        other => command(other),
    }
}

/// A thread's refusal of `turn/steer`; clients read the running turn's id out of it.
pub(crate) fn steer(error: CommandError) -> Fault {
    match error {
        CommandError::OtherTurn { expected, running } => {
            Fault::invalid_request(format!("expected active turn id `{expected}` but found `{running}`"))
        }
        CommandError::NoTurn => Fault::invalid_request("no active turn to steer"),
        other => command(other),
    }
}

pub(crate) fn command(error: CommandError) -> Fault {
    match error {
        CommandError::NotStored(_) => Fault::internal(error),
        other => Fault::invalid_request(other.to_string()),
    }
}

/// Of resuming, forking and the like.
pub(crate) fn thread(error: ThreadError) -> Fault {
    match error {
        ThreadError::Claim(error) => claim(error),
        ThreadError::Read(error) | ThreadError::Store(ForkStoreError::Read(error)) => read(error),
        ThreadError::Append(error) | ThreadError::Store(ForkStoreError::Append(error)) => append(&error),
        ThreadError::Fork(ForkError::UnknownTurn(turn)) => Fault::invalid_request(format!("turn not found: {turn}")),
        other => Fault::invalid_request(other.to_string()),
    }
}

pub(crate) fn claim(error: ClaimError) -> Fault {
    match error {
        ClaimError::NotFound(id) => no_rollout(id),
        other => Fault::invalid_request(other.to_string()),
    }
}

pub(crate) fn read(error: ReadError) -> Fault {
    match error {
        ReadError::NotFound(id) => no_rollout(id),
        other => Fault::internal(other.to_string()),
    }
}

pub(crate) fn append(error: &AppendError) -> Fault {
    Fault::internal(error)
}

pub(crate) fn delete(error: DeleteError) -> Fault {
    match error {
        DeleteError::Claim(error) => claim(error),
        DeleteError::Read(error) => read(error),
        other => Fault::internal(other.to_string()),
    }
}

/// Of `environment/add` and `environment/remove`.
pub(crate) fn registry(error: RegistryError) -> Fault {
    match error {
        RegistryError::Unknown(id) => unknown_environment(id.as_str()),
        RegistryError::Local => Fault::invalid_request("environment id `local` is reserved: it is this machine"),
        other => Fault::invalid_request(other.to_string()),
    }
}

pub(crate) fn definition(error: DefinitionError) -> Fault {
    match error {
        DefinitionError::None => Fault::invalid_request("an environment cannot use disabled exec-server url"),
        other => Fault::invalid_request(other.to_string()),
    }
}

pub(crate) fn info(id: &str, error: InfoError) -> Fault {
    match error {
        InfoError::Registry(RegistryError::Unknown(_)) => unknown_environment(id),
        other => Fault::internal(format!("failed to get info for environment `{id}`: {other}")),
    }
}
