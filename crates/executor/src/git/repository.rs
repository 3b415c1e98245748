//! One repository with its layer: what was the same on both sides when they were last compared, kept also for a later start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use outpost_sandbox::policy::{PathAccess, Substitute};
use outpost_sandbox::remove_tree;
use serde::{Deserialize, Serialize};

use super::gitdir::{Gitdir, Refs};
use super::layer::{Copying, Format, LFS, OBJECTS};
use super::lfs;
use super::stamp::{GitStamp, Stamps, worktrees};
use super::sync::unfinished;

/// A repository and its layer.
pub(super) struct Repository {
    /// Where the repository is, for the machine and for the sandbox.
    pub gitdir: PathBuf,
    /// What the sandbox sees there.
    pub layer: PathBuf,
    /// Our own files about it.
    pub own: PathBuf,
    pub owner: (u32, u32),
    pub units: Vec<String>,
    /// Where the machine's objects of each part are, once there are any.
    objects: Mutex<BTreeMap<String, PathBuf>>,
    /// Where the machine's files of git-lfs are, of each part that had any at the beginning.
    lfs: BTreeMap<String, PathBuf>,
    pub known: tokio::sync::Mutex<KnownRepository>,
}

/// What both sides had in common.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct KnownRepository {
    pub units: BTreeMap<String, RepositoryUnit>,
    #[serde(skip)]
    pub outside: Stamps,
    #[serde(skip)]
    pub inside: Stamps,
    /// What was said, and need not be said again.
    #[serde(skip)]
    pub said: BTreeSet<String>,
}

/// The same for one part that is a repository by itself.
#[derive(Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RepositoryUnit {
    pub refs: Refs,
    /// By working tree; the first one has no name.
    pub heads: BTreeMap<String, String>,
    /// The stashes of the layer that are kept outside, the newest first.
    #[serde(default)]
    pub stashes: Vec<String>,
    /// What the files were when they were last compared: outside, inside.
    #[serde(skip)]
    pub indexes: BTreeMap<String, (Option<GitStamp>, Option<GitStamp>)>,
}

/// Why a repository has no layer.
#[derive(Debug)]
pub(super) enum RepositoryRefused {
    Reftable,
    Copy(io::Error),
}

impl std::fmt::Display for RepositoryRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reftable => f.write_str("its refs are kept in a reftable, which cannot be carried over"),
            Self::Copy(error) => write!(f, "no private copy of it can be made: {error}"),
        }
    }
}

impl Repository {
    /// Makes the layer of a gitdir, or takes up the one that a previous run left in `own`.
    pub(super) fn open(gitdir: &Path, own: PathBuf) -> Result<Self, RepositoryRefused> {
        if Format::of(gitdir).has_reftable {
            return Err(RepositoryRefused::Reftable);
        }
        let place = if gitdir.exists() { gitdir } else { gitdir.parent().unwrap_or(gitdir) };
        let metadata = place.metadata().map_err(RepositoryRefused::Copy)?;
        let owner = (metadata.uid(), metadata.gid());
        let made = |own: PathBuf, layer: PathBuf, units: Vec<String>, known: KnownRepository| {
            let (gitdir, known) = (gitdir.to_owned(), tokio::sync::Mutex::new(known));
            let lfs =
                units.iter().filter_map(|unit| Some((unit.clone(), lfs_of(&joined(&gitdir, unit), &joined(&layer, unit))?))).collect();
            Self { gitdir, layer, own, owner, units, objects: Mutex::default(), lfs, known }
        };
        if let Some((units, known)) = earlier(&own) {
            let layer = own.join("layer");
            return Ok(made(own, layer, units, known));
        }
        let _ = remove_tree(&own);
        DirBuilder::new().recursive(true).mode(0o700).create(&own).map_err(RepositoryRefused::Copy)?;
        let layer = own.canonicalize().map_err(RepositoryRefused::Copy)?.join("layer");
        // What changes meanwhile is carried over with the next command.
        let began = SystemTime::now();
        let units = Copying::new(owner).run(gitdir, &layer).map_err(RepositoryRefused::Copy)?;
        let mut known = KnownRepository::default();
        for unit in &units {
            let mut common = in_common(&joined(&layer, unit), &own, unit).map_err(RepositoryRefused::Copy)?;
            for tree in common.heads.keys().cloned().collect::<Vec<_>>() {
                let place = |top: &Path| GitStamp::of(&joined(&joined(top, unit), &tree_path(&tree)).join("index"));
                let (outside, inside) = (place(gitdir), place(&layer));
                if outside.is_none_or(|stamp| stamp.is_older_than(began)) {
                    common.indexes.insert(tree, (outside, inside));
                }
            }
            known.units.insert(unit.clone(), common);
        }
        known.outside = Stamps::taken_at(began, gitdir, &units, false);
        known.inside = Stamps::take(&layer, &units, true);
        let repository = made(own, layer, units, KnownRepository::default());
        repository.write_down(&known).map_err(RepositoryRefused::Copy)?;
        Ok(Self { known: tokio::sync::Mutex::new(known), ..repository })
    }

    /// What a sandbox has to be shown: the layer, and the objects of the machine in it.
    pub(super) fn substitutes(&self) -> Vec<Substitute> {
        let mut all = vec![Substitute { path: self.gitdir.clone(), source: self.layer.clone(), access: PathAccess::Write }];
        for unit in &self.units {
            if let Some(source) = self.objects(unit) {
                all.push(Substitute { path: joined(&self.gitdir, unit).join(OBJECTS), source, access: PathAccess::Read });
            }
            if let Some(source) = self.lfs.get(unit) {
                all.push(Substitute { path: joined(&self.gitdir, unit).join(LFS), source: source.clone(), access: PathAccess::Read });
            }
        }
        all
    }

    /// Whether more objects can only come to the part at the top, which is seen at its gitdir.
    pub(super) fn is_seen_whole(&self) -> bool {
        let known = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        self.units.iter().all(|unit| unit.is_empty() || known.contains_key(unit))
    }

    fn objects(&self, unit: &str) -> Option<PathBuf> {
        let mut known = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(unit) {
            let found = joined(&self.gitdir, unit).join("objects").canonicalize().ok().filter(|found| found.is_dir())?;
            known.insert(unit.to_owned(), found);
        }
        known.get(unit).cloned()
    }

    /// Keeps what both sides have in common for a later start.
    pub(super) fn write_down(&self, known: &KnownRepository) -> io::Result<()> {
        let text = serde_json::to_vec(known)?;
        fs::write(self.own.join("known.new"), text)?;
        fs::rename(self.own.join("known.new"), self.own.join("known"))
    }

    /// Where the index is kept that both sides had in common.
    pub(super) fn base_index(&self, unit: &str, tree: &str) -> PathBuf {
        base_index(&self.own, unit, tree)
    }
}

/// A part of a path that may be empty.
pub(super) fn joined(path: &Path, rest: &str) -> PathBuf {
    if rest.is_empty() { path.to_owned() } else { path.join(rest) }
}

/// Where the files of a working tree are, below its part.
pub(super) fn tree_path(tree: &str) -> String {
    if tree.is_empty() { String::new() } else { format!("worktrees/{tree}") }
}

/// The files of git-lfs of a part, if there are any, and a place in its layer to show them.
fn lfs_of(unit: &Path, layer: &Path) -> Option<PathBuf> {
    let files = unit.join(lfs::FILES).canonicalize().ok().filter(|files| files.is_dir())?;
    layer.join(LFS).is_dir().then_some(files)
}

fn base_index(own: &Path, unit: &str, tree: &str) -> PathBuf {
    own.join(format!("index-{}", format!("{unit}-{tree}").replace('/', "-")))
}

/// Whether something is in the layer below `own` that only it has: stashes, or a rebase that stopped.
pub(super) fn has_unfinished_work(own: &Path) -> bool {
    let has = |unit: &String| {
        let place = joined(&own.join("layer"), unit);
        Gitdir::open(&place).is_ok_and(|top| top.has("refs/stash")) || !unfinished(&place).is_empty()
    };
    earlier(own).is_some_and(|(units, _)| units.iter().any(has))
}

fn earlier(own: &Path) -> Option<(Vec<String>, KnownRepository)> {
    let known: KnownRepository = serde_json::from_slice(&fs::read(own.join("known")).ok()?).ok()?;
    let layer = Gitdir::open(&own.join("layer")).ok()?;
    // One of another version has no place for what is mounted in it.
    if !layer.has(OBJECTS) {
        return None;
    }
    Some((known.units.keys().cloned().collect(), known))
}

/// What a layer that was just copied has in common with its repository: everything.
fn in_common(layer: &Path, own: &Path, unit: &str) -> io::Result<RepositoryUnit> {
    let mut common = RepositoryUnit::default();
    let top = Gitdir::open(layer)?;
    common.refs = top.refs()?;
    for tree in std::iter::once(String::new()).chain(worktrees(layer)) {
        let place = joined(layer, &tree_path(&tree));
        if let Some(head) = Gitdir::open(&place).ok().and_then(|place| place.head()) {
            common.heads.insert(tree.clone(), head.text());
        }
        let index = place.join("index");
        if index.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            fs::copy(&index, base_index(own, unit, &tree))?;
        }
    }
    Ok(common)
}
