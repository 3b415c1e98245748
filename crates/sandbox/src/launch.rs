//! Starting a child.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::pipe::fcntl_setpipe_size;
use tokio::process::Command;

use crate::child::{Child, ChildEnd, Input, Output, ProcessGroup, Terminal};
use crate::{program, pty, stage};

/// How much a child can print before it has to wait.
const PIPE: usize = 256 << 10;

/// What to start. Everything is spelled out; nothing is inherited from this process.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Looked up in the child's own `PATH` unless it holds a slash.
    pub program: OsString,
    /// What the program is told as its own name, if not `program`.
    pub arg0: Option<OsString>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub io: LaunchIo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchIo {
    /// Three separate streams; without `stdin` the child finds its input at its end.
    Pipes { stdin: bool },
    /// One terminal for all three, which becomes the child's controlling one.
    Terminal(TerminalSize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Starts children.
#[derive(Debug, Clone)]
pub struct Launcher {
    stage: PathBuf,
}

impl Launcher {
    /// `stage` is a program that calls [`stage::run_if_asked`] first thing: taking a controlling terminal has to be done
    /// by the child itself, between its start and the program that was asked for.
    pub fn new(stage: impl Into<PathBuf>) -> Self {
        Self { stage: stage.into() }
    }

    /// This program as its own stage, also after its file was replaced.
    pub fn with_own_stage() -> Self {
        Self::new("/proc/self/exe")
    }

    pub fn start(&self, launch: &Launch) -> io::Result<Child> {
        let path = launch.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let program = program::find(&launch.program, path, &launch.cwd)?;
        match launch.io {
            LaunchIo::Pipes { stdin } => start_with_pipes(launch, &program, stdin),
            LaunchIo::Terminal(size) => self.start_on_terminal(launch, &program, size),
        }
    }

    fn start_on_terminal(&self, launch: &Launch, program: &Path, size: TerminalSize) -> io::Result<Child> {
        // Everything that can fail for want of descriptors comes before the child.
        let (master, slave) = pty::open(size)?;
        let (input, output) = (Input::new(master.try_clone()?)?, Output::new(master.try_clone()?)?);
        let (report, stage_report) = io::pipe()?;
        // The stage leads a new session and so a new group; asking for one here would take that away from it.
        let mut command = Command::new(&self.stage);
        command.args(stage::arguments(&slave, program, launch)).stdin(Stdio::null()).stdout(stage_report).stderr(Stdio::null());
        finish(&mut command, launch);
        let process = command.spawn()?;
        // With it goes our copy of the report's other end, without which it would never end.
        drop(command);
        stage::wait_for_report(report)?;
        Ok(Child {
            group: ProcessGroup::of(&process)?,
            input: Some(input),
            output,
            errors: None,
            terminal: Some(Terminal(master)),
            end: ChildEnd(process),
        })
    }
}

fn start_with_pipes(launch: &Launch, program: &Path, stdin: bool) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.arg0(launch.arg0.as_ref().unwrap_or(&launch.program)).args(&launch.args).process_group(0);
    finish(&mut command, launch);
    let (output, child_output) = io::pipe()?;
    // A child that prints a lot then waits for us less often. Who has many pipes may be refused; it works all the same.
    let _ = fcntl_setpipe_size(&output, PIPE);
    let (errors, child_errors) = io::pipe()?;
    command.stdout(child_output).stderr(child_errors);
    let input = if stdin {
        let (child_input, input) = io::pipe()?;
        command.stdin(child_input);
        Some(Input::new(OwnedFd::from(input))?)
    } else {
        command.stdin(Stdio::null());
        None
    };
    let (output, errors) = (Output::new(output.into())?, Output::new(errors.into())?);
    let process = command.spawn()?;
    drop(command);
    Ok(Child { group: ProcessGroup::of(&process)?, input, output, errors: Some(errors), terminal: None, end: ChildEnd(process) })
}

fn finish(command: &mut Command, launch: &Launch) {
    command.env_clear().envs(launch.env.iter().map(|(name, value)| (name, value))).current_dir(&launch.cwd);
}
