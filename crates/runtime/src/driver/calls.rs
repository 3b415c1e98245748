//! Calls of a turn: decide about them, start them, take their ends, find them again after a restart.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outpost_store::Need;
use outpost_thread::{ApprovalAsked, ApprovalId, Call, CallFinished, CallId, CallState, Fact, Ordinal, Raw, Thread, TurnId};
use tokio_util::sync::CancellationToken;

use super::{Done, Driver, Elsewhere, RunningCall, Stop};
use crate::approvals::key_in;
use crate::tools::earlier::{EarlierCommand, EarlierSearch, WRITE_STDIN, asked_at, session_in};
use crate::tools::processes::Ownership;
use crate::tools::{ApprovedCall, CallContext, CallEnd, CallPlan, CallRuntime, Consent, RequestedCall, ResultType};

impl Driver {
    /// Decides about undecided calls, and ends those that the user said no to.
    pub(super) async fn decide(&mut self, turn: TurnId, calls: Vec<Call>) -> Result<(), Stop> {
        let (mut facts, mut runs) = (Vec::new(), Vec::new());
        for call in calls {
            let plan = match call.state {
                CallState::Answered(decision) => {
                    CallPlan::End(CallEnd::declined(ResultType::of(self.item_of(&call).await?.as_ref()), &call.id, decision))
                }
                _ => self.plan(&call, Consent::Open).await?,
            };
            self.settle(&turn, &call, plan, &mut facts, &mut runs);
        }
        self.start(turn, facts, runs).await
    }

    pub(super) async fn run_approved(&mut self, turn: TurnId, calls: Vec<Call>) -> Result<(), Stop> {
        let (mut facts, mut runs) = (Vec::new(), Vec::new());
        let mut earlier = self.consents_of(calls.iter().filter(|call| !self.turn.answers.contains_key(&call.id))).await?;
        for call in calls {
            let consent = self.turn.answers.remove(&call.id).or_else(|| earlier.remove(&call.id)).unwrap_or(Consent::Open);
            let plan = self.plan(&call, consent).await?;
            self.settle(&turn, &call, plan, &mut facts, &mut runs);
        }
        self.start(turn, facts, runs).await
    }

    async fn plan(&mut self, call: &Call, consent: Consent) -> Result<CallPlan, Stop> {
        self.own_processes().await;
        let Some(item) = self.item_of(call).await? else {
            return Ok(CallPlan::End(CallEnd::failed(ResultType::Function, &call.id, "what this call asked for cannot be read any more")));
        };
        let earlier = self.earlier_command(&item).await?;
        let tools = self.tools().await?;
        Ok(tools.plan(&RequestedCall { call, item: &item, grants: &self.grants, consent, earlier }))
    }

    fn settle(&self, turn: &TurnId, call: &Call, plan: CallPlan, facts: &mut Vec<Fact>, runs: &mut Vec<ApprovedCall>) {
        match plan {
            CallPlan::Run(run) => {
                facts.push(run.started(turn.clone()).into());
                runs.push(*run);
            }
            CallPlan::Ask(question) => {
                let asked = ApprovalAsked {
                    turn: turn.clone(),
                    approval: ApprovalId((self.shared.ids)()),
                    call: Some(call.id.clone()),
                    environment: question.environment,
                    kind: question.kind,
                    detail: Some(question.detail.into()),
                };
                facts.push(asked.into());
            }
            CallPlan::End(end) => facts.push(finished(turn, &call.id, end).into()),
        }
    }

    /// Writes that calls begin, and only then lets them begin.
    async fn start(&mut self, turn: TurnId, facts: Vec<Fact>, runs: Vec<ApprovedCall>) -> Result<(), Stop> {
        let need = if runs.iter().all(|run| run.repeatable) { Need::Stored } else { Need::BeforeEffect };
        self.record(facts, need).await?;
        self.spawn_all(&turn, runs);
        Ok(())
    }

    /// Lets calls begin, all of them with one and the same picture of the thread.
    pub(super) fn spawn_all(&mut self, turn: &TurnId, runs: Vec<ApprovedCall>) {
        if runs.is_empty() {
            return;
        }
        let thread = Arc::new(self.thread.clone());
        for run in runs {
            self.spawn(turn.clone(), run, thread.clone());
        }
    }

    /// Lets a call begin. Calls run at once, in the order of the answer that asked for them, except around one that must
    /// run alone: it waits for all before it, and all after it wait for it.
    /// No more than [`MOST_AT_ONCE`] that need a machine run at the same time.
    fn spawn(&mut self, turn: TurnId, run: ApprovedCall, thread: Arc<Thread>) {
        let (call, alone) = (run.call.clone(), run.runs_alone());
        let elsewhere = match &run {
            run if run.process.is_some() || run.tool == WRITE_STDIN => Elsewhere::Found,
            run if run.repeatable => Elsewhere::Repeated,
            _ => Elsewhere::Lost,
        };
        let has_begun = Arc::new(AtomicBool::new(false));
        let (cancel, over) = (CancellationToken::new(), CancellationToken::new());
        self.calls.ending.retain(|over| !over.is_cancelled());
        let before = self.calls.running.values().filter(|earlier| alone || earlier.alone).map(|earlier| &earlier.over);
        let before: Vec<CancellationToken> = before.chain(self.calls.ending.iter().filter(|_| alone)).cloned().collect();
        let context = CallContext {
            runtime: CallRuntime::new(self.shared.clone()),
            thread,
            turn: turn.clone(),
            cancel: cancel.clone(),
            feed: self.audience.feed.clone(),
            questions: self.calls.questions.0.clone(),
        };
        let (running, named, ends) = (turn.clone(), call.clone(), over.clone().drop_guard());
        let slots = run.takes_slot().then(|| self.calls.slots.clone());
        let (gate, begins) = (self.calls.gate.clone(), has_begun.clone());
        let task = self.work.spawn(async move {
            let _ends = ends;
            for earlier in before {
                earlier.cancelled().await;
            }
            let slot = async {
                match slots {
                    Some(slots) => slots.acquire_owned().await.ok(),
                    None => None,
                }
            };
            let _slot = tokio::select! {
                slot = slot => slot,
                () = context.cancel.cancelled() => None,
            };
            if !gate.enter(&begins) {
                // Until its turn ends, or this driver.
                context.cancel.cancelled().await;
            }
            let mut end = if context.cancel.is_cancelled() { CallEnd::aborted() } else { run.execute(context).await };
            end.items = crate::pictures::fitted(end.items).await;
            Done::Called { turn, call: named, end }
        });
        self.calls.running.insert(call, RunningCall { turn: running, task, cancel, alone, over, has_begun, elsewhere });
    }

    pub(super) async fn called(&mut self, turn: TurnId, call: CallId, end: CallEnd) -> Result<(), Stop> {
        let mut end = end;
        // A wake-up that has begun a turn meanwhile is over already.
        end.facts
            .retain(|fact| !matches!(fact, Fact::WakeEnded(over) if self.thread.wakes.iter().all(|wake| wake.session != over.session)));
        // Models give calls of different turns the same name.
        if self.calls.running.get(&call).is_none_or(|running| running.turn != turn) {
            // Its turn was ended meanwhile, and its end was written then; what it brought about is true all the same.
            return self.record(end.facts, Need::Stored).await;
        }
        // What it came to may be due to the end of this node, and the next one does it again.
        if self.last_calls.is_some() && self.calls.running.get(&call).is_some_and(|running| running.elsewhere == Elsewhere::Repeated) {
            return Ok(());
        }
        self.calls.running.remove(&call);
        let mut facts: Vec<Fact> = self.end_questions(&call);
        facts.extend(end.facts.clone());
        facts.push(finished(&turn, &call, end).into());
        self.record(facts, Need::Stored).await
    }

    /// Calls that were started by a previous run of this thread. A process is looked for where it was started; a write to one
    /// is repeated under its name, which makes it the same write; anything else is lost, unless doing it twice does no harm.
    pub(super) async fn reattach(&mut self, turn: TurnId, calls: Vec<Call>) -> Result<(), Stop> {
        self.own_processes().await;
        let (mut facts, mut runs) = (Vec::new(), Vec::new());
        let mut consents = self.consents_of(calls.iter()).await?;
        for call in calls {
            let item = self.item_of(&call).await?;
            let started = call.started.clone();
            let again = match (&started, &item) {
                (Some(started), _) if started.process.is_some() => {
                    runs.extend(ApprovedCall::adopt(started, item.as_ref(), self.processes.clone()));
                    continue;
                }
                (Some(started), Some(_)) if started.repeatable || started.tool == WRITE_STDIN => {
                    let consent = consents.remove(&call.id).unwrap_or(Consent::Begun);
                    Some(self.plan(&call, consent).await?)
                }
                _ => None,
            };
            match again {
                Some(CallPlan::Run(run)) => runs.push(*run),
                Some(CallPlan::End(end)) => facts.push(finished(&turn, &call.id, end).into()),
                Some(CallPlan::Ask(_)) | None => {
                    facts.push(finished(&turn, &call.id, CallEnd::lost(ResultType::of(item.as_ref()), &call.id)).into())
                }
            }
        }
        self.record(facts, Need::Stored).await?;
        self.spawn_all(&turn, runs);
        Ok(())
    }

    /// Has commands belong to this thread, so that the next program that drives it can claim them.
    pub(super) async fn own_processes(&self) {
        if self.processes.is_owned() {
            return;
        }
        match self.shared.adoption_key(&self.journal.store).await {
            Ok(Some(key)) => self.processes.own(Ownership { key, epoch: self.journal.lease.epoch }),
            Ok(None) => {}
            Err(_) if self.shared.is_lack_of_key_told.swap(true, Ordering::Relaxed) => {}
            Err(error) => {
                tracing::warn!(thread = %self.thread.id, %error, "commands end with the session of this program: there is no key")
            }
        }
    }

    /// Stops all calls of the running turn; the facts that say so are still to be written.
    pub(super) fn abort_calls(&mut self) -> Vec<Fact> {
        let Some(turn) = &self.thread.turn else { return Vec::new() };
        let mut facts = Vec::new();
        for call in turn.calls.iter().filter(|call| call.state != CallState::Finished) {
            if let Some(running) = self.calls.running.remove(&call.id) {
                running.cancel.cancel();
                if running.alone {
                    self.calls.ending.push(running.over);
                }
            }
            // What it printed stays in the thread: the user has seen it.
            let report = self.processes.output_so_far(&call.id).map(Into::into);
            facts.push(finished(&turn.id, &call.id, CallEnd { report, ..CallEnd::aborted() }).into());
        }
        facts
    }

    /// What stands in the journal about the command that a call wants to write to, if no command of this life of the thread
    /// has that session id.
    async fn earlier_command(&self, item: &Raw) -> Result<Option<EarlierCommand>, Stop> {
        let Some(session) = session_in(item).filter(|session| self.processes.get(*session).is_none()) else { return Ok(None) };
        let (ordinal, _) = asked_at(session);
        if ordinal == 0 || ordinal > self.thread.last {
            return Ok(None);
        }
        let mut search = EarlierSearch::new(session);
        let mut history = self.journal.store.history(self.thread.id, ordinal - 1).await?;
        while let Some(batch) = history.next().await? {
            batch.entries.iter().for_each(|entry| search.see(entry));
        }
        // A fork knows of its parent's commands; they are not its own.
        Ok(search.found().filter(|found| self.processes.is_own(&found.process)))
    }

    /// The model's item that asks for a call. The calls of one answer stand in one entry, which is read once for all of them.
    async fn item_of(&mut self, call: &Call) -> Result<Option<Raw>, Stop> {
        if self.turn.answer.as_ref().is_none_or(|(ordinal, _)| *ordinal != call.asked_ordinal) {
            let items = match self.entry_at(call.asked_ordinal).await?.map(|entry| entry.fact) {
                Some(Fact::ModelAnswered(answered)) => answered.items,
                _ => Vec::new(),
            };
            self.turn.answer = Some((call.asked_ordinal, items));
        }
        Ok(self.turn.answer.as_ref().and_then(|(_, items)| items.get(call.item).cloned()))
    }

    /// Whether nothing is to be done but to wait for calls that run here.
    pub(super) fn only_waits(&self) -> bool {
        let Some(turn) = &self.thread.turn else { return false };
        let mut runs = false;
        let is_quiet = turn.calls.iter().all(|call| match call.state {
            CallState::Started => {
                runs = true;
                self.calls.running.contains_key(&call.id)
            }
            CallState::Finished => true,
            _ => false,
        });
        is_quiet && runs
    }

    /// What the user answered to calls before a restart, where a question was asked. If a question was asked again, the last answer
    /// counts. All of them are looked for at once: an answer may ask for thousands.
    async fn consents_of(&self, calls: impl Iterator<Item = &Call>) -> Result<HashMap<CallId, Consent>, Stop> {
        let since: HashMap<&CallId, Ordinal> = calls.map(|call| (&call.id, call.asked_ordinal)).collect();
        let Some(first) = since.values().min() else { return Ok(HashMap::new()) };
        let mut history = self.journal.store.history(self.thread.id, *first).await?;
        let (mut asked, mut consents) = (HashMap::<ApprovalId, (CallId, ApprovalAsked)>::new(), HashMap::new());
        let mut last: HashMap<CallId, ApprovalId> = HashMap::new();
        while let Some(batch) = history.next().await? {
            for entry in batch.entries {
                match entry.fact {
                    Fact::ApprovalAsked(fact) => {
                        // Models give calls of different answers the same name.
                        let call = fact.call.clone().filter(|call| since.get(call).is_some_and(|since| entry.ordinal > *since));
                        if let Some(call) = call {
                            if let Some(before) = last.insert(call.clone(), fact.approval.clone()) {
                                asked.remove(&before);
                            }
                            asked.insert(fact.approval.clone(), (call, *fact));
                        }
                    }
                    Fact::ApprovalAnswered(fact) => {
                        if let Some((call, asked)) = asked.get(&fact.approval) {
                            consents.insert(call.clone(), Consent::Given { answer: fact.detail, key: key_in(asked) });
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(consents)
    }
}

fn finished(turn: &TurnId, call: &CallId, end: CallEnd) -> CallFinished {
    CallFinished { turn: turn.clone(), call: call.clone(), outcome: end.outcome, items: end.items, detail: end.report }
}
