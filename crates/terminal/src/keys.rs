//! From the bytes of a terminal to keys.

/// The longest paste that is taken; more than that is no message to anyone.
const LONGEST_PASTE: usize = 16 << 20;
const PASTE_END: &[u8] = b"\x1b[201~";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalKey {
    Char(char),
    Enter,
    /// A new line within a message: Alt-Enter, Shift-Enter where the terminal tells it, Ctrl-J.
    NewLine,
    Tab,
    BackTab,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    PageUp,
    PageDown,
    WordLeft,
    WordRight,
    Escape,
    Ctrl(char),
    Alt(char),
    /// Everything between the brackets of a paste, as one.
    Paste(String),
    /// No key: the terminal's answer to where its cursor is, row and column counted from 0.
    CursorAt(usize, usize),
}

/// Keeps what is not a whole key yet.
#[derive(Debug, Default)]
pub struct KeyDecoder {
    begun: Vec<u8>,
    paste: Option<Vec<u8>>,
}

enum Decoded {
    Key(TerminalKey, usize),
    /// Nothing that is known.
    Skip(usize),
    PasteBegins(usize),
    /// More bytes are needed.
    Begun,
}

impl KeyDecoder {
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<TerminalKey> {
        self.begun.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            if let Some(paste) = &mut self.paste {
                // The end may come in two pieces.
                let from = paste.len().saturating_sub(PASTE_END.len());
                paste.append(&mut self.begun);
                let Some(at) = paste[from..].windows(PASTE_END.len()).position(|part| part == PASTE_END) else {
                    paste.truncate(LONGEST_PASTE);
                    return keys;
                };
                self.begun = paste.split_off(from + at + PASTE_END.len());
                paste.truncate(from + at);
                let text = String::from_utf8_lossy(paste).replace("\r\n", "\n").replace('\r', "\n");
                self.paste = None;
                keys.push(TerminalKey::Paste(text));
            }
            if self.begun.is_empty() {
                return keys;
            }
            let used = match decode(&self.begun) {
                Decoded::Key(key, used) => {
                    keys.push(key);
                    used
                }
                Decoded::Skip(used) => used,
                Decoded::PasteBegins(used) => {
                    self.paste = Some(Vec::new());
                    used
                }
                Decoded::Begun => return keys,
            };
            self.begun.drain(..used);
        }
    }

    /// Whether what came may be the beginning of something longer.
    pub fn is_begun(&self) -> bool {
        !self.begun.is_empty() && self.paste.is_none()
    }

    /// Nothing more came: an escape alone is the key of that name.
    pub fn settle(&mut self) -> Option<TerminalKey> {
        if !self.is_begun() {
            return None;
        }
        let begun = std::mem::take(&mut self.begun);
        (begun == [0x1b]).then_some(TerminalKey::Escape)
    }
}

fn decode(bytes: &[u8]) -> Decoded {
    use TerminalKey::{Backspace, Ctrl, Enter, NewLine, Tab};
    match bytes[0] {
        0x1b => escape(bytes),
        b'\r' => Decoded::Key(Enter, 1),
        b'\n' => Decoded::Key(NewLine, 1),
        b'\t' => Decoded::Key(Tab, 1),
        0x7f | 0x08 => Decoded::Key(Backspace, 1),
        control @ 1..=26 => Decoded::Key(Ctrl(char::from(control + b'a' - 1)), 1),
        0..=0x1f => Decoded::Skip(1),
        _ => character(bytes),
    }
}

fn character(bytes: &[u8]) -> Decoded {
    let length = match bytes[0] {
        0..=0x7f => 1,
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Decoded::Skip(1),
    };
    match bytes.get(..length) {
        None => Decoded::Begun,
        Some(whole) => match std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) {
            // Controls of the second kind.
            Some(c) if c.is_control() => Decoded::Skip(length),
            Some(c) => Decoded::Key(TerminalKey::Char(c), length),
            None => Decoded::Skip(1),
        },
    }
}

fn escape(bytes: &[u8]) -> Decoded {
    match bytes.get(1) {
        None => Decoded::Begun,
        Some(b'[') => sequence(bytes),
        Some(b'O') => match bytes.get(2) {
            None => Decoded::Begun,
            Some(last) => named(*last, 0).map_or(Decoded::Skip(3), |key| Decoded::Key(key, 3)),
        },
        Some(0x1b) => Decoded::Key(TerminalKey::Escape, 1),
        Some(b'\r' | b'\n') => Decoded::Key(TerminalKey::NewLine, 2),
        Some(0x7f | 0x08) => Decoded::Key(TerminalKey::Ctrl('w'), 2),
        Some(letter @ b' '..=b'~') => Decoded::Key(TerminalKey::Alt(char::from(*letter)), 2),
        Some(_) => Decoded::Skip(2),
    }
}

fn sequence(bytes: &[u8]) -> Decoded {
    let Some(end) = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        // No sequence of a keyboard is that long.
        return if bytes.len() > 32 { Decoded::Skip(1) } else { Decoded::Begun };
    };
    let (used, last) = (end + 3, bytes[end + 2]);
    let text = std::str::from_utf8(&bytes[2..end + 2]).unwrap_or_default();
    let numbers: Vec<u32> = text.split(';').map(|number| number.parse().unwrap_or(0)).collect();
    let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
    let key = match (last, number(0)) {
        (b'~', 200) => return Decoded::PasteBegins(used),
        (b'~', 1 | 7) => Some(TerminalKey::Home),
        (b'~', 4 | 8) => Some(TerminalKey::End),
        (b'~', 3) => Some(TerminalKey::Delete),
        (b'~', 5) => Some(TerminalKey::PageUp),
        (b'~', 6) => Some(TerminalKey::PageDown),
        // An Enter with a modifier, as two protocols write it.
        (b'~', 27) if number(2) == 13 => Some(TerminalKey::NewLine),
        (b'u', 13) => Some(if number(1) > 1 { TerminalKey::NewLine } else { TerminalKey::Enter }),
        (b'u', 27) => Some(TerminalKey::Escape),
        (b'R', 1..) if numbers.len() == 2 && number(1) > 0 => Some(TerminalKey::CursorAt(number(0) as usize - 1, number(1) as usize - 1)),
        (last, _) => named(last, number(1)),
    };
    key.map_or(Decoded::Skip(used), |key| Decoded::Key(key, used))
}

/// Keys that are named by a letter; with Ctrl or Alt, left and right move by words.
fn named(last: u8, modifier: u32) -> Option<TerminalKey> {
    let by_word = matches!(modifier, 3 | 5 | 7);
    Some(match last {
        b'A' => TerminalKey::Up,
        b'B' => TerminalKey::Down,
        b'C' if by_word => TerminalKey::WordRight,
        b'D' if by_word => TerminalKey::WordLeft,
        b'C' => TerminalKey::Right,
        b'D' => TerminalKey::Left,
        b'H' => TerminalKey::Home,
        b'F' => TerminalKey::End,
        b'Z' => TerminalKey::BackTab,
        b'M' => TerminalKey::Enter,
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::TerminalKey::*;
    use super::*;

    fn keys(bytes: &[u8], piece: usize) -> Vec<TerminalKey> {
        let mut decoder = KeyDecoder::default();
        let mut keys: Vec<TerminalKey> = bytes.chunks(piece).flat_map(|bytes| decoder.feed(bytes)).collect();
        keys.extend(decoder.settle());
        keys
    }

    #[test]
    fn keys_are_the_same_however_they_are_cut() {
        let bytes =
            "aé日\r\n\t\x7f\x1b[A\x1b[1;5C\x1bOD\x1b[3~\x1b[Z\x1bb\x1b\r\x1b[13;2u\x03\x1b[200~one\r\ntwo\x1b[2J\x1b[201~z\x1b[24;80R\x1b"
                .as_bytes();
        let expected = [
            Char('a'),
            Char('é'),
            Char('日'),
            Enter,
            NewLine,
            Tab,
            Backspace,
            Up,
            WordRight,
            Left,
            Delete,
            BackTab,
            Alt('b'),
            NewLine,
            NewLine,
            Ctrl('c'),
            Paste("one\ntwo\x1b[2J".into()),
            Char('z'),
            CursorAt(23, 79),
            Escape,
        ];
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(keys(bytes, piece), expected, "{piece}");
        }
    }

    #[test]
    fn what_is_unknown_is_skipped() {
        assert_eq!(keys(b"\xff\x1b[?1;2ca\x1b[99~b\xc3(\x00c", 1), [Char('a'), Char('b'), Char('('), Char('c')]);
    }

    #[test]
    fn a_paste_of_a_megabyte_is_one_key() {
        let bytes = [b"\x1b[200~".to_vec(), vec![b'x'; 1 << 20], b"\x1b[201~".to_vec()].concat();
        let keys = keys(&bytes, 4096);
        assert!(matches!(&keys[..], [Paste(text)] if text.len() == 1 << 20));
    }

    proptest! {
        #[test]
        fn nothing_stops_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = KeyDecoder::default();
            bytes.chunks(5).for_each(|bytes| drop(decoder.feed(bytes)));
            decoder.settle();
            prop_assert!(decoder.paste.is_some() || !decoder.is_begun());
        }
    }
}
