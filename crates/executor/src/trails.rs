//! Where the paths that a session's policies name have led: sandboxed code, or a program outside, may have changed a link since.
//!
//! What was denied stays denied, wherever its path leads later; what was given is not given anew by a link that sandboxed code
//! could have changed. Written down in the journal, so that a later start of the executor knows it as well.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outpost_sandbox::policy::{Trace, protected_paths, trace};

use crate::journal::FateLog;
use crate::policy::PolicyError;

/// A change so soon before something was looked at may have been missed: clocks of file systems are coarse.
const TICK: Duration = Duration::from_millis(100);
/// What is protected in so many roots is remembered.
const MAX_ROOTS: usize = 64;
/// So many places may one path have led to in one session.
const MAX_TARGETS: usize = 64;

/// For each path, as it was spelled, every place that it led to; the first one first.
pub(crate) type Led = BTreeMap<PathBuf, Vec<PathBuf>>;

/// The trails of one session.
#[derive(Default)]
pub struct Trails {
    session: String,
    fates: FateLog,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    led: Led,
    /// Everything that sandboxed code of the session ever could write.
    writable: BTreeSet<PathBuf>,
    /// What of that is in the journal.
    recorded: BTreeSet<PathBuf>,
    roots: HashMap<PathBuf, (Stamps, Protected)>,
}

/// What is protected at the top of a writable root: each path, and where it leads.
pub(crate) type Protected = Arc<Vec<(PathBuf, Trace)>>;

/// By what is seen whether the names at the top of a root, or what git says about it, have changed.
type Stamps = [Option<TrailStamp>; 4];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrailStamp {
    device: u64,
    inode: u64,
    changed: Duration,
}

impl TrailStamp {
    /// What is at the end of a path, whatever is written into it.
    pub(crate) fn of_target(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino(), changed: Duration::ZERO })
    }

    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = path.symlink_metadata().ok()?;
        let seconds = u64::try_from(metadata.ctime()).ok()?;
        let changed = Duration::new(seconds, u32::try_from(metadata.ctime_nsec()).ok()?);
        Some(Self { device: metadata.dev(), inode: metadata.ino(), changed })
    }

    fn all(root: &Path) -> Stamps {
        let git = root.join(".git");
        [Self::of(root), Self::of(&root.join(".gitmodules")), Self::of(&git), Self::of(&git.join("worktrees"))]
    }
}

/// What is protected in a root, followed. What is no link by its own name needs no more than one look.
fn protected(root: &Path, homes: &[PathBuf]) -> Vec<(PathBuf, Trace)> {
    let plain = |path: &PathBuf| Trace { real: path.clone(), links: Vec::new(), is_dangling: false };
    let follow = |path: PathBuf| {
        let is_below = path.parent() == Some(root);
        let is_plain =
            is_below && path.read_link().is_err_and(|error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound));
        // What cannot be followed cannot be written either.
        let led = if is_plain { plain(&path) } else { trace(&path).unwrap_or_else(|_| plain(&path)) };
        (path, led)
    };
    protected_paths(root, homes).into_iter().map(follow).collect()
}

impl Trails {
    /// Those of a session that a previous run of the executor knew, or of a new one.
    pub fn new(session: String, fates: FateLog, led: Led, writable: BTreeSet<PathBuf>) -> Self {
        let state = State { led, recorded: writable.clone(), writable, ..State::default() };
        Self { session, fates, state: Mutex::new(state) }
    }

    /// Takes over what another session knows: a process of it goes on in this one, and has perhaps changed the links that it may write.
    pub fn inherit(&self, from: &Self) {
        let (led, writable) = {
            let from = from.lock();
            (from.led.clone(), from.writable.clone())
        };
        let mut state = self.lock();
        for (spelled, theirs) in led {
            let ours = state.led.entry(spelled.clone()).or_default();
            for target in theirs.iter().filter(|target| !ours.contains(target)) {
                self.fates.note(|journal| journal.led(&self.session, &spelled, target));
            }
            // Theirs are older: what a path led to first is what it was given for.
            let later = std::mem::replace(ours, theirs);
            ours.extend(later);
            let mut seen = BTreeSet::new();
            ours.retain(|target| seen.insert(target.clone()));
        }
        state.writable.extend(writable);
        self.record_writable(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that a path means from which something is taken away: where it leads now, and where it ever led.
    pub fn taken(&self, spelled: &Path, led: &Trace) -> Result<Vec<PathBuf>, PolicyError> {
        let mut state = self.lock();
        self.note(&mut state, spelled, led)?;
        let mut all = state.led.get(spelled).cloned().unwrap_or_default();
        if !all.contains(&led.real) {
            all.push(led.real.clone());
        }
        Ok(all)
    }

    /// What a path means that something is given to. Refused if it leads elsewhere than before through a link that sandboxed
    /// code could change.
    pub fn given(&self, spelled: &Path, led: &Trace) -> Result<(), PolicyError> {
        let mut state = self.lock();
        self.note(&mut state, spelled, led)?;
        let first = state.led.get(spelled).and_then(|targets| targets.first());
        let is_ours_to_change = |link: &PathBuf| state.writable.iter().any(|root| link.starts_with(root));
        match first {
            Some(first) if *first != led.real && led.links.iter().any(is_ours_to_change) => {
                Err(PolicyError::Moved { path: spelled.to_owned(), first: first.clone(), now: led.real.clone() })
            }
            _ => Ok(()),
        }
    }

    /// What is protected in a root, which is a resolved path. Looked for again only if something there has changed.
    pub fn protected(&self, root: &Path, homes: &[PathBuf]) -> Protected {
        let stamps = TrailStamp::all(root);
        if let Some((known, protected)) = self.lock().roots.get(root)
            && *known == stamps
        {
            return protected.clone();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let found: Protected = Arc::new(protected(root, homes));
        let is_settled = stamps[0].is_some() && stamps.iter().flatten().all(|stamp| stamp.changed + TICK < now);
        let has_links = found.iter().any(|(_, led)| !led.links.is_empty());
        if is_settled && !has_links {
            let mut state = self.lock();
            if state.roots.len() >= MAX_ROOTS {
                state.roots.clear();
            }
            state.roots.insert(root.to_owned(), (stamps, found.clone()));
        }
        found
    }

    /// Says what sandboxed code may write from now on.
    pub fn may_write<'a>(&self, roots: impl IntoIterator<Item = &'a PathBuf>) {
        let mut state = self.lock();
        for root in roots {
            if !state.writable.contains(root) {
                state.writable.insert(root.clone());
            }
        }
        self.record_writable(&mut state);
    }

    /// What could be written matters only where a path has led through a link.
    fn record_writable(&self, state: &mut State) {
        if state.led.is_empty() || state.recorded.len() == state.writable.len() {
            return;
        }
        for root in state.writable.difference(&state.recorded) {
            self.fates.note(|journal| journal.writable(&self.session, root));
        }
        state.recorded.clone_from(&state.writable);
    }

    /// A path that passes no link, and never did, needs no memory.
    fn note(&self, state: &mut State, spelled: &Path, led: &Trace) -> Result<(), PolicyError> {
        let known = state.led.get(spelled);
        if known.is_none() && led.links.is_empty() || known.is_some_and(|targets| targets.contains(&led.real)) {
            return Ok(());
        }
        let targets = state.led.entry(spelled.to_owned()).or_default();
        if targets.len() >= MAX_TARGETS {
            return Err(PolicyError::Restless { path: spelled.to_owned() });
        }
        targets.push(led.real.clone());
        self.fates.note(|journal| journal.led(&self.session, spelled, &led.real));
        self.record_writable(state);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(real: &str, links: &[&str]) -> Trace {
        Trace { real: real.into(), links: links.iter().map(PathBuf::from).collect(), is_dangling: false }
    }

    #[test]
    fn what_is_protected_is_looked_for_again_when_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let trails = Trails::default();
        let links = || trails.protected(&root, &[]).iter().filter(|(_, led)| !led.links.is_empty()).count();
        assert_eq!(links(), 0);
        // At once, and after what was found has been remembered.
        for name in [".codex", ".envrc"] {
            std::os::unix::fs::symlink("x", root.join(name)).unwrap();
            assert_eq!(links(), 1);
            std::fs::remove_file(root.join(name)).unwrap();
            std::thread::sleep(TICK * 2);
            assert_eq!((links(), links()), (0, 0));
            assert_eq!(trails.lock().roots.len(), 1);
        }
    }

    #[test]
    fn every_target_stays_taken() {
        let trails = Trails::default();
        let spelled = Path::new("/w/link");
        let taken = |real: &str, links: &[&str]| trails.taken(spelled, &led(real, links)).unwrap();
        assert_eq!(taken("/a", &["/w/link"]), [PathBuf::from("/a")]);
        assert_eq!(taken("/b", &["/w/link"]), ["/a", "/b"].map(PathBuf::from));
        // Now it is a directory of its own.
        assert_eq!(taken("/w/link", &[]), ["/a", "/b", "/w/link"].map(PathBuf::from));
        assert_eq!(trails.taken(Path::new("/plain"), &led("/plain", &[])).unwrap(), [PathBuf::from("/plain")]);
        for number in 3..MAX_TARGETS {
            taken(&format!("/{number}"), &["/w/link"]);
        }
        assert!(matches!(trails.taken(spelled, &led("/more", &["/w/link"])), Err(PolicyError::Restless { .. })));
    }

    #[test]
    fn a_session_that_takes_a_process_over_knows_where_its_paths_led() {
        let (old, new) = (Trails::default(), Trails::default());
        let spelled = Path::new("/w/link");
        old.may_write([&PathBuf::from("/w")]);
        old.taken(spelled, &led("/secret", &["/w/link"])).unwrap();
        new.taken(spelled, &led("/decoy", &["/w/link"])).unwrap();
        new.inherit(&old);
        new.inherit(&old);
        assert_eq!(new.taken(spelled, &led("/decoy", &["/w/link"])).unwrap(), ["/secret", "/decoy"].map(PathBuf::from));
        assert!(matches!(new.given(spelled, &led("/decoy", &["/w/link"])), Err(PolicyError::Moved { .. })));
    }

    #[test]
    fn nothing_is_given_anew_by_a_link_that_could_be_changed() {
        let trails = Trails::default();
        let spelled = Path::new("/w/link");
        trails.given(spelled, &led("/a", &["/w/link"])).unwrap();
        // So far only the user of the machine could have changed it.
        trails.given(spelled, &led("/b", &["/w/link"])).unwrap();
        trails.may_write([&PathBuf::from("/w")]);
        trails.given(spelled, &led("/a", &["/w/link"])).unwrap();
        let refused = trails.given(spelled, &led("/etc", &["/w/link"])).unwrap_err().to_string();
        assert!(refused.contains("/a") && refused.contains("/etc"), "{refused}");
        trails.given(Path::new("/home/link"), &led("/a", &["/home/link"])).unwrap();
        trails.given(Path::new("/home/link"), &led("/b", &["/home/link"])).unwrap();
    }
}
