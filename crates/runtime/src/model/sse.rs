//! Server-sent events, cut out of a stream of bytes.

use bytes::{Buf, Bytes, BytesMut};

/// The most bytes that one event may have.
const MAX_EVENT: usize = 32 << 20;

/// Takes bytes as they come and gives events as they are whole. Only their data is of interest here.
#[derive(Default)]
pub(super) struct EventDecoder {
    pending: BytesMut,
    /// How much of `pending` was searched for the end of a line already.
    searched: usize,
    data: Vec<u8>,
    has_data: bool,
}

/// An event that does not end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl EventDecoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The data of the next whole event.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        while let Some(end) = memchr::memchr(b'\n', &self.pending[self.searched..]).map(|at| at + self.searched) {
            let line = self.pending.split_to(end).freeze();
            self.pending.advance(1);
            self.searched = 0;
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(std::mem::take(&mut self.data).into()));
                }
            } else if let Some(value) = line.strip_prefix(b"data:") {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            }
            if self.data.len() > MAX_EVENT {
                return Err(TooLong);
            }
        }
        self.searched = self.pending.len();
        if self.pending.len() > MAX_EVENT { Err(TooLong) } else { Ok(None) }
    }

    /// The event at the very end of a stream whose last empty line is missing. A line that broke off is no event.
    pub(super) fn last(&mut self) -> Option<Bytes> {
        if !self.pending.is_empty() {
            return None;
        }
        self.push(b"\n");
        self.next().ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(chunks: &[&[u8]]) -> Vec<String> {
        let mut decoder = EventDecoder::default();
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.push(chunk);
            while let Some(event) = decoder.next().unwrap() {
                events.push(String::from_utf8_lossy(&event).into_owned());
            }
        }
        events
    }

    #[test]
    fn comments_names_and_line_ends_of_both_kinds() {
        let text = b": hello\r\nevent: x\r\ndata: {\"a\":1}\r\n\r\n\n\ndata:two\ndata: lines\nid: 7\n\ndata: unfinished";
        assert_eq!(all(&[text]), ["{\"a\":1}", "two\nlines"]);
    }

    #[test]
    fn the_last_event_needs_no_empty_line() {
        let mut decoder = EventDecoder::default();
        decoder.push(b"data: x\n");
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.last().as_deref(), Some(&b"x"[..]));
        assert_eq!(decoder.last(), None);
        decoder.push(b"data: broken o");
        assert_eq!((decoder.next(), decoder.last()), (Ok(None), None));
    }

    #[test]
    fn an_endless_line_is_given_up() {
        let mut decoder = EventDecoder::default();
        let chunk = vec![b'x'; 1 << 20];
        let mut pushed = 0;
        while decoder.next().is_ok() {
            decoder.push(&chunk);
            pushed += chunk.len();
            assert!(pushed <= MAX_EVENT + chunk.len());
        }
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(cuts in prop::collection::vec(0usize..60, 0..6)) {
            let text = b"data: one\n\nevent: y\ndata: two\ndata: three\r\n\r\ndata:\n\n";
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(all(&chunks), ["one", "two\nthree", ""]);
        }
    }
}
