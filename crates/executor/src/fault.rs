//! Numeric codes and texts of this executor's refusals, in one place.

use std::fmt::Display;
use std::io;
use std::path::Path;

use outpost_sandbox::LaunchError;
use outpost_sandbox::policy::{PathAccess, PathRefusal};
use outpost_wire::fault::UNENFORCEABLE;
use outpost_wire::packed::UnpackError;
use outpost_wire::{Fault, PathError};
use rustix::io::Errno;

use crate::policy::PolicyError;

/// Refusals of file calls: what is missing, what is forbidden, and what simply failed.
pub(crate) fn file(error: io::Error) -> Fault {
    let message = error.to_string();
    match error.kind() {
        io::ErrorKind::NotFound => Fault::not_found(message),
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied => Fault::invalid_request(message),
        _ => Fault::internal(message),
    }
}

/// What a policy does not allow: the system's own words first, as the wire has them, then the path and the rule.
/// `allowed` is what it does allow there.
pub(crate) fn refused(refusal: &PathRefusal, allowed: PathAccess) -> Fault {
    match allowed {
        PathAccess::Deny => Fault::invalid_request(format!("{}: {refusal}", io::Error::from(Errno::ACCESS))),
        PathAccess::Read | PathAccess::Write => Fault::internal(format!("{}: {refusal}", io::Error::from(Errno::ROFS))),
    }
}

pub(crate) fn path(error: PathError) -> Fault {
    Fault::invalid_request(error)
}

pub(crate) fn not_initialized(family: &str) -> Fault {
    Fault::invalid_request(format!("client must call initialize before using {family} methods"))
}

pub(crate) fn not_acknowledged(family: &str) -> Fault {
    Fault::invalid_request(format!("client must send initialized before using {family} methods"))
}

pub(crate) fn initialized_twice() -> Fault {
    Fault::invalid_request("initialize may only be sent once per connection")
}

pub(crate) fn unknown_session(id: &str) -> Fault {
    Fault::invalid_request(format!("unknown session id {id}"))
}

/// Whatever the message carries was meant for another executor.
pub(crate) fn other_executor(expected: &str, own: Option<&str>) -> Fault {
    let own = own.unwrap_or("one without an identity");
    Fault::new(outpost_wire::fault::OTHER_EXECUTOR, format!("this is executor {own}, and the message is for executor {expected}"))
}

pub(crate) fn too_many_calls(count: usize, most: usize) -> Fault {
    Fault::invalid_params(format!("initialize carries {count} calls; at most {most} are taken"))
}

pub(crate) fn bad_session_id(id: &str) -> Fault {
    Fault::invalid_params(format!("newSessionId must be a UUID, and {id:?} is none"))
}

pub(crate) fn session_exists(id: &str) -> Fault {
    Fault::invalid_request(format!("there is a session {id} already"))
}

pub(crate) fn taken_over() -> Fault {
    Fault::invalid_request("session has been resumed by another connection")
}

pub(crate) fn session_ended() -> Fault {
    Fault::invalid_request("session has ended")
}

pub(crate) fn unknown_process(id: &str) -> Fault {
    Fault::invalid_request(format!("unknown process id {id}"))
}

pub(crate) fn process_starting(id: &str) -> Fault {
    Fault::invalid_request(format!("process id {id} is starting"))
}

pub(crate) fn ended_while_starting(id: &str) -> Fault {
    Fault::invalid_request(format!("process {id} was terminated before it had started"))
}

/// As for a session that is attached elsewhere: the next start of the executor takes it.
pub(crate) fn shutting_down() -> Fault {
    Fault::new(outpost_wire::fault::SESSION_ATTACHED, "the executor is shutting down")
}

pub(crate) fn caller(why: &str) -> Fault {
    Fault::invalid_request(format!("commands cannot run in the place of this client: {why}"))
}

/// As for a session that is attached elsewhere: trying again later makes sense.
pub(crate) fn ending() -> Fault {
    Fault::new(outpost_wire::fault::SESSION_ATTACHED, "the executor ends; the session can be asked for when it has started again")
}

pub(crate) fn process_exists(id: &str) -> Fault {
    Fault::invalid_request(format!("process {id} already exists"))
}

pub(crate) fn short_secret(least: usize) -> Fault {
    Fault::invalid_params(format!("the adoption secret is too short: it must have at least {least} bytes"))
}

pub(crate) fn adopted_since(id: &str) -> Fault {
    let text = format!("process {id} was claimed under a newer lease than that of this client");
    Fault::new(outpost_wire::fault::ADOPTED_SINCE, text)
}

/// The same for a process that is not there and for a wrong secret: a client that guesses learns nothing.
pub(crate) fn not_adoptable(id: &str) -> Fault {
    let text = format!("process {id} cannot be adopted: none of that name runs here under that secret");
    Fault::new(outpost_wire::fault::NOT_ADOPTABLE, text)
}

pub(crate) fn empty_argv() -> Fault {
    Fault::invalid_params("argv must not be empty")
}

pub(crate) fn foreign_cwd(cwd: &str, error: &PathError) -> Fault {
    Fault::invalid_params(format!("cwd URI `{cwd}` is not valid on this exec-server host: {error}"))
}

pub(crate) fn launch(error: &LaunchError) -> Fault {
    match error {
        LaunchError::Spawn(_) | LaunchError::Limit { .. } => Fault::internal(error),
        LaunchError::Unenforceable(reason) => Fault::invalid_params(format!("{UNENFORCEABLE}{reason}")),
        LaunchError::Ended => session_ended(),
    }
}

/// Nothing was connected with a port.
pub(crate) fn no_connection(port: u16, error: &LaunchError) -> Fault {
    match error {
        LaunchError::Spawn(error) => Fault::internal(format!("cannot connect to port {port}: {error}")),
        other => launch(other),
    }
}

pub(crate) fn bad_connection() -> Fault {
    Fault::invalid_params("`connect` needs a port other than 0, pipes (`tty` false) and an input (`pipeStdin` true)")
}

/// What a process was to be started beside is not here, or its secret is wrong.
pub(crate) fn no_sandbox() -> Fault {
    Fault::invalid_request("none of the processes in `beside` has a sandbox here: they ended with their session, or were started elsewhere")
}

pub(crate) fn empty_write_id() -> Fault {
    Fault::invalid_params("writeId must not be empty")
}

pub(crate) fn stdin_broken() -> Fault {
    Fault::internal("failed to write to process stdin")
}

pub(crate) fn no_room_for_input(limit: usize) -> Fault {
    Fault::invalid_request(format!(
        "nothing of this write was taken: the processes of this session have not read what was written to them before, and {} MiB is the most \
         that waits for them; terminate those that do not read, or write again later",
        limit >> 20
    ))
}

pub(crate) fn no_terminal(id: &str) -> Fault {
    Fault::invalid_request(format!("process {id} has no terminal"))
}

/// Refusals of policies. Those that break a rule of the operator or the client say so; the others cannot be held here.
pub(crate) fn policy(error: &PolicyError) -> Fault {
    match error {
        PolicyError::NeedsCwd => Fault::invalid_params(error),
        PolicyError::Ceiling(_) => Fault::invalid_request(error),
        _ => Fault::invalid_params(format!("{UNENFORCEABLE}{error}")),
    }
}

pub(crate) fn proxy_unsupported() -> Fault {
    Fault::invalid_params("networkProxy is not supported by this executor (capability networkProxyLaunch is false)")
}

pub(crate) fn unknown_handle(id: &str) -> Fault {
    Fault::not_found(format!("unknown file handle `{id}`"))
}

/// A failure of one file among several.
pub(crate) fn of_path(path: &Path, error: io::Error) -> Fault {
    let mut fault = file(error);
    fault.message = format!("{}: {}", path.display(), fault.message);
    fault
}

pub(crate) fn unpacked(error: UnpackError) -> Fault {
    Fault::invalid_params(error)
}

pub(crate) fn walk_elsewhere(after: &Path) -> Fault {
    Fault::invalid_params(format!("`after` is {}, which is not below the root; give the last entry of the page before", after.display()))
}

pub(crate) fn pack_of(count: usize, most: usize) -> Fault {
    Fault::invalid_params(format!("a pack of {count} files; 1 to {most} can be in one"))
}

pub(crate) fn pack_too_large(most: usize) -> Fault {
    Fault::invalid_request(format!("the files of a pack have at most {most} bytes; use fs/readFile or fs/open for larger ones"))
}

pub(crate) fn handle_exists(id: &str) -> Fault {
    Fault::invalid_request(format!("file handle `{id}` already exists"))
}

pub(crate) fn handle_id_too_long(limit: usize) -> Fault {
    Fault::invalid_request(format!("file handle ID must not exceed {limit} bytes"))
}

pub(crate) fn too_many_handles(limit: usize) -> Fault {
    Fault::invalid_request(format!("at most {limit} file handles may be open per connection"))
}

/// `direction` is `read` or `write`.
pub(crate) fn block_length(direction: &str, limit: usize) -> Fault {
    Fault::invalid_request(format!("file {direction} block length must be between 1 and {limit}"))
}

pub(crate) fn walk_without_room() -> Fault {
    Fault::invalid_request("filesystem walk limits must be greater than zero")
}

pub(crate) fn walk_too_large(depth: usize, directories: usize, entries: usize) -> Fault {
    Fault::invalid_request(format!("filesystem walk limits exceed maximums: depth={depth}, directories={directories}, entries={entries}"))
}

pub(crate) fn too_many_roots(limit: usize) -> Fault {
    Fault::invalid_request(format!("capability root discovery accepts at most {limit} roots"))
}

pub(crate) fn no_config_paths() -> Fault {
    Fault::invalid_params("at least one config or requirements path is required")
}

pub(crate) fn empty_config_path() -> Fault {
    Fault::invalid_params("TOML paths must contain at least one key segment")
}

pub(crate) fn config_unreadable(file: &Path, error: &dyn Display) -> Fault {
    Fault::internal(format!("failed to load executor-local config: {}: {error}", file.display()))
}

pub(crate) fn snapshot_scope(limit: usize) -> Fault {
    Fault::invalid_params(format!("shell snapshot scope must be non-empty and at most {limit} bytes"))
}

pub(crate) fn snapshot_shell(name: &str) -> Fault {
    Fault::invalid_params(format!("shell snapshots are unsupported for shell `{name}`"))
}

pub(crate) fn watch_exists(id: &str) -> Fault {
    Fault::invalid_request(format!("watch `{id}` already exists"))
}

pub(crate) fn too_many_watches(limit: usize) -> Fault {
    Fault::invalid_request(format!("at most {limit} watches may be active per connection; end one first"))
}

/// `setting` is the limit of the system that was reached.
pub(crate) fn watches_exhausted(setting: &str) -> Fault {
    Fault::internal(format!("this machine cannot watch more files: its limit {setting} is reached"))
}

/// `what` is which argument is wrong, and how.
pub(crate) fn http_argument(what: &str, error: &dyn Display) -> Fault {
    Fault::invalid_params(format!("http/request {what}: {error}"))
}

pub(crate) fn http_scheme(scheme: &str) -> Fault {
    Fault::invalid_params(format!("http/request only supports http and https URLs, got {scheme}"))
}

pub(crate) fn header_variable_missing(header: &str, variable: &str) -> Fault {
    Fault::invalid_params(format!("http/request header {header} requires executor environment variable {variable}"))
}

pub(crate) fn header_variable_guarded(header: &str, variable: &str) -> Fault {
    Fault::invalid_params(format!("http/request header {header} cannot use executor environment variable {variable}"))
}

pub(crate) fn stream_active(request_id: &str) -> Fault {
    Fault::invalid_params(format!("http/request streamResponse requestId `{request_id}` is already active"))
}

pub(crate) fn http_denied(why: &dyn Display) -> Fault {
    Fault::invalid_params(format!("http/request to {why}"))
}

pub(crate) fn http_above_ceiling() -> Fault {
    Fault::invalid_request("http/request is refused: the operator's ceiling of this executor allows no network")
}

pub(crate) fn http_failed(error: &dyn Display) -> Fault {
    Fault::internal(format!("http/request failed: {error}"))
}

pub(crate) fn http_body(error: &dyn Display) -> Fault {
    Fault::internal(format!("failed to read http/request response body: {error}"))
}

pub(crate) fn unknown_method(method: &str) -> String {
    format!("exec-server stub does not implement `{method}` yet")
}

/// A call that is made without confinement only.
pub(crate) fn sandbox_unsupported() -> Fault {
    Fault::invalid_params("this call is not made under a sandbox; leave `sandbox` out, or use the other file calls")
}
