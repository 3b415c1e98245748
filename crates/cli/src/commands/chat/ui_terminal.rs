//! The terminal that a conversation is drawn on: raw while this lives, and as it was afterwards.

use std::io::{self, Write};
use std::time::Instant;

use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::painter::{LiveRegion, RegionPainter};
use rustix::termios::tcgetwinsize;
use tokio::sync::mpsc;

use crate::terminal::RawTerminal;

/// Pastes come in brackets, so that a line end in one sends nothing.
const BEGIN: &str = "\x1b[?2004h";
const END: &str = "\x1b[?2004l\x1b[?25h";

/// Keys, and when they were read.
pub(super) struct TypedKeys {
    pub bytes: Vec<u8>,
    pub at: Instant,
}

pub(super) struct UiTerminal {
    pub painter: RegionPainter,
    keys: mpsc::Receiver<TypedKeys>,
    raw: Option<RawTerminal>,
    /// The terminal is gone: nothing is drawn any more.
    is_gone: bool,
}

impl UiTerminal {
    /// Nothing if standard input is no terminal that can be made raw.
    pub(super) fn enter() -> Option<Self> {
        let raw = RawTerminal::enter()?;
        let (columns, rows) = size();
        let mut terminal = Self { painter: RegionPainter::new(columns, rows), keys: read_keys(), raw: Some(raw), is_gone: false };
        terminal.write(BEGIN);
        Some(terminal)
    }

    pub(super) fn columns() -> usize {
        size().0
    }

    /// A prompt at once; what is typed before there is a thread waits for it.
    pub(super) fn first_paint(&mut self) {
        let rows = vec![InkLine::of(Ink::Strong, "> "), InkLine::of(Ink::Quiet, "starting …")];
        self.paint(&[], LiveRegion { rows, cursor: (0, 2) });
    }

    pub(super) fn paint(&mut self, lasting: &[InkLine], region: LiveRegion) {
        let text = self.painter.paint(lasting, region);
        self.write(&text);
    }

    pub(super) fn clear_screen(&mut self) {
        let text = self.painter.clear_screen();
        self.write(&text);
    }

    /// The window has another size.
    pub(super) fn resize(&mut self) {
        let (columns, rows) = size();
        self.painter.resize(columns, rows);
    }

    /// The next keys; nothing if the terminal is gone.
    pub(super) async fn keys(&mut self) -> Option<TypedKeys> {
        self.keys.recv().await
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(super) fn gone(&mut self) {
        self.is_gone = true;
    }

    /// As Ctrl-Z does elsewhere: the terminal is the shell's until the user comes back.
    pub(super) fn suspend(&mut self) {
        let text = self.painter.clear();
        self.write(&text);
        self.write(END);
        self.raw = None;
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP);
        self.raw = RawTerminal::enter();
        self.write(BEGIN);
        self.resize();
    }

    fn write(&mut self, text: &str) {
        if self.is_gone || text.is_empty() {
            return;
        }
        let mut out = io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            self.is_gone = true;
        }
    }
}

impl Drop for UiTerminal {
    fn drop(&mut self) {
        let text = self.painter.clear();
        self.write(&text);
        self.write(END);
    }
}

fn size() -> (usize, usize) {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Reads in a thread of its own: a read of a terminal cannot be given up. The thread ends with the program or the terminal.
fn read_keys() -> mpsc::Receiver<TypedKeys> {
    let (sender, keys) = mpsc::channel(64);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Ok(length @ 1..) => {
                    let typed = TypedKeys { bytes: buffer[..length].to_vec(), at: Instant::now() };
                    if sender.blocking_send(typed).is_err() {
                        return;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    });
    keys
}
