//! Lines as they are typed, or as they are piped in.

use std::io::{BufRead, IsTerminal};
use std::time::Instant;

use tokio::sync::mpsc;

/// A line, and when it was typed.
pub(super) struct TypedLine {
    pub line: String,
    pub at: Instant,
}

pub(super) struct Keyboard {
    lines: mpsc::Receiver<TypedLine>,
    pub is_terminal: bool,
}

impl Keyboard {
    /// Reads standard input in a thread of its own: nothing else can wait for a line and be woken by something different. The
    /// thread ends with the program.
    pub(super) fn start() -> Self {
        let (sender, lines) = mpsc::channel(16);
        std::thread::spawn(move || {
            let mut whole = String::new();
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                match line.strip_suffix('\\') {
                    Some(begun) => {
                        whole.push_str(begun);
                        whole.push('\n');
                    }
                    None => {
                        whole.push_str(&line);
                        if sender.blocking_send(TypedLine { line: std::mem::take(&mut whole), at: Instant::now() }).is_err() {
                            return;
                        }
                    }
                }
            }
            if !whole.is_empty() {
                let _ = sender.blocking_send(TypedLine { line: whole, at: Instant::now() });
            }
        });
        Self { lines, is_terminal: std::io::stdin().is_terminal() }
    }

    /// Whether it was a terminal and is none any more, because that was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.is_terminal && !std::io::stdin().is_terminal()
    }

    /// The next line; nothing at the end of input.
    pub(super) async fn line(&mut self) -> Option<TypedLine> {
        self.lines.recv().await
    }
}
