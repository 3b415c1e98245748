//! Who says which environments there are: a file, a variable, or a program that uses this library.
//!
//! A provider gives a snapshot: names, ways and the default. It builds no handle, starts nothing and sees no path that
//! only an executor needs. The registry checks the whole of it before anything happens.

use outpost_wire::EnvironmentId;
use thiserror::Error;

use crate::connector::Token;
use crate::definition::{Definition, DefinitionError};
use crate::environment::ConnectPolicy;

/// Everything that is configured, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationSnapshot {
    /// Whether this machine is one of the environments.
    pub include_local: bool,
    pub entries: Vec<ConfiguredEnvironment>,
    pub default: DefaultChoice,
    /// What the command line selects for a new thread that names nothing.
    pub start: StartChoice,
    /// Entries that are wrong and have not even a name to be listed under.
    pub nameless: Vec<Nameless>,
}

/// A configured entry whose id is missing, malformed or reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nameless {
    /// Where it stands in the file.
    pub line: usize,
    /// What is wrong, with the place.
    pub reason: String,
}

impl Nameless {
    /// What it is called in lists: its place. No id looks like that.
    pub fn label(&self) -> String {
        format!("environments.toml:{}", self.line)
    }
}

/// One configured environment. A wrong one stays visible and is never connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredEnvironment {
    pub id: EnvironmentId,
    /// The text says what is wrong, and where.
    pub definition: Result<Definition, String>,
}

/// What a thread gets that asks for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DefaultChoice {
    /// This machine if it is included, else nothing.
    #[default]
    Derived,
    Id(EnvironmentId),
    Disabled,
}

/// What a new thread of the command line starts with. Clients of the app protocol start with every environment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StartChoice {
    /// The default environment alone.
    #[default]
    Default,
    /// Every configured environment, the default first.
    All,
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum SnapshotError {
    #[error("a provider must not define `local`; it says only whether it is included")]
    Local,
    #[error("duplicate environment id `{0}`")]
    Duplicate(EnvironmentId),
    #[error("the default environment `{0}` is not known")]
    UnknownDefault(EnvironmentId),
    #[error("`local` is included, but nothing was given to reach it")]
    NoLocal,
}

impl ConfigurationSnapshot {
    /// This machine and nothing else.
    pub fn local_only() -> Self {
        Self { include_local: true, ..Self::default() }
    }

    /// The ids in order, this machine first.
    pub fn ids(&self) -> Vec<EnvironmentId> {
        let local = self.include_local.then(EnvironmentId::local);
        local.into_iter().chain(self.entries.iter().map(|entry| entry.id.clone())).collect()
    }

    /// Those that are connected only when named.
    pub fn asleep(&self) -> Vec<EnvironmentId> {
        let is_manual =
            |entry: &&ConfiguredEnvironment| entry.definition.as_ref().is_ok_and(|definition| definition.connect == ConnectPolicy::Manual);
        self.entries.iter().filter(is_manual).map(|entry| entry.id.clone()).collect()
    }

    /// The default that is meant, if any.
    pub fn default_id(&self) -> Option<EnvironmentId> {
        match &self.default {
            DefaultChoice::Derived => self.include_local.then(EnvironmentId::local),
            DefaultChoice::Id(id) => Some(id.clone()),
            DefaultChoice::Disabled => None,
        }
    }

    /// Whether a thread that asks for nothing works elsewhere; nothing is connected to find out.
    pub fn default_is_remote(&self) -> bool {
        self.default_id().is_some_and(|id| !id.is_local())
    }

    pub fn check(&self) -> Result<(), SnapshotError> {
        let ids = self.ids();
        if self.entries.iter().any(|entry| entry.id.is_local()) {
            return Err(SnapshotError::Local);
        }
        if let Some((_, id)) = ids.iter().enumerate().find(|(index, id)| ids[..*index].contains(id)) {
            return Err(SnapshotError::Duplicate(id.clone()));
        }
        match &self.default {
            DefaultChoice::Id(id) if !ids.contains(id) => Err(SnapshotError::UnknownDefault(id.clone())),
            _ => Ok(()),
        }
    }
}

/// What the variable `OUTPOST_EXEC_SERVER_URL` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// Nothing: others decide.
    Unset,
    /// No environments at all, whatever else is configured.
    Off,
    /// One environment, `remote`, and this machine is not used.
    Url(Box<Definition>),
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("OUTPOST_EXEC_SERVER_URL: {0}")]
pub struct VariableError(#[from] pub DefinitionError);

impl Variable {
    pub fn parse(value: Option<&str>, token: Token) -> Result<Self, VariableError> {
        match value.map(str::trim) {
            None | Some("") => Ok(Self::Unset),
            Some(text) if text.eq_ignore_ascii_case("none") => Ok(Self::Off),
            Some(url) => Ok(Self::Url(Box::new(Definition::url(url, token)?))),
        }
    }
}

/// What is in force: the kill switch, or a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActiveConfiguration {
    /// Nothing is connected, and nothing can be added.
    Off,
    On(ConfigurationSnapshot),
}

impl ActiveConfiguration {
    /// The variable beats whatever else there is.
    pub fn new(variable: Variable, otherwise: ConfigurationSnapshot) -> Self {
        match variable {
            Variable::Off => Self::Off,
            Variable::Unset => Self::On(otherwise),
            Variable::Url(definition) => {
                // The name is one of ours and keeps the rules.
                let Ok(id) = EnvironmentId::parse_own("remote") else { return Self::Off };
                let entries = vec![ConfiguredEnvironment { id: id.clone(), definition: Ok(*definition) }];
                Self::On(ConfigurationSnapshot { entries, default: DefaultChoice::Id(id), ..ConfigurationSnapshot::default() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> EnvironmentId {
        text.parse().unwrap()
    }
    fn entry(name: &str) -> ConfiguredEnvironment {
        ConfiguredEnvironment {
            id: id(name),
            definition: Definition::url("ws://127.0.0.1:1", Token::None).map_err(|error| error.to_string()),
        }
    }

    #[test]
    fn the_variable_has_three_meanings_and_a_wrong_url_is_no_fourth() {
        let parse = |text: Option<&str>| Variable::parse(text, Token::None);
        assert_eq!(parse(None), Ok(Variable::Unset));
        assert_eq!(parse(Some("  ")), Ok(Variable::Unset));
        assert_eq!(parse(Some(" NonE ")), Ok(Variable::Off));
        assert!(matches!(parse(Some("ws://127.0.0.1:9")), Ok(Variable::Url(_))));
        assert!(parse(Some("http://x")).unwrap_err().to_string().starts_with("OUTPOST_EXEC_SERVER_URL: `http://x`"));
    }

    #[test]
    fn a_url_makes_remote_the_default_and_leaves_this_machine_out() {
        let variable = Variable::parse(Some("ws://127.0.0.1:9"), Token::None).unwrap();
        let ActiveConfiguration::On(snapshot) = ActiveConfiguration::new(variable, ConfigurationSnapshot::local_only()) else { panic!() };
        assert_eq!((snapshot.ids(), snapshot.default_id()), (vec![id("remote")], Some(id("remote"))));
        assert!(snapshot.default_is_remote());
        assert_eq!(ActiveConfiguration::new(Variable::Off, ConfigurationSnapshot::local_only()), ActiveConfiguration::Off);
    }

    #[test]
    fn snapshots_are_checked_as_a_whole() {
        let fine = ConfigurationSnapshot {
            include_local: true,
            entries: vec![entry("a"), entry("b")],
            default: DefaultChoice::Id(id("b")),
            ..ConfigurationSnapshot::default()
        };
        assert_eq!(fine.check(), Ok(()));
        assert_eq!(fine.ids(), [id("local"), id("a"), id("b")]);
        let twice = ConfigurationSnapshot { entries: vec![entry("a"), entry("a")], ..fine.clone() };
        assert_eq!(twice.check(), Err(SnapshotError::Duplicate(id("a"))));
        let local = ConfigurationSnapshot { entries: vec![entry("local")], ..fine.clone() };
        assert_eq!(local.check(), Err(SnapshotError::Local));
        let unknown = ConfigurationSnapshot { default: DefaultChoice::Id(id("x")), ..fine.clone() };
        assert_eq!(unknown.check(), Err(SnapshotError::UnknownDefault(id("x"))));
        let without = ConfigurationSnapshot { include_local: false, default: DefaultChoice::Id(id("local")), ..fine };
        assert_eq!(without.check(), Err(SnapshotError::UnknownDefault(id("local"))));
    }
}
