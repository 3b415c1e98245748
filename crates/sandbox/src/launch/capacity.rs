//! Which sandbox level this machine holds: tried with real cells, once.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::{Shared, session_id};
use crate::cell;
use crate::level::{Capacity, LEVELS, Level};
use crate::plan::{CellPlan, Confinement, PathShape, PlannedPath, Rights, SandboxUser};
use crate::policy::{NetworkRule, PathAccess};

impl Shared {
    pub(super) fn known_capacity(&self) -> Option<Capacity> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tries one level after the other with a policy that lets everything be read.
    pub(super) fn capacity(&self) -> Capacity {
        let mut known = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || {
            let found = self.find_capacity();
            self.tried.keep_capacity(&found);
            found
        };
        known.get_or_insert_with(find).clone()
    }

    /// What people and clients read; nothing is confined by it.
    pub(super) fn told_capacity(&self) -> Capacity {
        self.known_capacity().or_else(|| self.tried.capacity()).unwrap_or_else(|| self.capacity())
    }

    fn find_capacity(&self) -> Capacity {
        let mapped = self.identity(0);
        match mapped {
            SandboxUser::Mapped { .. } => match self.try_level(Level::Full, mapped) {
                Ok(()) => Capacity { level: Some(Level::Full), why: None, maps_users: true },
                Err(_) => self.capacity_as_owner(),
            },
            _ => self.strongest(mapped),
        }
    }

    /// The same where users are not mapped although the executor is root.
    pub(super) fn capacity_as_owner(&self) -> Capacity {
        let mut known = self.capacity_as_owner.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| self.strongest(SandboxUser::Owner { uid: 0, gid: 0, id: session_id(0) })).clone()
    }

    fn strongest(&self, identity: SandboxUser) -> Capacity {
        let mut why: Vec<String> = Vec::new();
        let mut found = None;
        for level in LEVELS {
            match self.try_level(level, identity) {
                Ok(()) => {
                    found = Some(level);
                    break;
                }
                Err(reason) if why.iter().any(|known| known.ends_with(&reason)) => {}
                Err(reason) => why.push(format!("{level}: {reason}")),
            }
        }
        Capacity { level: found, why: Some(why.join("; ")).filter(|why| !why.is_empty()), maps_users: false }
    }

    fn try_level(&self, level: Level, identity: SandboxUser) -> Result<(), String> {
        let place = |path: PathBuf, access, rights| PlannedPath {
            path,
            access,
            rights,
            fixed: false,
            shape: PathShape::Tree,
            by_pattern: false,
            source: None,
        };
        let mut places = vec![place("/".into(), PathAccess::Read, Rights::Others)];
        // Whether users can be mapped depends on the file system; that of our own files stands for the others.
        let own = self.settings.scratch.as_ref().and_then(|path| path.ancestors().find(|path| path.is_dir())?.canonicalize().ok());
        if let (Some(path), SandboxUser::Mapped { .. }) = (own.filter(|own| own != Path::new("/")), identity) {
            places.push(place(path, PathAccess::Write, Rights::Owners));
        }
        let (globs, network, devices) = (Vec::new(), NetworkRule::Restricted, Vec::new());
        let confinement = Confinement { level, places, globs, network, identity, temporary: None, devices, home: None };
        let plan = CellPlan { confinement: Some(confinement), ..CellPlan::default() };
        let (ends, _reports) = self.zygote.cell(&plan.encode(), &[]).map_err(|error| error.to_string())?;
        // It ends with its socket.
        cell::answer(&ends.control).map_err(|error| error.to_string())?.map_err(|(_, reason)| reason)
    }
}
