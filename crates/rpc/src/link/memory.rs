//! Two ends in one process: the same road as every other link, without a socket.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::stream;

use super::{FrameDrain, FrameSource, HandshakeGate, Link, Liveness, queue};

/// Both ends of a link.
pub fn pair() -> (Link, Link) {
    let (left_tx, left_drain) = queue();
    let (right_tx, right_drain) = queue();
    let gate = HandshakeGate::default();
    gate.open();
    let left = Link { tx: left_tx, rx: source(right_drain), name: "memory".into(), gate: gate.clone(), liveness: Liveness::EVIDENT };
    let right = Link { tx: right_tx, rx: source(left_drain), name: "memory".into(), gate, liveness: Liveness::EVIDENT };
    (left, right)
}

fn source(drain: FrameDrain) -> FrameSource {
    Box::pin(stream::unfold(drain, |mut drain| async move {
        let frame = drain.next().await?;
        drain.written(frame.len());
        // A flood from the other end must not starve the tasks of this one.
        yield_once().await;
        Some((Ok(frame), drain))
    }))
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
