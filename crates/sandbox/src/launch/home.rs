//! The layers over the home that an owner uses: taken when the first cell needs one, given back when the last cell is gone.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{LaunchError, Launcher, LauncherState, ProcessScope, Shared};
use crate::cell::Cell;
use crate::home::{HomeSettings, Layers, SandboxHome, Slot, public_files, read_without_secrets};
use crate::level::Level;
use crate::limits::Limits;
use crate::plan::{FileCopy, HomeLayer, SandboxUser};
use crate::policy::{HomeView, KEY_DIRECTORY, PathRules, Policy};

/// How often, and how many times, is looked whether cells are gone.
const PASS: Duration = Duration::from_millis(5);
const PASSES: usize = 100;

/// Bytes of a layer in memory, unless less memory is allowed.
const ROOM: u64 = 1 << 30;

/// How layers are kept on this machine. Found out by doing it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Layering {
    /// On the disk, from one session to the next.
    #[default]
    Kept,
    /// In memory, as long as the session lasts: why.
    InMemory(String),
    /// Not at all: why.
    Nothing(String),
}

impl Layering {
    /// The next best.
    fn worse(&self, why: String) -> Option<Self> {
        match self {
            Self::Kept => Some(Self::InMemory(why)),
            Self::InMemory(before) => Some(Self::Nothing(if *before == why { why } else { format!("{before}; {why}") })),
            Self::Nothing(_) => None,
        }
    }
}

/// A layer that an owner uses.
#[derive(Debug)]
pub(crate) struct HeldLayer {
    slot: Option<Slot>,
    frame: PathBuf,
    hidden: Vec<PathBuf>,
    copies: Vec<FileCopy>,
    /// The mounts that hold it, once a cell has made them.
    pub(super) mounts: Option<OwnedFd>,
}

/// By workspace.
pub(crate) type HeldLayers = HashMap<PathBuf, HeldLayer>;

impl HeldLayer {
    /// On the disk.
    pub(crate) fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    pub(super) fn is_at(&self, frame: &Path) -> bool {
        self.frame == frame
    }

    /// Gives it back. Nothing may run any more that uses it.
    pub(super) fn release(self) {
        let Self { mounts, frame, .. } = self;
        drop(mounts);
        let _ = std::fs::remove_dir(frame);
    }
}

impl Shared {
    pub(super) fn layering(&self) -> Layering {
        self.layering.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does with less from now on; false if there is no less.
    pub(super) fn layer_failed(&self, why: &str) -> bool {
        let mut layering = self.layering.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(worse) = layering.worse(why.to_owned()) else { return false };
        *layering = worse;
        true
    }
}

pub(super) fn first_layering(layers: Option<&Path>) -> Mutex<Layering> {
    Mutex::new(match layers {
        Some(_) => Layering::Kept,
        None => Layering::InMemory("there is no directory to keep it in".into()),
    })
}

impl Launcher {
    /// Makes a layer over the home and takes it away again. False if there is no home.
    pub(super) fn try_layer(&self) -> bool {
        let settings = &self.0.settings;
        let nothing = HomeSettings { directories: Vec::new(), hidden: Vec::new(), mixed: Vec::new() };
        let Some(known) = settings.home.clone().and_then(|home| SandboxHome::new(home, nothing).known()) else { return false };
        let (Some(scratch), Some(directory)) = (&settings.scratch, &settings.layers) else { return false };
        let workspace = scratch.join("trial");
        let view = HomeView {
            home: known.home.clone(),
            workspace: workspace.clone(),
            directories: Vec::new(),
            hidden: Vec::new(),
            mixed: Vec::new(),
        };
        let owner = self.owner();
        // Why there is no sandbox at all is told elsewhere.
        let _ = owner.prepare(&Policy::Confined(Arc::new(PathRules::read_only().with_home(view))));
        let mut state = owner.lock();
        let cells = end_cells(&mut state);
        state.layers.drain().for_each(|(_, layer)| layer.release());
        drop((state, cells));
        let _ = Layers::new(directory.clone()).clear(&workspace);
        true
    }
}

/// Ends every cell, and waits until they are gone.
fn end_cells(state: &mut LauncherState) -> Vec<Arc<Cell>> {
    let cells: Vec<_> = state.cells.drain().map(|(_, cell)| cell).collect();
    cells.iter().for_each(|cell| {
        cell.retire();
        cell.end();
    });
    for _ in 0..PASSES {
        if !cells.iter().any(|cell| cell.is_there_after(PASS)) {
            break;
        }
    }
    cells
}

impl ProcessScope {
    /// The layer of a policy, where there can be one.
    pub(super) fn home_layer(
        &self,
        rules: &PathRules,
        level: Level,
        identity: SandboxUser,
        state: &mut LauncherState,
    ) -> Result<Option<HomeLayer>, LaunchError> {
        // Other users find this home closed.
        let is_own = matches!(identity, SandboxUser::Own | SandboxUser::Mapped { .. } | SandboxUser::Owner { uid: 0, .. });
        let Some(view) = rules.home().filter(|_| is_own && level > Level::Landlock) else { return Ok(None) };
        let held = match state.layers.get(&view.workspace) {
            Some(held) => held,
            None => {
                let Some(held) = self.take_layer(view, state.layers.len())? else { return Ok(None) };
                state.layers.entry(view.workspace.clone()).or_insert(held)
            }
        };
        Ok(Some(HomeLayer {
            home: view.home.clone(),
            frame: held.frame.clone(),
            store: held.slot.as_ref().map(|slot| slot.path().to_owned()),
            room: room(&self.shared.settings.limits),
            directories: view.directories.clone(),
            hidden: held.hidden.clone(),
            copies: held.copies.clone(),
        }))
    }

    /// Ends every cell, and with them the use of a layer that was too large; it is emptied as soon as they are gone.
    pub(super) fn empty_full_layers(&self, state: &mut LauncherState) {
        if state.full_layers.is_empty() {
            return;
        }
        let full = std::mem::take(&mut state.full_layers);
        end_cells(state);
        for (_, layer) in state.layers.drain() {
            if let Some(slot) = layer.slot().filter(|slot| full.iter().any(|path| path == slot.path())) {
                let _ = slot.empty();
            }
            layer.release();
        }
    }

    /// A session that begins right after another one is to find what that left: it may still be giving its layer back.
    fn wait_for_layers(&self) {
        for _ in 0..PASSES {
            if self.shared.releasing.load(Ordering::Acquire) == 0 {
                return;
            }
            std::thread::sleep(PASS);
        }
    }

    fn take_layer(&self, view: &HomeView, number: usize) -> Result<Option<HeldLayer>, LaunchError> {
        self.wait_for_layers();
        let slot = match (self.shared.layering(), &self.shared.settings.layers) {
            (Layering::Nothing(_), _) => return Ok(None),
            (Layering::Kept, Some(directory)) => Layers::new(directory.clone())
                .take(&view.workspace)
                .and_then(|slot| {
                    let is_full = self.shared.settings.limits.home_layer.is_some_and(|most| slot.size() > most);
                    if is_full { slot.empty().map(|()| slot) } else { Ok(slot) }
                })
                .inspect_err(|error| {
                    // All of them being in use says nothing about the next workspace.
                    if error.kind() != std::io::ErrorKind::Other {
                        self.shared.layer_failed(&format!("{}: {error}", directory.display()));
                    }
                }),
            _ => Err(std::io::ErrorKind::Unsupported.into()),
        };
        let frame = self.shared.scratch()?.frame(self.number, number);
        DirBuilder::new().recursive(true).mode(0o700).create(&frame)?;
        let frame = frame.canonicalize()?;
        let mixed = view.mixed.iter();
        let mut copies: Vec<FileCopy> =
            mixed.filter_map(|path| Some(FileCopy { path: path.clone(), text: read_without_secrets(&view.home, path)? })).collect();
        // Of ssh, all but the keys can be seen.
        if let Some(keys) = view.hidden.iter().find(|path| path.ends_with(KEY_DIRECTORY)) {
            copies.extend(public_files(&view.home, keys).into_iter().map(|(path, text)| FileCopy { path, text }));
        }
        let hidden = view.hidden.iter().chain(&view.mixed).cloned().collect();
        Ok(Some(HeldLayer { slot: slot.ok(), frame, hidden, copies, mounts: None }))
    }
}

fn room(limits: &Limits) -> u64 {
    limits.memory.map_or(ROOM, |memory| ROOM.min(memory / 4))
}
