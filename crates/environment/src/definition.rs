//! How an environment is reached, as somebody wrote it down: checked, comparable, and not yet connected to anything.
//!
//! The file, the RPC and the library all make these, and there is no other way into the registry. So there is one set of
//! rules.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::connector::{CommandLine, Connector, Target, TargetError, Token};
use crate::environment::ConnectPolicy;

/// How an environment is reached, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub way: Way,
    pub connect: ConnectPolicy,
    pub connect_timeout: Duration,
    pub initialize_timeout: Duration,
    /// A file on the far side that says what a sandbox there may at most allow.
    pub ceiling: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    Listening { target: Target, token: Token },
    Program(CommandLine),
    Ssh(Ssh),
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
    #[error("`{0}` is no ssh destination; use user@host or a name from the ssh configuration")]
    Destination(String),
    #[error("the ceiling is empty")]
    Ceiling,
    #[error(
        "only an executor that is started through `ssh` can be given a ceiling from here; start the other one with `outpost executor --ceiling FILE`"
    )]
    CeilingElsewhere,
}

/// How long connecting, and the handshake after it, may take by default.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The line that says where a far executor begins; what a login shell prints before it is noise.
const BEGIN: &str = "outpost-executor-begins-here";

impl Definition {
    fn new(way: Way) -> Self {
        Self { way, connect: ConnectPolicy::Lazy, connect_timeout: PATIENCE, initialize_timeout: PATIENCE, ceiling: None }
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
        let target: Target = url.parse()?;
        target.check_token(&token)?;
        Ok(Self::new(Way::Listening { target, token }))
    }

    /// A program whose standard input and output are an executor.
    pub fn program(line: CommandLine) -> Result<Self, DefinitionError> {
        let program = line.program.trim().to_owned();
        if program.is_empty() {
            return Err(DefinitionError::Program);
        }
        Ok(Self::new(Way::Program(CommandLine { program, ..line })))
    }

    pub fn ssh(destination: &str, args: Vec<String>) -> Result<Self, DefinitionError> {
        let destination = destination.trim();
        let is_fine = !destination.is_empty()
            && !destination.starts_with('-')
            && !destination.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_fine {
            return Err(DefinitionError::Destination(destination.to_owned()));
        }
        Ok(Self::new(Way::Ssh(Ssh { destination: destination.to_owned(), args })))
    }

    pub fn connecting(self, connect: ConnectPolicy) -> Self {
        Self { connect, ..self }
    }

    pub fn with_ceiling(self, ceiling: &str) -> Result<Self, DefinitionError> {
        match ceiling.trim() {
            "" => Err(DefinitionError::Ceiling),
            _ if !matches!(self.way, Way::Ssh(_)) => Err(DefinitionError::CeilingElsewhere),
            ceiling => Ok(Self { ceiling: Some(ceiling.to_owned()), ..self }),
        }
    }

    pub fn connector(&self) -> Connector {
        match &self.way {
            Way::Listening { target, token } => Connector::target(target.clone(), token.clone()),
            Way::Program(line) => Connector::program(line.clone()),
            Way::Ssh(ssh) => Connector::program(ssh.command_line(self.ceiling.as_deref())),
        }
    }
}

impl Ssh {
    /// The command that leads there. Nothing is asked for on a terminal, and a dead network is noticed.
    pub fn command_line(&self, ceiling: Option<&str>) -> CommandLine {
        let options = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"];
        let ceiling = ceiling.map(|ceiling| format!(" --ceiling {}", quoted(ceiling))).unwrap_or_default();
        // Understood by every login shell, because only one thing in it is for that shell.
        let script = format!(
            "p=$HOME/.outpost/bin/outpost; [ -x \"$p\" ] || p=outpost; echo; echo {BEGIN}; exec \"$p\" executor --listen stdio --keep{ceiling}"
        );
        let mut args: Vec<String> = options.map(str::to_owned).into();
        args.extend(self.args.iter().cloned());
        args.extend(["--".into(), self.destination.clone(), format!("sh -c {}", quoted(&script))]);
        CommandLine { program: "ssh".into(), args, begins_after: Some(BEGIN.into()), ..CommandLine::default() }
    }
}

/// One word for a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl fmt::Display for Definition {
    /// The address, for people; never a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            Way::Listening { target, .. } => target.fmt(f),
            Way::Program(line) => line.fmt(f),
            Way::Ssh(ssh) => write!(f, "ssh {}", ssh.destination),
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
    fn ssh_gets_one_word_for_the_far_shell() {
        let definition = Definition::ssh("me@box", vec!["-p".into(), "22".into()]).unwrap().with_ceiling("it's").unwrap();
        let Way::Ssh(ssh) = &definition.way else { unreachable!() };
        let line = ssh.command_line(definition.ceiling.as_deref());
        let far = line.args.last().unwrap();
        assert!(far.starts_with("sh -c '") && far.contains("--keep --ceiling"), "{far}");
        assert_eq!(definition.to_string(), "ssh me@box");
    }
}
