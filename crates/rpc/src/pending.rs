//! Calls that wait for their answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outpost_wire::{Fault, RequestId};
use tokio::sync::oneshot;

/// An answer: the text of a result, or a fault.
pub(crate) type ResponseBody = Result<Bytes, Fault>;

/// Ids count from 1 and are never used twice on one link.
#[derive(Default)]
pub(crate) struct Pending(Mutex<State>);

#[derive(Default)]
struct State {
    last: i64,
    waiting: HashMap<i64, oneshot::Sender<ResponseBody>>,
    closed: bool,
}

/// A call in flight; dropping it forgets the call.
pub(crate) struct Ticket<'a> {
    pending: &'a Pending,
    id: i64,
    answer: oneshot::Receiver<ResponseBody>,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call; nothing if the link is gone.
    pub(crate) fn register(&self) -> Option<Ticket<'_>> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        state.last += 1;
        let id = state.last;
        let (sender, answer) = oneshot::channel();
        state.waiting.insert(id, sender);
        Some(Ticket { pending: self, id, answer })
    }

    /// Delivers an answer. It is given back if no such call was ever made; a late answer to a forgotten call is fine.
    pub(crate) fn resolve(&self, id: &RequestId, answer: ResponseBody) -> Option<ResponseBody> {
        let RequestId::Number(number) = id else { return Some(answer) };
        let mut state = self.lock();
        if !(1..=state.last).contains(number) {
            return Some(answer);
        }
        if let Some(waiting) = state.waiting.remove(number) {
            // The caller may have gone away meanwhile.
            let _ = waiting.send(answer);
        }
        None
    }

    /// Fails everything that waits, and every later call.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
    }
}

impl Ticket<'_> {
    pub(crate) fn id(&self) -> RequestId {
        RequestId::Number(self.id)
    }

    /// Nothing if the link went away first.
    pub(crate) async fn answer(mut self) -> Option<ResponseBody> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.pending.lock().waiting.remove(&self.id);
    }
}
