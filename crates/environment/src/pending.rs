//! An environment that is announced before it exists: another part of the program provides it, or fails to.

use std::sync::{Mutex, PoisonError};

use outpost_wire::SharedError;
use outpost_wire::intent::RootsError;
use outpost_wire::{CapabilityRoot, EnvironmentId};
use thiserror::Error;
use tokio::sync::watch;

use crate::connector::Connector;

/// What becomes of a pending environment.
pub struct Provision {
    stage: watch::Sender<Stage>,
    way: Mutex<Option<(Connector, Vec<CapabilityRoot>)>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Pending,
    Ready,
    Failed(SharedError),
}

/// A pending environment as it was provided.
#[derive(Clone)]
pub struct Provided {
    pub connector: Connector,
    /// What it offers, in order.
    pub capability_roots: Vec<CapabilityRoot>,
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ReportError {
    #[error("environment `{id}` has failed already: {reason}")]
    Failed {
        id: EnvironmentId,
        #[source]
        reason: SharedError,
    },
    #[error("environment `{0}` is ready and cannot fail to be provided any more")]
    Ready(EnvironmentId),
    #[error("environment `{id}` was provided with roots that make no sense: {error}")]
    Roots {
        id: EnvironmentId,
        #[source]
        error: RootsError,
    },
    #[error("environment `{id}` was provided with root `{root}`, which is in environment `{other}`")]
    ForeignRoot { id: EnvironmentId, root: String, other: EnvironmentId },
}

impl Default for Provision {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Pending), way: Mutex::new(None) }
    }
}

impl Provision {
    pub fn connector(&self) -> Option<Connector> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(connector, _)| connector.clone())
    }

    pub fn capability_roots(&self) -> Vec<CapabilityRoot> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, roots)| roots.clone()).unwrap_or_default()
    }

    /// Why it was not provided, if that is so.
    pub fn failure(&self) -> Option<SharedError> {
        match &*self.stage.borrow() {
            Stage::Failed(reason) => Some(reason.clone()),
            Stage::Pending | Stage::Ready => None,
        }
    }

    pub fn is_pending(&self) -> bool {
        *self.stage.borrow() == Stage::Pending
    }

    pub async fn wait(&self) -> Result<(), SharedError> {
        let mut stage = self.stage.subscribe();
        match stage.wait_for(|stage| *stage != Stage::Pending).await.as_deref() {
            Ok(Stage::Failed(reason)) => Err(reason.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err("its provider is gone".into()),
        }
    }

    /// It is there. Told again, the last word counts.
    pub fn ready(&self, id: &EnvironmentId, provided: Provided) -> Result<(), ReportError> {
        if let Some(reason) = self.failure() {
            return Err(ReportError::Failed { id: id.clone(), reason });
        }
        if let Err(error) = check(id, &provided.capability_roots) {
            // What is ready stays so; what was waited for is not what was promised.
            self.stage.send_if_modified(|stage| {
                let was_pending = *stage == Stage::Pending;
                if was_pending {
                    *stage = Stage::Failed(SharedError::new(error.clone()));
                }
                was_pending
            });
            return Err(error);
        }
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = Some((provided.connector, provided.capability_roots));
        self.stage.send_replace(Stage::Ready);
        Ok(())
    }

    /// It will not come. The first reason counts.
    pub fn failed(&self, id: &EnvironmentId, reason: SharedError) -> Result<(), ReportError> {
        let mut outcome = Ok(());
        self.stage.send_if_modified(|stage| match stage {
            Stage::Pending => {
                *stage = Stage::Failed(reason);
                true
            }
            Stage::Ready => {
                outcome = Err(ReportError::Ready(id.clone()));
                false
            }
            Stage::Failed(_) => false,
        });
        outcome
    }
}

/// What may be offered: few enough, named apart, and in that environment.
pub(crate) fn check(id: &EnvironmentId, roots: &[CapabilityRoot]) -> Result<(), ReportError> {
    CapabilityRoot::check_all(roots).map_err(|error| ReportError::Roots { id: id.clone(), error })?;
    match roots.iter().find(|root| root.environment_id() != id) {
        Some(root) => Err(ReportError::ForeignRoot { id: id.clone(), root: root.id.clone(), other: root.environment_id().clone() }),
        None => Ok(()),
    }
}
