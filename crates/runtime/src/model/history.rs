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
}

/// What was written of a thread so far. It holds no items, so that whoever adds to them need not copy them first.
#[derive(Debug, Default)]
pub struct Written {
    count: usize,
    pieces: Vec<Bytes>,
    window: u32,
}

impl Written {
    /// Writes what was added since the last time. Within one window nothing is ever taken away or changed.
    pub fn follow(&mut self, window: u32, items: Arc<Vec<Item>>) -> History {
        if window != self.window || items.len() < self.count {
            *self = Self { window, ..Self::default() };
        }
        if items.len() > self.count {
            self.write(&items[self.count..]);
            self.count = items.len();
        }
        History { items, pieces: self.pieces.clone() }
    }

    fn write(&mut self, news: &[Item]) {
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
    }
}

impl History {
    pub fn new(items: Vec<Item>) -> Self {
        Written::default().follow(0, Arc::new(items))
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
            let mut so_far = Written::default();
            for count in [0, 1, 1, 7, 8, 30, 40] {
                let history = so_far.follow(3, Arc::new(all[..count].to_vec()));
                assert_eq!(written(&history), written(&History::new(all[..count].to_vec())), "{count} of {length}");
                assert_eq!(written(&history).as_array().unwrap().len(), count);
            }
        }
    }

    #[test]
    fn only_what_is_new_is_written() {
        let all = items(200, 1000);
        let mut so_far = Written::default();
        let first = so_far.follow(0, Arc::new(all[..150].to_vec())).pieces[0].clone();
        let mut all = Arc::new(all);
        assert_eq!(first.as_ptr(), so_far.follow(0, all.clone()).pieces[0].as_ptr());
        assert!(Arc::get_mut(&mut all).is_some(), "nobody holds the items");
    }

    #[test]
    fn another_window_begins_anew() {
        let mut so_far = Written::default();
        so_far.follow(0, Arc::new(items(9, 10)));
        let history = so_far.follow(1, Arc::new(items(12, 3)));
        assert_eq!(written(&history), written(&History::new(items(12, 3))));
    }
}
