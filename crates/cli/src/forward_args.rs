//! Arguments of `outpost forward`.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use outpost_wire::EnvironmentId;

use crate::args::{PlaceArguments, YEAR};

pub(crate) const FORWARD_HELP: &str = "\
Examples:
  outpost forward box 6006                           127.0.0.1:6006 here is port 6006 there
  outpost forward box 8080:6006 5432                 several; 8080 here is 6006 there
  outpost forward box 3000 --thread 019a             a server that the agent of a thread started
  outpost forward local 3000 --last                  the same here, of the thread that changed last

Connections are accepted here, on 127.0.0.1 unless --bind says otherwise, and connect to 127.0.0.1 or ::1 there. Without --thread that \
is the loopback of the machine, which you reach as you, without a sandbox; an executor with a ceiling refuses it. Commands of an agent \
in a sandbox without network have a loopback of their own: --thread means the one that the commands of that thread see on that \
environment. A lost connection to the environment is taken up again: open connections go on, and new ones wait for it. Ctrl-C ends it. \
Exit codes: 1 if a port is in use here, 3 if the environment cannot be reached, 128 + the signal that ended it.";

#[derive(Args)]
pub(crate) struct ForwardArguments {
    /// The environment (unless -e or --via says which), then ports: PORT, or HERE:THERE; HERE may be 0 for any that is free
    #[arg(required = true, value_name = "[ENV] PORT")]
    pub words: Vec<String>,
    /// The environment: a name from environments.toml, ws://HOST:PORT or unix://PATH
    #[arg(short, long, value_name = "ENV", conflicts_with = "via")]
    pub environment: Option<String>,
    /// A command whose standard input and output are an executor
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["thread", "last"])]
    pub via: Option<String>,
    /// Reach what the commands of this thread see as 127.0.0.1 there: its id, a unique beginning or end of it, or its name
    #[arg(long, value_name = "ID")]
    pub thread: Option<String>,
    /// The same of the thread that changed last
    #[arg(long, conflicts_with = "thread")]
    pub last: bool,
    /// The address to listen on here
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind: IpAddr,
    /// How long to try to get a lost connection back, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub patience: u64,
}

/// A port here and the port there that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortPair {
    pub here: u16,
    pub there: u16,
}

impl PortPair {
    /// Nothing if it does not even look like ports.
    fn read(word: &str) -> Option<Result<Self, String>> {
        let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (here, there) = word.split_once(':').unwrap_or((word, word));
        if !is_port(here) || !is_port(there) {
            return None;
        }
        let read = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a port: the highest is 65535"));
        let pair = read(here).and_then(|here| Ok(Self { here, there: read(there)? }));
        Some(pair.and_then(|pair| match pair.there {
            0 => Err(format!("`{word}`: port 0 cannot be connected to; 0:PORT takes any free port here")),
            _ => Ok(pair),
        }))
    }
}

impl ForwardArguments {
    /// Which environment, and which ports.
    pub(crate) fn place(&self) -> Result<(PlaceArguments, Vec<PortPair>), String> {
        let is_named = self.environment.is_some() || self.via.is_some();
        let (named, ports) = match self.words.split_first() {
            Some((first, rest)) if !is_named && PortPair::read(first).is_none() => (Some(first.clone()), rest),
            _ => (None, &self.words[..]),
        };
        let environment = match self.environment.clone().or(named) {
            Some(environment) => Some(environment),
            None if self.via.is_some() => None,
            None if self.is_of_thread() => Some(EnvironmentId::local().to_string()),
            None => return Err(format!("say which environment: `outpost forward ENV {}`", self.words.join(" "))),
        };
        if ports.is_empty() {
            return Err("say which port: `outpost forward box 6006`".to_owned());
        }
        let read = |word: &String| PortPair::read(word).unwrap_or_else(|| Err(format!("`{word}` is not a port; write 6006, or 8080:6006")));
        let ports = ports.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok((PlaceArguments { environment, named: None, via: self.via.clone(), patience: self.patience }, ports))
    }

    pub(crate) fn is_of_thread(&self) -> bool {
        self.thread.is_some() || self.last
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ForwardArguments,
    }

    /// An environment, and ports here and there.
    type Said = (Option<String>, Vec<(u16, u16)>);

    fn read(line: &str) -> Result<Said, String> {
        let words = std::iter::once("forward").chain(line.split_whitespace());
        let (place, ports) = Line::try_parse_from(words).map_err(|error| error.to_string())?.arguments.place()?;
        Ok((place.environment, ports.iter().map(|pair| (pair.here, pair.there)).collect()))
    }

    #[test]
    fn an_environment_is_named_first_or_by_its_flag() {
        let named = |name: &str, ports: &[(u16, u16)]| Ok((Some(name.to_owned()), ports.to_vec()));
        assert_eq!(read("box 6006"), named("box", &[(6006, 6006)]));
        assert_eq!(read("box 8080:6006 0:5432"), named("box", &[(8080, 6006), (0, 5432)]));
        assert_eq!(read("-e box 6006 80"), named("box", &[(6006, 6006), (80, 80)]));
        assert_eq!(read("6006 --last"), named("local", &[(6006, 6006)]));
        assert_eq!(read("--via cat 6006"), Ok((None, vec![(6006, 6006)])));
    }

    #[test]
    fn what_is_no_port_is_said() {
        for (line, said) in [
            ("6006", "say which environment: `outpost forward ENV 6006`"),
            ("box", "say which port"),
            ("box 70000", "`70000` is not a port: the highest is 65535"),
            ("box http", "`http` is not a port; write 6006, or 8080:6006"),
            ("box 8080:0", "port 0 cannot be connected to"),
            ("box 1:2:3", "`1:2:3` is not a port"),
            ("-e box other 6006", "`other` is not a port"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
