//! Passing frames on between two links, as they are.

use futures_util::StreamExt;
use outpost_rpc::link::FrameSource;
use outpost_rpc::{Close, FrameSink, Link, LinkError};

/// A websocket is closed with this code when it may work a moment later.
pub(crate) const TRY_AGAIN: u16 = 1013;

/// No more than this waits for an end that does not read; what comes after it waits in the other end's socket.
const ROOM: usize = 1 << 20;

/// Passes everything on in both directions until either end is over. The other end is told why.
pub(crate) async fn relay(one: Link, other: Link) {
    let (mut one, mut other) = (one, other);
    let (to_one, to_other) = (one.tx.clone(), other.tx.clone());
    let close = tokio::select! {
        close = pass(&mut one.rx, &to_other) => close,
        close = pass(&mut other.rx, &to_one) => close,
        () = to_one.closed() => to_one.close_reason().unwrap_or_else(gone),
        () = to_other.closed() => to_other.close_reason().unwrap_or_else(gone),
    };
    to_one.close(close.clone());
    to_other.close(close);
}

async fn pass(from: &mut FrameSource, to: &FrameSink) -> Close {
    loop {
        to.room(ROOM).await;
        match from.next().await {
            Some(Ok(frame)) if to.send(frame.clone()) => {}
            // Why an end was closed means something to the other one: a session that was taken over must not be resumed.
            Some(Err(LinkError::Closed(close))) => return close,
            Some(Ok(_) | Err(_)) | None => return gone(),
        }
    }
}

fn gone() -> Close {
    Close::new(Close::NORMAL, "the other end is gone")
}
