//! The approval questions of a thread's agents, shown to the user.

use std::collections::HashSet;

use outpost_runtime::Runtime;
use outpost_runtime::feed::Read;
use outpost_runtime::follow::Followed;
use outpost_runtime::live::{LiveThread, ThreadEvent};
use outpost_thread::{ApprovalAsked, ApprovalId, Fact, Ordinal, ThreadId};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::agents::Agents;
use crate::remote::{BACK, RemoteServer};

/// Something about the questions of an agent.
pub(super) enum AgentEvent {
    Asked(LiveThread, Box<ApprovalAsked>),
    Answered(ApprovalId),
    /// Its turn is over, and with it all that it asked.
    Over(ThreadId),
}

/// Hears all agents of a thread, and those that they make, for as long as it lives.
pub(super) struct AgentQuestions {
    news: mpsc::UnboundedReceiver<AgentEvent>,
    _task: AbortOnDropHandle<()>,
}

impl AgentQuestions {
    pub(super) fn of(agents: &Agents, root: ThreadId) -> Self {
        let (sender, news) = mpsc::unbounded_channel();
        let runtime = match (agents.own_runtime(), agents.remote()) {
            (Ok(runtime), _) => runtime,
            (Err(_), Some(remote)) => {
                let task = tokio::spawn(remote_questions(remote.server.clone(), root, sender));
                return Self { news, _task: AbortOnDropHandle::new(task) };
            }
            (Err(_), None) => return Self { news, _task: AbortOnDropHandle::new(tokio::spawn(async {})) },
        };
        let family = Family { runtime: runtime.clone(), heard: HashSet::from([root]), sender, watches: Vec::new() };
        Self { news, _task: AbortOnDropHandle::new(tokio::spawn(family.follow(root))) }
    }

    pub(super) async fn next(&mut self) -> AgentEvent {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }
}

/// A thread and all agents below it.
struct Family {
    runtime: Runtime,
    heard: HashSet<ThreadId>,
    sender: mpsc::UnboundedSender<AgentEvent>,
    watches: Vec<AbortOnDropHandle<()>>,
}

impl Family {
    async fn follow(mut self, root: ThreadId) {
        let mut starts = self.runtime.agent_starts();
        self.look_for_agents(root);
        loop {
            match starts.next().await {
                Read::Event(start) if self.heard.contains(&start.maker) => {
                    // One that was loaded again is heard again.
                    self.heard.insert(start.thread.id);
                    let live = self.runtime.get(start.thread.id);
                    live.into_iter().for_each(|live| self.hear(live));
                }
                Read::Event(_) => {}
                Read::Missed(_) => self.look_for_agents(root),
                Read::End => return,
            }
        }
    }

    fn look_for_agents(&mut self, maker: ThreadId) {
        for live in self.runtime.agents_of(maker) {
            let id = live.id();
            if self.heard.insert(id) {
                self.hear(live);
            }
            self.look_for_agents(id);
        }
    }

    fn hear(&mut self, agent: LiveThread) {
        self.watches.retain(|watch| !watch.is_finished());
        self.watches.push(AbortOnDropHandle::new(tokio::spawn(watch(agent, self.sender.clone()))));
    }
}

async fn watch(agent: LiveThread, sender: mpsc::UnboundedSender<AgentEvent>) {
    let Some(last) = open_questions(&agent, &sender).await else { return };
    let mut follower = agent.follow(last);
    loop {
        let news = match follower.next().await {
            Followed::Event(ThreadEvent::Entry(entry)) => match &entry.fact {
                Fact::ApprovalAsked(asked) => AgentEvent::Asked(agent.clone(), asked.clone()),
                Fact::ApprovalAnswered(answered) => AgentEvent::Answered(answered.approval.clone()),
                Fact::TurnFinished(_) => AgentEvent::Over(agent.id()),
                _ => continue,
            },
            Followed::Event(_) => continue,
            // What waits is known all the same; a question that is found twice is ignored.
            Followed::Unreadable(error) => {
                tracing::warn!(thread = %agent.id(), %error, "a part of what an agent did cannot be read");
                match open_questions(&agent, &sender).await {
                    Some(_) => continue,
                    None => return,
                }
            }
            Followed::End => {
                let _ = sender.send(AgentEvent::Over(agent.id()));
                return;
            }
        };
        if sender.send(news).is_err() {
            return;
        }
    }
}

/// Tells what an agent waits for already. Returns the last entry that was counted; nothing if the agent is not loaded any more.
async fn open_questions(agent: &LiveThread, sender: &mpsc::UnboundedSender<AgentEvent>) -> Option<Ordinal> {
    let state = agent.snapshot().await.ok()?;
    for approval in state.turn.iter().flat_map(|turn| &turn.approvals) {
        let _ = sender.send(AgentEvent::Asked(agent.clone(), Box::new(approval.asked.clone())));
    }
    Some(state.last)
}

/// The same for a thread of a server: it tells of the agents of every thread that is opened there.
async fn remote_questions(server: RemoteServer, root: ThreadId, sender: mpsc::UnboundedSender<AgentEvent>) {
    // First to listen and then to look; a question that is found twice is ignored.
    let mut others = server.others();
    let mut looks = true;
    loop {
        if std::mem::take(&mut looks) {
            let open = others.hold(server.open_questions(root)).await;
            for (thread, asked) in open {
                if let Some(agent) = server.answerable(thread).await {
                    let _ = sender.send(AgentEvent::Asked(agent, Box::new(asked)));
                }
            }
        }
        let Some(heard) = others.next().await else { return };
        // What was asked while there was no connection.
        looks = heard.method == BACK;
        let Some((thread, entry)) = heard.entry() else { continue };
        let news = match entry.fact {
            Fact::ApprovalAsked(asked) => match server.answerable(thread).await {
                Some(agent) => AgentEvent::Asked(agent, asked),
                None => continue,
            },
            Fact::ApprovalAnswered(answered) => AgentEvent::Answered(answered.approval),
            Fact::TurnFinished(_) => AgentEvent::Over(thread),
            _ => continue,
        };
        if sender.send(news).is_err() {
            return;
        }
    }
}
