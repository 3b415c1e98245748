//! Links that break after so many frames, whatever they are made of.

use futures_util::StreamExt;
use outpost_rpc::Link;
use outpost_rpc::link::memory;

/// The same link, cut without a word after so many frames, both directions together. A frame that would be one too many
/// is lost.
pub fn cut_after(inner: Link, frames: usize) -> Link {
    let (ours, theirs) = memory::pair();
    tokio::spawn(forward(theirs, inner, frames));
    ours
}

async fn forward(mut near: Link, mut far: Link, mut left: usize) {
    loop {
        let (frame, sink) = tokio::select! {
            frame = near.rx.next() => (frame, &far.tx),
            frame = far.rx.next() => (frame, &near.tx),
        };
        let Some(Ok(frame)) = frame else { return };
        if left == 0 || !sink.send(frame) {
            return;
        }
        left -= 1;
    }
}
