//! A real terminal with a program on it, and a user who types and looks.

mod rewrap;

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Longer than anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Written behind everything that a program has shown. No program shows it.
const LAST: &[u8] = b"\x1e all was shown \x1e";

/// The program is killed when this is dropped.
pub struct TestTerminal {
    master: File,
    /// Kept open: it keeps what the terminal was set to after the program is gone.
    slave: File,
    child: Option<Child>,
    screen: Arc<Screen>,
    narrowing: Narrowing,
    /// Reads what the program shows, until the pipe is closed.
    reader: Option<(PipeWriter, JoinHandle<()>)>,
}

/// What becomes of rows that are longer than a window which gets narrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrowing {
    /// They are cut, as in xterm.
    Cut,
    /// They are broken anew, as in most terminals of today.
    Rewrap,
}

struct Screen {
    text: Mutex<Vec<u8>>,
    grown: Condvar,
    /// What a terminal makes of it.
    model: Mutex<vt100::Parser>,
}

const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

fn nonzero(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

/// Between these a terminal draws nothing, so that no half of a picture is seen.
const BEGIN: &[u8] = b"\x1b[?2026h";
const END: &[u8] = b"\x1b[?2026l";

/// How many of the bytes may be drawn.
fn whole_frames(bytes: &[u8]) -> usize {
    let last = |wanted: &[u8]| bytes.windows(wanted.len()).rposition(|window| window == wanted);
    match last(BEGIN) {
        Some(begin) if last(END).is_none_or(|end| end < begin) => begin,
        _ => bytes.len() - (1..BEGIN.len()).rev().find(|cut| bytes.ends_with(&BEGIN[..*cut])).unwrap_or(0),
    }
}

/// Where is the cursor? A terminal answers as if the answer were typed.
const ASK: &[u8] = b"\x1b[6n";

/// Shows the bytes; the answers to what the program asks in between.
fn show(model: &mut vt100::Parser, mut bytes: &[u8]) -> Vec<String> {
    let mut answers = Vec::new();
    while let Some(at) = bytes.windows(ASK.len()).position(|window| window == ASK) {
        model.process(&bytes[..at]);
        let (row, column) = model.screen().cursor_position();
        answers.push(format!("\x1b[{};{}R", row + 1, column + 1));
        bytes = &bytes[at + ASK.len()..];
    }
    model.process(bytes);
    answers
}

impl TestTerminal {
    /// Starts a program as the leader of a session on a new terminal.
    pub fn start(command: &Command) -> Self {
        Self::start_on(command, Narrowing::Cut)
    }

    /// The same on a terminal that does this when its window gets narrower.
    pub fn start_on(command: &Command, narrowing: Narrowing) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let no_control = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let slave = File::options().read(true).write(true).custom_flags(no_control).open(path).unwrap();
        let master = File::from(master);
        set_size(&master, ROWS, COLUMNS);
        // `setsid` makes the session and takes the terminal; from here that would need unsafe code.
        let mut leader = Command::new("setsid");
        leader.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        leader.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
        let io = || slave.try_clone().unwrap();
        let child = leader.stdin(io()).stdout(io()).stderr(io()).spawn().unwrap();
        let model = Mutex::new(vt100::Parser::new(nonzero(ROWS), nonzero(COLUMNS), rewrap::SCROLLBACK));
        let screen = Arc::new(Screen { text: Mutex::default(), grown: Condvar::new(), model });
        let (stopped, stop) = std::io::pipe().unwrap();
        let reader = Reader { master: master.try_clone().unwrap(), stopped, screen: screen.clone() };
        let reading = std::thread::spawn(move || reader.run());
        let reader = Some((stop, reading));
        Self { master, slave, child: Some(child), screen, narrowing, reader }
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Everything that was ever shown.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.text.lock().unwrap()).into_owned()
    }

    /// Waits until a text is shown; fails the test if it never is.
    pub fn wait_for(&self, wanted: &str) {
        self.wait_for_times(wanted, 1);
    }

    pub fn wait_for_times(&self, wanted: &str, times: usize) {
        let end = Instant::now() + PATIENCE;
        let mut text = self.screen.text.lock().unwrap();
        while String::from_utf8_lossy(&text).matches(wanted).count() < times {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{wanted:?} is not shown: {}", String::from_utf8_lossy(&text));
            text = self.screen.grown.wait_timeout(text, left).unwrap().0;
        }
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        let mut model = self.screen.model.lock().unwrap();
        match self.narrowing {
            Narrowing::Cut => model.screen_mut().set_size(nonzero(rows), nonzero(cols)),
            Narrowing::Rewrap => rewrap::rewrap(&mut model, rows, cols),
        }
        drop(model);
        set_size(&self.master, rows, cols);
    }

    /// What went by and what is seen now, row by row; rows that the terminal broke are one.
    pub fn everything(&self) -> Vec<String> {
        rewrap::lines(&mut self.screen.model.lock().unwrap()).into_iter().map(|line| line.text()).collect()
    }

    /// The rows that a user sees now.
    pub fn rows(&self) -> Vec<String> {
        let model = self.screen.model.lock().unwrap();
        let (_, columns) = model.screen().size();
        model.screen().rows(0, columns.get()).map(|row| row.trim_end().to_owned()).collect()
    }

    /// Row and column of the cursor, counted from 0.
    pub fn cursor(&self) -> (u16, u16) {
        self.screen.model.lock().unwrap().screen().cursor_position()
    }

    /// What the terminal shows, cell by cell.
    pub fn snapshot(&self) -> vt100::Screen {
        self.screen.model.lock().unwrap().screen().clone()
    }

    /// The colour of a text that is seen now.
    pub fn colour_of(&self, text: &str) -> Option<vt100::Color> {
        let rows = self.rows();
        let (row, column) = rows.iter().enumerate().find_map(|(number, row)| Some((number, row[..row.find(text)?].chars().count())))?;
        let model = self.screen.model.lock().unwrap();
        model.screen().cell(u16::try_from(row).ok()?, u16::try_from(column).ok()?).map(vt100::Cell::fgcolor)
    }

    /// Waits until the rows are as wanted.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.screen.text.lock().unwrap();
            if is_so(&self.rows()) {
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} is not to be seen:\n{}", self.rows().join("\n"));
            drop(self.screen.grown.wait_timeout(text, left).unwrap());
        }
    }

    /// Waits until a row contains a text.
    pub fn wait_for_row(&self, wanted: &str) {
        self.wait_until(wanted, |rows| rows.iter().any(|row| row.contains(wanted)));
    }

    /// Closes the terminal under the program, as a window that is closed does. The program is not killed. Returns its process.
    pub fn hang_up(mut self) -> Child {
        if let Some((stop, reading)) = self.reader.take() {
            drop(stop);
            reading.join().unwrap();
        }
        self.child.take().unwrap()
    }

    /// Whether keys are passed on as they are, and nothing is echoed.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Waits for the program's end and returns its exit code. All that it has shown is in [`Self::text`] then.
    pub fn exit_code(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                self.read_to_the_end();
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end: {}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl TestTerminal {
    /// A terminal keeps the order: what is written now is read after everything that the program wrote.
    fn read_to_the_end(&mut self) {
        self.slave.write_all(LAST).unwrap();
        let end = Instant::now() + PATIENCE;
        let mut text = self.screen.text.lock().unwrap();
        let is_read = |text: &[u8]| text.windows(LAST.len()).rposition(|part| part == LAST);
        loop {
            if let Some(at) = is_read(&text) {
                text.drain(at..at + LAST.len());
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the terminal does not show what is written to it");
            text = self.screen.grown.wait_timeout(text, left).unwrap().0;
        }
    }
}

impl Drop for TestTerminal {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads what a program shows.
struct Reader {
    master: File,
    stopped: PipeReader,
    screen: Arc<Screen>,
}

impl Reader {
    fn run(mut self) {
        // Answers are written by another thread: a program that does not read must not keep this one from reading.
        let (answer, answers) = mpsc::channel::<String>();
        let mut keyboard = self.master.try_clone().unwrap();
        let answering =
            std::thread::spawn(move || while answers.recv().is_ok_and(|answer| keyboard.write_all(answer.as_bytes()).is_ok()) {});
        let mut buffer = [0; 4096];
        let mut held = Vec::new();
        while let Some(length) = self.read(&mut buffer) {
            let mut text = self.screen.text.lock().unwrap();
            held.extend_from_slice(&buffer[..length]);
            let whole: Vec<u8> = held.drain(..whole_frames(&held)).collect();
            let asked = show(&mut self.screen.model.lock().unwrap(), &whole);
            asked.into_iter().for_each(|asked| drop(answer.send(asked)));
            text.extend_from_slice(&buffer[..length]);
            drop(text);
            self.screen.grown.notify_all();
        }
        drop(answer);
        let _ = answering.join();
    }

    /// Nothing at the end, or when it is to stop.
    fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut ready = [PollFd::new(&self.master, PollFlags::IN), PollFd::new(&self.stopped, PollFlags::IN)];
        while poll(&mut ready, None).is_err() {}
        if !ready[1].revents().is_empty() {
            return None;
        }
        self.master.read(buffer).ok().filter(|length| *length > 0)
    }
}

fn set_size(master: &File, rows: u16, cols: u16) {
    tcsetwinsize(master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}
