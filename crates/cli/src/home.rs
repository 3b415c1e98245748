//! `OUTPOST_HOME`: where state lives.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{Access, access};
use uuid::Uuid;

/// The name of an executor's token.
pub const EXECUTOR: &str = "executor";

/// The name of the app server's token.
pub const APP: &str = "app";

/// The home directory; made when something is first put there.
#[derive(Clone)]
pub struct Home(PathBuf);

/// Everything that we ever put there.
const OURS: [&str; 16] = [
    "config.toml",
    "requirements.toml",
    "environments.toml",
    "rules.toml",
    "tokens",
    "threads",
    "blobs",
    "index",
    "commit",
    "executor",
    "spool",
    "run",
    "redo",
    "plugins",
    "skills",
    "programs",
];

impl Home {
    pub fn from_environment() -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("OUTPOST_HOME").or_else(|| set("HOME").map(|home| home.join(".outpost"))).map(Self)
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// What is required of this home, besides what the administrator requires of all.
    pub fn requirements(&self) -> PathBuf {
        self.0.join("requirements.toml")
    }

    /// Programs for machines of other kinds, which are copied there.
    pub fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }

    /// The user's rules about commands.
    pub fn rules(&self) -> PathBuf {
        self.0.join("rules.toml")
    }

    /// The environments that the user has written down.
    pub fn environments(&self) -> PathBuf {
        self.0.join("environments.toml")
    }

    /// Makes it if it is not there.
    pub fn make(&self) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        Ok(self.0.clone())
    }

    /// Makes it if it is not there, and looks whether anything can be put there.
    pub fn usable(&self) -> anyhow::Result<()> {
        let place = self.0.display();
        let advice = "; make it writable, or set OUTPOST_HOME to another place";
        self.make().with_context(|| format!("the home {place} cannot be made{advice}"))?;
        access(&self.0, Access::WRITE_OK).with_context(|| format!("the home {place} cannot be written to{advice}"))
    }

    /// Closes the home to others. One that somebody made for us may be open; a directory that holds other things as well
    /// is not ours to close.
    pub fn close_to_others(&self) -> io::Result<()> {
        let metadata = match fs::metadata(&self.0) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if metadata.mode() & 0o077 == 0 || !is_ours {
            return Ok(());
        }
        for entry in fs::read_dir(&self.0)? {
            if !OURS.iter().any(|name| entry.as_ref().is_ok_and(|entry| entry.file_name() == *name)) {
                return Ok(());
            }
        }
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    /// Copies of files that are being rewritten in place.
    pub fn redo(&self) -> PathBuf {
        self.0.join("redo")
    }

    /// One journal per start of an executor.
    pub fn journals(&self) -> PathBuf {
        self.0.join("executor")
    }

    /// The token that a listener of this home asks for.
    pub fn token(&self, listener: &str) -> PathBuf {
        self.tokens().join(listener)
    }

    /// The listeners' own tokens, and those of others.
    pub fn tokens(&self) -> PathBuf {
        self.0.join("tokens")
    }

    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Makes the place of the sockets if it is not there.
    pub fn make_run(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.run())
    }

    /// The identity of this executor install: made once, at random.
    pub fn executor_id(&self) -> io::Result<String> {
        let directory = self.0.join("executor");
        let path = directory.join("identity");
        if let Some(id) = read_identity(&path)? {
            return Ok(id);
        }
        write_once(&path, &Uuid::now_v7().to_string())?;
        read_identity(&path)?.ok_or_else(|| io::Error::other(format!("{} vanished", path.display())))
    }
}

/// Makes a file that only its owner can read, with one line in it, unless there is one. Written aside and linked into
/// place: two that start at once agree on the one that came first.
pub fn write_once(path: &Path, line: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let aside = path.with_extension(Uuid::new_v4().to_string());
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = writeln!(file, "{line}").and_then(|()| fs::hard_link(&aside, path));
    fs::remove_file(&aside)?;
    match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
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
