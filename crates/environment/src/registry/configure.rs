//! Taking over what is configured, at the start and whenever the file changes.

use std::collections::HashMap;
use std::path::Path;

use outpost_wire::EnvironmentId;

use super::entry::{Cause, Entry, Kind, Origin, Recipe, Standing};
use super::feed::{Event, News};
use super::{After, Inside, Registry, RegistryError, RegistryOptions};
use crate::config::{self, FileWatch};
use crate::connector::Connector;
use crate::definition::Definition;
use crate::environment::{ConnectPolicy, Environment, EnvironmentOptions};
use crate::provider::{Configuration, Snapshot, SnapshotError, Variable};

impl Registry {
    /// With what is configured. The whole of it is checked before anything is connected.
    pub fn configured(options: RegistryOptions, configuration: Configuration) -> Result<Self, RegistryError> {
        let registry = Self::new(options);
        registry.configure(configuration)?;
        Ok(registry)
    }

    /// Takes over what is configured now. What did not change keeps its handle; what was added by hand stays. The switch
    /// that turns everything off cannot be turned back.
    pub fn configure(&self, configuration: Configuration) -> Result<(), RegistryError> {
        let mut inside = self.lock();
        let after = match configuration {
            Configuration::Off => inside.turn_off(),
            Configuration::On(_) if inside.is_off => return Err(RegistryError::Off),
            Configuration::On(snapshot) => {
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
    pub async fn follow(&self, path: &Path, mut watch: FileWatch) {
        while watch.changed().await {
            let applied = config::read(path).map_err(|error| error.to_string()).and_then(|snapshot| {
                let snapshot = snapshot.unwrap_or_else(Snapshot::local_only);
                self.configure(Configuration::new(Variable::Unset, snapshot)).map_err(|error| error.to_string())
            });
            if let Err(reason) = applied {
                tracing::warn!(reason, "the changed configuration is not used");
                self.lock().feed.tell(News::Misconfigured { reason });
            }
        }
    }

    fn take_over(&self, inside: &mut Inside, snapshot: Snapshot) -> After {
        let mut after = After::default();
        let ids = snapshot.ids();
        let default = snapshot.default_id();
        let mut definitions: HashMap<EnvironmentId, Result<Definition, String>> =
            snapshot.entries.into_iter().map(|entry| (entry.id, entry.definition)).collect();
        let (mut configured, mut others) = (HashMap::new(), Vec::new());
        for entry in std::mem::take(&mut inside.entries).into_entries() {
            if ids.contains(&entry.id) {
                configured.insert(entry.id.clone(), entry);
            } else if entry.origin == Origin::Added {
                others.push(entry);
            } else {
                inside.tell(&entry.id, entry.generation, Standing::Missing, Event::Removed);
                after.removed.extend(entry.live.map(|live| live.handle));
            }
        }
        for id in &ids {
            let (old, wanted) = (configured.remove(id), definitions.remove(id));
            match old {
                Some(old) if old.is_defined_as(wanted.as_ref()) => drop(inside.entries.insert(Entry { origin: Origin::Configured, ..old })),
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
        // The default comes first, the others in their order. Without a default nothing is selected.
        inside.defaults = default.map_or_else(Vec::new, |default| {
            let others = ids.into_iter().filter(|id| *id != default);
            std::iter::once(default.clone()).chain(others).collect()
        });
        inside.feed.tell(News::Configured);
        after
    }

    /// This machine is the one without a definition.
    fn configured_entry(&self, inside: &mut Inside, id: EnvironmentId, wanted: Option<Result<Definition, String>>) -> Entry {
        let entry = match wanted {
            Some(Ok(definition)) => {
                let recipe = self.recipe(&definition);
                self.entry(inside, id, Kind::Defined(Box::new(definition)), recipe)
            }
            Some(Err(reason)) => {
                inside.generation += 1;
                let standing = Standing::Failed { cause: Cause::Config, reason, retry_at: None };
                let generation = inside.generation;
                Entry { id, generation, standing, origin: Origin::Configured, kind: Kind::Wrong, live: None, is_recognised: false }
            }
            None => {
                let connector = self.0.options.local.clone().unwrap_or_else(unreachable_machine);
                let options = EnvironmentOptions { connect: ConnectPolicy::Eager, ..self.0.options.environment.clone() };
                self.entry(inside, id, Kind::Local, Recipe { connector, options })
            }
        };
        Entry { origin: Origin::Configured, ..entry }
    }
}

impl Inside {
    fn turn_off(&mut self) -> After {
        self.is_off = true;
        self.defaults.clear();
        let entries = std::mem::take(&mut self.entries).into_entries();
        for entry in &entries {
            self.tell(&entry.id, entry.generation, Standing::Disabled, Event::Removed);
        }
        let removed: Vec<Environment> = entries.into_iter().filter_map(|entry| entry.live).map(|live| live.handle).collect();
        After { removed, ..After::default() }
    }
}

/// A snapshot that includes this machine was refused before if there is no way to it.
fn unreachable_machine() -> Connector {
    Connector::new("this machine", || std::future::ready(Err(outpost_rpc::LinkError::Protocol("there is no way to this machine".into()))))
}
