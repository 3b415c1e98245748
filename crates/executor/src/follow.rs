//! Answers that a client need not ask for again: what they depend on is watched, and a change is told once.
//!
//! An answer is followed only if it could not have changed between its making and its watching. Whatever a process or a file call did
//! is told before its own end is: a client that has heard of the end knows which of its answers still stand.

mod footprint;
mod notices;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use outpost_rpc::frame::{self, FrameLimits, RpcMessage};
use outpost_rpc::peer::{PeerRequest, Rest};
use outpost_rpc::{Peer, Service};
use outpost_wire::exec::calls::{CallChanged, CallFollow, CallUnfollow, CarriedAnswer, CarriedCall, Follow, FollowIds, Following};
use outpost_wire::exec::discovery::{Discover, DiscoverInstalled, DiscoverParams, InstalledParams, ReadConfig};
use outpost_wire::exec::files::{Canonicalize, CanonicalizeParams, ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::Start;
use outpost_wire::exec::session::Initialize;
use outpost_wire::{Fault, Method, RequestId};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::timeout;

use self::footprint::Footprint;
use self::notices::{Concerned, Notices};
use crate::connection::ExecutorConnection;
use crate::methods::{blocking, gate};
use crate::{discovery, installed, settings};

/// So many answers of one connection are followed.
const MAX_FOLLOWED: usize = 1_024;
/// How often an answer is made anew that changes while it is made.
const ATTEMPTS: usize = 3;
/// So many answers about the layers of sandboxes are looked at again when a process ends, for so long.
const MAX_VERIFIED: usize = 64;
const VERIFYING: Duration = Duration::from_millis(250);

/// What is followed for one connection.
pub(crate) struct Follows {
    peer: Peer,
    connection: OnceLock<Weak<ExecutorConnection>>,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    notices: Option<Notices>,
    followed: HashMap<u64, Followed>,
}

struct Followed {
    watches: Vec<i32>,
    stage: Stage,
    /// It is about a place of which a sandbox has a layer of its own, which is not watched: the call, and the digest of its answer.
    layered: Option<(CarriedCall, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The answer is still being made.
    Asked,
    /// The same, and something has changed meanwhile.
    Overtaken,
    Live,
}

/// What a call looks at.
struct Subject {
    footprint: Footprint,
    is_layered: bool,
}

impl Follows {
    pub(crate) fn new(peer: Peer) -> Self {
        Self { peer, connection: OnceLock::new(), inside: Mutex::default() }
    }

    /// The connection through which answers are made.
    pub(crate) fn belong_to(&self, connection: &Arc<ExecutorConnection>) {
        let _ = self.connection.set(Arc::downgrade(connection));
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unfollow(&self, ids: &[u64]) {
        let mut inside = self.lock();
        ids.iter().for_each(|id| inside.forget(*id));
    }

    /// Tells what has changed up to now. Answers about layers of sandboxes are made again to see whether they still stand.
    pub(crate) async fn settle(&self) {
        let layered: Vec<(u64, CarriedCall, String)> = {
            let mut inside = self.lock();
            if inside.followed.is_empty() {
                return;
            }
            inside.tell_changes(&self.peer);
            let live = inside.followed.iter().filter(|(_, followed)| followed.stage == Stage::Live);
            live.filter_map(|(id, followed)| followed.layered.clone().map(|(call, digest)| (*id, call, digest))).collect()
        };
        let Some(connection) = self.connection.get().and_then(Weak::upgrade).filter(|_| !layered.is_empty()) else { return };
        let mut changed: Vec<u64> = layered.iter().skip(MAX_VERIFIED).map(|(id, ..)| *id).collect();
        let looks = layered.into_iter().take(MAX_VERIFIED).map(|(id, call, digest)| {
            let connection = connection.clone();
            async move {
                let made = timeout(VERIFYING, make(&connection, &call)).await;
                (id, made.is_ok_and(|(answer, _)| answer.digest() == digest))
            }
        });
        changed.extend(futures_util::future::join_all(looks).await.into_iter().filter(|(_, stands)| !stands).map(|(id, _)| id));
        if !changed.is_empty() {
            let mut inside = self.lock();
            changed.retain(|id| inside.followed.contains_key(id));
            changed.iter().for_each(|id| inside.forget(*id));
            self.peer.notify::<CallChanged>(&FollowIds { ids: changed });
        }
    }

    /// Begins to watch. False if it cannot be.
    fn begin(self: &Arc<Self>, id: u64, footprint: &Footprint) -> bool {
        let mut inside = self.lock();
        if inside.followed.contains_key(&id) || inside.followed.len() >= MAX_FOLLOWED {
            return false;
        }
        if inside.notices.is_none() {
            let Ok(notices) = Notices::new() else { return false };
            let Ok(waiter) = notices.waiter() else { return false };
            inside.notices = Some(notices);
            let (follows, sink) = (Arc::downgrade(self), self.peer.sink().clone());
            tokio::spawn(async move {
                let telling = async {
                    while waiter.readable().await.is_ok() {
                        let Some(follows) = follows.upgrade() else { return };
                        follows.lock().tell_changes(&follows.peer);
                        // No notice fits into so little room: nothing is taken, and where nothing is left, that is noted.
                        let _ = waiter.try_read(&mut [0]);
                    }
                };
                tokio::select! {
                    () = telling => {}
                    () = sink.closed() => {}
                }
            });
        }
        let Some(watches) = inside.notices.as_mut().and_then(|notices| notices.watch(id, footprint).ok()) else { return false };
        inside.followed.insert(id, Followed { watches, stage: Stage::Asked, layered: None });
        true
    }

    /// From now on changes are told. False if there was one already.
    fn announce(&self, id: u64, layered: Option<(CarriedCall, String)>) -> bool {
        let mut inside = self.lock();
        inside.tell_changes(&self.peer);
        let stands = match inside.followed.get_mut(&id) {
            Some(followed) if followed.stage == Stage::Asked => {
                followed.stage = Stage::Live;
                followed.layered = layered;
                true
            }
            _ => false,
        };
        if !stands {
            inside.forget(id);
        }
        stands
    }
}

impl Inside {
    fn forget(&mut self, id: u64) {
        if let (Some(followed), Some(notices)) = (self.followed.remove(&id), &mut self.notices) {
            notices.forget(id, &followed.watches);
        }
    }

    /// Takes what the system has noticed, and tells it at once: a caller that comes after another must not find it taken and untold.
    fn tell_changes(&mut self, peer: &Peer) {
        let Some(notices) = &mut self.notices else { return };
        let concerned: Vec<u64> = match notices.take() {
            Concerned::Some(ids) => ids.into_iter().collect(),
            Concerned::All => self.followed.keys().copied().collect(),
        };
        let mut told = Vec::new();
        for id in concerned {
            match self.followed.get_mut(&id) {
                Some(followed) if followed.stage == Stage::Live => {
                    self.forget(id);
                    told.push(id);
                }
                Some(followed) => followed.stage = Stage::Overtaken,
                None => {}
            }
        }
        if !told.is_empty() {
            peer.notify::<CallChanged>(&FollowIds { ids: told });
        }
    }
}

/// What came of a carried call.
enum Made {
    Result(Bytes),
    Error(Fault),
}

impl Made {
    fn digest(&self) -> String {
        match self {
            Self::Result(result) => discovery::hex(result),
            Self::Error(fault) => discovery::hex(&serde_json::to_vec(fault).unwrap_or_default()),
        }
    }

    fn answer(self) -> CarriedAnswer {
        let raw = |result: Bytes| String::from_utf8(result.into()).ok().and_then(|text| RawValue::from_string(text).ok());
        match self {
            Self::Error(fault) => CarriedAnswer { error: Some(fault), ..CarriedAnswer::default() },
            Self::Result(result) => match raw(result) {
                Some(result) => CarriedAnswer { result: Some(result), ..CarriedAnswer::default() },
                None => CarriedAnswer { error: Some(Fault::internal("the answer is not valid JSON")), ..CarriedAnswer::default() },
            },
        }
    }
}

/// Answers a carried call, and follows the answer if that was asked for. What the call still has to tell comes after the answer.
pub(crate) async fn carry(connection: &Arc<ExecutorConnection>, call: CarriedCall) -> (CarriedAnswer, Option<Rest>) {
    if [Initialize::NAME, CallFollow::NAME, CallUnfollow::NAME].contains(&call.method.as_str()) {
        let fault = Fault::invalid_request(format!("`{}` cannot be carried by another message", call.method));
        return (CarriedAnswer { error: Some(fault), ..CarriedAnswer::default() }, None);
    }
    let Some(Follow { id, known_digest }) = call.follow.clone() else {
        let (made, rest) = make(connection, &call).await;
        return (made.answer(), rest);
    };
    let (made, following) = follow(connection, id, &call).await;
    let digest = made.digest();
    let unchanged = known_digest.as_ref() == Some(&digest);
    let answer = if unchanged { CarriedAnswer::default() } else { made.answer() };
    (CarriedAnswer { digest: Some(digest), unchanged, following, ..answer }, None)
}

async fn follow(connection: &Arc<ExecutorConnection>, id: u64, call: &CarriedCall) -> (Made, Following) {
    let follows = connection.follows();
    for _ in 0..ATTEMPTS {
        let Some(subject) = subject(connection, call).await.filter(|subject| !subject.footprint.is_too_large()) else { break };
        if !follows.begin(id, &subject.footprint) {
            break;
        }
        let (made, _) = make(connection, call).await;
        let again = self::subject(connection, call).await;
        let is_same = again.is_some_and(|again| again.footprint == subject.footprint);
        let layered = subject.is_layered.then(|| (call.clone(), made.digest()));
        if follows.announce(id, layered) && is_same {
            let following = if subject.footprint.is_blind { Following::Partly } else { Following::Followed };
            return (made, following);
        }
        follows.unfollow(&[id]);
    }
    (make(connection, call).await.0, Following::Not)
}

/// Makes a call as if it had come by itself.
async fn make(connection: &Arc<ExecutorConnection>, call: &CarriedCall) -> (Made, Option<Rest>) {
    let params = Bytes::copy_from_slice(call.params.get().as_bytes());
    let request =
        PeerRequest { id: RequestId::Number(0), method: call.method.clone(), params: placed(connection, call, params), trace: None };
    let reply = connection.clone().request(request).await;
    let made = match frame::decode(&reply.frame.into(), FrameLimits { values: usize::MAX, ..FrameLimits::default() }) {
        Ok(RpcMessage::Response { result, .. }) => Made::Result(result),
        Ok(RpcMessage::Error { fault, .. }) => Made::Error(fault),
        _ => Made::Error(Fault::internal("invalid response")),
    };
    (made, reply.rest)
}

/// A start that comes before its client can know where programs usually start begins there.
fn placed(connection: &ExecutorConnection, call: &CarriedCall, params: Bytes) -> Bytes {
    if call.method != Start::NAME {
        return params;
    }
    let Ok(mut object) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&params) else { return params };
    let Ok((session, _)) = connection.session() else { return params };
    let caller = session.caller();
    let info = caller.info(connection.executor().instance_id());
    let Some(cwd) = info.cwd.as_ref().or(info.user_home_dir.as_ref()).filter(|_| !object.contains_key("cwd")) else { return params };
    object.insert("cwd".into(), cwd.to_string().into());
    serde_json::to_vec(&object).map_or(params, Bytes::from)
}

/// What a call looks at; nothing if that is not known of such calls.
async fn subject(connection: &Arc<ExecutorConnection>, call: &CarriedCall) -> Option<Subject> {
    fn read<P: DeserializeOwned>(call: &CarriedCall) -> Option<P> {
        serde_json::from_str(call.params.get()).ok()
    }
    let config = connection.session().ok()?.0.caller().config.clone();
    type Look = Box<dyn FnOnce(&mut Footprint) + Send>;
    let place = |path: &outpost_wire::PathUri, sandbox: Option<&SandboxContext>| -> Option<(PathBuf, bool)> {
        let path = path.to_native().ok()?;
        let is_layered = gate(connection, sandbox).ok()?.is_layered(&path);
        Some((path, is_layered))
    };
    let (look, is_layered): (Look, bool) = match call.method.as_str() {
        ReadFile::NAME => {
            let ReadFileParams { path, sandbox, .. } = read(call)?;
            let (path, is_layered) = place(&path, sandbox.as_ref())?;
            (Box::new(move |footprint| footprint.add(&path)), is_layered)
        }
        Canonicalize::NAME => {
            let CanonicalizeParams { path, sandbox } = read(call)?;
            let (path, is_layered) = place(&path, sandbox.as_ref())?;
            (Box::new(move |footprint| footprint.add(&path)), is_layered)
        }
        Discover::NAME => {
            let DiscoverParams { roots } = read(call)?;
            let places: Vec<(PathBuf, bool)> = roots.iter().map(|root| place(&root.path, root.sandbox.as_ref())).collect::<Option<_>>()?;
            let is_layered = places.iter().any(|(_, is_layered)| *is_layered);
            (Box::new(move |footprint| places.iter().for_each(|(root, _)| footprint.add_root(root))), is_layered)
        }
        DiscoverInstalled::NAME => {
            let InstalledParams { sandbox, .. } = read(call)?;
            let gate = gate(connection, sandbox.as_ref()).ok()?;
            let is_layered = installed::places(&config).iter().any(|place| gate.is_layered(place.path()));
            let look = move |footprint: &mut Footprint| {
                for place in installed::places(&config) {
                    match place {
                        installed::InstalledPlace::Root(root) => footprint.add_root(&root),
                        installed::InstalledPlace::Folder(folder) if folder.is_dir() => footprint.add_folder(&folder),
                        installed::InstalledPlace::Folder(folder) => footprint.add(&folder),
                    }
                }
            };
            (Box::new(look), is_layered)
        }
        ReadConfig::NAME => {
            (Box::new(move |footprint| settings::files(&config).iter().for_each(|file: &PathBuf| footprint.add(file))), false)
        }
        _ => return None,
    };
    let footprint = blocking(move || {
        let mut footprint = Footprint::default();
        look(&mut footprint);
        Ok(footprint)
    });
    Some(Subject { footprint: footprint.await.ok()?, is_layered })
}

/// Whether a method may change files.
pub(crate) fn may_change_files(method: &str) -> bool {
    const LOOKS: [&str; 8] =
        ["readFile", "getMetadata", "canonicalize", "readDirectory", "walk", "getAttributes", "listAttributes", "readBlock"];
    method.strip_prefix("fs/").is_some_and(|name| !LOOKS.contains(&name) && !name.starts_with("watch") && name != "unwatch")
}
