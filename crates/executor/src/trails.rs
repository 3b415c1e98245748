//! Where the paths that a session's policies name have led: sandboxed code, or a program outside, may have changed a link since.
//!
//! What was denied stays denied, wherever its path leads later; what was given is not given anew by a link that sandboxed code
//! could have changed. Written down in the journal, so that a later start of the executor knows it as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outpost_sandbox::policy::Trace;

use crate::journal::FateLog;
use crate::policy::PolicyError;

/// So many places may one path have led to in one session.
const MAX_TARGETS: usize = 64;

/// For each path, as it was spelled, every place that it led to; the first one first.
pub type Led = BTreeMap<PathBuf, Vec<PathBuf>>;

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
}

impl Trails {
    pub fn new(session: String, fates: FateLog, led: Led) -> Self {
        Self { session, fates, state: Mutex::new(State { led, ..State::default() }) }
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

    /// Says what sandboxed code may write from now on.
    pub fn may_write<'a>(&self, roots: impl IntoIterator<Item = &'a PathBuf>) {
        let mut state = self.lock();
        for root in roots {
            if !state.writable.contains(root) {
                state.writable.insert(root.clone());
            }
        }
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
