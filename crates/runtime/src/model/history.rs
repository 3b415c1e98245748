//! The history of a thread as it goes over the wire: every item is written once, and all later requests share what was
//! written. So a step costs what is new in it, and not what came before.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::Item;

/// Pieces smaller than this grow before another one begins.
const PIECE: usize = 64 << 10;

/// What a model is shown of a thread. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct History {
    items: Arc<Vec<Item>>,
    /// The items with commas between them.
    pieces: Vec<Bytes>,
    window: u32,
}

impl History {
    pub fn new(items: Vec<Item>) -> Self {
        let mut history = Self::default();
        history.follow(0, Arc::new(items));
        history
    }

    /// Takes over what was added since it was last looked at. Within one window nothing is ever taken away or changed.
    pub fn follow(&mut self, window: u32, items: Arc<Vec<Item>>) {
        if window != self.window || items.len() < self.items.len() {
            *self = Self { window, ..Self::default() };
        }
        let news = &items[self.items.len()..];
        let mut text = match self.pieces.pop_if(|last| last.len() < PIECE) {
            Some(last) => last.to_vec(),
            None => Vec::new(),
        };
        for item in news {
            if !text.is_empty() || !self.pieces.is_empty() {
                text.push(b',');
            }
            text.extend_from_slice(item.get().as_bytes());
            if text.len() >= PIECE {
                self.pieces.push(std::mem::take(&mut text).into());
            }
        }
        if !text.is_empty() {
            self.pieces.push(text.into());
        }
        self.items = items;
    }

    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// A body with all items between what stands before and after them.
    pub(super) fn body(&self, before: Vec<u8>, after: Vec<u8>) -> Pieces {
        let pieces = std::iter::once(before.into()).chain(self.pieces.iter().cloned()).chain([after.into()]);
        Pieces(pieces.collect())
    }
}

/// The body of a request, piece by piece. Its length is known, so that nobody needs to count along.
pub struct Pieces(VecDeque<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn items(count: usize, length: usize) -> Vec<Item> {
        (0..count).map(|n| Item::from(json!({"n": n, "text": "x".repeat(length)}))).collect()
    }

    fn written(history: &History) -> Value {
        let body = history.body(b"[".to_vec(), b"]".to_vec());
        let length = body.size_hint().exact().unwrap();
        let text: Vec<u8> = body.0.iter().flatten().copied().collect();
        assert_eq!(length, text.len() as u64);
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn what_is_written_step_by_step_is_what_is_written_at_once() {
        for length in [1, 1000, PIECE] {
            let all = items(40, length);
            let mut history = History::default();
            for count in [0, 1, 1, 7, 8, 30, 40] {
                history.follow(3, Arc::new(all[..count].to_vec()));
                assert_eq!(written(&history), written(&History::new(all[..count].to_vec())), "{count} of {length}");
                assert_eq!(written(&history).as_array().unwrap().len(), count);
            }
        }
    }

    #[test]
    fn only_what_is_new_is_written() {
        let all = items(200, 1000);
        let mut history = History::new(all[..150].to_vec());
        let first = history.pieces[0].clone();
        history.follow(0, Arc::new(all));
        assert_eq!(first.as_ptr(), history.pieces[0].as_ptr());
    }

    #[test]
    fn another_window_begins_anew() {
        let mut history = History::new(items(9, 10));
        history.follow(1, Arc::new(items(12, 3)));
        assert_eq!(written(&history), written(&History::new(items(12, 3))));
    }
}
