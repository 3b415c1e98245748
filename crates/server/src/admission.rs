//! Who is in, and by which token. Whoever's token was revoked is put out within a moment.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::{Close, FrameSink};

use crate::tokens::Tokens;

/// How often tokens are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A websocket is closed with this code when whoever opened it may not have it.
pub const POLICY: u16 = 1008;

/// What is open, for putting it out and for counting it.
#[derive(Default)]
pub struct Admission {
    next: AtomicU64,
    inside: Mutex<HashMap<u64, Guest>>,
}

struct Guest {
    token: String,
    sink: FrameSink,
}

/// Somebody's place; it is given back when this is dropped.
pub struct Place {
    admission: Arc<Admission>,
    number: u64,
}

impl Admission {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Guest>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a link is open on the strength of a token. The place must be given back when the link has ended: until
    /// then its sink is held.
    pub fn admit(self: &Arc<Self>, token: &str, sink: FrameSink) -> Place {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, Guest { token: token.to_owned(), sink });
        Place { admission: self.clone(), number }
    }

    /// Puts out everybody whose token is not good any more.
    fn look(&self, tokens: &Tokens) {
        let used: BTreeSet<String> = self.lock().values().map(|guest| guest.token.clone()).collect();
        for token in used.iter().filter(|token| !tokens.is_good(token)) {
            for guest in self.lock().values().filter(|guest| guest.token == **token) {
                guest.sink.close(Close::new(POLICY, "the token was revoked"));
            }
        }
    }

    /// Looks again and again, for as long as anybody waits for this.
    pub async fn keep_looking(&self, tokens: &Tokens) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look(tokens);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.lock().remove(&self.number);
    }
}
