//! The output of a command as it comes, cut into lines.

use outpost_terminal::beginning::ShownBeginning;

/// A line that does not end is shown in pieces of this size.
const LONGEST: usize = 16 << 10;

#[derive(Default)]
pub(crate) struct Streamed {
    /// The line that was begun.
    begun: Vec<u8>,
    shown: ShownBeginning,
}

impl Streamed {
    /// The lines that are whole with these bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.shown.push(bytes);
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                lines.extend(self.rest());
            }
        }
        lines
    }

    /// What is left of a line that was not ended.
    pub(crate) fn rest(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.begun);
        let line = line.strip_suffix(b"\n").or((!line.is_empty()).then_some(&line))?;
        Some(String::from_utf8_lossy(line).into_owned())
    }

    /// How much there was so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.shown.bytes()
    }

    /// What did not come of the whole output, if all that came is its beginning.
    pub(crate) fn missed<'a>(&self, whole: &'a str) -> Option<&'a str> {
        self.shown.rest_of(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_when_they_are_whole_and_none_is_lost() {
        let mut streamed = Streamed::default();
        assert_eq!(streamed.push(b"on"), [""; 0]);
        assert_eq!(streamed.push(b"e\n\ntw"), ["one", ""]);
        assert_eq!((streamed.rest().as_deref(), streamed.rest()), (Some("tw"), None));
        assert_eq!(streamed.bytes(), 7);
        assert_eq!(streamed.push(&vec![b'x'; LONGEST + 1]).concat().len(), LONGEST + 1, "a line without an end is not kept for ever");
    }
}
