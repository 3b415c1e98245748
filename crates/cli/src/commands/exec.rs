//! `outpost exec`: one turn of an agent, without a terminal.

mod detach;
mod left;
mod lines;
mod machines;
mod prompt;
mod shapes;

use self::left::EarlierCommands;
pub(crate) use self::left::{AfterExit, ThreadHint, words as left_running};

use std::collections::{HashMap, VecDeque};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use outpost_runtime::follow::ThreadFollower;
use outpost_runtime::live::{BackgroundProcess, LiveThread, NewInput, ThreadActivity, ThreadEvent};
use outpost_store::PageRequest;
use outpost_thread::{
    ApprovalId, CallFinished, CallId, CallOutcome, Decision, Fact, InterruptReason, Thread, ThreadId, TurnFinished, TurnStatus, said,
};
use outpost_wire::intent::EnvironmentId;
use tokio::signal::unix::SignalKind;
use tokio_util::task::AbortOnDropHandle;

use crate::ProcessContext;
use crate::agent_args::{ExecArguments, ExecRequest, Which};
use crate::agents::{Agents, Audience, Open, ThreadOrigin};
use crate::commands;
use crate::commands::exec::lines::{JsonLines, failed};
use crate::commands::exec::machines::Machines;
use crate::commands::exec::shapes::LineShape;
use crate::frame::line;
use crate::notify::Notifier;
use crate::remote::{BACK, RemoteServer};
use crate::render::{Screen, Style, why};
use crate::signals::Watched;

/// So long a thread is asked for what only rounds off what is told; a server may not answer.
const LISTING: Duration = Duration::from_secs(10);
/// How often a line that shows the time is drawn anew.
const TICK: Duration = Duration::from_millis(200);

pub(crate) async fn run(arguments: ExecArguments, own: &ProcessContext) -> ExitCode {
    match work(arguments.request(), own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => commands::failure(&error),
    }
}

async fn work(request: ExecRequest, own: &ProcessContext) -> anyhow::Result<u8> {
    let ExecRequest { mut options, which, prompt } = request;
    options.agent.full_output = options.full;
    let input = prompt::read(&options, prompt, which != Which::New)?;
    if options.detach {
        return detach::run(&options, &which, input, own).await;
    }
    let agents = Agents::new(&options.agent, &which, Audience::Unattended, own).await?;
    if let (Some(remote), true) = (agents.remote(), options.wait || options.stop) {
        anyhow::bail!(
            "--wait and --stop follow commands of this home; {} drives the thread: use `/ps` and `/stop` in `outpost chat resume{}`",
            remote.server.address(),
            remote.server.flag()
        );
    }
    let birth = ThreadOrigin {
        source: "exec",
        thread_source: options.thread_source.clone(),
        originator: own.variables.get("CODEX_INTERNAL_ORIGINATOR_OVERRIDE").map(|name| name.to_string_lossy().into_owned()),
        ephemeral: options.ephemeral,
    };
    let Open { thread, mut follow, before, missing } = agents.open(&which, birth).await?;
    // Until here a signal simply ends the program.
    let mut signals = Signals::new()?;
    let mut report = match options.json {
        true => Report::Lines(JsonLines::default()),
        false => Report::Screen(
            Box::new(Screen::new(options.color, &own.variables).with_full_output(options.full).with_quiet(own.is_quiet())),
            None,
        ),
    };
    let mut notifier = agents.notifier(thread.id());
    // From here on, so that a machine that cannot be reached is named, whether or not a command asks for it.
    let mut machines = Machines::of(&agents, &thread).await?;
    let mut end = End { is_scripted: agents.is_scripted(&thread).await?, ..End::default() };
    let input = match input {
        // What is asked for is about commands, not about the turn.
        None if options.wait || options.stop => None,
        None if agents.was_cut_short(&before).await? => Some(NewInput::go_on()),
        input => input,
    };
    // The turn that is waited for may have done a part of its work, or ended a moment ago.
    if which != Which::New && input.is_none() && before.queued.is_empty() && !options.wait && !options.stop {
        end.hear_last_turn(&agents, &before).await;
        report.answered_before(&end, &before);
    }
    let told = async {
        let mut found = Vec::new();
        let shortfall = agents.shortfall();
        report.begin(&before, &[shortfall.as_deref(), agents.note(&before)])?;
        agents.unknown_model(&before).iter().for_each(|note| report.note(note));
        missing.iter().try_for_each(|missing| report.warn(missing))?;
        if which != Which::New && (options.wait || options.stop) {
            found = thread.find_commands().await?;
        } else if input.is_none() && before.turn.is_none() && before.queued.is_empty() {
            report.note("there is nothing to finish: the last turn came to its end; give a prompt to go on");
        }
        let server = agents.remote().map(|remote| remote.server.clone());
        let _refusing = server.clone().map(|server| AbortOnDropHandle::new(tokio::spawn(refuse_agents(server, thread.id()))));
        let begin = async {
            refuse_open_questions(&thread, &before).await;
            match input {
                Some(input) => thread.input(input).await.map(drop),
                None => Ok(()),
            }
        };
        tokio::select! {
            begun = begin => begun?,
            // A server may not be there for long.
            _ = signals.next(), if server.is_some() => {
                end.leave(&agents);
                return Ok((Vec::new(), false));
            }
        }
        let mut watching = Watching {
            report: &mut report,
            signals: &mut signals,
            machines: &mut machines,
            end: &mut end,
            notifier: &mut notifier,
            earlier: EarlierCommands::new(found),
            agents: &agents,
            is_told: false,
        };
        watch(&thread, &mut follow, &mut watching).await?;
        if watching.end.is_left {
            return Ok((Vec::new(), false));
        }
        if options.wait || options.stop {
            left::settle(&thread, &mut follow, &mut watching, options.stop).await?;
        }
        let is_awaited = thread.snapshot().await.is_ok_and(|state| !state.wakes.is_empty());
        let running = tokio::time::timeout(LISTING, thread.terminals()).await;
        anyhow::Ok((running.ok().and_then(Result::ok).unwrap_or_default(), is_awaited))
    };
    let told = told.await;
    notifier.settle().await;
    if told.is_err() {
        let _ = tokio::time::timeout(LISTING, thread.interrupt(None, InterruptReason::Shutdown)).await;
    }
    let is_away = !end.is_left && end.is_away(&agents, &thread).await;
    let (is_remote, flag) = (agents.remote().is_some(), agents.server_flag().to_owned());
    let hint = ThreadHint { thread: before.id, flag: &flag };
    // A second signal ends it at once.
    tokio::select! {
        () = agents.shut_down() => {}
        _ = signals.next() => {}
    }
    let (left, is_awaited) = told?;
    if let Some(file) = &options.output_last_message {
        write_answer(file, end.answer.as_deref())?;
    }
    let interrupted = end.turn.as_ref().is_some_and(|turn| turn.status == TurnStatus::Interrupted);
    report.end(&end, Some(&hint).filter(|_| interrupted && !options.ephemeral))?;
    if !options.ephemeral {
        let after = AfterExit::of(before.id, is_awaited, is_remote, own).await;
        report.left(&hint, &left, &after)?;
    }
    Ok(match &end {
        End { broken: Some(_), .. } => commands::FAILED,
        End { waited_badly: true, .. } => commands::FAILED,
        End { turn: Some(turn), .. } if turn.status != TurnStatus::Completed => commands::FAILED,
        End { turn: None, .. } if which == Which::New => commands::FAILED,
        _ if is_away => commands::UNREACHABLE,
        // What the user wrote is what counts; a model knows by itself what a failure means.
        End { is_scripted: true, failures, .. } if *failures > 0 => commands::FAILED,
        _ => 0,
    })
}

/// How it ended.
#[derive(Default)]
struct End {
    turn: Option<TurnFinished>,
    /// What was said last.
    answer: Option<String>,
    /// The thread had to stop.
    broken: Option<String>,
    /// The user does not wait for the server any longer.
    is_left: bool,
    /// The commands were written by the user, not by a model.
    is_scripted: bool,
    /// So many commands did not run, or did not end well.
    failures: usize,
    /// A command that was waited for did not end well.
    waited_badly: bool,
    /// Where the running calls are.
    places: HashMap<CallId, EnvironmentId>,
    /// Where calls could not be done; nothing stands for the primary.
    failed_in: Vec<Option<EnvironmentId>>,
}

impl End {
    fn leave(&mut self, agents: &Agents) {
        self.is_left = true;
        let address = agents.remote().map_or("the server", |remote| remote.server.address());
        self.broken = Some(format!("{address} was not waited for; a turn that was begun goes on there"));
    }

    /// Whether a call could not be done because its environment is away.
    async fn is_away(&self, agents: &Agents, thread: &LiveThread) -> bool {
        let Ok(state) = thread.snapshot().await else { return false };
        let primary = state.effective_selection().and_then(|selection| selection.primary()).map(|primary| primary.environment_id.clone());
        let away: Vec<EnvironmentId> = match self.failed_in.as_slice() {
            [] => return false,
            _ => agents.environments().await.into_iter().filter(|row| row.is_away).map(|row| row.id).collect(),
        };
        let is_away = |id: &EnvironmentId| away.contains(id);
        self.failed_in.iter().any(|place| place.as_ref().or(primary.as_ref()).is_some_and(is_away))
    }

    /// What was stored of the current or last turn before anything was followed.
    async fn hear_last_turn(&mut self, agents: &Agents, before: &Thread) {
        let page = agents.store().page(before.id, PageRequest { turns: 1, ..PageRequest::default() }).await;
        for entry in page.map(|page| page.entries).unwrap_or_default().into_iter().filter(|entry| entry.ordinal <= before.last) {
            self.event(&ThreadEvent::Entry(Arc::new(entry)));
        }
    }

    fn call_ended(&mut self, finished: &CallFinished) {
        let place = self.places.remove(&finished.call);
        if ended_well(finished) {
            return;
        }
        self.failures += 1;
        if matches!(finished.outcome, CallOutcome::Failed | CallOutcome::Lost) {
            let begun = finished.view().refused.and_then(|refused| refused.place);
            self.failed_in.push(place.or_else(|| begun?.parse().ok()));
        }
    }

    fn event(&mut self, event: &ThreadEvent) {
        match event {
            ThreadEvent::Entry(entry) => match &entry.fact {
                Fact::TurnStarted(_) => self.turn = None,
                Fact::TurnFinished(finished) => self.turn = Some((**finished).clone()),
                Fact::ModelAnswered(answered) => {
                    self.answer = answered.items.iter().rev().find_map(said).or_else(|| self.answer.take());
                }
                Fact::CallStarted(started) => {
                    self.places.extend(started.environment.clone().map(|place| (started.call.clone(), place)));
                }
                Fact::CallFinished(finished) => self.call_ended(finished),
                _ => {}
            },
            ThreadEvent::Status(ThreadActivity::Broken { reason }) => self.broken = Some(reason.clone()),
            // It is not driven here any more. A reason that is known already is the better one.
            ThreadEvent::Status(ThreadActivity::Closed) if self.turn.is_none() => {
                self.broken.get_or_insert_with(|| "the thread was closed before the turn was over".to_owned());
            }
            ThreadEvent::Status(ThreadActivity::Closed) => {}
            ThreadEvent::Status(_) => self.broken = None,
            _ => {}
        }
    }
}

fn ended_well(finished: &CallFinished) -> bool {
    finished.outcome == CallOutcome::Completed && finished.view().exit_code == Some(0)
}

struct Watching<'a> {
    report: &'a mut Report,
    signals: &'a mut Signals,
    machines: &'a mut Machines,
    end: &'a mut End,
    notifier: &'a mut Notifier,
    earlier: EarlierCommands,
    agents: &'a Agents,
    /// The user knows that the turn cannot be stopped.
    is_told: bool,
}

impl Watching<'_> {
    /// Stops the turn. A server that is away cannot be told to, and one that hangs does not answer: a second signal leaves it.
    async fn interrupt(&mut self, thread: &LiveThread, reason: InterruptReason) -> anyhow::Result<()> {
        if self.agents.remote().is_none() {
            return Ok(thread.interrupt(None, reason).await?);
        }
        let interrupted = tokio::select! {
            interrupted = thread.interrupt(None, reason) => interrupted,
            _ = self.signals.next() => {
                self.end.leave(self.agents);
                return Ok(());
            }
        };
        match interrupted {
            Ok(()) => self.is_told = false,
            Err(_) if self.is_told => self.end.leave(self.agents),
            Err(error) => {
                self.is_told = true;
                self.report.warn(&format!("{error}; once more to leave it"))?;
            }
        }
        Ok(())
    }
}

/// Tells everything until the thread is at rest.
async fn watch(thread: &LiveThread, follow: &mut ThreadFollower, watching: &mut Watching<'_>) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        // Looked at first: what happened before is in the feed by then.
        let is_active = matches!(thread.status(), ThreadActivity::Active { .. });
        let followed = match follow.ready().await {
            Some(followed) => followed,
            None if !is_active => {
                let remarks = watching.machines.last_remarks().await;
                return remarks.iter().try_for_each(|remark| watching.report.warn(remark));
            }
            None => tokio::select! {
                followed = follow.next() => followed,
                reason = watching.signals.next() => {
                    watching.interrupt(thread, reason).await?;
                    if watching.end.is_left {
                        return Ok(());
                    }
                    continue;
                }
                remark = watching.machines.remark() => {
                    watching.report.warn(&remark)?;
                    continue;
                }
                _ = ticks.tick() => {
                    watching.report.tick();
                    continue;
                }
            },
        };
        let event = ThreadEvent::from(followed);
        watching.end.event(&event);
        watching.notifier.event(&event);
        watching.report.event(&event)?;
        watching.earlier.event(&event, watching.report);
        if let ThreadEvent::Entry(entry) = &event
            && let Fact::ApprovalAsked(asked) = &entry.fact
        {
            // Not waited for: a server may be away.
            let (thread, approval) = (thread.clone(), asked.approval.clone());
            tokio::spawn(async move { refuse(&thread, approval).await });
        }
        // Nothing comes any more, now or later.
        if matches!(event, ThreadEvent::Status(ThreadActivity::Closed)) {
            return Ok(());
        }
    }
}

/// A thread that was made elsewhere may wait for answers, or be allowed to ask. There is no user here to answer.
async fn refuse_open_questions(thread: &LiveThread, before: &Thread) {
    for approval in before.turn.iter().flat_map(|turn| &turn.approvals) {
        refuse(thread, approval.id.clone()).await;
    }
}

/// The same for agents of a thread of a server, which lets them ask.
async fn refuse_agents(server: RemoteServer, root: ThreadId) {
    let mut others = server.others();
    let mut asked: VecDeque<(ThreadId, ApprovalId)> = VecDeque::new();
    let mut looks = true;
    loop {
        if std::mem::take(&mut looks) {
            let open = others.hold(server.open_questions(root)).await;
            asked.extend(open.into_iter().map(|(agent, asked)| (agent, asked.approval)));
        }
        while let Some((agent, approval)) = asked.pop_front() {
            if let Some(agent) = server.answerable(agent).await {
                others.hold(refuse(&agent, approval)).await;
            }
        }
        let Some(heard) = others.next().await else { return };
        // What was asked while there was no connection.
        looks = heard.method == BACK;
        if let Some((agent, entry)) = heard.entry()
            && let Fact::ApprovalAsked(question) = entry.fact
        {
            asked.push_back((agent, question.approval));
        }
    }
}

async fn refuse(thread: &LiveThread, approval: ApprovalId) {
    if let Err(error) = thread.answer(approval, Decision::Denied, None).await {
        tracing::debug!(%error, "a question was answered already");
    }
}

/// What ends a turn from outside.
struct Signals {
    interrupt: Watched,
    terminate: Watched,
    hangup: Watched,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: Watched::keyboard()?,
            terminate: Watched::new(SignalKind::terminate())?,
            hangup: Watched::new(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> InterruptReason {
        tokio::select! {
            () = self.interrupt.recv() => InterruptReason::User,
            () = self.terminate.recv() => InterruptReason::Shutdown,
            () = self.hangup.recv() => InterruptReason::Shutdown,
        }
    }
}

/// Who is told.
enum Report {
    /// With what the agent said last, as long as it may be the answer.
    Screen(Box<Screen>, Option<String>),
    Lines(JsonLines),
}

impl Report {
    /// `shortfall` comes first: a reader of only one line should read that.
    fn begin(&mut self, thread: &Thread, [shortfall, note]: &[Option<&str>; 2]) -> anyhow::Result<()> {
        match self {
            Self::Screen(screen, _) => {
                shortfall.iter().for_each(|shortfall| screen.say(Style::Note, shortfall));
                screen.thread(thread.id);
                note.iter().for_each(|note| screen.say(Style::Note, note));
                screen.found_running(thread);
            }
            Self::Lines(lines) => {
                let mut first = lines.begin(thread);
                first.extend([shortfall, note].into_iter().flatten().map(|note| lines.warning((*note).to_owned())));
                print(&first)?;
            }
        }
        Ok(())
    }

    /// Something that did not end the turn.
    fn warn(&mut self, warning: &str) -> anyhow::Result<()> {
        match self {
            // The reason may be what another machine says.
            Self::Screen(screen, _) => screen.say(Style::Note, &line(warning)),
            Self::Lines(lines) => print(&[lines.warning(warning.to_owned())])?,
        }
        Ok(())
    }

    /// Something that people want to know, and that programs see from the events that do not come.
    fn note(&mut self, note: &str) {
        if let Self::Screen(screen, _) = self {
            screen.say(Style::Note, note);
        }
    }

    fn event(&mut self, event: &ThreadEvent) -> anyhow::Result<()> {
        match self {
            Self::Screen(screen, pending) => {
                if let ThreadEvent::Entry(entry) = event {
                    tell_remarks(screen, pending, &entry.fact);
                }
                screen.show(event);
            }
            Self::Lines(lines) => print(&lines.event(event))?,
        }
        Ok(())
    }

    /// Output of a command that an earlier turn left running.
    fn left_output(&mut self, bytes: &[u8]) {
        if let Self::Screen(screen, _) = self {
            String::from_utf8_lossy(bytes).lines().for_each(|text| screen.say(Style::Plain, &format!("  {}", line(text))));
        }
    }

    /// What goes on after the end of this program.
    fn left(&mut self, hint: &ThreadHint<'_>, left: &[BackgroundProcess], after: &AfterExit) -> anyhow::Result<()> {
        match self {
            Self::Lines(_) => print(&left::shapes(left))?,
            Self::Screen(screen, _) => left::words(hint, left, after).iter().for_each(|words| screen.say(Style::Note, &line(words))),
        }
        Ok(())
    }

    fn tick(&mut self) {
        if let Self::Screen(screen, _) = self {
            screen.tick();
        }
    }

    /// What the agent said last in a turn that was over before it was followed is shown at the end.
    fn answered_before(&mut self, end: &End, before: &Thread) {
        if let (Self::Screen(_, pending), None) = (self, &before.turn) {
            pending.clone_from(&end.answer);
        }
    }

    /// `resumable` is the thread, if it can go on and will not by itself.
    fn end(&mut self, end: &End, resumable: Option<&ThreadHint<'_>>) -> anyhow::Result<()> {
        match self {
            Self::Lines(_) => print(&end.broken.as_deref().map(failed).unwrap_or_default())?,
            Self::Screen(screen, pending) => {
                // On a terminal it is seen already, unless it is what the agent said last.
                let is_new = pending.is_some() || !io::stdout().is_terminal();
                screen.answer(end.answer.as_deref().filter(|_| is_new))?;
                let problem = end.broken.clone().or_else(|| end.turn.as_ref().and_then(why));
                screen.problem(problem.as_deref());
                if let Some(hint) = resumable {
                    screen.say(Style::Quiet, &format!("`outpost exec resume{hint}` goes on with it"));
                }
            }
        }
        Ok(())
    }
}

/// What the agent says before it goes on working is told at once; what it says last is the answer.
fn tell_remarks(screen: &mut Screen, pending: &mut Option<String>, fact: &Fact) {
    match fact {
        Fact::ModelAnswered(answered) => {
            for text in answered.items.iter().filter_map(said).filter(|text| !text.is_empty()) {
                pending.replace(text).iter().for_each(|before| screen.remark_of_agent(before));
            }
        }
        Fact::CallStarted(_) | Fact::CallFinished(_) | Fact::ApprovalAsked(_) | Fact::ModelAsked(_) => {
            pending.take().iter().for_each(|text| screen.remark_of_agent(text));
        }
        _ => {}
    }
}

/// One line each. An error means that the reader is gone.
fn print(lines: &[LineShape]) -> anyhow::Result<()> {
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
    }
    let text = crate::out::on_lines(&text);
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output cannot be written")
}

fn write_answer(file: &Path, answer: Option<&str>) -> anyhow::Result<()> {
    if answer.is_none() {
        tracing::warn!(file = %file.display(), "there is no answer; the file is empty");
    }
    std::fs::write(file, answer.unwrap_or_default()).with_context(|| format!("the answer cannot be written to {}", file.display()))
}
