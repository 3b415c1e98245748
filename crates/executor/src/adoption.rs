//! Which processes other sessions may take over, and under which lease each was claimed last.
//!
//! A process is found by its name and its secret together, so a client that does not know the secret learns nothing. A claim is
//! remembered even where there is no such process: a start that was on its way under an older lease must not begin after the claimant was
//! told that nothing runs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outpost_sandbox::policy::{NetworkRule, Policy};
use outpost_wire::Fault;
use outpost_wire::exec::adoption::{
    AdoptParams, AdoptResponse, AdoptableProcess, AdoptionClaim, AdoptionSecret, OwnerEpoch, SHORTEST_SECRET,
};
use sha2::{Digest, Sha256};

use crate::fault;
use crate::session::{ExecutorSession, Lent};

/// So many claims of processes that are not there are remembered.
const REMEMBERED: usize = 4096;

/// A digest of name and secret: looking one up takes as long for a wrong secret as for a right one.
type Key = [u8; 32];

#[derive(Default)]
pub(crate) struct Adoptions(Mutex<Records>);

#[derive(Default)]
struct Records {
    known: HashMap<Key, Record>,
    /// Claims of processes that are not there, the oldest first.
    void: VecDeque<Key>,
    /// Records of processes that are gone are looked for when there are so many.
    sweep_at: usize,
}

struct Record {
    epoch: OwnerEpoch,
    process_id: String,
    /// The session that has the process, or is starting it.
    holder: Weak<ExecutorSession>,
    /// Where it was started, once it was.
    sandbox: Option<StartedIn>,
}

/// The session whose sandboxes a process was started in, and under which policy. Another session that takes it over changes neither.
struct StartedIn {
    session: Weak<ExecutorSession>,
    policy: Policy,
}

/// A sandbox that another process was started in.
pub(crate) struct Beside {
    pub session: Arc<ExecutorSession>,
    pub policy: Policy,
}

impl Record {
    fn holder(&self) -> Option<Arc<ExecutorSession>> {
        self.holder.upgrade().filter(|session| session.process(&self.process_id).is_some())
    }
}

fn key(process_id: &str, secret: &AdoptionSecret) -> Key {
    let mut digest = Sha256::new();
    digest.update((process_id.len() as u64).to_le_bytes());
    digest.update(process_id);
    digest.update(&secret.0);
    digest.finalize().into()
}

impl Adoptions {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes who may have a process that a session is about to start. Refused if it was claimed under a newer lease. The session must
    /// show the start already: a claimant that comes later has to find it and wait for it.
    pub(crate) fn begin(&self, process_id: &str, claim: &AdoptionClaim, session: &Arc<ExecutorSession>) -> Result<(), Fault> {
        if claim.secret.0.len() < SHORTEST_SECRET {
            return Err(fault::short_secret(SHORTEST_SECRET));
        }
        let mut records = self.lock();
        let key = key(process_id, &claim.secret);
        if let Some(known) = records.known.get(&key) {
            if claim.epoch.is_superseded_by(known.epoch) {
                return Err(fault::adopted_since(process_id));
            }
            if known.holder().is_some_and(|holder| !Arc::ptr_eq(&holder, session)) {
                return Err(fault::process_exists(process_id));
            }
        }
        let holder = Arc::downgrade(session);
        let record = Record { epoch: claim.epoch, process_id: process_id.to_owned(), holder, sandbox: records.sandbox(&key) };
        records.known.insert(key, record);
        records.sweep();
        Ok(())
    }

    /// Notes where a process runs that was just started.
    pub(crate) fn started(&self, process_id: &str, secret: &AdoptionSecret, session: &Arc<ExecutorSession>, policy: Policy) {
        if let Some(record) = self.lock().known.get_mut(&key(process_id, secret)) {
            record.sandbox = Some(StartedIn { session: Arc::downgrade(session), policy });
        }
    }

    /// The sandbox of the first of these processes that is known here and whose sandboxes are still there. One with a loopback of its own
    /// counts before those that see the machine's: a single command that was allowed the network is not to lead elsewhere.
    pub(crate) fn beside(&self, processes: &[AdoptableProcess]) -> Option<Beside> {
        let records = self.lock();
        let mut there = processes.iter().filter_map(|process| {
            let StartedIn { session, policy } = records.known.get(&key(&process.process_id, &process.secret))?.sandbox.as_ref()?;
            let session = session.upgrade().filter(|session| session.has_sandboxes())?;
            Some(Beside { session, policy: policy.clone() })
        });
        let is_apart = |beside: &Beside| beside.policy.rules().is_some_and(|rules| rules.network == NetworkRule::Restricted);
        let first = there.next()?;
        if is_apart(&first) { Some(first) } else { Some(there.find(is_apart).unwrap_or(first)) }
    }

    /// Moves a process into the session of the claimant.
    pub(crate) async fn adopt(&self, params: &AdoptParams, claimant: &Arc<ExecutorSession>) -> Result<AdoptResponse, Fault> {
        loop {
            match self.try_adopt(params, claimant)? {
                Lent::Process(process) => return Ok(process.standing()),
                Lent::Starting(starting) => starting.over().await,
            }
        }
    }

    fn try_adopt(&self, params: &AdoptParams, claimant: &Arc<ExecutorSession>) -> Result<Lent, Fault> {
        let id = &params.process_id;
        let mut records = self.lock();
        let key = key(id, &params.secret);
        let holder = match records.known.get(&key) {
            None => None,
            Some(known) => {
                let is_own = std::ptr::eq(known.holder.as_ptr(), Arc::as_ptr(claimant));
                // A claimant that asks again, because the answer was lost, has it already.
                let is_repeated = is_own && known.epoch == params.epoch;
                if !is_repeated && !known.epoch.yields_to(params.epoch) {
                    // Also one that was told that nothing runs: the answer is the same.
                    let is_void = known.epoch == params.epoch && known.holder().is_none();
                    return Err(if is_void { fault::not_adoptable(id) } else { fault::adopted_since(id) });
                }
                known.holder()
            }
        };
        let Some(holder) = holder else {
            records.note_void(key, params);
            return Err(fault::not_adoptable(id));
        };
        let lent = if Arc::ptr_eq(&holder, claimant) { holder.own(id) } else { holder.lend(id, claimant)? };
        let Some(lent) = lent else {
            records.note_void(key, params);
            return Err(fault::not_adoptable(id));
        };
        let holder = match &lent {
            Lent::Process(_) => Arc::downgrade(claimant),
            // It is asked for again when it runs.
            Lent::Starting(_) => return Ok(lent),
        };
        let sandbox = records.sandbox(&key);
        records.known.insert(key, Record { epoch: params.epoch, process_id: id.clone(), holder, sandbox });
        Ok(lent)
    }
}

impl Records {
    /// Where a process was started, for its next record.
    fn sandbox(&mut self, key: &Key) -> Option<StartedIn> {
        self.known.get_mut(key)?.sandbox.take()
    }

    /// Remembers a claim of a process that is not there.
    fn note_void(&mut self, key: Key, params: &AdoptParams) {
        let sandbox = self.sandbox(&key);
        self.known.insert(key, Record { epoch: params.epoch, process_id: params.process_id.clone(), holder: Weak::new(), sandbox });
        self.void.push_back(key);
        while self.void.len() > REMEMBERED {
            let oldest = self.void.pop_front();
            if let Some(oldest) = oldest.filter(|oldest| self.known.get(oldest).is_some_and(|record| record.holder().is_none())) {
                self.known.remove(&oldest);
            }
        }
    }

    /// Drops records of processes that are gone, from time to time.
    fn sweep(&mut self) {
        if self.known.len() < self.sweep_at.max(2 * REMEMBERED) {
            return;
        }
        let void: std::collections::HashSet<Key> = self.void.iter().copied().collect();
        self.known.retain(|key, record| void.contains(key) || record.holder().is_some());
        self.sweep_at = 2 * self.known.len();
    }
}
