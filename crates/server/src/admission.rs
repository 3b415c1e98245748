//! Which clients are connected, and by which credential. A client whose token was revoked or whose session ended is disconnected within a moment.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::{Close, FrameSink};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::people::ClientIdentity;
use crate::tokens::TokenStore;

/// How often the ends of sessions are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A websocket is closed with this code when its client lost the right to it.
pub const POLICY: u16 = 1008;

/// What is open, for putting it out and for counting it.
#[derive(Default)]
pub struct BrowserAdmission {
    next: AtomicU64,
    inside: Mutex<HashMap<u64, Guest>>,
    /// A guest with a token came.
    came: Notify,
}

struct Guest {
    pass: Pass,
    sink: FrameSink,
    /// Its token may have been revoked after it was checked, and before it was noted here.
    is_new: bool,
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
        let has_token = pass.token.is_some();
        self.lock().insert(number, Guest { pass, sink, is_new: true });
        if has_token {
            self.came.notify_one();
        }
        AdmissionSlot { admission: self.clone(), number }
    }

    /// The tokens of all guests, or of those that were not looked at yet.
    fn tokens(&self, only_new: bool) -> BTreeSet<String> {
        let mut inside = self.lock();
        let wanted = inside.values_mut().filter(|guest| guest.is_new || !only_new);
        wanted
            .filter_map(|guest| {
                guest.is_new = false;
                guest.pass.token.clone()
            })
            .collect()
    }

    /// Disconnects the clients among them whose token was revoked.
    async fn look(&self, tokens: &TokenStore, used: BTreeSet<String>) {
        for token in used {
            if !tokens.is_good(&token).await {
                self.put_out("the token was revoked", |pass| pass.token.as_ref() == Some(&token));
            }
        }
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

    /// Disconnects all clients whose token was revoked or whose session is over, for as long as this future is polled.
    pub async fn keep_looking(&self, tokens: &TokenStore) {
        let sessions = async {
            loop {
                sleep(LOOK).await;
                let now = Instant::now();
                self.put_out("the session is over; log in again", |pass| pass.session.as_ref().is_some_and(|seat| seat.ends <= now));
            }
        };
        let changed = async {
            let mut changes = tokens.changes();
            loop {
                changes.next().await;
                self.look(tokens, self.tokens(false)).await;
            }
        };
        let came = async {
            loop {
                self.came.notified().await;
                self.look(tokens, self.tokens(true)).await;
            }
        };
        tokio::join!(sessions, changed, came);
    }
}

impl Drop for AdmissionSlot {
    fn drop(&mut self) {
        self.admission.lock().remove(&self.number);
    }
}
