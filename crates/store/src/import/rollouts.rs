//! Where rollouts lie: a file, a folder of them, or the home directory of the peer. A fork by reference needs the files of its
//! ancestors, so they are found by their rollout id.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::claude;

/// One thread's newest rollout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundRollout {
    pub path: PathBuf,
    pub archived: bool,
}

/// All rollouts in reach, and the names that users gave to threads.
#[derive(Debug, Default)]
pub(super) struct RolloutCatalog {
    /// What was asked for, by thread id; of several rollouts of one thread the newest counts, which a revert leaves.
    pub threads: BTreeMap<String, FoundRollout>,
    /// Sessions of Claude Code.
    pub sessions: Vec<PathBuf>,
    by_rollout: HashMap<String, PathBuf>,
    names: HashMap<String, String>,
}

impl RolloutCatalog {
    /// A file brings the rollouts beside it along, but only as possible ancestors.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut shelf = Self::default();
        if path.is_dir() {
            shelf.walk(path)?;
            shelf.sessions.sort();
            for root in path.ancestors().take(5) {
                shelf.read_names(&root.join("session_index.jsonl"));
            }
            return Ok(shelf);
        }
        fs::metadata(path)?;
        if claude::is_session(path) {
            shelf.sessions.push(path.to_owned());
            return Ok(shelf);
        }
        let home = path.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "sessions" || name == "archived_sessions"));
        match home.and_then(Path::parent) {
            Some(home) => {
                for folder in ["sessions", "archived_sessions"] {
                    shelf.walk(&home.join(folder)).or_else(nothing_there)?;
                }
                shelf.read_names(&home.join("session_index.jsonl"));
            }
            None => shelf.walk(path.parent().unwrap_or(Path::new(".")))?,
        }
        shelf.threads.clear();
        shelf.sessions.clear();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let thread = Ids::of(name).map_or_else(|| name.to_owned(), |ids| ids.thread);
        shelf.threads.insert(thread, FoundRollout { path: path.to_owned(), archived: is_archived(path) });
        Ok(shelf)
    }

    pub(super) fn rollout(&self, id: &str) -> Option<&Path> {
        self.by_rollout.get(id).map(PathBuf::as_path)
    }

    pub(super) fn name(&self, thread: &str) -> Option<&str> {
        self.names.get(thread).map(String::as_str)
    }

    fn walk(&mut self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.walk(&path)?;
            } else if let Some(ids) = entry.file_name().to_str().and_then(Ids::of) {
                self.add(ids, path);
            } else if claude::is_session(&path) {
                self.sessions.push(path);
            }
        }
        Ok(())
    }

    fn add(&mut self, ids: Ids, path: PathBuf) {
        // A plain file hides its compressed sibling.
        let hides = |old: &Path| old.with_extension("") == path || is_older(old, &path);
        if self.by_rollout.get(&ids.rollout).is_none_or(|old| hides(old)) {
            self.by_rollout.insert(ids.rollout, path.clone());
        }
        if self.threads.get(&ids.thread).is_none_or(|old| hides(&old.path)) {
            let archived = is_archived(&path);
            self.threads.insert(ids.thread, FoundRollout { path, archived });
        }
    }

    /// The newest line for a thread counts. A home without this file has no names, which is no fault.
    fn read_names(&mut self, path: &Path) {
        #[derive(Deserialize)]
        struct Named {
            id: String,
            thread_name: String,
        }
        let text = fs::read_to_string(path).unwrap_or_default();
        let named = text.lines().filter_map(|line| serde_json::from_str::<Named>(line).ok());
        self.names.extend(named.map(|named| (named.id, named.thread_name)));
    }
}

fn nothing_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn is_archived(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|name| name == "archived_sessions")
}

/// File names begin with the time of creation.
fn is_older(old: &Path, new: &Path) -> bool {
    let stem = |path: &Path| path.file_name().map(|name| name.to_string_lossy().trim_end_matches(".zst").to_owned());
    stem(old) < stem(new)
}

/// The ids in `rollout-<time>-<thread>[_<rollout>].jsonl[.zst]`.
#[derive(Debug, PartialEq, Eq)]
struct Ids {
    thread: String,
    rollout: String,
}

impl Ids {
    fn of(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".zst").unwrap_or(name).strip_suffix(".jsonl")?.strip_prefix("rollout-")?;
        let (stem, rollout) = stem.split_once('_').map_or((stem, None), |(stem, rollout)| (stem, Some(rollout)));
        // A time has 19 characters, and an id has 36.
        let thread = stem.get(stem.len().checked_sub(36)?..)?;
        Some(Self { thread: thread.to_owned(), rollout: rollout.unwrap_or(thread).to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::{Ids, RolloutCatalog};
    use std::fs;

    const ONE: &str = "01a1e171-6ee4-7321-aae1-be3c3a67d655";
    const TWO: &str = "01a1e171-70ee-77f0-b11a-67d893ff5ea3";

    #[test]
    fn names_of_files_hold_the_ids() {
        let plain = Ids::of(&format!("rollout-2026-11-15T23-01-09-{ONE}.jsonl")).unwrap();
        assert_eq!((plain.thread.as_str(), plain.rollout.as_str()), (ONE, ONE));
        let reverted = Ids::of(&format!("rollout-2026-11-15T23-01-09-{ONE}_{TWO}.jsonl.zst")).unwrap();
        assert_eq!((reverted.thread.as_str(), reverted.rollout.as_str()), (ONE, TWO));
        assert_eq!(Ids::of("notes.jsonl"), None);
        assert_eq!(Ids::of("rollout-x.jsonl"), None);
    }

    #[test]
    fn a_plain_file_hides_the_compressed_one_and_a_revert_the_older() {
        let home = tempfile::tempdir().unwrap();
        let day = home.path().join("sessions/2026/11/15");
        fs::create_dir_all(&day).unwrap();
        let names = [
            format!("rollout-2026-11-15T23-01-09-{ONE}.jsonl"),
            format!("rollout-2026-11-15T23-01-09-{ONE}.jsonl.zst"),
            format!("rollout-2026-11-15T23-05-09-{TWO}_{ONE}.jsonl"),
            format!("rollout-2026-11-15T23-02-09-{TWO}.jsonl"),
        ];
        for name in &names {
            fs::write(day.join(name), "").unwrap();
        }
        fs::write(home.path().join("session_index.jsonl"), format!("{{\"id\":\"{ONE}\",\"thread_name\":\"mine\"}}\n")).unwrap();
        let shelf = RolloutCatalog::open(home.path()).unwrap();
        assert_eq!(shelf.threads[ONE].path, day.join(&names[0]));
        assert_eq!(shelf.threads[TWO].path, day.join(&names[2]));
        assert_eq!(shelf.name(ONE), Some("mine"));
        let file = RolloutCatalog::open(&day.join(&names[3])).unwrap();
        assert_eq!(file.threads.keys().collect::<Vec<_>>(), [TWO]);
        assert!(file.rollout(ONE).is_some(), "the files beside it are known");
    }
}
