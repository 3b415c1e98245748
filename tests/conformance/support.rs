//! What several modules here need.

use std::path::PathBuf;

use outpost_testkit::{Bench, LinkKind, Setup};
use rustix::fs::{CWD, FileType, Mode, mknodat};

pub(crate) const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

/// An executor behind a websocket, started with more arguments.
pub(crate) fn with_arguments(arguments: &[&str]) -> Bench {
    Bench::with_setup(LinkKind::WebSocket, OUTPOST, &Setup { arguments, ..Setup::default() })
}

/// A named pipe that a script waits on: `read x < NAME`.
pub(crate) struct Pipe(PathBuf);

impl Pipe {
    pub(crate) fn new(bench: &Bench, name: &str) -> Self {
        let path = bench.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Self(path)
    }

    /// Lets the script go on, once it waits.
    pub(crate) fn go(&self) {
        std::fs::write(&self.0, "go\n").unwrap();
    }
}
