//! How an environment is reached, as configured: checked, comparable, and not yet connected to anything.
//!
//! The file, the RPC and the library all make these, and there is no other way into the registry. So there is one set of
//! rules.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::connector::{CommandLine, Connector, ExecutorAddress, Journey, Means, TargetError, Token};
use crate::environment::ConnectPolicy;
use crate::narrowing::Narrowing;
use crate::route::{Manner, Route};

/// How an environment is reached, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub way: ConnectionWay,
    pub connect: ConnectPolicy,
    pub connect_timeout: Duration,
    pub initialize_timeout: Duration,
    /// A file on the far side that says what a sandbox there may at most allow.
    pub ceiling: Option<String>,
    /// What people and programs choose environments by.
    pub labels: Vec<String>,
    pub setup: Setup,
    /// How long it may be unused before it is stopped; only what can be started from here.
    pub idle_stop: Option<Duration>,
    pub narrowing: Narrowing,
}

/// Commands that a new place is prepared with, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    pub commands: Vec<String>,
    /// How long all of them together may take.
    pub timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self { commands: Vec::new(), timeout: Duration::from_secs(600) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionWay {
    Listening {
        target: ExecutorAddress,
        token: Token,
    },
    Program(CommandLine),
    Ssh(Ssh),
    /// A container, a job, or one of them behind ssh.
    Inside(Route),
}

/// A machine behind ssh, with `outpost` in the far home or on the far path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    /// `user@host`, or a name from the ssh configuration.
    pub destination: String,
    /// More arguments for ssh, such as `-p 2222`.
    pub args: Vec<String>,
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum DefinitionError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the URL `none` is the switch that turns environments off, not an address")]
    None,
    #[error("the program is empty")]
    Program,
    #[error("the token is empty")]
    Token,
    #[error("the token holds characters that no header may hold")]
    TokenCharacters,
    #[error("`{0}` is not an ssh destination; use user@host or a name from the ssh configuration")]
    Destination(String),
    #[error("the ceiling is empty")]
    Ceiling,
    #[error(
        "only an executor that is started from here (`ssh`, `docker`, `podman`, `devcontainer`, `kubectl`, `slurm`) can be given a ceiling; start the other one with `outpost executor --ceiling FILE`"
    )]
    CeilingElsewhere,
    #[error("`{name}` is not a name of a {what}")]
    Name { what: &'static str, name: String },
    #[error("`{0}` is not a Slurm job number")]
    Job(String),
    #[error("the folder of a dev container needs an absolute path; `{0}` is none")]
    Folder(String),
    #[error("`idle_stop` needs `docker`, `podman` or `devcontainer`: nothing else is started and stopped from here")]
    IdleStop,
    #[error("`setup` needs `docker`, `podman`, `devcontainer`, `kubectl`, `slurm` or `ssh`: nothing else is prepared from here")]
    Setup,
}

/// How long connecting, and the handshake after it, may take by default.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a way through containers and jobs may take by default: something may have to be started, or a program copied.
pub(crate) const LONG_PATIENCE: Duration = Duration::from_secs(120);

/// The line that says where a far executor begins; what a login shell prints before it is noise.
pub(crate) const BEGIN: &str = "outpost-executor-begins-here";
/// Lines that say what is missing there instead.
pub(crate) const NO_PROGRAM: &str = "outpost-has-no-program-here";
pub(crate) const NO_SETUP: &str = "outpost-was-not-set-up-here";

impl Definition {
    fn new(way: ConnectionWay) -> Self {
        let connect_timeout = if matches!(way, ConnectionWay::Inside(_)) { LONG_PATIENCE } else { PATIENCE };
        Self {
            way,
            connect: ConnectPolicy::Lazy,
            connect_timeout,
            initialize_timeout: PATIENCE,
            ceiling: None,
            labels: Vec::new(),
            setup: Setup::default(),
            idle_stop: None,
            narrowing: Narrowing::default(),
        }
    }

    /// A container or a job, here or behind ssh.
    pub fn inside(route: Route) -> Result<Self, DefinitionError> {
        route.check()?;
        Ok(Self::new(ConnectionWay::Inside(route)))
    }

    /// The way as a route, where a program can be carried along it.
    pub fn route(&self) -> Option<Route> {
        match &self.way {
            ConnectionWay::Ssh(ssh) => Some(ssh.clone().into()),
            ConnectionWay::Inside(route) => Some(route.clone()),
            ConnectionWay::Listening { .. } | ConnectionWay::Program(_) => None,
        }
    }

    pub fn with_setup(self, setup: Setup) -> Result<Self, DefinitionError> {
        if !setup.commands.is_empty() && self.route().is_none() {
            return Err(DefinitionError::Setup);
        }
        let connect_timeout = if setup.commands.is_empty() { self.connect_timeout } else { self.connect_timeout + setup.timeout };
        Ok(Self { setup, connect_timeout, ..self })
    }

    pub fn stopping_after(self, idle: Duration) -> Result<Self, DefinitionError> {
        match &self.way {
            ConnectionWay::Inside(route) if route.is_stoppable() => Ok(Self { idle_stop: Some(idle), ..self }),
            _ => Err(DefinitionError::IdleStop),
        }
    }

    /// An executor that listens on `ws://`, `wss://` or `unix://`.
    pub fn url(url: &str, token: Token) -> Result<Self, DefinitionError> {
        if url.trim().eq_ignore_ascii_case("none") {
            return Err(DefinitionError::None);
        }
        match &token {
            Token::Bearer(text) if text.trim().is_empty() => return Err(DefinitionError::Token),
            Token::Bearer(text) if !text.chars().all(|c| c.is_ascii_graphic()) => return Err(DefinitionError::TokenCharacters),
            _ => {}
        }
        let target: ExecutorAddress = url.parse()?;
        target.check_token(&token)?;
        Ok(Self::new(ConnectionWay::Listening { target, token }))
    }

    /// A program whose standard input and output are an executor.
    pub fn program(line: CommandLine) -> Result<Self, DefinitionError> {
        let program = line.program.trim().to_owned();
        if program.is_empty() {
            return Err(DefinitionError::Program);
        }
        Ok(Self::new(ConnectionWay::Program(CommandLine { program, ..line })))
    }

    pub fn ssh(destination: &str, args: Vec<String>) -> Result<Self, DefinitionError> {
        let destination = destination.trim();
        let is_fine = !destination.is_empty()
            && !destination.starts_with('-')
            && !destination.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_fine {
            return Err(DefinitionError::Destination(destination.to_owned()));
        }
        Ok(Self::new(ConnectionWay::Ssh(Ssh { destination: destination.to_owned(), args })))
    }

    pub fn connecting(self, connect: ConnectPolicy) -> Self {
        Self { connect, ..self }
    }

    pub fn with_ceiling(self, ceiling: &str) -> Result<Self, DefinitionError> {
        match ceiling.trim() {
            "" => Err(DefinitionError::Ceiling),
            _ if !matches!(self.way, ConnectionWay::Ssh(_) | ConnectionWay::Inside(_)) => Err(DefinitionError::CeilingElsewhere),
            ceiling => Ok(Self { ceiling: Some(ceiling.to_owned()), ..self }),
        }
    }

    pub fn connector(&self, means: &Means) -> Connector {
        match &self.way {
            ConnectionWay::Listening { target, token } => Connector::target(target.clone(), token.clone()),
            ConnectionWay::Program(line) => Connector::program(CommandLine { open_files: means.open_files, ..line.clone() }),
            ConnectionWay::Ssh(_) | ConnectionWay::Inside(_) => match self.route() {
                Some(route) => {
                    Connector::route(Journey { route, ceiling: self.ceiling.clone(), setup: self.setup.clone(), means: means.clone() })
                }
                None => Connector::program(CommandLine::default()),
            },
        }
    }
}

impl Ssh {
    /// What ssh is told. ssh asks no questions without a terminal, and notices a dead network. A connection that a user has opened
    /// for all is used; its own settings are left alone where there is none.
    pub(crate) fn options(&self, manner: &Manner) -> Vec<String> {
        let mut options: Vec<String> = ["-T", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"].map(str::to_owned).into();
        if !manner.attended {
            options.extend(["-o", "BatchMode=yes"].map(str::to_owned));
        }
        // Over a connection that is shared already this has no effect.
        options.extend(manner.compress.then(|| "-C".to_owned()));
        if let Some(master) = &manner.master {
            options.extend(["-o".into(), "ControlMaster=no".into(), "-o".into(), format!("ControlPath={}", master.display())]);
        }
        options.extend(self.args.iter().cloned());
        options
    }
}

impl fmt::Display for Definition {
    /// The address, for people; never a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            ConnectionWay::Listening { target, .. } => target.fmt(f),
            ConnectionWay::Program(line) => line.fmt(f),
            ConnectionWay::Ssh(ssh) => write!(f, "ssh {}", ssh.destination),
            ConnectionWay::Inside(route) => route.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_with_a_reason() {
        let why = |result: Result<Definition, DefinitionError>| result.unwrap_err().to_string();
        assert_eq!(why(Definition::url("  ", Token::None)), "the address is empty");
        assert!(why(Definition::url("NONE", Token::None)).contains("switch"));
        assert!(why(Definition::url("http://x", Token::None)).contains("use ws://HOST:PORT"));
        assert_eq!(why(Definition::url("ws://127.0.0.1:1", Token::Bearer(" ".into()))), "the token is empty");
        assert!(why(Definition::url("ws://127.0.0.1:1", Token::Bearer("a\nb".into()))).contains("header"));
        assert!(why(Definition::url("ws://far:1", Token::Bearer("t".into()))).contains("in the clear"));
        assert_eq!(why(Definition::program(CommandLine::default())), "the program is empty");
        let program = Definition::program(CommandLine { program: "x".into(), ..CommandLine::default() }).unwrap();
        for way in [Definition::url("ws://127.0.0.1:1", Token::None).unwrap(), program] {
            assert!(why(way.with_ceiling("c")).contains("outpost executor --ceiling FILE"), "it would have no effect");
        }
        for bad in ["", "-oProxyCommand=x", "a b"] {
            assert!(Definition::ssh(bad, vec![]).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_what_can_be_started_from_here_is_stopped_and_prepared() {
        let url = || Definition::url("ws://127.0.0.1:1", Token::None).unwrap();
        assert_eq!(url().stopping_after(PATIENCE), Err(DefinitionError::IdleStop));
        let setup = Setup { commands: vec!["true".into()], ..Setup::default() };
        assert_eq!(url().with_setup(setup.clone()), Err(DefinitionError::Setup));
        let ssh = Definition::ssh("me@box", vec![]).unwrap();
        assert_eq!(ssh.to_string(), "ssh me@box");
        assert!(ssh.clone().with_setup(setup).is_ok());
        assert_eq!(ssh.stopping_after(PATIENCE), Err(DefinitionError::IdleStop));
    }
}
