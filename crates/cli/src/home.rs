//! `OUTPOST_HOME`: where state lives.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use outpost_executor::local_directory::LocalDirectories;
use outpost_executor::place::HostPlace;
use outpost_executor::seat::LocalSeat;
use rustix::fs::{Access, access};

use crate::variables::VisibleVariables;

/// The name of an executor's token.
pub(crate) const EXECUTOR: &str = "executor";

/// The name of the app server's token.
pub(crate) const APP: &str = "app";

/// The home directory; made when something is first put there.
#[derive(Clone)]
pub(crate) struct Home(PathBuf);

/// Everything that we ever put there.
const OURS: [&str; 19] = [
    "config.toml",
    "requirements.toml",
    "environments.toml",
    "rules.toml",
    "tokens",
    "threads",
    "blobs",
    "images",
    "index",
    "commit",
    "executor",
    "spool",
    "run",
    "redo",
    "plugins",
    "skills",
    "programs",
    "layers",
    "history",
];

impl Home {
    pub(crate) fn from_environment() -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("OUTPOST_HOME").or_else(|| set("HOME").map(|home| home.join(".outpost"))).map(Self)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// What is required of this home, besides what the administrator requires of all.
    pub(crate) fn requirements(&self) -> PathBuf {
        self.0.join("requirements.toml")
    }

    /// Programs for machines of other kinds, which are copied there.
    pub(crate) fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }

    /// The user's rules about commands.
    pub(crate) fn rules(&self) -> PathBuf {
        self.0.join("rules.toml")
    }

    /// The environments that the user has written down.
    pub(crate) fn environments(&self) -> PathBuf {
        self.0.join("environments.toml")
    }

    /// Makes it if it is not there.
    pub(crate) fn make(&self) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        Ok(self.0.clone())
    }

    /// Makes it if it is not there, and looks whether anything can be put there.
    pub(crate) fn usable(&self) -> anyhow::Result<()> {
        let place = self.0.display();
        let advice = "; make it writable, or set OUTPOST_HOME to another place";
        self.make().with_context(|| format!("the home {place} cannot be made{advice}"))?;
        access(&self.0, Access::WRITE_OK).with_context(|| format!("the home {place} cannot be written to{advice}"))
    }

    /// Closes the home to others. One that existed before may be open; a directory that holds other things as well
    /// is not ours to close.
    pub(crate) fn close_to_others(&self) -> io::Result<()> {
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

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    /// What sandboxed code wrote into the home of its user, by workspace.
    pub(crate) fn layers(&self) -> PathBuf {
        self.0.join("layers")
    }

    /// What users typed, by directory.
    pub(crate) fn history(&self) -> PathBuf {
        self.0.join("history")
    }

    /// Copies of files that are being rewritten in place.
    pub(crate) fn redo(&self) -> PathBuf {
        self.0.join("redo")
    }

    /// The token that a listener of this home asks for.
    pub(crate) fn token(&self, listener: &str) -> PathBuf {
        self.tokens().join(listener)
    }

    /// The listeners' own tokens, and those of others.
    pub(crate) fn tokens(&self) -> PathBuf {
        self.0.join("tokens")
    }

    /// What this host, job or container has of this home.
    pub(crate) fn seat(&self, variables: &VisibleVariables) -> io::Result<LocalSeat> {
        let home = std::path::absolute(&self.0)?;
        LocalSeat::take(&home, HostPlace::here(&variables.for_commands()), &local_directories())
    }
}

/// Where this user may have sockets and locks on this machine.
pub(crate) fn local_directories() -> LocalDirectories {
    LocalDirectories::of_this_user(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}
