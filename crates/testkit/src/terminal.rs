//! A real terminal with a program on it, and a user who types and looks.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Longer than anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program is killed when this is dropped.
pub struct TestTerminal {
    master: File,
    /// Kept open: it keeps what the terminal was set to after the program is gone.
    slave: File,
    child: Child,
    screen: Arc<Screen>,
}

#[derive(Default)]
struct Screen {
    text: Mutex<Vec<u8>>,
    grown: Condvar,
}

impl TestTerminal {
    /// Starts a program as the leader of a session on a new terminal.
    pub fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let no_control = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let slave = File::options().read(true).write(true).custom_flags(no_control).open(path).unwrap();
        let master = File::from(master);
        set_size(&master, 24, 80);
        // `setsid` makes the session and takes the terminal; from here that would need unsafe code.
        let mut leader = Command::new("setsid");
        leader.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        let io = || slave.try_clone().unwrap();
        let child = leader.stdin(io()).stdout(io()).stderr(io()).spawn().unwrap();
        let screen = Arc::new(Screen::default());
        let (mut reader, shown) = (master.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                shown.text.lock().unwrap().extend_from_slice(&buffer[..length]);
                shown.grown.notify_all();
            }
        });
        Self { master, slave, child, screen }
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
        set_size(&self.master, rows, cols);
    }

    /// Whether keys are passed on as they are, and nothing is echoed.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program's end and returns its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end: {}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for TestTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(master: &File, rows: u16, cols: u16) {
    tcsetwinsize(master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}
