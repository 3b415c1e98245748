//! The terminal that this program was started on.

use outpost_sandbox::TerminalSize;
use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Passes every key on as it is; put back when dropped.
pub(crate) struct RawTerminal(Termios);

impl RawTerminal {
    /// Nothing if there is no terminal.
    pub(crate) fn enter() -> Option<Self> {
        if !isatty(stdin()) {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.0);
    }
}

pub(crate) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(stdin()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(TerminalSize { rows: size.ws_row, cols: size.ws_col })
}
