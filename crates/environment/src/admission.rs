//! What the administrator of this machine lets be an environment.

use crate::definition::{ConnectionWay, Definition};
use crate::route::Container;

/// Every way to an environment that can be allowed or not. `join` is an executor that dials in.
pub const SOURCES: [&str; 9] = ["url", "program", "ssh", "slurm", "docker", "podman", "devcontainer", "kubectl", "join"];

/// Without anything in it everything is let in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentAdmission {
    /// Where it is written down; every refusal names it.
    pub file: String,
    /// Whether this machine is no environment.
    pub no_local: bool,
    /// The only ways that may be taken, if they are named.
    pub sources: Option<Vec<String>>,
}

impl EnvironmentAdmission {
    /// Why this machine may not be worked on, if so.
    pub fn local(&self) -> Result<(), String> {
        if self.no_local { Err(format!("{} says `local = false`: agents do not work on this machine", self.file)) } else { Ok(()) }
    }

    /// Why an environment may not be reached in a way, if so.
    pub fn source(&self, source: &str) -> Result<(), String> {
        match &self.sources {
            Some(allowed) if !allowed.iter().any(|allowed| allowed == source) => {
                let allowed = if allowed.is_empty() { "none".to_owned() } else { format!("only {}", allowed.join(", ")) };
                Err(format!("{} does not allow environments by `{source}`; environment_sources allows {allowed}", self.file))
            }
            _ => Ok(()),
        }
    }

    /// The same for every step of the way to an environment.
    pub fn definition(&self, definition: &Definition) -> Result<(), String> {
        let mut steps = Vec::new();
        match &definition.way {
            ConnectionWay::Listening { .. } => steps.push("url"),
            ConnectionWay::Program(_) => steps.push("program"),
            ConnectionWay::Ssh(_) => steps.push("ssh"),
            ConnectionWay::Inside(route) => {
                steps.extend(route.ssh.as_ref().map(|_| "ssh"));
                steps.extend(route.slurm.as_ref().map(|_| "slurm"));
                steps.extend(route.container.as_ref().map(|container| match container {
                    Container::Engine(container) => container.engine.name(),
                    Container::Dev(_) => "devcontainer",
                    Container::Pod(_) => "kubectl",
                }));
            }
        }
        steps.into_iter().try_for_each(|step| self.source(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::Token;

    #[test]
    fn every_step_of_a_way_must_be_allowed() {
        let url = Definition::url("ws://127.0.0.1:1", Token::None).unwrap();
        let ssh = Definition::ssh("me@box", vec![]).unwrap();
        assert!(EnvironmentAdmission::default().definition(&url).is_ok() && EnvironmentAdmission::default().local().is_ok());
        let strict = EnvironmentAdmission { file: "/etc/x".into(), no_local: true, sources: Some(vec!["ssh".into()]) };
        assert!(strict.definition(&ssh).is_ok());
        let refused = strict.definition(&url).unwrap_err();
        assert!(refused.contains("/etc/x") && refused.contains("`url`") && refused.contains("only ssh"), "{refused}");
        assert!(strict.local().unwrap_err().contains("/etc/x says `local = false`"));
    }
}
