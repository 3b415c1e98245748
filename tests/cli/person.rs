//! A person at a terminal or a script: a home and a directory of their own, and nothing of the user who runs the tests.

use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::{OUTPOST, OWN_VARIABLES};

pub(crate) struct Newcomer {
    pub home: TempDir,
    pub work: TempDir,
}

impl Newcomer {
    pub(crate) fn new() -> Self {
        Self { home: TempDir::new().unwrap(), work: TempDir::new().unwrap() }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.args(arguments).current_dir(self.work.path()).stdin(Stdio::null());
        command.env("OUTPOST_HOME", self.home.path()).env("HOME", self.work.path());
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        command
    }

    /// What it says on standard error, and how it ends.
    pub(crate) fn told(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let Output { status, stderr, .. } = self.command(arguments).output().unwrap();
        (String::from_utf8(stderr).unwrap(), status.code())
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.home.path().join(file), text).unwrap();
    }
}
