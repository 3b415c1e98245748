//! Where a request works: on this machine unless it names an environment.

use outpost_environment::{Environment, EnvironmentError};
use outpost_wire::intent::EnvironmentId;
use outpost_wire::{Fault, fault as codes};

use crate::fault;
use crate::server::ServerShared;

pub(super) fn environment(server: &ServerShared, id: Option<&str>) -> Result<Environment, Fault> {
    let id = match id {
        Some(text) => EnvironmentId::parse(text).map_err(|_| fault::unknown_environment(text))?,
        None => EnvironmentId::local(),
    };
    server.runtime.registry().get(&id).ok_or_else(|| fault::unknown_environment(id.as_str()))
}

/// What an executor refuses: a mistake of the client has one code, what the machine says has another.
pub(super) fn refused(error: EnvironmentError) -> Fault {
    let EnvironmentError::Fault(fault) = error else { return Fault::internal(error) };
    let is_mistake = matches!(fault.code, codes::INVALID_REQUEST | codes::INVALID_PARAMS) && fault.os_error().is_none();
    if is_mistake { Fault::invalid_request(fault.message) } else { Fault::internal(fault.message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_says_is_no_mistake_of_the_client() {
        let code = |fault: Fault| refused(EnvironmentError::Fault(fault)).code;
        assert_eq!(code(Fault::not_found("No such file or directory (os error 2)")), codes::INTERNAL);
        assert_eq!(code(Fault::invalid_request("Permission denied (os error 13)")), codes::INTERNAL);
        assert_eq!(code(Fault::invalid_request("fs/copy requires recursive")), codes::INVALID_REQUEST);
        assert_eq!(code(Fault::invalid_params("argv")), codes::INVALID_REQUEST);
    }
}
