//! The terminal that a conversation is drawn on: raw while this lives, and as it was afterwards.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::keys::{KeyDecoder, TerminalKey};
use outpost_terminal::painter::{LiveRegion, RegionPainter};
use rustix::termios::tcgetwinsize;
use tokio::sync::mpsc;

use crate::terminal::RawTerminal;

/// Pastes come in brackets, so that a line end in one sends nothing.
const BEGIN: &str = "\x1b[?2004h";
const END: &str = "\x1b[?2004l\x1b[?25h";

/// A terminal that has not said by then where its cursor is does not say it at all.
const ANSWER_TIME: Duration = Duration::from_millis(300);
/// How often an answer is looked for where nothing else can be done.
const LOOK_TIME: Duration = Duration::from_millis(5);

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
    /// When the terminal was last asked where its cursor is.
    asked_at: Instant,
    /// Lines that stay, kept back until that is known.
    held: Vec<InkLine>,
}

impl UiTerminal {
    /// Nothing if standard input is no terminal that can be made raw.
    pub(super) fn enter() -> Option<Self> {
        let raw = RawTerminal::enter()?;
        let (columns, rows) = size();
        let mut terminal = Self {
            painter: RegionPainter::new(columns, rows),
            keys: read_keys(),
            raw: Some(raw),
            is_gone: false,
            asked_at: Instant::now(),
            held: Vec::new(),
        };
        terminal.begin();
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

    fn begin(&mut self) {
        self.write(BEGIN);
        let question = self.painter.ask();
        self.ask(&question);
    }

    /// Keeps the lines back, and leaves the region as it is, while it is not known where that is.
    pub(super) fn paint(&mut self, lasting: &[InkLine], region: LiveRegion) {
        // The signal may come later than the new size.
        self.resize();
        self.held.extend_from_slice(lasting);
        if self.is_waiting() {
            return;
        }
        let text = self.painter.paint(&std::mem::take(&mut self.held), region);
        self.write(&text);
    }

    /// Whether nothing can be drawn before the terminal has said where its cursor is.
    pub(super) fn is_waiting(&mut self) -> bool {
        if self.painter.is_waiting() && (self.is_gone || self.asked_at.elapsed() > ANSWER_TIME) {
            self.painter.give_up();
        }
        self.painter.is_waiting()
    }

    /// The terminal says where its cursor is.
    pub(super) fn cursor_at(&mut self, row: usize, column: usize) {
        // If the size has changed again, this answer is one of before.
        self.resize();
        self.painter.cursor_at(row, column);
    }

    pub(super) fn clear_screen(&mut self) {
        let text = self.painter.clear_screen();
        self.write(&text);
    }

    /// The window may have another size.
    pub(super) fn resize(&mut self) {
        let (columns, rows) = size();
        let question = self.painter.resize(columns, rows);
        self.ask(&question);
    }

    fn ask(&mut self, question: &str) {
        if !question.is_empty() {
            self.asked_at = Instant::now();
            self.write(question);
        }
    }

    /// An answer that came after the end of this program would be typed into the shell.
    fn take_last_answer(&mut self) {
        let mut decoder = KeyDecoder::default();
        while self.painter.is_asked() && !self.is_gone && self.asked_at.elapsed() < ANSWER_TIME {
            match self.keys.try_recv() {
                Ok(typed) => {
                    for key in decoder.feed(&typed.bytes) {
                        if let TerminalKey::CursorAt(row, column) = key {
                            self.painter.cursor_at(row, column);
                        }
                    }
                }
                Err(mpsc::error::TryRecvError::Empty) => std::thread::sleep(LOOK_TIME),
                Err(mpsc::error::TryRecvError::Disconnected) => return,
            }
        }
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
        self.resize();
        self.begin();
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
        self.take_last_answer();
        if !self.held.is_empty() {
            let text = self.painter.paint(&std::mem::take(&mut self.held), LiveRegion::default());
            self.write(&text);
        }
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
