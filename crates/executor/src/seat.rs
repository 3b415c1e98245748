//! What one place has of a home that others may share: its identity, its journals, and a directory of this machine for
//! sockets and locks.
//!
//! The first host or container that uses a home has the home's own identity, and so keeps the one that an earlier version made.
//! Every other one, and every job, has its own below `executor/places`.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::local_directory::{self, LocalDirectories};
use crate::place::HostPlace;

/// A socket's path may be this long.
const MAX_SOCKET_PATH: usize = 107;
/// The longest name that is put below [`LocalSeat::run`].
const LONGEST_NAME: usize = "/k4194304.sock".len();
/// What a job or a container left behind is removed when it has not been used for so long.
const FORGOTTEN: Duration = Duration::from_secs(90 * 86_400);
/// The file that says whose a directory is.
const OWNER: &str = "place.json";

#[derive(Debug, Clone)]
pub struct LocalSeat {
    pub place: HostPlace,
    /// Identity and journals.
    pub state: PathBuf,
    /// Sockets, locks and scratch files: on this machine.
    pub run: PathBuf,
    /// Where the identity of the whole home is.
    home: PathBuf,
}

impl LocalSeat {
    /// The seat of a place in a home. A home on which nothing can be written has seats, too; what is put there fails later.
    pub fn take(home: &Path, place: HostPlace, local: &LocalDirectories) -> io::Result<Self> {
        let own = home.join("executor");
        let is_owner = owns(&own, &place);
        let key = place.key();
        let state = if is_owner { own.clone() } else { own.join("places").join(&key) };
        if !is_owner && let Err(error) = sit_down(&own.join("places"), &state, &place) {
            tracing::debug!(%error, "a place cannot be written down");
        }
        let mut run = if is_owner { home.join("run") } else { home.join("run").join(&key) };
        if local_directory::is_remote(home) || run.as_os_str().len() + LONGEST_NAME > MAX_SOCKET_PATH {
            let homes = local.choose()?.join(name_of(home));
            local_directory::make(&homes)?;
            run = homes.join(&key);
        }
        Ok(Self { place, state, run, home: home.to_owned() })
    }

    /// Makes the directory for sockets and locks if it is not there.
    pub fn make_run(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.run)
    }

    /// The identity of this place: made once, at random.
    pub fn executor_id(&self) -> io::Result<String> {
        identity(&self.state)
    }

    /// The identity of the whole home, by which a server knows the one that a token was first used by.
    pub fn install_id(&self) -> io::Result<String> {
        identity(&self.home.join("executor"))
    }
}

/// Whether the identity of the home is this place's. A home that has no owner yet gets one, unless it is a job: those end.
fn owns(directory: &Path, place: &HostPlace) -> bool {
    let path = directory.join(OWNER);
    match read_place(&path) {
        Some(owner) if owner.is_still(place) => {
            if owner != *place {
                // It was restarted or renamed.
                let _ = replace(&path, place);
            }
            true
        }
        Some(_) => false,
        None if place.job.is_some() => false,
        None => {
            let written = serde_json::to_string(place).map_err(io::Error::from).and_then(|line| write_once(&path, &line));
            // Where nothing can be written, other executors are not told either.
            written.is_err() || read_place(&path).is_none_or(|owner| owner.is_still(place))
        }
    }
}

fn read_place(path: &Path) -> Option<HostPlace> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes down whose a directory is, and that it is used; removes what was not used for long.
fn sit_down(places: &Path, state: &Path, place: &HostPlace) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    replace(&state.join(OWNER), place)?;
    for entry in fs::read_dir(places)?.flatten() {
        let used = fs::metadata(entry.path().join(OWNER)).and_then(|note| note.modified());
        let is_forgotten = used.is_ok_and(|used| SystemTime::now().duration_since(used).is_ok_and(|age| age > FORGOTTEN));
        if is_forgotten {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn replace(path: &Path, place: &HostPlace) -> io::Result<()> {
    let aside = path.with_extension(Uuid::new_v4().to_string());
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = serde_json::to_vec(place).map_err(io::Error::from).and_then(|text| file.write_all(&text));
    written.and_then(|()| fs::rename(&aside, path)).inspect_err(|_| drop(fs::remove_file(&aside)))
}

/// A short name for a home.
fn name_of(home: &Path) -> String {
    let digest = Sha256::digest(home.as_os_str().as_encoded_bytes());
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn identity(directory: &Path) -> io::Result<String> {
    let path = directory.join("identity");
    if let Some(id) = read_identity(&path)? {
        return Ok(id);
    }
    write_once(&path, &Uuid::now_v7().to_string())?;
    read_identity(&path)?.ok_or_else(|| io::Error::other(format!("{} vanished", path.display())))
}

/// Makes a file that only its owner can read, with one line in it, unless there is one. Written aside and linked into
/// place: two that start at once agree on the one that came first.
pub fn write_once(path: &Path, line: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let aside = path.with_extension(Uuid::new_v4().to_string());
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = writeln!(file, "{line}").and_then(|()| match fs::hard_link(&aside, path) {
        // Some network file systems have no second names.
        Err(error) if is_unsupported(&error) => make_new(path, line),
        linked => linked,
    });
    fs::remove_file(&aside)?;
    match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

fn make_new(path: &Path, line: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{line}")
}

fn read_identity(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) if Uuid::parse_str(text.trim()).is_ok() => Ok(Some(text.trim().to_owned())),
        // What a power cut may leave of a file that was just made.
        Ok(text) if text.trim_matches('\0').is_empty() => fs::remove_file(path).map(|()| None),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} holds no id; remove it to get a new one", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, job: Option<&str>) -> HostPlace {
        HostPlace { host: host.into(), machine: None, boot: Some(format!("boot of {host}")), container: None, job: job.map(Into::into) }
    }

    fn local(base: &Path) -> LocalDirectories {
        LocalDirectories { runtime: None, usual: base.join("none"), temporary: base.join("local") }
    }

    fn take(home: &Path, place: HostPlace) -> LocalSeat {
        LocalSeat::take(home, place, &local(home)).unwrap()
    }

    #[test]
    fn hosts_and_jobs_that_share_a_home_share_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let first = take(home.path(), place("a", None));
        let others = [place("b", None), place("a", Some("slurm:9")), place("a", Some("slurm:10")), place("b", Some("slurm:9"))];
        let seats: Vec<LocalSeat> = others.into_iter().map(|other| take(home.path(), other)).chain([first.clone()]).collect();
        let count = |of: &dyn Fn(&LocalSeat) -> String| seats.iter().map(of).collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(count(&|seat| seat.executor_id().unwrap()), seats.len());
        assert_eq!(count(&|seat| seat.run.display().to_string()), seats.len());
        assert_eq!(count(&|seat| seat.install_id().unwrap()), 1, "a server knows all of them as one install");
        let again = take(home.path(), place("a", Some("slurm:9")));
        assert_eq!(again.executor_id().unwrap(), seats[1].executor_id().unwrap());
        let restarted = HostPlace { boot: Some("another".into()), ..place("a", None) };
        assert_eq!(take(home.path(), restarted).executor_id().unwrap(), first.executor_id().unwrap());
    }

    #[test]
    fn an_existing_install_keeps_its_identity_and_its_socket() {
        let home = tempfile::tempdir().unwrap();
        let id = Uuid::now_v7().to_string();
        write_once(&home.path().join("executor/identity"), &id).unwrap();
        // A job may come first; the home's own identity is not its.
        assert_ne!(take(home.path(), place("a", Some("slurm:9"))).executor_id().unwrap(), id);
        let seat = take(home.path(), place("a", None));
        assert_eq!(seat.executor_id().unwrap(), id);
        assert_eq!(seat.run, home.path().join("run"));
        assert_ne!(take(home.path(), place("b", None)).executor_id().unwrap(), id);
    }

    #[test]
    fn a_home_with_a_long_name_has_its_sockets_elsewhere() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("x".repeat(120));
        let seat = LocalSeat::take(&home, place("a", None), &local(base.path())).unwrap();
        assert!(seat.run.starts_with(base.path().join("local")), "{}", seat.run.display());
        assert!(seat.run.as_os_str().len() + LONGEST_NAME <= MAX_SOCKET_PATH || base.path().as_os_str().len() > 40);
    }

    #[test]
    fn what_nobody_has_used_for_long_is_removed() {
        let home = tempfile::tempdir().unwrap();
        take(home.path(), place("a", None));
        let old = take(home.path(), place("a", Some("slurm:1"))).state;
        let long_ago = SystemTime::now() - FORGOTTEN - Duration::from_secs(60);
        File::options().write(true).open(old.join(OWNER)).unwrap().set_modified(long_ago).unwrap();
        let kept = take(home.path(), place("a", Some("slurm:2"))).state;
        take(home.path(), place("a", Some("slurm:3")));
        assert!(!old.exists() && kept.exists());
    }
}
