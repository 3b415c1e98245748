//! `OUTPOST_HOME`: where state lives.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// The home directory; made when something is first put there.
#[derive(Clone)]
pub struct Home(PathBuf);

impl Home {
    pub fn from_environment() -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("OUTPOST_HOME").or_else(|| set("HOME").map(|home| home.join(".outpost"))).map(Self)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    /// One journal per start of an executor.
    pub fn journals(&self) -> PathBuf {
        self.0.join("executor")
    }

    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// The identity of this executor install: made once, at random.
    pub fn executor_id(&self) -> io::Result<String> {
        let directory = self.0.join("executor");
        let path = directory.join("identity");
        if let Some(id) = read_identity(&path)? {
            return Ok(id);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        // Written aside and linked into place: two executors that start at once agree on the one that came first.
        let aside = directory.join(format!("identity.{}", Uuid::new_v4()));
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        let written = writeln!(file, "{}", Uuid::now_v7()).and_then(|()| fs::hard_link(&aside, &path));
        fs::remove_file(&aside)?;
        match written {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => read_identity(&path)?.ok_or_else(|| io::Error::other(format!("{} vanished", path.display()))),
        }
    }
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
