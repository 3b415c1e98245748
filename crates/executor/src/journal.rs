//! The fate of every process, on disk before a client is told, so that a restarted executor can still answer for it.
//!
//! Lines of JSON, one fact each. A journal belongs to one start of an executor, which holds a lock on it; a journal that
//! no process holds belongs to a run that was killed, and the executor that finds it takes its facts over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::locks::{FileLock, Locks};
use crate::trails::Led;

/// A journal is rewritten when it has grown to this size and most of it is about processes that no client asks for any more.
const WORTH_REWRITING: u64 = 1 << 20;

/// A fact about a process or a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "fact")]
enum Fact {
    /// The first line: by what this start is reached. Only a later start that is reached in the same way is asked.
    Opened {
        listener: String,
    },
    Started {
        session: String,
        process: String,
        fingerprint: String,
    },
    Exited {
        session: String,
        process: String,
        code: i32,
        next_seq: u64,
    },
    Closed {
        session: String,
        process: String,
        next_seq: u64,
    },
    /// The executor that ran it is gone, and with it the knowledge of how it ended.
    Lost {
        session: String,
        process: String,
    },
    Forgotten {
        session: String,
        process: String,
    },
    Ended {
        session: String,
    },
    /// Where a path led that a policy of the session named.
    Led {
        session: String,
        #[serde(with = "crate::files::native_path")]
        path: PathBuf,
        #[serde(with = "crate::files::native_path")]
        target: PathBuf,
    },
    /// What sandboxed code of a session could write in which paths have led through links.
    Writable {
        session: String,
        #[serde(with = "crate::files::native_path")]
        path: PathBuf,
    },
}

/// What is known of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    pub fingerprint: String,
    pub end: Option<RecordedExit>,
    /// The number after the last event that is known of.
    pub next_seq: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedExit {
    Exited(i32),
    Lost,
}

/// The fates of one session's processes.
pub(crate) type Fates = BTreeMap<String, Fate>;

/// What is known of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreviousSession {
    pub fates: Fates,
    pub led: Led,
    pub writable: BTreeSet<PathBuf>,
}

impl PreviousSession {
    fn is_empty(&self) -> bool {
        self.fates.is_empty() && self.led.is_empty()
    }
}

/// The journal as each of its writers holds it; or none, where fates are not kept.
#[derive(Clone, Default)]
pub struct FateLog(Option<Arc<Mutex<Journal>>>);

impl FateLog {
    pub fn new(journal: Journal) -> Self {
        Self(Some(Arc::new(Mutex::new(journal))))
    }

    /// Writes down what `tell` tells. Returns only when it is written.
    pub fn note(&self, tell: impl FnOnce(&mut Journal)) {
        if let Some(journal) = &self.0 {
            tell(&mut journal.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

pub struct Journal {
    path: PathBuf,
    listener: String,
    locks: Locks,
    /// The file, and the lock on it.
    file: Option<(File, FileLock)>,
    known: HashMap<String, PreviousSession>,
    written: u64,
    length: u64,
    /// Told once, not for every fact.
    is_broken: bool,
}

impl Journal {
    /// The journal of a run that is reached by `listener`, below `directory`, with everything that previous runs of the
    /// same listener left unsaid. Nothing is written before there is something to write.
    pub fn open(directory: &Path, locks: Locks, instance: &str, listener: &str) -> io::Result<Self> {
        let path = directory.join(instance).join("journal.jsonl");
        let all_previous = previous_journals(directory, &locks, listener)?;
        let mut journal =
            Self { path, listener: listener.to_owned(), locks, file: None, known: HashMap::new(), written: 0, length: 0, is_broken: false };
        for previous in all_previous {
            journal.take_over(&previous);
        }
        Ok(journal)
    }

    /// Makes the file, with the name of the listener in it.
    fn create(&self) -> io::Result<(File, FileLock, u64)> {
        let own = self.path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(own)?;
        // One at a time: what was just made must not be taken for one of a previous run before it is locked.
        let _starting = lock(own.parent().ok_or(io::ErrorKind::InvalidInput)?, &self.locks)?;
        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        let held = self.hold(&file)?;
        let line = line(&Fact::Opened { listener: self.listener.clone() })?;
        file.write_all(&line)?;
        Ok((file, held, line.len() as u64))
    }

    /// No other process may have it: it is ours by its name.
    fn hold(&self, file: &File) -> io::Result<FileLock> {
        self.locks.try_lock(file, &name_of(&self.path))?.ok_or_else(|| io::ErrorKind::ResourceBusy.into())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let (mut file, held) = match self.file.take() {
            Some(opened) => opened,
            None => {
                let (file, held, length) = self.create()?;
                self.length = length;
                (file, held)
            }
        };
        let written = file.write_all(line);
        if written.is_err() {
            // What half of the line was written must not spoil the next.
            let _ = file.set_len(self.length);
        }
        self.file = Some((file, held));
        written
    }

    /// The sessions that previous runs left behind.
    pub fn past(&self) -> HashMap<String, PreviousSession> {
        self.known.clone()
    }

    fn take_over(&mut self, previous: &PreviousJournal) {
        let mut facts = HashMap::new();
        for line in BufReader::new(&previous.file).lines() {
            // A line that was being written when its writer died, or its disk was full, costs only itself.
            if let Ok(fact) = line.map_err(serde_json::Error::io).and_then(|line| serde_json::from_str(&line)) {
                apply(&mut facts, &fact);
            }
        }
        for past in facts.values_mut() {
            for fate in past.fates.values_mut() {
                fate.end.get_or_insert(RecordedExit::Lost);
            }
        }
        for (session, past) in facts {
            for fact in retell_session(&session, &past) {
                self.write(&fact);
            }
        }
        // Everything it knew is in ours now, if ours can be written.
        if !self.is_broken
            && let Some(directory) = previous.path.parent()
        {
            let _ = fs::remove_dir_all(directory);
        }
    }

    pub fn started(&mut self, session: &str, process: &str, fingerprint: &str) {
        self.write(&Fact::Started { session: session.into(), process: process.into(), fingerprint: fingerprint.into() });
    }

    pub fn exited(&mut self, session: &str, process: &str, code: i32, next_seq: u64) {
        self.write(&Fact::Exited { session: session.into(), process: process.into(), code, next_seq });
    }

    pub fn closed(&mut self, session: &str, process: &str, next_seq: u64) {
        self.write(&Fact::Closed { session: session.into(), process: process.into(), next_seq });
    }

    pub fn forgotten(&mut self, session: &str, process: &str) {
        self.write(&Fact::Forgotten { session: session.into(), process: process.into() });
    }

    pub fn ended(&mut self, session: &str) {
        self.write(&Fact::Ended { session: session.into() });
    }

    pub fn led(&mut self, session: &str, path: &Path, target: &Path) {
        self.write(&Fact::Led { session: session.into(), path: path.into(), target: target.into() });
    }

    pub fn writable(&mut self, session: &str, path: &Path) {
        self.write(&Fact::Writable { session: session.into(), path: path.into() });
    }

    fn write(&mut self, fact: &Fact) {
        apply(&mut self.known, fact);
        let written = line(fact).and_then(|line| {
            self.append(&line)?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(bytes) => {
                self.written += bytes;
                self.length += bytes;
            }
            Err(error) => {
                if !self.is_broken {
                    tracing::warn!(path = %self.path.display(), %error, "the fate of processes can no longer be written down");
                }
                self.is_broken = true;
            }
        }
        if self.written > WORTH_REWRITING
            && let Err(error) = self.rewrite()
        {
            tracing::warn!(path = %self.path.display(), %error, "the journal could not be rewritten");
            // Not before it has grown by as much again.
            self.written = 0;
        }
    }

    /// Writes what is still known to a new file and puts it in the place of the old one.
    fn rewrite(&mut self) -> io::Result<()> {
        let aside = self.path.with_extension("new");
        let mut file = File::options().append(true).create(true).mode(0o600).open(&aside)?;
        file.set_len(0)?;
        // A lock beside the file is the lock of both.
        let held = match self.file.take() {
            Some((_, held)) if held.is_beside() => held,
            _ => self.hold(&file)?,
        };
        let mut text = line(&Fact::Opened { listener: self.listener.clone() })?;
        for (session, past) in &self.known {
            for fact in retell_session(session, past) {
                text.extend(line(&fact)?);
            }
        }
        file.write_all(&text)?;
        fs::rename(&aside, &self.path)?;
        self.file = Some((file, held));
        self.written = 0;
        self.length = text.len() as u64;
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Nothing left to answer for: leave nothing behind.
        if self.known.is_empty()
            && let Some(directory) = self.path.parent()
        {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn line(fact: &Fact) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(fact)?;
    line.push(b'\n');
    Ok(line)
}

fn apply(known: &mut HashMap<String, PreviousSession>, fact: &Fact) {
    let mut change = |session: &String, process: &String, change: &dyn Fn(&mut Fate)| {
        if let Some(fate) = known.get_mut(session).and_then(|past| past.fates.get_mut(process)) {
            change(fate);
        }
    };
    match fact {
        Fact::Opened { .. } => {}
        Fact::Started { session, process, fingerprint } => {
            let fate = Fate { fingerprint: fingerprint.clone(), end: None, next_seq: 1 };
            known.entry(session.clone()).or_default().fates.insert(process.clone(), fate);
        }
        Fact::Exited { session, process, code, next_seq } => change(session, process, &|fate| {
            fate.end = Some(RecordedExit::Exited(*code));
            fate.next_seq = *next_seq;
        }),
        Fact::Closed { session, process, next_seq } => change(session, process, &|fate| fate.next_seq = *next_seq),
        Fact::Lost { session, process } => change(session, process, &|fate| fate.end = Some(RecordedExit::Lost)),
        Fact::Forgotten { session, process } => {
            if let Some(past) = known.get_mut(session) {
                past.fates.remove(process);
                if past.is_empty() {
                    known.remove(session);
                }
            }
        }
        Fact::Ended { session } => {
            known.remove(session);
        }
        Fact::Led { session, path, target } => {
            let targets = known.entry(session.clone()).or_default().led.entry(path.clone()).or_default();
            if !targets.contains(target) {
                targets.push(target.clone());
            }
        }
        Fact::Writable { session, path } => {
            if let Some(past) = known.get_mut(session) {
                past.writable.insert(path.clone());
            }
        }
    }
}

/// The facts that lead to what is known of a session.
fn retell_session(session: &str, past: &PreviousSession) -> Vec<Fact> {
    let processes = past.fates.iter().flat_map(|(process, fate)| retell(session, process, fate));
    let led = past.led.iter().flat_map(|(path, targets)| targets.iter().map(move |target| (path, target)));
    let led = led.map(|(path, target)| Fact::Led { session: session.to_owned(), path: path.clone(), target: target.clone() });
    let writable = past.writable.iter().map(|path| Fact::Writable { session: session.to_owned(), path: path.clone() });
    processes.chain(led).chain(writable).collect()
}

/// The facts that lead to a fate.
fn retell(session: &str, process: &str, fate: &Fate) -> Vec<Fact> {
    let (session, process) = (session.to_owned(), process.to_owned());
    let mut facts = vec![Fact::Started { session: session.clone(), process: process.clone(), fingerprint: fate.fingerprint.clone() }];
    match fate.end {
        Some(RecordedExit::Exited(code)) => facts.push(Fact::Exited { session, process, code, next_seq: fate.next_seq }),
        Some(RecordedExit::Lost) => facts.push(Fact::Lost { session, process }),
        None => {}
    }
    facts
}

/// A journal that no process holds.
struct PreviousJournal {
    path: PathBuf,
    file: File,
    _held: FileLock,
}

/// Held while a process looks for journals, or makes one.
fn lock(directory: &Path, locks: &Locks) -> io::Result<File> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(directory.join("lock"))?;
    locks.lock(file, "journals")
}

/// The start that a journal belongs to.
fn name_of(journal: &Path) -> String {
    journal.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
}

fn journals(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path().join("journal.jsonl")).filter(|path| path.exists()).collect()
}

/// Each comes locked, so that no other process takes it over.
fn previous_journals(directory: &Path, locks: &Locks, listener: &str) -> io::Result<Vec<PreviousJournal>> {
    if journals(directory).is_empty() {
        return Ok(Vec::new());
    }
    let _looking = lock(directory, locks)?;
    let found = journals(directory).into_iter().filter_map(|path| {
        // Network file systems lock only what may be written.
        let file = File::options().read(true).write(true).open(&path).ok()?;
        let held = locks.try_lock(&file, &name_of(&path)).ok()??;
        // It may have been rewritten between the two; then this is not it any more.
        let is_still_there = fs::metadata(&path).is_ok_and(|now| file.metadata().is_ok_and(|ours| ours.ino() == now.ino()));
        is_still_there.then_some(PreviousJournal { path, file, _held: held })
    });
    Ok(found.filter(|previous| previous.listener().is_none_or(|theirs| theirs == listener)).collect())
}

impl PreviousJournal {
    fn listener(&self) -> Option<String> {
        let line = fs::read_to_string(&self.path).ok()?.lines().next()?.to_owned();
        match serde_json::from_str(&line) {
            Ok(Fact::Opened { listener }) => Some(listener),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A start that ended without saying good-bye.
    fn abandon(journal: Journal) {
        let path = journal.path.clone();
        let kept = fs::read(&path).unwrap();
        drop(journal);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, kept).unwrap();
    }

    fn fate(end: Option<RecordedExit>, next_seq: u64) -> Fate {
        Fate { fingerprint: "f".into(), end, next_seq }
    }

    #[test]
    fn a_later_start_knows_every_fate() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        first.started("s", "running", "f");
        first.started("s", "exited", "f");
        first.exited("s", "exited", 7, 5);
        first.started("s", "closed", "f");
        first.exited("s", "closed", 0, 4);
        first.closed("s", "closed", 5);
        first.started("s", "forgotten", "f");
        first.forgotten("s", "forgotten");
        first.started("over", "p", "f");
        first.ended("over");
        abandon(first);
        for instance in ["two", "three"] {
            let journal = Journal::open(directory.path(), Locks::default(), instance, "here").unwrap();
            let past = journal.past();
            assert_eq!(past.len(), 1);
            let expected = [
                ("closed", fate(Some(RecordedExit::Exited(0)), 5)),
                ("exited", fate(Some(RecordedExit::Exited(7)), 5)),
                ("running", fate(Some(RecordedExit::Lost), 1)),
            ];
            assert_eq!(past["s"].fates, expected.map(|(id, fate)| (id.to_owned(), fate)).into());
            assert_eq!(journals(directory.path()).len(), 1, "an older journal was left behind");
            abandon(journal);
        }
    }

    #[test]
    fn where_paths_led_is_known_as_long_as_the_session_is() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        let odd = Path::new(std::ffi::OsStr::new("/w/a\nb"));
        for target in ["/secret", "/other", "/secret"] {
            first.led("s", odd, Path::new(target));
        }
        first.writable("s", odd);
        first.writable("unknown", odd);
        first.led("over", odd, odd);
        first.ended("over");
        first.started("s", "p", "f");
        first.forgotten("s", "p");
        abandon(first);
        for instance in ["two", "three"] {
            let journal = Journal::open(directory.path(), Locks::default(), instance, "here").unwrap();
            let past = journal.past();
            assert_eq!((past.len(), &past["s"].led[odd]), (1, &vec![PathBuf::from("/secret"), PathBuf::from("/other")]));
            assert_eq!(past["s"].writable, [odd.to_owned()].into());
            abandon(journal);
        }
    }

    #[test]
    fn a_journal_in_use_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        first.started("s", "p", "f");
        let mut second = Journal::open(directory.path(), Locks::default(), "two", "here").unwrap();
        assert!(second.past().is_empty());
        second.started("t", "p", "f");
        assert_eq!(journals(directory.path()).len(), 2);
    }

    #[test]
    fn a_journal_of_another_listener_is_left_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        first.started("s", "p", "f");
        abandon(first);
        assert!(Journal::open(directory.path(), Locks::default(), "two", "there").unwrap().past().is_empty());
        assert_eq!(Journal::open(directory.path(), Locks::default(), "three", "here").unwrap().past().len(), 1);
    }

    #[test]
    fn a_torn_last_line_costs_only_itself() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        first.started("s", "p", "f");
        let path = first.path.clone();
        abandon(first);
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"fact\":\"exi");
        fs::write(&path, text).unwrap();
        assert_eq!(
            Journal::open(directory.path(), Locks::default(), "two", "here").unwrap().past()["s"].fates["p"],
            fate(Some(RecordedExit::Lost), 1)
        );
    }

    #[test]
    fn it_does_not_grow_with_processes_that_are_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        journal.started("s", "kept", "f");
        for n in 0..20_000 {
            let id = n.to_string();
            journal.started("s", &id, "f");
            journal.exited("s", &id, 0, 2);
            journal.forgotten("s", &id);
        }
        assert!(fs::metadata(&journal.path).unwrap().len() < 2 * WORTH_REWRITING);
        abandon(journal);
        assert_eq!(Journal::open(directory.path(), Locks::default(), "two", "here").unwrap().past()["s"].fates.len(), 1);
    }

    #[test]
    fn nothing_to_answer_for_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path(), Locks::default(), "one", "here").unwrap();
        journal.started("s", "p", "f");
        journal.ended("s");
        drop(journal);
        assert_eq!(journals(directory.path()).len(), 0);
    }
}
