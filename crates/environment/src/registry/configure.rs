//! Taking over what is configured, at the start and whenever the file changes.

use std::collections::HashMap;
use std::path::Path;

use outpost_wire::EnvironmentId;

use super::entry::{Entry, EnvironmentOrigin, EnvironmentState, FailureCause, Kind, Recipe};
use super::feed::{RegistryEvent, RegistryTransition};
use super::{After, Inside, Registry, RegistryError, RegistryOptions};
use crate::config::{self, ConfigWatch};
use crate::connector::Connector;
use crate::definition::Definition;
use crate::environment::{ConnectPolicy, Environment, EnvironmentOptions};
use crate::provider::{ActiveConfiguration, ConfigurationSnapshot, SnapshotError, Variable};

impl Registry {
    /// With what is configured. The whole of it is checked before anything is connected.
    pub fn configured(options: RegistryOptions, configuration: ActiveConfiguration) -> Result<Self, RegistryError> {
        let registry = Self::new(options);
        registry.configure(configuration)?;
        Ok(registry)
    }

    /// Takes over what is configured now. What did not change keeps its handle; what was added by hand stays. The switch
    /// that turns everything off cannot be turned back.
    pub fn configure(&self, configuration: ActiveConfiguration) -> Result<(), RegistryError> {
        let mut inside = self.lock();
        let after = match configuration {
            ActiveConfiguration::Off => inside.turn_off(),
            ActiveConfiguration::On(_) if inside.is_off => return Err(RegistryError::Off),
            ActiveConfiguration::On(snapshot) => {
                snapshot.check()?;
                if snapshot.include_local && self.0.options.local.is_none() {
                    return Err(SnapshotError::NoLocal.into());
                }
                self.take_over(&mut inside, snapshot)
            }
        };
        drop(inside);
        after.finish();
        Ok(())
    }

    /// Takes over every change of the file for as long as this future is polled; only where no variable decides. A file that is wrong changes nothing
    /// and is told as news; a file that is gone means this machine only.
    pub async fn follow(&self, path: &Path, mut watch: ConfigWatch) {
        while watch.changed().await {
            let applied = config::read(path).map_err(|error| error.to_string()).and_then(|snapshot| {
                let snapshot = snapshot.unwrap_or_else(ConfigurationSnapshot::local_only);
                self.configure(ActiveConfiguration::new(Variable::Unset, snapshot)).map_err(|error| error.to_string())
            });
            if let Err(reason) = applied {
                self.refuse_configuration(reason);
            }
        }
    }

    /// Tells that a changed configuration is not used, and why.
    pub fn refuse_configuration(&self, reason: String) {
        tracing::warn!(reason, "the changed configuration is not used");
        self.lock().feed.tell(RegistryEvent::Misconfigured { reason });
    }

    fn take_over(&self, inside: &mut Inside, snapshot: ConfigurationSnapshot) -> After {
        let mut after = After::default();
        let ids = snapshot.ids();
        let default = snapshot.default_id();
        let mut definitions: HashMap<EnvironmentId, Result<Definition, String>> =
            snapshot.entries.into_iter().map(|entry| (entry.id, entry.definition)).collect();
        let (mut configured, mut others) = (HashMap::new(), Vec::new());
        for entry in std::mem::take(&mut inside.entries).into_entries() {
            if ids.contains(&entry.id) {
                configured.insert(entry.id.clone(), entry);
            } else if entry.origin == EnvironmentOrigin::Added {
                others.push(entry);
            } else {
                inside.tell(&entry.id, entry.generation, EnvironmentState::Missing, RegistryTransition::Removed);
                after.removed.extend(entry.live.map(|live| live.handle));
            }
        }
        for id in &ids {
            let (old, wanted) = (configured.remove(id), definitions.remove(id));
            match old {
                Some(old) if old.is_defined_as(wanted.as_ref()) => {
                    drop(inside.entries.insert(Entry { origin: EnvironmentOrigin::Configured, ..old }))
                }
                old => {
                    // Put back first, so that the new one is known to replace it.
                    inside.entries.extend(old);
                    let entry = self.configured_entry(inside, id.clone(), wanted);
                    inside.insert(entry, &mut after);
                }
            }
        }
        inside.entries.extend(others);
        inside.nameless = snapshot.nameless;
        inside.start = snapshot.start;
        // The default comes first, the others in their order. Without a default nothing is selected.
        inside.defaults = default.map_or_else(Vec::new, |default| {
            let others = ids.into_iter().filter(|id| *id != default);
            std::iter::once(default.clone()).chain(others).collect()
        });
        inside.feed.tell(RegistryEvent::Configured);
        after
    }

    /// This machine is the one without a definition.
    fn configured_entry(&self, inside: &mut Inside, id: EnvironmentId, wanted: Option<Result<Definition, String>>) -> Entry {
        let admission = &self.0.options.admission;
        // What the administrator does not allow stays visible, with the reason, and is never connected.
        let wanted = match wanted {
            Some(Ok(definition)) => Some(admission.definition(&definition).map(|()| definition)),
            None => admission.local().err().map(Err),
            wrong => wrong,
        };
        let entry = match wanted {
            Some(Ok(definition)) => {
                let recipe = self.recipe(&definition);
                self.entry(inside, id, Kind::Defined(Box::new(definition)), recipe)
            }
            Some(Err(reason)) => {
                inside.generation += 1;
                let standing = EnvironmentState::Failed { cause: FailureCause::Config, reason, retry_at: None };
                let generation = inside.generation;
                Entry {
                    id,
                    generation,
                    standing,
                    origin: EnvironmentOrigin::Configured,
                    kind: Kind::Wrong,
                    live: None,
                    is_recognised: false,
                }
            }
            None => {
                let connector = self.0.options.local.clone().unwrap_or_else(unreachable_machine);
                let options = EnvironmentOptions { connect: ConnectPolicy::Eager, ..self.0.options.environment.clone() };
                self.entry(inside, id, Kind::Local, Recipe { connector, options })
            }
        };
        Entry { origin: EnvironmentOrigin::Configured, ..entry }
    }
}

impl Inside {
    fn turn_off(&mut self) -> After {
        self.is_off = true;
        self.defaults.clear();
        let entries = std::mem::take(&mut self.entries).into_entries();
        for entry in &entries {
            self.tell(&entry.id, entry.generation, EnvironmentState::Disabled, RegistryTransition::Removed);
        }
        let removed: Vec<Environment> = entries.into_iter().filter_map(|entry| entry.live).map(|live| live.handle).collect();
        After { removed, ..After::default() }
    }
}

/// A snapshot that includes this machine was refused before if there is no way to it.
fn unreachable_machine() -> Connector {
    Connector::new("this machine", || std::future::ready(Err(outpost_rpc::LinkError::Protocol("there is no way to this machine".into()))))
}
