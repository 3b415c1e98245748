//! Answers that the executor follows: asked for once, and true until it says otherwise or the connection is lost.
//!
//! A new connection asks again for all that is in use, in the very message that it begins with, and is told only what is different.
//! An executor that cannot follow is asked each time.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use outpost_rpc::frame;
use outpost_wire::exec::calls::{CallFollow, CallSettle, CallUnfollow, CarriedAnswer, CarriedCall, Follow, FollowIds, Following};
use outpost_wire::exec::session::Empty;
use outpost_wire::{Fault, Method};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::environment::{Environment, EnvironmentError};
use crate::state::{Connected, ConnectionState};

/// So many answers of one handle are kept; beyond, those go that were unused for longest.
const MOST: usize = 512;
const EVICTED: usize = 64;
/// So many are asked for with a new connection, if they were used so lately.
const MOST_CARRIED: usize = 128;
const IN_USE: Duration = Duration::from_secs(15 * 60);

/// All followed answers of one handle.
#[derive(Default)]
pub(crate) struct FollowedCalls {
    inside: Mutex<Inside>,
    last: AtomicU64,
}

#[derive(Default)]
struct Inside {
    entries: HashMap<CallKey, Entry>,
    /// Which answer an id stands for; none that was overtaken by a change.
    ids: HashMap<u64, CallKey>,
}

/// A call, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    method: &'static str,
    params: Arc<str>,
}

struct Entry {
    answer: Option<Arc<KnownAnswer>>,
    /// Under which id it is followed, and by which connection.
    standing: Option<(u64, Weak<Connected>)>,
    following: Following,
    used: Instant,
}

struct KnownAnswer {
    digest: Option<String>,
    outcome: Result<Box<RawValue>, Fault>,
    decoded: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl CallKey {
    fn of<M: Method>(params: &M::Params) -> Option<Self> {
        Some(Self { method: M::NAME, params: serde_json::to_string(params).ok()?.into() })
    }

    fn call(&self, follow: Follow) -> Option<CarriedCall> {
        let params = RawValue::from_string(self.params.as_ref().to_owned()).ok()?;
        Some(CarriedCall { method: self.method.to_owned(), params, follow: Some(follow) })
    }
}

impl KnownAnswer {
    fn read<M: Method>(&self, name: &str) -> Result<Arc<M::Output>, EnvironmentError>
    where
        M::Output: Sync,
    {
        let text = self.outcome.as_ref().map_err(|fault| EnvironmentError::Fault(fault.clone()))?;
        if let Some(known) = self.decoded.get().and_then(|known| known.clone().downcast().ok()) {
            return Ok(known);
        }
        let nonsense = |reason| EnvironmentError::Nonsense { name: name.to_owned(), reason };
        let decoded: Arc<M::Output> = Arc::new(frame::decoded(M::read_output(text.get().as_bytes())).map_err(nonsense)?);
        let _ = self.decoded.set(decoded.clone());
        Ok(decoded)
    }
}

impl FollowedCalls {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The executor says that answers no longer stand.
    pub(crate) fn changed(&self, ids: &[u64]) {
        let mut inside = self.lock();
        for id in ids {
            let Some(key) = inside.ids.remove(id) else { continue };
            if let Some(entry) = inside.entries.get_mut(&key)
                && entry.standing.as_ref().is_some_and(|(standing, _)| standing == id)
            {
                entry.standing = None;
            }
        }
    }

    /// An answer that stands.
    fn standing(&self, key: &CallKey, connected: &Arc<Connected>) -> Option<(Arc<KnownAnswer>, Following)> {
        let mut inside = self.lock();
        let entry = inside.entries.get_mut(key)?;
        entry.used = Instant::now();
        let (_, connection) = entry.standing.as_ref()?;
        let is_same = std::ptr::eq(connection.as_ptr(), Arc::as_ptr(connected));
        entry.answer.clone().filter(|_| is_same).map(|answer| (answer, entry.following))
    }

    fn has_standing(&self) -> bool {
        self.lock().entries.values().any(|entry| entry.standing.is_some())
    }

    /// Takes an id for a question that is about to be asked, and what is known of its answer.
    fn begin(&self, key: &CallKey) -> Follow {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let mut inside = self.lock();
        inside.ids.insert(id, key.clone());
        let known_digest = inside.entries.get(key).and_then(|entry| entry.answer.as_ref()?.digest.clone());
        Follow { id, known_digest }
    }

    fn give_up(&self, id: u64) {
        self.lock().ids.remove(&id);
    }

    /// Keeps an answer; nothing if it refers to one that is not known.
    fn keep(&self, id: u64, key: &CallKey, connected: &Arc<Connected>, told: CarriedAnswer) -> Option<Arc<KnownAnswer>> {
        let mut inside = self.lock();
        let CarriedAnswer { result, error, digest, unchanged, following } = told;
        let before = inside.entries.get(key).and_then(|entry| entry.answer.clone());
        let answer = match (result, error) {
            (_, Some(fault)) => Arc::new(KnownAnswer { digest, outcome: Err(fault), decoded: OnceLock::new() }),
            (Some(result), None) => Arc::new(KnownAnswer { digest, outcome: Ok(result), decoded: OnceLock::new() }),
            (None, None) => match before.filter(|before| unchanged && before.digest == digest) {
                Some(before) => before,
                None => {
                    inside.ids.remove(&id);
                    return None;
                }
            },
        };
        let is_followed = following != Following::Not && inside.ids.contains_key(&id);
        if !is_followed {
            inside.ids.remove(&id);
        }
        let standing = is_followed.then(|| (id, Arc::downgrade(connected)));
        let entry = Entry { answer: Some(answer.clone()), standing, following, used: Instant::now() };
        let older = inside.entries.insert(key.clone(), entry);
        let mut unwanted: Vec<u64> = older.and_then(|older| older.standing).map(|(id, _)| id).into_iter().collect();
        if inside.entries.len() > MOST {
            unwanted.extend(inside.evict());
        }
        unwanted.retain(|id| inside.ids.remove(id).is_some());
        drop(inside);
        unfollow(connected, unwanted);
        Some(answer)
    }

    /// What will be asked for as soon as there is a connection.
    pub(crate) fn foresee<M: Method>(&self, params: &M::Params) {
        let Some(key) = CallKey::of::<M>(params) else { return };
        let mut inside = self.lock();
        let entry = Entry { answer: None, standing: None, following: Following::Not, used: Instant::now() };
        inside.entries.entry(key).or_insert(entry).used = Instant::now();
        if inside.entries.len() > MOST {
            inside.evict();
        }
    }

    /// The questions that a new connection begins with. What older ones followed is forgotten.
    pub(crate) fn carried(&self) -> Vec<CarriedQuestion> {
        let keys: Vec<CallKey> = {
            let mut inside = self.lock();
            inside.ids.clear();
            let mut recent: Vec<(&CallKey, Instant)> =
                inside.entries.iter().filter(|(_, entry)| entry.used.elapsed() < IN_USE).map(|(key, entry)| (key, entry.used)).collect();
            recent.sort_by_key(|(_, used)| std::cmp::Reverse(*used));
            recent.into_iter().take(MOST_CARRIED).map(|(key, _)| key.clone()).collect()
        };
        let question = |key: CallKey| {
            let follow = self.begin(&key);
            let id = follow.id;
            key.call(follow).map(|call| CarriedQuestion { id, key, call })
        };
        keys.into_iter().filter_map(question).collect()
    }

    /// Takes what a new connection was told to begin with.
    pub(crate) fn adopt(&self, connected: &Arc<Connected>, told: Vec<(CarriedQuestion, CarriedAnswer)>) {
        for (question, answer) in told {
            self.keep(question.id, &question.key, connected, answer);
        }
    }
}

/// A question that a new connection begins with.
pub(crate) struct CarriedQuestion {
    id: u64,
    key: CallKey,
    pub call: CarriedCall,
}

impl Inside {
    /// Forgets what was unused for longest, and tells the ids of what is no longer wanted.
    fn evict(&mut self) -> Vec<u64> {
        let mut oldest: Vec<(CallKey, Instant)> = self.entries.iter().map(|(key, entry)| (key.clone(), entry.used)).collect();
        oldest.sort_by_key(|(_, used)| *used);
        let gone = oldest.into_iter().take(EVICTED).filter_map(|(key, _)| self.entries.remove(&key));
        gone.filter_map(|entry| entry.standing).map(|(id, _)| id).collect()
    }
}

/// The answer is not awaited; a connection that is gone has forgotten them anyway.
fn unfollow(connected: &Arc<Connected>, ids: Vec<u64>) {
    if let (false, Ok(runtime)) = (ids.is_empty(), tokio::runtime::Handle::try_current()) {
        let peer = connected.peer.0.clone();
        runtime.spawn(async move {
            let _ = peer.call::<CallUnfollow>(&FollowIds { ids }).await;
        });
    }
}

impl Environment {
    /// The answer to a call that only looks. It is asked for again only after the executor has said that it may be another one.
    pub async fn followed<M: Method>(&self, params: &M::Params) -> Result<Arc<M::Output>, EnvironmentError>
    where
        M::Output: Sync,
    {
        let Some(key) = CallKey::of::<M>(params) else { return self.call_again::<M>(params).await.map(Arc::new) };
        loop {
            let connected = self.shared().ready().await?;
            if !connected.info.capabilities.call_follow {
                return self.call_again::<M>(params).await.map(Arc::new);
            }
            if let Some((answer, following)) = self.shared().followed.standing(&key, &connected) {
                if following == Following::Partly {
                    self.look_again(key, connected);
                }
                return answer.read::<M>(self.name());
            }
            match self.ask_and_follow(&key, &connected).await {
                Ok(answer) => return answer.read::<M>(self.name()),
                Err(EnvironmentError::Unknown { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits, where that takes no time worth mentioning, until everything has been heard that has changed there up to now. On a
    /// machine far away what was heard last counts.
    pub async fn settle_followed(&self) {
        let ConnectionState::Ready(connected) = self.state() else { return };
        if connected.is_near && connected.info.capabilities.call_follow && self.shared().followed.has_standing() {
            let _ = self.shared().call_on::<CallSettle>(&connected, &Some(Empty {})).await;
        }
    }

    /// Says what will be asked for: a connection that is not there yet brings the answer along.
    pub fn foresee<M: Method>(&self, params: &M::Params) {
        if !matches!(self.state(), ConnectionState::Ready(_)) {
            self.shared().followed.foresee::<M>(params);
        }
    }

    async fn ask_and_follow(&self, key: &CallKey, connected: &Arc<Connected>) -> Result<Arc<KnownAnswer>, EnvironmentError> {
        let nonsense = |reason: &str| EnvironmentError::Nonsense { name: self.name().to_owned(), reason: reason.into() };
        let followed = &self.shared().followed;
        let follow = followed.begin(key);
        let id = follow.id;
        // Also if the caller does not wait for the answer.
        let mut question = AskedQuestion { followed, id, is_answered: false };
        let call = key.call(follow).ok_or_else(|| nonsense("the question is not valid JSON"))?;
        let told = self.shared().call_on::<CallFollow>(connected, &call).await?;
        question.is_answered = true;
        followed.keep(id, key, connected, told).ok_or_else(|| nonsense("an answer without a result"))
    }

    /// Where other machines can change what is there without a notice, the next use finds what this look finds.
    fn look_again(&self, key: CallKey, connected: Arc<Connected>) {
        let handle = self.clone();
        tokio::spawn(async move {
            let _ = handle.ask_and_follow(&key, &connected).await;
        });
    }
}

/// A question without an answer yet.
struct AskedQuestion<'a> {
    followed: &'a FollowedCalls,
    id: u64,
    is_answered: bool,
}

impl Drop for AskedQuestion<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.followed.give_up(self.id);
        }
    }
}
