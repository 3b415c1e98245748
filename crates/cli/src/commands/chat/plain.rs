//! A conversation line by line: without a terminal, for screen readers, and where a terminal cannot do more.
//!
//! What is typed on a terminal reaches a running turn at its next step. What is piped in waits for its own turn, because a
//! script cannot know when the one before is over.

use std::io;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use outpost_runtime::follow::ThreadFollower;
use outpost_runtime::live::{CommandError, LiveThread, ThreadActivity, ThreadEvent};
use outpost_runtime::model::ModelProgress;
use outpost_store::PageRequest;
use outpost_thread::{Fact, Thread, said};
use tokio::signal::unix::SignalKind;

use super::ChatEnd;
use super::agents::{AgentEvent, AgentQuestions};
use super::errands::{ErrandOutcome, Errands};
use super::keyboard::{Keyboard, TypedLine};
use super::question::{ApprovalAnswer, ChatQuestion, LineMeaning};
use super::slash::{SlashLine, SlashOutcome};
use super::waiting::Waiting;
use crate::ProcessContext;
use crate::agent_args::Which;
use crate::agents::{Agents, Open};
use crate::commands::thread::transcript::{SHOWN_AGAIN, TranscriptPiece, pieces, recent};
use crate::frame::line as shown_line;
use crate::notify::Notifier;
use crate::render::{Screen, Style, why};
use crate::signals::Watched;

/// How often it is looked at how the thread stands, of which not everything tells.
const TICK: Duration = Duration::from_millis(200);

pub(super) async fn talk(agents: &Agents, open: Open, own: &ProcessContext) -> anyhow::Result<ChatEnd> {
    let Open { thread, follow, before, missing } = open;
    let mut screen = Screen::new(None, &own.variables).without_redraws();
    screen.thread(thread.id());
    agents.note(&before).into_iter().for_each(|note| screen.say(Style::Note, note));
    missing.iter().for_each(|missing| screen.say(Style::Bad, missing));
    if std::io::stdin().is_terminal() {
        screen.say(Style::Quiet, "/help tells what can be typed here; Ctrl-D leaves");
    }
    if before.turns > 0 || before.turn.is_some() {
        show_last_turn(&mut screen, agents, &before).await;
    }
    screen.found_running(&before);
    let questions = before.turn.iter().flat_map(|turn| &turn.approvals).map(|approval| ChatQuestion::new(&approval.asked)).collect();
    let asking = AgentQuestions::of(agents, thread.id());
    let mut chat = PlainChat {
        agents,
        notifier: agents.notifier(thread.id()),
        thread,
        asking,
        follow,
        screen,
        questions: Waiting::new(questions),
        is_asked: false,
        streamed: String::new(),
        is_over: false,
        is_gone: false,
        can_hand_over: agents.remote().is_some() || own.settings.is_empty(),
        is_detached: false,
        next: None,
        errands: Errands::default(),
    };
    let talked = chat.talk().await;
    chat.notifier.settle().await;
    let said_something = talked?;
    if chat.is_detached {
        return Ok(ChatEnd::Detached);
    }
    Ok(chat.next.take().map_or(ChatEnd::Left { said_something }, ChatEnd::Switch))
}

struct PlainChat<'a> {
    agents: &'a Agents,
    notifier: Notifier,
    thread: LiveThread,
    /// What its agents ask.
    asking: AgentQuestions,
    follow: ThreadFollower,
    screen: Screen,
    questions: Waiting<ChatQuestion>,
    /// The user was told that it is their turn.
    is_asked: bool,
    /// What was shown of an answer before it was whole.
    streamed: String,
    /// Nothing more will be typed.
    is_over: bool,
    /// The terminal was closed: nothing can be shown or asked any more.
    is_gone: bool,
    /// Another process would go on with the turn just as this one does: nothing was set with `-c` for this one only.
    can_hand_over: bool,
    /// The turn is to go on without this program.
    is_detached: bool,
    /// The user wants to talk about another thread.
    next: Option<Which>,
    errands: Errands<'a>,
}

/// What comes in from outside of the thread.
enum PlainEvent {
    Event(ThreadEvent),
    Agent(AgentEvent),
    Line(Option<TypedLine>),
    Done(ErrandOutcome),
    Interrupt,
    HungUp,
    End,
    /// Something may have changed of which nothing tells.
    Tick,
}

impl PlainChat<'_> {
    /// Whether anything was ever said.
    async fn talk(&mut self) -> anyhow::Result<bool> {
        let mut keyboard = Keyboard::start();
        let mut interrupt = Watched::keyboard()?;
        let (mut terminate, mut hangup) = (Watched::new(SignalKind::terminate())?, Watched::new(SignalKind::hangup())?);
        let mut ticks = tokio::time::interval(TICK);
        let (mut said_something, mut is_told) = (false, false);
        let is_remote = self.agents.remote().is_some();
        loop {
            let is_active = matches!(self.thread.status(), ThreadActivity::Active { .. });
            if let Some(followed) = self.follow.ready().await {
                self.hear(&followed.into(), &keyboard)?;
                continue;
            }
            if self.errands.is_empty() {
                // Without a terminal the turn goes on to its end, and no further: a question waits in the thread.
                let is_stuck = self.is_gone && !self.questions.is_empty();
                if self.is_detached || is_stuck || (self.is_over && !is_active) {
                    return Ok(said_something);
                }
                self.ask(is_active, &keyboard);
            }
            let is_free = self.errands.is_empty();
            let listens = is_free && !self.is_over && (keyboard.is_terminal || !is_active);
            // What a server is asked may wait for a lost connection: a signal leaves then.
            let is_signalled = is_free || is_remote;
            let news = tokio::select! {
                followed = self.follow.next() => PlainEvent::Event(followed.into()),
                news = self.asking.next() => PlainEvent::Agent(news),
                line = keyboard.line(), if listens => PlainEvent::Line(line),
                outcome = self.errands.next() => PlainEvent::Done(outcome),
                () = interrupt.recv(), if is_signalled => PlainEvent::Interrupt,
                () = terminate.recv(), if is_signalled => PlainEvent::End,
                () = hangup.recv(), if is_signalled => PlainEvent::HungUp,
                _ = ticks.tick() => PlainEvent::Tick,
            };
            match news {
                PlainEvent::Event(event) => self.hear(&event, &keyboard)?,
                PlainEvent::Agent(news) => self.agent(news),
                PlainEvent::Line(Some(line)) => {
                    said_something = true;
                    self.line(&line);
                }
                PlainEvent::Done(ErrandOutcome::Interrupted(Ok(()))) => is_told = false,
                PlainEvent::Done(ErrandOutcome::Interrupted(Err(_))) if is_told => return Ok(said_something),
                PlainEvent::Done(ErrandOutcome::Interrupted(Err(error))) if is_remote => {
                    is_told = true;
                    self.screen.say(Style::Bad, &format!("{}; once more to leave it", shown_line(&error.to_string())));
                }
                PlainEvent::Done(ErrandOutcome::Interrupted(Err(error))) => return Err(error.into()),
                PlainEvent::Done(ErrandOutcome::Sent(sent)) => self.failed(Style::Bad, sent),
                PlainEvent::Done(ErrandOutcome::Answered(answered)) => self.failed(Style::Note, answered),
                PlainEvent::Done(ErrandOutcome::Ran(outcome)) => self.ran(outcome),
                PlainEvent::Interrupt | PlainEvent::End | PlainEvent::HungUp if !is_free => return Ok(said_something),
                PlainEvent::Line(None) if keyboard.is_closed() => self.hang_up(),
                PlainEvent::Line(None) => self.is_over = true,
                PlainEvent::HungUp => self.hang_up(),
                PlainEvent::Interrupt if is_active => self.errands.interrupt(self.thread.clone()),
                PlainEvent::Interrupt | PlainEvent::End => {
                    self.screen.end_line();
                    return Ok(said_something);
                }
                PlainEvent::Tick => {}
            }
        }
    }

    fn failed(&mut self, style: Style, outcome: Result<(), CommandError>) {
        if let Err(error) = outcome {
            self.screen.say(style, &shown_line(&error.to_string()));
        }
    }

    /// The terminal is closed, and the turn goes on: in the process of the home, where the user finds it again, or here to its end.
    fn hang_up(&mut self) {
        (self.is_over, self.is_gone) = (true, true);
        self.is_detached = self.can_hand_over && matches!(self.thread.status(), ThreadActivity::Active { .. });
    }

    /// What cannot be written to a terminal that is closed is no reason to end the turn.
    fn hear(&mut self, event: &ThreadEvent, keyboard: &Keyboard) -> anyhow::Result<()> {
        let heard = self.event(event);
        match heard {
            Err(error) if error.is::<io::Error>() && (self.is_gone || keyboard.is_closed()) => {
                self.hang_up();
                Ok(())
            }
            heard => heard,
        }
    }

    /// Tells the user that it is their turn, once.
    fn ask(&mut self, is_active: bool, keyboard: &Keyboard) {
        if let Some(question) = self.questions.first() {
            // A script cannot know what will be asked: its next line is what it says next, and no answer.
            if self.is_over || !keyboard.is_terminal {
                question.rows().iter().for_each(|row| self.screen.row(Style::Note, row));
                self.screen.say(Style::Note, "no answer can be given here: no");
                let answer = question.refusal();
                self.answer(answer);
                return;
            }
            if !std::mem::replace(&mut self.is_asked, true) {
                let rows = question.rows();
                self.questions.shown(Instant::now());
                rows.iter().for_each(|row| self.screen.row(Style::Note, row));
                self.screen.prompt("? ");
            }
        } else if !is_active && keyboard.is_terminal && !std::mem::replace(&mut self.is_asked, true) {
            self.screen.prompt("> ");
        }
    }

    fn line(&mut self, TypedLine { line, at }: &TypedLine) {
        self.is_asked = false;
        self.screen.typed();
        let text = line.trim();
        if let Some(question) = self.questions.answered_by(*at) {
            match question.take(text) {
                LineMeaning::Answer(answer) => self.answer(answer),
                LineMeaning::Again(note) => note.iter().for_each(|note| self.screen.say(Style::Bad, note)),
            }
        } else if !text.is_empty() {
            self.errands.submit(line, self.agents, self.thread.clone());
        }
    }

    fn ran(&mut self, outcome: SlashOutcome) {
        match outcome {
            SlashOutcome::Said(lines) => lines.iter().for_each(|line| self.say_line(line)),
            SlashOutcome::Leave => self.is_over = true,
            SlashOutcome::Detach => {
                // Without a turn there is nothing to go on with.
                self.is_over = true;
                self.is_detached = matches!(self.thread.status(), ThreadActivity::Active { .. });
            }
            SlashOutcome::Switch(Which::Pick) => {
                self.screen.say(Style::Note, "name a thread: /resume ID; `outpost thread list` shows those that are there");
            }
            SlashOutcome::Switch(next) => {
                self.next = Some(next);
                self.is_over = true;
            }
        }
    }

    fn say_line(&mut self, line: &SlashLine) {
        match line {
            SlashLine::Own(text) => self.screen.say(Style::Quiet, text),
            SlashLine::Wrong(text) => self.screen.say(Style::Bad, text),
            SlashLine::Theirs(text) | SlashLine::Diff(text) => self.screen.said(Style::Plain, "", text),
        }
    }

    fn answer(&mut self, answer: ApprovalAnswer) {
        self.is_asked = false;
        let asker = self.questions.take().and_then(|question| question.agent).unwrap_or_else(|| self.thread.clone());
        self.errands.answer(asker, answer);
    }

    fn agent(&mut self, news: AgentEvent) {
        match news {
            AgentEvent::Asked(agent, asked) if self.questions.iter().all(|known| !known.is(&asked.approval)) => {
                // An agent may ask while the user is asked for the next message: the question comes first.
                if self.questions.is_empty() {
                    self.is_asked = false;
                }
                self.notifier.question(&asked);
                self.questions.push(ChatQuestion::new(&asked).of(agent));
            }
            AgentEvent::Asked(..) => {}
            AgentEvent::Answered(approval) => self.drop_questions(|question| question.is(&approval)),
            AgentEvent::Over(agent) => self.drop_questions(|question| question.is_of(agent)),
        }
    }

    /// These were withdrawn; if one of them was shown, the next one is.
    fn drop_questions(&mut self, is_over: impl FnMut(&ChatQuestion) -> bool) {
        if self.questions.withdraw(Instant::now(), is_over) {
            self.is_asked = false;
        }
    }

    fn event(&mut self, event: &ThreadEvent) -> anyhow::Result<()> {
        self.notifier.event(event);
        match event {
            ThreadEvent::Progress { progress: ModelProgress::TextDelta { delta, .. }, .. } => {
                self.screen.stream(delta)?;
                self.streamed.push_str(delta);
            }
            // Of a lost connection it is told in the middle of an answer, whose rest comes when it is back.
            ThreadEvent::Warning { .. } => self.screen.show(event),
            ThreadEvent::Progress { progress: ModelProgress::Retrying { .. }, .. } | ThreadEvent::Mcp(_) | ThreadEvent::Output { .. } => {
                self.end_stream();
                self.screen.show(event);
            }
            ThreadEvent::Status(ThreadActivity::Broken { reason }) => {
                self.end_stream();
                self.screen.say(Style::Bad, &shown_line(reason));
            }
            // Another program has it now, or it was idle for very long.
            ThreadEvent::Status(ThreadActivity::Closed) => {
                anyhow::bail!(
                    "the thread was closed; `outpost chat resume{} {}` opens it again",
                    self.agents.server_flag(),
                    self.thread.id()
                )
            }
            ThreadEvent::Entry(entry) => self.fact(&entry.fact, event)?,
            _ => {}
        }
        Ok(())
    }

    fn fact(&mut self, fact: &Fact, event: &ThreadEvent) -> io::Result<()> {
        match fact {
            Fact::ModelAnswered(answered) => {
                let texts: Vec<String> = answered.items.iter().filter_map(said).filter(|text| !text.is_empty()).collect();
                let (shown, whole) = (std::mem::take(&mut self.streamed), texts.concat());
                match whole.strip_prefix(shown.as_str()).filter(|_| !shown.is_empty()) {
                    // What came while there was no connection follows what was shown before.
                    Some(rest) if !rest.is_empty() => self.screen.stream(rest)?,
                    Some(_) => {}
                    None => {
                        self.screen.end_line();
                        texts.iter().try_for_each(|text| self.screen.answer(Some(text)))?;
                    }
                }
                self.screen.end_line();
                self.screen.images(&answered.items);
                self.is_asked = false;
            }
            Fact::ApprovalAsked(asked) => {
                self.notifier.question(asked);
                self.questions.push(ChatQuestion::new(asked));
            }
            // Another client may have answered what stands on the screen.
            Fact::ApprovalAnswered(answered) => self.drop_questions(|question| question.is(&answered.approval)),
            Fact::TurnFinished(finished) => {
                self.end_stream();
                // An agent's question stays, and so does what is typed in its sight.
                self.drop_questions(|question| question.agent.is_none());
                self.is_asked = false;
                self.screen.show(event);
                if let Some(why) = why(finished) {
                    self.screen.say(Style::Bad, &shown_line(&why));
                }
            }
            _ => {
                if matches!(fact, Fact::CallStarted(_) | Fact::CallFinished(_)) {
                    self.is_asked = false;
                }
                self.screen.show(event);
            }
        }
        Ok(())
    }

    fn end_stream(&mut self) {
        if !std::mem::take(&mut self.streamed).is_empty() {
            self.screen.end_line();
        }
    }
}

/// The end of the conversation, so that the user need not remember it.
async fn show_last_turn(screen: &mut Screen, agents: &Agents, before: &Thread) {
    let request = PageRequest { turns: 1, ..PageRequest::default() };
    let Ok(page) = agents.store().page(before.id, request).await else { return };
    let (earlier, pieces) = recent(pieces(&page.with_gaps()), SHOWN_AGAIN);
    if earlier > 0 {
        let show = format!("outpost thread show{} {}", agents.server_flag(), before.id);
        screen.say(Style::Quiet, &format!("… {earlier} earlier messages of this turn; `{show}` prints them"));
    }
    for piece in pieces {
        match piece {
            TranscriptPiece::User(text) => screen.said(Style::Quiet, "> ", &text),
            TranscriptPiece::Agent(text) => screen.said(Style::Plain, "", &text),
            TranscriptPiece::Image(what) => screen.said(Style::Quiet, "", &what),
            TranscriptPiece::Missing(what) => screen.said(Style::Bad, "", &what),
            _ => {}
        }
    }
}
