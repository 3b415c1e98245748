//! The frames of RFC 6455, as a server sees them. No input or output happens here.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::link::Close;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
/// Control frames hold no more.
const MAX_CONTROL: usize = 125;

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    Message(Bytes),
    Ping(Bytes),
    Pong,
    Close(Option<Close>),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum CodecError {
    #[error("a frame has reserved bits set")]
    Reserved,
    #[error("a frame has the unknown kind {0}")]
    Opcode(u8),
    #[error("a frame is not masked")]
    Unmasked,
    #[error("a control frame is fragmented or too long")]
    Control,
    #[error("a fragment continues nothing, or a message begins inside another")]
    Fragment,
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
}

/// The head of a frame.
struct Head {
    opcode: u8,
    is_final: bool,
    length: usize,
    mask: [u8; 4],
}

/// Turns bytes into what a client sent.
pub(super) struct FrameDecoder {
    /// Bytes that came and were not looked at; nothing is held while there are none.
    buffer: BytesMut,
    head: Option<Head>,
    /// The fragments of a message so far.
    fragments: Option<BytesMut>,
}

impl FrameDecoder {
    /// `early` are bytes that came together with the upgrade.
    pub(super) fn new(early: Bytes) -> Self {
        Self { buffer: BytesMut::from(early), head: None, fragments: None }
    }

    /// Where the next bytes go, with room for what is known to come.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        let wanted = self.head.as_ref().map_or(0, |head| head.length.saturating_sub(self.buffer.len()));
        self.buffer.reserve(wanted.max(4 << 10));
        &mut self.buffer
    }

    /// What is complete, if anything is. A message longer than `limit` is refused as soon as its length is known.
    pub(super) fn next(&mut self, limit: usize) -> Result<Option<Incoming>, CodecError> {
        loop {
            let head = match self.head.take() {
                Some(head) => head,
                None => match self.parse_head(limit)? {
                    Some(head) => head,
                    None => return Ok(None),
                },
            };
            if self.buffer.len() < head.length {
                self.head = Some(head);
                return Ok(None);
            }
            let mut payload = self.buffer.split_to(head.length);
            if self.buffer.is_empty() {
                // Lets go of what may have been a large allocation.
                self.buffer = BytesMut::new();
            }
            unmask(&mut payload, head.mask);
            if let Some(incoming) = self.take(&head, payload)? {
                return Ok(Some(incoming));
            }
        }
    }

    fn parse_head(&mut self, limit: usize) -> Result<Option<Head>, CodecError> {
        let [first, second, ..] = *self.buffer else { return Ok(None) };
        if first & RESERVED != 0 {
            return Err(CodecError::Reserved);
        }
        if second & MASKED == 0 {
            return Err(CodecError::Unmasked);
        }
        let (opcode, is_final) = (first & 0x0f, first & FINAL != 0);
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let size = 2 + extended + 4;
        if self.buffer.len() < size {
            return Ok(None);
        }
        let length = match extended {
            0 => u64::from(second & 0x7f),
            bytes => self.buffer[2..2 + bytes].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let open = self.fragments.as_ref().map_or(0, BytesMut::len);
        match opcode {
            CLOSE | PING | PONG if !is_final || length > MAX_CONTROL => return Err(CodecError::Control),
            CLOSE | PING | PONG => {}
            TEXT | BINARY if self.fragments.is_some() => return Err(CodecError::Fragment),
            CONTINUATION if self.fragments.is_none() => return Err(CodecError::Fragment),
            TEXT | BINARY | CONTINUATION if length.saturating_add(open) > limit => {
                return Err(CodecError::TooLong(limit));
            }
            TEXT | BINARY | CONTINUATION => {}
            other => return Err(CodecError::Opcode(other)),
        }
        let mut mask = [0; 4];
        mask.copy_from_slice(&self.buffer[size - 4..size]);
        self.buffer.advance(size);
        Ok(Some(Head { opcode, is_final, length, mask }))
    }

    fn take(&mut self, head: &Head, payload: BytesMut) -> Result<Option<Incoming>, CodecError> {
        Ok(match head.opcode {
            PING => Some(Incoming::Ping(payload.freeze())),
            PONG => Some(Incoming::Pong),
            CLOSE => Some(Incoming::Close(parse_close(&payload))),
            _ => {
                let message = match self.fragments.take() {
                    Some(mut fragments) => {
                        fragments.extend_from_slice(&payload);
                        fragments
                    }
                    None => payload,
                };
                if head.is_final {
                    return Ok(Some(Incoming::Message(message.freeze())));
                }
                self.fragments = Some(message);
                None
            }
        })
    }
}

fn parse_close(payload: &[u8]) -> Option<Close> {
    let (code, reason) = payload.split_at_checked(2)?;
    Some(Close::new(u16::from_be_bytes([code[0], code[1]]), String::from_utf8_lossy(reason)))
}

/// Eight bytes at a time, which compilers turn into wider steps yet.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        chunk.copy_from_slice(&(u64::from_ne_bytes(bytes) ^ wide).to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// The head of a frame that a server sends: at most ten bytes.
#[derive(Clone, Copy)]
pub(super) struct FrameHead {
    bytes: [u8; 10],
    length: usize,
}

impl FrameHead {
    pub(super) const NONE: Self = Self { bytes: [0; 10], length: 0 };

    pub(super) fn text(payload: usize) -> Self {
        Self::new(TEXT, payload)
    }

    fn new(opcode: u8, payload: usize) -> Self {
        let mut bytes = [0; 10];
        bytes[0] = FINAL | opcode;
        let length = match payload {
            0..=125 => {
                bytes[1] = u8::try_from(payload).unwrap_or_default();
                2
            }
            126..=0xffff => {
                bytes[1] = 126;
                bytes[2..4].copy_from_slice(&u16::try_from(payload).unwrap_or_default().to_be_bytes());
                4
            }
            _ => {
                bytes[1] = 127;
                bytes[2..10].copy_from_slice(&(payload as u64).to_be_bytes());
                10
            }
        };
        Self { bytes, length }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

pub(super) fn ping() -> Bytes {
    Bytes::copy_from_slice(FrameHead::new(PING, 0).as_slice())
}

pub(super) fn pong(payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::from(FrameHead::new(PONG, payload.len()).as_slice());
    frame.extend_from_slice(payload);
    frame.freeze()
}

pub(super) fn close(close: &Close) -> Bytes {
    let mut reason = close.reason.as_str();
    while reason.len() > MAX_CONTROL - 2 {
        let mut end = MAX_CONTROL - 2;
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason = &reason[..end];
    }
    let mut frame = BytesMut::from(FrameHead::new(CLOSE, 2 + reason.len()).as_slice());
    frame.extend_from_slice(&close.code.to_be_bytes());
    frame.extend_from_slice(reason.as_bytes());
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame as a client sends it.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut bytes = FrameHead::new(0, payload.len()).as_slice().to_vec();
        bytes[0] = first;
        bytes[1] |= MASKED;
        bytes.extend(mask);
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Incoming>, CodecError> {
        let mut decoder = FrameDecoder::new(Bytes::copy_from_slice(bytes));
        let mut all = Vec::new();
        while let Some(incoming) = decoder.next(1000)? {
            all.push(incoming);
        }
        Ok(all)
    }

    #[test]
    fn messages_fragments_and_control_frames() {
        let mut bytes = frame(FINAL | TEXT, b"hello");
        bytes.extend(frame(BINARY, b"in "));
        bytes.extend(frame(FINAL | PING, b"!"));
        bytes.extend(frame(CONTINUATION, b"three "));
        bytes.extend(frame(FINAL, b"parts"));
        bytes.extend(frame(FINAL | CLOSE, &[0x0f, 0xa1, b'x']));
        let expected = [
            Incoming::Message("hello".into()),
            Incoming::Ping("!".into()),
            Incoming::Message("in three parts".into()),
            Incoming::Close(Some(Close::new(4001, "x"))),
        ];
        assert_eq!(decode(&bytes).unwrap(), expected);
    }

    #[test]
    fn what_the_standard_forbids_is_refused() {
        assert_eq!(decode(&[FINAL | TEXT, 1, b'x']), Err(CodecError::Unmasked));
        assert_eq!(decode(&frame(FINAL | 0x40 | TEXT, b"")), Err(CodecError::Reserved));
        assert_eq!(decode(&frame(FINAL | 0x3, b"")), Err(CodecError::Opcode(3)));
        assert_eq!(decode(&frame(PING, b"")), Err(CodecError::Control));
        assert_eq!(decode(&frame(FINAL | PING, &[0; 126])), Err(CodecError::Control));
        assert_eq!(decode(&frame(FINAL, b"x")), Err(CodecError::Fragment));
        assert_eq!(decode(&[frame(TEXT, b"x"), frame(TEXT, b"x")].concat()), Err(CodecError::Fragment));
        assert_eq!(decode(&frame(FINAL | TEXT, &[0; 1001])), Err(CodecError::TooLong(1000)));
        assert_eq!(decode(&[frame(TEXT, &[0; 600]), frame(FINAL, &[0; 600])].concat()), Err(CodecError::TooLong(1000)));
        let declares_2_to_the_40 = [FINAL | TEXT, MASKED | 127, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        assert_eq!(decode(&declares_2_to_the_40), Err(CodecError::TooLong(1000)));
    }

    #[test]
    fn a_reason_that_is_too_long_is_cut_between_characters() {
        let frame = close(&Close::new(1002, "é".repeat(100)));
        assert!(frame.len() <= 127 && std::str::from_utf8(&frame[4..]).is_ok());
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_messages(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..5),
            splits in prop::collection::vec(1usize..40, 1..200),
        ) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(FINAL | TEXT, payload)).collect();
            let mut decoder = FrameDecoder::new(Bytes::new());
            let mut messages = Vec::new();
            let (mut rest, mut sizes) = (bytes.as_slice(), splits.into_iter().cycle());
            while !rest.is_empty() {
                let (part, after) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
                decoder.room().extend_from_slice(part);
                rest = after;
                while let Some(incoming) = decoder.next(1000).unwrap() {
                    messages.push(incoming);
                }
            }
            let expected: Vec<Incoming> = payloads.into_iter().map(|payload| Incoming::Message(payload.into())).collect();
            prop_assert_eq!(messages, expected);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&bytes);
        }
    }
}
