//! Keys that are meant for us and not for the program on the terminal.

/// Follows what is typed. A tilde at the beginning of a line is held back until the next key says what it is for.
pub(crate) struct Escapes {
    at_line_start: bool,
    tilde: bool,
}

/// What came out of some keys.
#[derive(Default)]
pub(crate) struct KeyResult {
    /// To be passed on.
    pub bytes: Vec<u8>,
    pub leave: bool,
    pub help: bool,
}

impl Escapes {
    pub(crate) fn new() -> Self {
        Self { at_line_start: true, tilde: false }
    }

    pub(crate) fn feed(&mut self, keys: &[u8]) -> KeyResult {
        let mut typed = KeyResult::default();
        for &key in keys {
            match (std::mem::take(&mut self.tilde), key) {
                (true, b'.') => {
                    typed.leave = true;
                    return typed;
                }
                (true, b'?') => {
                    typed.help = true;
                    continue;
                }
                (true, b'~') => typed.bytes.push(key),
                (true, key) => typed.bytes.extend([b'~', key]),
                (false, b'~') if self.at_line_start => {
                    self.tilde = true;
                    continue;
                }
                (false, key) => typed.bytes.push(key),
            }
            self.at_line_start = matches!(key, b'\r' | b'\n');
        }
        typed
    }
}
