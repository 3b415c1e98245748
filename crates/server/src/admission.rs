//! Which clients are connected, and by which credential. A client whose token was revoked or whose session ended is disconnected within a moment.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::{Close, FrameSink};
use tokio::time::Instant;

use crate::people::ClientIdentity;
use crate::tokens::TokenStore;

/// How often tokens are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A websocket is closed with this code when its client lost the right to it.
pub const POLICY: u16 = 1008;

/// What is open, for putting it out and for counting it.
#[derive(Default)]
pub struct BrowserAdmission {
    next: AtomicU64,
    inside: Mutex<HashMap<u64, Guest>>,
}

struct Guest {
    pass: Pass,
    sink: FrameSink,
}

/// The credential of a connected client.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// The digest of the token, where it is one that can be revoked.
    pub token: Option<String>,
    /// The session of a browser.
    pub session: Option<BrowserSession>,
    /// Who it is, where that does not follow from the token.
    pub identity: Option<ClientIdentity>,
}

/// A browser session with connected clients.
#[derive(Debug, Clone)]
pub struct BrowserSession {
    /// The digest of its cookie.
    pub cookie: String,
    pub ends: Instant,
}

impl Pass {
    pub fn token(digest: &str) -> Self {
        Self { token: Some(digest.to_owned()), ..Self::default() }
    }

    /// Nothing that could end before the link does.
    pub fn is_for_ever(&self) -> bool {
        self.token.is_none() && self.session.is_none()
    }
}

/// A client's slot; freed when this is dropped.
pub struct AdmissionSlot {
    admission: Arc<BrowserAdmission>,
    number: u64,
}

impl BrowserAdmission {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Guest>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a link is open on the strength of a pass. The place must be given back when the link has ended: until
    /// then its sink is held.
    pub fn admit(self: &Arc<Self>, pass: Pass, sink: FrameSink) -> AdmissionSlot {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, Guest { pass, sink });
        AdmissionSlot { admission: self.clone(), number }
    }

    /// Disconnects all clients whose token was revoked or whose session is over.
    fn look(&self, tokens: &TokenStore) {
        let used: BTreeSet<String> = self.lock().values().filter_map(|guest| guest.pass.token.clone()).collect();
        for token in used.iter().filter(|token| !tokens.is_good(token)) {
            self.put_out("the token was revoked", |pass| pass.token.as_ref() == Some(token));
        }
        let now = Instant::now();
        self.put_out("the session is over; log in again", |pass| pass.session.as_ref().is_some_and(|seat| seat.ends <= now));
    }

    /// Disconnects all clients of a session, which is over.
    pub fn end_session(&self, cookie: &str) {
        self.put_out("logged out", |pass| pass.session.as_ref().is_some_and(|seat| seat.cookie == cookie));
    }

    fn put_out(&self, why: &'static str, is_meant: impl Fn(&Pass) -> bool) {
        for guest in self.lock().values().filter(|guest| is_meant(&guest.pass)) {
            guest.sink.close(Close::new(POLICY, why));
        }
    }

    /// Checks periodically, for as long as this future is polled.
    pub async fn keep_looking(&self, tokens: &TokenStore) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look(tokens);
        }
    }
}

impl Drop for AdmissionSlot {
    fn drop(&mut self) {
        self.admission.lock().remove(&self.number);
    }
}
