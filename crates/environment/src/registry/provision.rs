//! Environments that are announced before they exist.

use std::sync::Arc;

use outpost_wire::EnvironmentId;
use outpost_wire::SharedError;

use super::entry::{Entry, EnvironmentState, Kind, Recipe};
use super::feed::RegistryTransition;
use super::{After, Inside, Registry, RegistryError};
use crate::connector::Connector;
use crate::pending::{Provided, Provision, ReportError};

impl Registry {
    /// Announces an environment that will be provided later. Idempotent.
    pub fn announce(&self, id: EnvironmentId) -> Result<(), RegistryError> {
        let mut inside = self.lock();
        inside.check_open(&id)?;
        match inside.entries.get(&id).map(|entry| &entry.kind) {
            Some(Kind::Pending(_)) => {}
            Some(_) => return Err(RegistryError::IsDefined(id)),
            None => self.announce_in(&mut inside, id, Arc::new(Provision::default())),
        }
        Ok(())
    }

    fn announce_in(&self, inside: &mut Inside, id: EnvironmentId, provision: Arc<Provision>) {
        let connector = Connector::pending("provisioned", provision.clone());
        let options = self.0.options.environment.clone();
        let standing = EnvironmentState::from(&*provision);
        let entry = self.entry(inside, id, Kind::Pending(provision), Recipe { connector, options });
        // Nothing is connected before its first use, so there is nothing to do afterwards.
        inside.insert(Entry { standing, ..entry }, &mut After::default());
    }

    /// A pending environment is there. An id that was not announced becomes one; one that is defined otherwise is left alone.
    pub fn provided(&self, id: &EnvironmentId, provided: Provided) -> Result<(), RegistryError> {
        self.report(id, |provision| provision.ready(id, provided))
    }

    /// A pending environment will not come.
    pub fn provision_failed(&self, id: &EnvironmentId, reason: impl Into<SharedError>) -> Result<(), RegistryError> {
        self.report(id, |provision| provision.failed(id, reason.into()))
    }

    fn report(&self, id: &EnvironmentId, report: impl FnOnce(&Provision) -> Result<(), ReportError>) -> Result<(), RegistryError> {
        let mut inside = self.lock();
        inside.check_open(id)?;
        let Some(entry) = inside.entries.get_mut(id) else {
            let provision = Arc::new(Provision::default());
            // What makes no sense creates nothing.
            report(&provision)?;
            self.announce_in(&mut inside, id.clone(), provision);
            return Ok(());
        };
        let Kind::Pending(provision) = &entry.kind else { return Ok(()) };
        let (before, outcome) = (EnvironmentState::from(&**provision), report(provision));
        let (now, generation) = (EnvironmentState::from(&**provision), entry.generation);
        // Once a caller waits for it, its supervisor reports its state.
        if now != before && entry.standing == before {
            entry.standing = now.clone();
            inside.tell(id, generation, now, RegistryTransition::Changed);
        }
        Ok(outcome?)
    }
}
