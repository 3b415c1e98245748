//! A conversation on a terminal: keys and events in, what the view makes of them out.

mod draw;
mod questions;

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use outpost_runtime::follow::ThreadFollower;
use outpost_runtime::live::{LiveThread, ThreadActivity, ThreadEvent};
use outpost_store::PageRequest;
use outpost_terminal::diff;
use outpost_terminal::editor::{EditorOutcome, LineEditor};
use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::keys::{KeyDecoder, TerminalKey};
use outpost_terminal::menu::{ChoiceMenu, MenuOutcome};
use outpost_thread::{Fact, Thread};
use outpost_wire::shown::Form;
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::ChatEnd;
use super::agents::{AgentEvent, AgentQuestions};
use super::complete::{self, Completion};
use super::errands::{ErrandOutcome, Errands, interrupt};
use super::past::PastPrompts;
use super::question::ChatQuestion;
use super::slash::{self, SlashLine, SlashOutcome};
use super::status::ChatStatus;
use super::ui_terminal::{TypedKeys, UiTerminal};
use super::view::{ConversationView, indented};
use super::waiting::{SETTLES, Waiting};
use crate::agent_args::Which;
use crate::agents::{Agents, Open};
use crate::commands::thread::transcript::{SHOWN_AGAIN, TranscriptPiece, pieces, recent};
use crate::frame::{line, lines};
use crate::notify::Notifier;
use crate::signals::Watched;

/// How often what goes on is drawn anew. Keys are drawn at once.
const FRAME_TIME: Duration = Duration::from_millis(40);
/// A lone escape is the key of that name if nothing follows it for so long.
const ESCAPE_TIME: Duration = Duration::from_millis(40);
/// A second Ctrl-C within this leaves.
const TWICE: Duration = Duration::from_secs(2);
/// How often an environment that is not ready is looked at.
const STANDING_TIME: Duration = Duration::from_millis(500);
/// How often a server is asked which commands still run in the background: it does not tell of their ends.
const BACKGROUND_TIME: Duration = Duration::from_secs(2);
/// Events are handled for so long before keys are looked at again.
const BURST: Duration = Duration::from_millis(5);

pub(super) async fn talk(agents: &Agents, open: Open, terminal: &mut UiTerminal) -> anyhow::Result<ChatEnd> {
    let Open { thread, follow, before, missing } = open;
    let past = PastPrompts::of(agents.directory());
    let mut view = ConversationView::new(terminal.painter.columns());
    view.say(Ink::Quiet, &format!("thread {}", thread.id()));
    agents.note(&before).into_iter().for_each(|note| view.say(Ink::Note, note));
    agents.shortfall().iter().for_each(|shortfall| view.say(Ink::Note, &line(shortfall)));
    missing.iter().for_each(|missing| view.say(Ink::Bad, missing));
    if before.turns > 0 || before.turn.is_some() {
        show_last_turn(&mut view, agents, &before).await;
    }
    let running = before.turn.iter().flat_map(|turn| &turn.calls).filter_map(|call| call.started.as_ref());
    running.for_each(|started| view.found_running(started, Instant::now()));
    let questions = before.turn.iter().flat_map(|turn| &turn.approvals).map(|approval| ChatQuestion::new(&approval.asked)).collect();
    let (completed, completions) = mpsc::channel(1);
    let (events, following) = followed(follow);
    let running_since = before.turn.is_some().then(Instant::now);
    let mut ui = ChatUi {
        agents,
        terminal,
        notifier: agents.notifier(thread.id()),
        asking: AgentQuestions::of(agents, thread.id()),
        status: ChatStatus::of(agents, &thread, running_since).await.unwrap_or_default(),
        refreshed_at: Instant::now(),
        thread,
        events,
        _following: following,
        view,
        editor: LineEditor::new(past.read()),
        past,
        decoder: KeyDecoder::default(),
        questions: Waiting::new(questions),
        focus: Focus::Editor,
        draft: String::new(),
        offered: Vec::new(),
        hint: None,
        interrupted_at: None,
        message_until: None,
        said_something: false,
        is_leaving: false,
        completed,
        completions,
        errands: Errands::default(),
        asides: FuturesUnordered::new(),
        refresh: Refresh::Settled,
        end: None,
    };
    let end = ui.run().await;
    ui.notifier.settle().await;
    end
}

/// So many events wait for the screen; one that is slower misses what is not stored, as every follower does.
const EVENTS: usize = 64;

/// Follows a thread in a task of its own: a read of the store that is given up with every tick would never end.
fn followed(mut follow: ThreadFollower) -> (mpsc::Receiver<ThreadEvent>, AbortOnDropHandle<()>) {
    let (sender, events) = mpsc::channel(EVENTS);
    let task = tokio::spawn(async move {
        loop {
            let event: ThreadEvent = follow.next().await.into();
            let is_over = matches!(event, ThreadEvent::Status(ThreadActivity::Closed));
            if sender.send(event).await.is_err() || is_over {
                return;
            }
        }
    });
    (events, AbortOnDropHandle::new(task))
}

/// What the keys are for.
enum Focus {
    /// A message to the agent.
    Editor,
    /// The first question, answered by choosing.
    Menu(ChoiceMenu),
    /// The first question, answered with a text.
    Answer,
}

struct ChatUi<'a> {
    agents: &'a Agents,
    terminal: &'a mut UiTerminal,
    notifier: Notifier,
    asking: AgentQuestions,
    status: ChatStatus,
    refreshed_at: Instant,
    thread: LiveThread,
    events: mpsc::Receiver<ThreadEvent>,
    _following: AbortOnDropHandle<()>,
    view: ConversationView,
    editor: LineEditor,
    past: PastPrompts,
    decoder: KeyDecoder,
    questions: Waiting<ChatQuestion>,
    focus: Focus,
    /// What was typed when a question took the keys.
    draft: String,
    /// What a word could become.
    offered: Vec<String>,
    /// A word to the user that goes away with the next key.
    hint: Option<String>,
    interrupted_at: Option<Instant>,
    /// Keys before this belong to a message that was begun in the sight of a menu.
    message_until: Option<Instant>,
    said_something: bool,
    /// The user wants to leave at the end of the turn.
    is_leaving: bool,
    completed: mpsc::Sender<Completion>,
    completions: mpsc::Receiver<Completion>,
    errands: Errands<'a>,
    /// What waits for nothing else.
    asides: FuturesUnordered<BoxFuture<'a, UiNews>>,
    refresh: Refresh,
    end: Option<ChatEnd>,
}

/// Whether it is being asked how everything stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refresh {
    Settled,
    Asked,
    /// Something happened since it was asked.
    Stale,
}

enum UiNews {
    Event(Box<ThreadEvent>),
    Agent(AgentEvent),
    Keys(Option<TypedKeys>),
    Settled,
    Completed(Completion),
    Done(ErrandOutcome),
    /// How everything stands, unless the thread is closed.
    Status(Option<Box<ChatStatus>>),
    Resized,
    Interrupt,
    HungUp,
    Terminate,
    Tick,
}

impl<'a> ChatUi<'a> {
    async fn run(&mut self) -> anyhow::Result<ChatEnd> {
        let mut interrupt = Watched::keyboard()?;
        let (mut terminate, mut hangup) = (Watched::new(SignalKind::terminate())?, Watched::new(SignalKind::hangup())?);
        let mut window = Watched::new(SignalKind::window_change())?;
        let mut ticks = tokio::time::interval(FRAME_TIME);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.paint();
        loop {
            if let Some(end) = self.end.take() {
                self.paint();
                return Ok(end);
            }
            if self.is_leaving && !self.is_active() && self.events.is_empty() && self.errands.is_empty() {
                self.leave();
                continue;
            }
            // Without a terminal the turn goes on to its end, and no further: a question waits in the thread.
            if self.terminal.is_gone() && self.errands.is_empty() && (!self.is_active() || !self.questions.is_empty()) {
                return Ok(ChatEnd::Left { said_something: false });
            }
            let news = tokio::select! {
                biased;
                keys = self.terminal.keys(), if !self.terminal.is_gone() => UiNews::Keys(keys),
                () = tokio::time::sleep(ESCAPE_TIME), if self.decoder.is_begun() => UiNews::Settled,
                () = interrupt.recv() => UiNews::Interrupt,
                () = hangup.recv() => UiNews::HungUp,
                () = terminate.recv() => UiNews::Terminate,
                () = window.recv() => UiNews::Resized,
                Some(completion) = self.completions.recv() => UiNews::Completed(completion),
                outcome = self.errands.next() => UiNews::Done(outcome),
                Some(news) = self.asides.next() => news,
                _ = ticks.tick() => UiNews::Tick,
                news = self.asking.next() => UiNews::Agent(news),
                Some(event) = self.events.recv() => UiNews::Event(Box::new(event)),
            };
            self.take(news).await?;
        }
    }

    async fn take(&mut self, news: UiNews) -> anyhow::Result<()> {
        match news {
            UiNews::Keys(None) | UiNews::HungUp => self.terminal.gone(),
            UiNews::Keys(Some(TypedKeys { bytes, at })) => {
                for key in self.decoder.feed(&bytes) {
                    match key {
                        TerminalKey::CursorAt(row, column) => self.terminal.cursor_at(row, column),
                        key => self.key(key, at).await?,
                    }
                }
                self.paint();
            }
            UiNews::Settled => {
                if let Some(key) = self.decoder.settle() {
                    self.key(key, Instant::now()).await?;
                }
                self.paint();
            }
            UiNews::Completed(completion) => {
                self.completed(&completion);
                self.paint();
            }
            UiNews::Done(outcome) => {
                self.done(outcome).await;
                self.paint();
            }
            UiNews::Status(status) => {
                self.refreshed(status);
                self.paint();
            }
            UiNews::Resized => {
                self.terminal.resize();
                self.view.resize(self.terminal.painter.columns());
                self.paint();
            }
            UiNews::Interrupt => {
                self.ctrl_c();
                self.paint();
            }
            UiNews::Terminate => self.leave(),
            UiNews::Agent(news) => self.agent(news),
            UiNews::Event(event) => {
                let began = Instant::now();
                self.event(&event)?;
                while began.elapsed() < BURST {
                    let Ok(event) = self.events.try_recv() else { break };
                    self.event(&event)?;
                }
            }
            UiNews::Tick => {
                // Nothing tells of an environment that becomes ready.
                let is_unusual = self.status.environments.iter().any(|(_, standing)| standing.is_some());
                let is_uncertain = self.status.background > 0 && self.agents.remote().is_some();
                let age = self.refreshed_at.elapsed();
                if (is_unusual && age > STANDING_TIME) || (is_uncertain && age > BACKGROUND_TIME) {
                    self.refresh();
                }
                self.ask();
                self.paint();
            }
        }
        Ok(())
    }

    fn is_active(&self) -> bool {
        matches!(self.thread.status(), ThreadActivity::Active { .. })
    }

    fn leave(&mut self) {
        self.end = Some(ChatEnd::Left { said_something: self.said_something });
    }

    // Keys.

    async fn key(&mut self, key: TerminalKey, at: Instant) -> anyhow::Result<()> {
        self.hint = None;
        let offered = std::mem::take(&mut self.offered);
        match key {
            TerminalKey::Ctrl('c') if !self.editor.is_searching() => {
                self.ctrl_c();
                return Ok(());
            }
            TerminalKey::Ctrl('l') => {
                self.terminal.clear_screen();
                return Ok(());
            }
            TerminalKey::Ctrl('z') => {
                self.terminal.suspend();
                return Ok(());
            }
            TerminalKey::Escape if !self.editor.is_searching() && !matches!(self.focus, Focus::Menu(_)) => {
                self.escape();
                return Ok(());
            }
            _ => {}
        }
        match &mut self.focus {
            Focus::Menu(menu) => {
                // A key that was typed before the question stood on the screen was meant for something else.
                if self.questions.answered_by(at).is_none() {
                    return Ok(());
                }
                // So is what follows a letter that answers nothing: a message that was begun, up to the Enter that would send it.
                let is_message = self.message_until.is_some_and(|until| at < until);
                if is_message && matches!(key, TerminalKey::Char(_) | TerminalKey::Enter) {
                    self.message_until = Some(at + SETTLES);
                    return Ok(());
                }
                match menu.key(&key) {
                    MenuOutcome::Chosen(index) => self.choose(index),
                    MenuOutcome::Cancelled => self.escape(),
                    MenuOutcome::Ignored if matches!(key, TerminalKey::Char(_) | TerminalKey::Paste(_)) => {
                        menu.go_to('n');
                        self.message_until = Some(at + SETTLES);
                        self.hint = Some("choose with the arrow keys and Enter".to_owned());
                    }
                    MenuOutcome::Moved | MenuOutcome::Ignored => {}
                }
            }
            Focus::Answer => {
                if let EditorOutcome::Submitted(text) = self.edit(&key) {
                    self.answer_with(&text, at);
                }
            }
            Focus::Editor => return self.message_key(key, &offered).await,
        }
        Ok(())
    }

    fn edit(&mut self, key: &TerminalKey) -> EditorOutcome {
        let columns = self.terminal.painter.columns().saturating_sub(3);
        self.editor.key(key, columns)
    }

    async fn message_key(&mut self, key: TerminalKey, offered: &[String]) -> anyhow::Result<()> {
        match key {
            TerminalKey::Ctrl('d') if self.editor.is_empty() => {
                self.is_leaving = true;
                self.hint = Some("leaving when the turn is over; Ctrl-C twice leaves now".to_owned());
            }
            TerminalKey::Tab if !self.questions.is_empty() => {
                self.draft = self.editor.take();
                self.focus_question(Instant::now());
            }
            TerminalKey::Tab => self.complete(offered).await,
            key => {
                if let EditorOutcome::Submitted(text) = self.edit(&key) {
                    self.past.add(&text);
                    self.submit(&text);
                    // The question was there while this was typed: what is typed next may still be meant for the agent.
                    if !self.questions.is_empty() && self.end.is_none() {
                        self.focus_question(Instant::now() + SETTLES);
                    }
                }
            }
        }
        Ok(())
    }

    fn ctrl_c(&mut self) {
        let now = Instant::now();
        if self.interrupted_at.replace(now).is_some_and(|before| now.saturating_duration_since(before) < TWICE) {
            self.leave();
            return;
        }
        let again = "Ctrl-C again leaves";
        if matches!(self.focus, Focus::Editor) && !self.editor.is_empty() {
            self.editor.set("");
            self.hint = Some(again.to_owned());
        } else if self.is_active() {
            self.interrupt();
            self.hint = Some(format!("stopping; {again}"));
        } else {
            self.hint = Some(format!("{again}; so does Ctrl-D"));
        }
    }

    fn escape(&mut self) {
        if self.is_active() {
            self.hint = Some("stopping".to_owned());
            self.interrupt();
        }
    }

    fn interrupt(&mut self) {
        self.asides.push(Box::pin(interrupt(self.thread.clone()).map(UiNews::Done)));
    }

    /// Something that was asked for is done, or cannot be.
    async fn done(&mut self, outcome: ErrandOutcome) {
        match outcome {
            ErrandOutcome::Sent(Err(error)) => self.view.say(Ink::Bad, &line(&error.to_string())),
            ErrandOutcome::Answered(Err(error)) => self.view.say(Ink::Note, &line(&error.to_string())),
            ErrandOutcome::Interrupted(Err(error)) => {
                self.hint = None;
                self.view.say(Ink::Bad, &line(&error.to_string()));
            }
            ErrandOutcome::Sent(Ok(())) | ErrandOutcome::Answered(Ok(())) | ErrandOutcome::Interrupted(Ok(())) => {}
            ErrandOutcome::Ran(outcome) => self.ran(outcome).await,
        }
    }

    async fn ran(&mut self, outcome: SlashOutcome) {
        match outcome {
            SlashOutcome::Said(lines) => lines.iter().for_each(|line| self.say_line(line)),
            SlashOutcome::Leave => self.leave(),
            SlashOutcome::Detach if self.is_active() => self.end = Some(ChatEnd::Detached),
            // There is nothing to go on with.
            SlashOutcome::Detach => self.leave(),
            SlashOutcome::Switch(next) => self.switch(next).await,
        }
        self.refresh();
    }

    fn submit(&mut self, text: &str) {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return;
        }
        self.view.sent(text.trim_end());
        self.said_something |= !slash::is_command(trimmed);
        self.errands.submit(text, self.agents, self.thread.clone());
    }

    async fn switch(&mut self, next: Which) {
        if self.is_active() {
            self.view.say(Ink::Note, "a turn is running here: stop it with Esc first, or wait for its end");
            return;
        }
        let next = match next {
            Which::Pick => match super::picker::pick(self.agents, self.terminal).await {
                Ok(Some(id)) => Which::Id(id.to_string()),
                Ok(None) => return,
                Err(error) => {
                    self.view.say(Ink::Bad, &line(&error.to_string()));
                    return;
                }
            },
            next => next,
        };
        self.end = Some(ChatEnd::Switch(next));
    }

    fn say_line(&mut self, said: &SlashLine) {
        match said {
            SlashLine::Own(text) => self.view.say(Ink::Quiet, text),
            SlashLine::Wrong(text) => self.view.say(Ink::Bad, text),
            SlashLine::Theirs(text) => self.view.push(lines(text, Form::Text).into_iter().map(InkLine::plain)),
            SlashLine::Diff(text) => self.view.push(diff::coloured(text).iter().map(indented)),
        }
    }

    // Completion.

    async fn complete(&mut self, offered: &[String]) {
        let word = self.editor.word_before_cursor();
        if word.starts_with('/') && self.editor.text() == word {
            self.completed(&complete::commands(&word));
        } else if word.starts_with('@') {
            // Asked for in the background: the machine may be far away.
            if let Some(finding) = complete::paths(word, self.agents, &self.thread).await {
                let completed = self.completed.clone();
                tokio::spawn(async move {
                    let _ = completed.send(finding.await).await;
                });
            }
        }
        self.offered = offered.to_vec();
    }

    fn completed(&mut self, completion: &Completion) {
        // Something else was typed meanwhile.
        if self.editor.word_before_cursor() != completion.word {
            return;
        }
        match completion.common() {
            Some(common) => self.editor.replace_word_before_cursor(&common),
            None if completion.candidates.is_empty() => self.hint = Some("nothing begins like that".to_owned()),
            None => self.offered.clone_from(&completion.candidates),
        }
    }

    // What happens.

    fn event(&mut self, event: &ThreadEvent) -> anyhow::Result<()> {
        self.notifier.event(event);
        self.view.event(event, Instant::now());
        match event {
            ThreadEvent::Entry(entry) => self.fact(&entry.fact),
            ThreadEvent::ProcessEnded { .. } => self.refresh(),
            ThreadEvent::Status(ThreadActivity::Broken { reason }) => self.view.say(Ink::Bad, &line(reason)),
            ThreadEvent::Status(ThreadActivity::Closed) => {
                anyhow::bail!(
                    "the thread was closed; `outpost chat resume{} {}` opens it again",
                    self.agents.server_flag(),
                    self.thread.id()
                )
            }
            _ => {}
        }
        Ok(())
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::ApprovalAsked(asked) => {
                self.notifier.question(asked);
                self.questions.push(ChatQuestion::new(asked));
            }
            Fact::ApprovalAnswered(answered) => self.drop_questions(|question| question.is(&answered.approval)),
            Fact::TurnStarted(_) => {
                self.status.running_since = Some(Instant::now());
                self.refresh();
            }
            Fact::TurnFinished(_) => {
                self.hint = None;
                self.status.running_since = None;
                // An agent's question stays, and so does what is typed in its sight.
                self.drop_questions(|question| question.agent.is_none());
                self.refresh();
            }
            Fact::ModelAnswered(_) | Fact::CallFinished(_) => self.refresh(),
            _ => {}
        }
    }

    /// Asks how everything stands, unless that is being asked.
    fn refresh(&mut self) {
        self.refreshed_at = Instant::now();
        if self.refresh != Refresh::Settled {
            self.refresh = Refresh::Stale;
            return;
        }
        self.refresh = Refresh::Asked;
        let (agents, thread, since) = (self.agents, self.thread.clone(), self.status.running_since);
        self.asides.push(Box::pin(async move { UiNews::Status(ChatStatus::of(agents, &thread, since).await.map(Box::new)) }));
    }

    fn refreshed(&mut self, status: Option<Box<ChatStatus>>) {
        if let Some(status) = status {
            // The turn may have ended meanwhile.
            self.status = ChatStatus { running_since: self.status.running_since, ..*status };
        }
        if std::mem::replace(&mut self.refresh, Refresh::Settled) == Refresh::Stale {
            self.refresh();
        }
    }
}

/// The end of the conversation, so that the user need not remember it.
async fn show_last_turn(view: &mut ConversationView, agents: &Agents, before: &Thread) {
    let request = PageRequest { turns: 1, ..PageRequest::default() };
    let Ok(page) = agents.store().page(before.id, request).await else { return };
    let (earlier, pieces) = recent(pieces(&page.with_gaps()), SHOWN_AGAIN);
    if earlier > 0 {
        let show = format!("outpost thread show{} {}", agents.server_flag(), before.id);
        view.say(Ink::Quiet, &format!("… {earlier} earlier messages of this turn; `{show}` prints them"));
    }
    for piece in pieces {
        match piece {
            TranscriptPiece::User(text) => view.sent(&text),
            TranscriptPiece::Agent(text) => view.markdown(&text),
            TranscriptPiece::Image(what) => view.say(Ink::Quiet, &line(&what)),
            TranscriptPiece::Missing(what) => view.say(Ink::Bad, &line(&what)),
            _ => {}
        }
    }
}
