//! A thread as people see it: what happens on standard error, the answer on standard output.
//!
//! On a terminal the last line tells what is being waited for, and for how long; it is gone when something is said. Where the user
//! wants nothing to be drawn anew there is no such line; where there is no terminal there are no colours, either.
//!
//! Whatever was not written by this program goes through `outpost_wire::shown` before it is drawn, and on a terminal every row
//! of our own begins with a bar that nothing else can show.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use outpost_runtime::live::ThreadEvent;
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::model::ModelProgress;
use outpost_terminal::folded::{FoldedEnd, FoldedOutput, HEAD, TAIL};
use outpost_thread::{
    CallAction, CallEnding, CallFinished, CallId, CallStarted, CallView, EndedCallView, Fact, GeneratedImage, InterruptReason,
    PlannedStepStatus, Raw, Thread, ThreadId, TurnFinished, TurnStatus,
};
use outpost_wire::shown::{Form, Showing, Untrusted, guard};
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::agent_args::Colour;
use crate::frame::{FrameRow, cut, draw, line, lines, plain, word};
use crate::streamed::Streamed;
use crate::variables::VisibleVariables;

/// So many lines of a command are shown.
const LINES: usize = 12;
/// So much of a remark is shown.
const REMARK: usize = 2000;
const CLEAR: &str = "\r\x1b[K";

pub(crate) struct Screen {
    colours: bool,
    /// Whether rows are seen, be it on the simplest of terminals.
    is_seen: bool,
    /// Whether it is a terminal that can do more than show lines.
    live: bool,
    /// Whether there is a line that tells what is being waited for.
    redraws: bool,
    waits_for: Option<(String, Instant)>,
    is_drawn: bool,
    /// Calls that run, as they were announced. Several may run at once.
    running: BTreeMap<CallId, Announced>,
    /// Commands that the user wrote and that run: all of their output is shown, as it comes.
    streams: BTreeMap<CallId, Streamed>,
    /// Commands of the model that run: their output is folded.
    folded: BTreeMap<CallId, FoldedOutput>,
    /// Nothing is folded.
    is_full: bool,
    /// Only the answer and what went wrong is shown.
    is_quiet: bool,
    /// Commands that the model wants to run, by their calls. Not all of them come to be started.
    wanted: BTreeMap<String, Announced>,
    /// The call that was announced by the line above.
    above: Option<CallId>,
    /// A line that was begun and not ended: a prompt, or a part of an answer.
    open: Option<Open>,
    /// How the answer goes on that is being shown.
    streaming: Showing,
}

/// Where a line was begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Output,
    Prompt,
}

impl Screen {
    pub(crate) fn new(colour: Option<Colour>, own: &VisibleVariables) -> Self {
        let is_set = |name: &str| own.get(name).is_some_and(|value| !value.is_empty());
        let dumb = own.get("TERM").is_none_or(|term| term == "dumb");
        let is_seen = io::stderr().is_terminal();
        let live = is_seen && !dumb;
        let colours = match colour.unwrap_or(Colour::Auto) {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => live && !is_set("NO_COLOR"),
        };
        Self {
            colours,
            is_seen,
            live,
            redraws: live && !is_set("OUTPOST_PLAIN"),
            waits_for: None,
            is_drawn: false,
            running: BTreeMap::new(),
            streams: BTreeMap::new(),
            folded: BTreeMap::new(),
            is_full: false,
            is_quiet: false,
            wanted: BTreeMap::new(),
            above: None,
            open: None,
            streaming: Showing::new(Form::Text),
        }
    }

    /// Shows all output of every command.
    pub(crate) fn with_full_output(self, is_full: bool) -> Self {
        Self { is_full, ..self }
    }

    /// Shows only the answer and what went wrong.
    pub(crate) fn with_quiet(self, is_quiet: bool) -> Self {
        Self { is_quiet, live: self.live && !is_quiet, redraws: self.redraws && !is_quiet, ..self }
    }

    /// Draws nothing anew: what a line was once, it stays.
    pub(crate) fn without_redraws(self) -> Self {
        Self { redraws: false, ..self }
    }

    pub(crate) fn thread(&mut self, id: ThreadId) {
        self.say(Style::Quiet, &format!("thread {id}"));
    }

    pub(crate) fn show(&mut self, event: &ThreadEvent) {
        match event {
            ThreadEvent::Entry(entry) => self.fact(&entry.fact),
            ThreadEvent::Progress { progress: ModelProgress::Retrying { attempt, of, reason }, .. } => {
                self.say(Style::Note, &format!("{}; asking again ({attempt} of {of})", remark(reason)));
            }
            ThreadEvent::Mcp(McpEvent::Startup { state, error: Some(error), .. }) if state == "failed" => {
                self.say(Style::Note, &remark(error))
            }
            ThreadEvent::Mcp(McpEvent::Warning { message }) | ThreadEvent::Warning { message } => self.say(Style::Note, &remark(message)),
            ThreadEvent::Output { call, bytes } => self.output(call, bytes),
            _ => {}
        }
    }

    /// Output of a command that still runs.
    fn output(&mut self, call: &CallId, bytes: &[u8]) {
        if let Some(stream) = self.streams.get_mut(call) {
            let whole = stream.push(bytes);
            whole.iter().for_each(|line| self.output_line(call, line));
        } else if let Some(folded) = self.folded.get_mut(call) {
            let head = folded.push(bytes);
            head.iter().for_each(|line| self.shown_line(call, line));
        }
    }

    /// A line of a command's output.
    fn output_line(&mut self, call: &CallId, text: &str) {
        lines(text, Form::Text).iter().for_each(|line| self.shown_line(call, line));
    }

    /// The same, made visible already.
    fn shown_line(&mut self, call: &CallId, line: &str) {
        self.below(call);
        self.rest(Style::Plain, &format!("  {line}"));
        self.above = Some(call.clone());
    }

    /// What we say about a command.
    fn line_of(&mut self, call: &CallId, style: Style, line: &str) {
        self.below(call);
        self.say(style, &format!("  {line}"));
        self.above = Some(call.clone());
    }

    /// What comes next belongs to a command; says which one, unless the line above does.
    fn below(&mut self, call: &CallId) {
        let header = self.running.get(call).filter(|_| self.above.as_ref() != Some(call)).cloned();
        header.into_iter().for_each(|header| self.announce(Style::Quiet, &header));
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::ModelAsked(asked) => self.wait_for(asked.model.as_deref().unwrap_or("the model")),
            Fact::ModelAnswered(answered) => {
                self.images(&answered.items);
                self.wanted = answered.items.iter().filter_map(wanted).collect();
            }
            Fact::CallStarted(started) => self.started(started),
            Fact::CallFinished(finished) => self.finished(finished),
            Fact::ContextCompacted(_) => self.say(Style::Quiet, "the conversation was summed up"),
            Fact::TurnFinished(_) => {
                self.folded.clear();
                self.wait_for_nothing();
            }
            _ => {}
        }
    }

    fn started(&mut self, started: &CallStarted) {
        let view = started.view();
        match &view.action {
            CallAction::Command { command, is_awaited } => {
                let line = Announced { place: badge(&view), command: command.clone() };
                self.announce(Style::Strong, &line);
                self.wanted.remove(&started.call.to_string());
                self.running.insert(started.call.clone(), line);
                if *is_awaited || self.is_full {
                    self.streams.insert(started.call.clone(), Streamed::default());
                } else {
                    self.folded.insert(started.call.clone(), FoldedOutput::default());
                }
                self.above = Some(started.call.clone());
                self.wait_for(command);
            }
            CallAction::Plan(steps) => {
                for step in steps {
                    let mark = match step.status {
                        PlannedStepStatus::Completed => "x",
                        PlannedStepStatus::InProgress => ">",
                        PlannedStepStatus::Pending => " ",
                    };
                    self.say(Style::Quiet, &format!("[{mark}] {}", remark(&step.step)));
                }
            }
            CallAction::Files(_) | CallAction::McpTool { .. } | CallAction::Other => {
                headings(&view, &started.tool).iter().for_each(|heading| self.say(Style::Strong, heading));
            }
        }
    }

    /// Announces the commands that run already. What they printed so far was not heard here: all of it is shown at their end.
    pub(crate) fn found_running(&mut self, thread: &Thread) {
        for started in thread.turn.iter().flat_map(|turn| &turn.calls).filter_map(|call| call.started.as_ref()) {
            let view = started.view();
            let CallAction::Command { command, .. } = &view.action else { continue };
            let line = Announced { place: badge(&view), command: command.clone() };
            self.announce(Style::Strong, &line);
            self.line_of(&started.call, Style::Quiet, "it runs already; its output is shown when it ends");
            self.wait_for(&line.command);
            self.running.insert(started.call.clone(), line);
        }
    }

    fn finished(&mut self, finished: &CallFinished) {
        let end = finished.view();
        if let Some(stream) = self.streams.remove(&finished.call).filter(|stream| stream.bytes() > 0) {
            return self.stream_ended(&finished.call, stream, &end);
        }
        if let Some(folded) = self.folded.remove(&finished.call).filter(|folded| folded.bytes() > 0) {
            return self.fold_ended(&finished.call, folded, &end);
        }
        // Whose output it is shows only as long as nothing stands between.
        match self.running.remove(&finished.call) {
            Some(line) if self.above.as_ref() != Some(&finished.call) => self.announce(Style::Quiet, &line),
            Some(_) => {}
            None => {
                let line = self.wanted.remove(&finished.call.to_string());
                line.into_iter().for_each(|line| self.announce(Style::Strong, &line));
            }
        }
        if let Some(output) = end.output.as_ref().filter(|output| !output.is_empty()) {
            // It was not followed while it ran: this is what the thread keeps of it.
            let lines = lines(output, Form::Text);
            let (head, tail) = if self.is_full || lines.len() <= HEAD + TAIL { (lines.len(), 0) } else { (HEAD, TAIL) };
            lines.iter().take(head).for_each(|line| self.rest(Style::Plain, &format!("  {line}")));
            if head < lines.len() {
                self.say(Style::Quiet, &format!("  … {} lines left out", lines.len() - head - tail));
            }
            lines.iter().skip(lines.len() - tail).for_each(|line| self.rest(Style::Plain, &format!("  {line}")));
        }
        if let Some(words) = ending(&end) {
            self.say(Style::Bad, &format!("  {words}"));
        }
        self.notices(&end);
    }

    /// What its executor had to say besides.
    fn notices(&mut self, end: &EndedCallView) {
        end.notices.iter().for_each(|notice| self.say(Style::Note, &line(notice)));
    }

    /// The end of a command whose output was shown as it came.
    fn stream_ended(&mut self, call: &CallId, mut stream: Streamed, end: &EndedCallView) {
        // What came while there was no connection is in the thread.
        if let Some(missed) = missing(stream.bytes(), end).and_then(|whole| stream.missed(whole)) {
            stream.push(missed.as_bytes()).iter().for_each(|line| self.output_line(call, line));
        }
        if let Some(rest) = stream.rest() {
            self.output_line(call, &rest);
        }
        let missed = end.output_bytes.saturating_sub(stream.bytes());
        if missed > 0 {
            self.line_of(call, Style::Quiet, &format!("… {missed} bytes of its output were not shown"));
        }
        if let Some(words) = ending(end) {
            self.line_of(call, Style::Bad, &words);
        }
        self.running.remove(call);
        self.notices(end);
    }

    /// The end of a command whose output was folded.
    fn fold_ended(&mut self, call: &CallId, mut folded: FoldedOutput, end: &EndedCallView) {
        // What came while there was no connection is in the thread.
        if let Some(missed) = missing(folded.bytes(), end).and_then(|whole| folded.missed(whole)) {
            folded.push(missed.as_bytes()).iter().for_each(|line| self.shown_line(call, line));
        }
        let missed = end.output_bytes.saturating_sub(folded.bytes());
        let FoldedEnd { left_out, tail } = folded.end();
        if let Some((lines, bytes)) = left_out {
            self.line_of(call, Style::Quiet, &format!("… {lines} lines ({}) left out", crate::progress::size(bytes)));
        }
        if missed > 0 {
            self.line_of(call, Style::Quiet, &format!("… {missed} bytes of its output were not shown"));
        }
        tail.iter().for_each(|line| self.shown_line(call, line));
        if let Some(words) = ending(end) {
            self.line_of(call, Style::Bad, &words);
        }
        self.running.remove(call);
        self.notices(end);
    }

    /// Where the pictures of an answer are.
    pub(crate) fn images(&mut self, items: &[Raw]) {
        items.iter().filter_map(GeneratedImage::of).for_each(|image| self.say(Style::Note, &line(&image.to_string())));
    }

    /// What the agent says before it goes on; the answer comes at the end.
    pub(crate) fn remark_of_agent(&mut self, text: &str) {
        self.wait_for_nothing();
        self.end_line();
        self.above = None;
        for line in lines(text, Form::Text) {
            self.put(Style::Plain, &line);
        }
    }

    /// The answer.
    pub(crate) fn answer(&mut self, answer: Option<&str>) -> io::Result<()> {
        self.wait_for_nothing();
        let Some(answer) = answer else { return Ok(()) };
        let mut out = io::stdout().lock();
        // Whatever a model says, it does not get hold of the terminal.
        if out.is_terminal() {
            writeln!(out, "{}", Untrusted::from(answer).show(Form::Text))?
        } else {
            writeln!(out, "{answer}")?
        }
        out.flush()
    }

    /// A part of an answer, as it comes.
    pub(crate) fn stream(&mut self, delta: &str) -> io::Result<()> {
        self.wait_for_nothing();
        let mut out = io::stdout().lock();
        if self.open != Some(Open::Output) {
            self.streaming = Showing::new(Form::Text);
        }
        if out.is_terminal() {
            let mut shown = String::new();
            self.streaming.text(delta, &mut shown);
            write!(out, "{shown}")?
        } else {
            write!(out, "{delta}")?
        }
        self.open = Some(Open::Output);
        out.flush()
    }

    /// What others said before.
    pub(crate) fn said(&mut self, style: Style, mark: &str, text: &str) {
        self.wipe();
        self.end_line();
        for line in lines(text, Form::Text) {
            self.put(style, &format!("{mark}{line}"));
        }
    }

    /// Asks for a line.
    pub(crate) fn prompt(&mut self, mark: &str) {
        self.wait_for_nothing();
        self.end_line();
        if self.live {
            let mut err = io::stderr().lock();
            let _ = write!(err, "{mark}").and_then(|()| err.flush());
            self.open = Some(Open::Prompt);
        }
    }

    /// What was typed ended the line by itself.
    pub(crate) fn typed(&mut self) {
        self.open = None;
    }

    /// Ends a line that was begun.
    pub(crate) fn end_line(&mut self) {
        let _ = match self.open.take() {
            Some(Open::Output) => writeln!(io::stdout()),
            Some(Open::Prompt) => writeln!(io::stderr()),
            None => Ok(()),
        };
    }

    /// What went wrong, if anything did.
    pub(crate) fn problem(&mut self, problem: Option<&str>) {
        if let Some(problem) = problem {
            self.say(Style::Bad, &format!("outpost: {}", remark(problem)));
        }
    }

    fn wait_for(&mut self, what: &str) {
        self.waits_for = Some((word(what.lines().next().unwrap_or_default()), Instant::now()));
    }

    fn wait_for_nothing(&mut self) {
        self.waits_for = None;
        self.wipe();
    }

    /// Draws the last line anew.
    pub(crate) fn tick(&mut self) {
        let Some((what, since)) = self.waits_for.as_ref().filter(|_| self.redraws && self.open.is_none()) else { return };
        let seconds = since.elapsed().as_secs();
        if seconds < 1 {
            return;
        }
        let newest = self.folded.values().filter(|folded| folded.lines() > HEAD as u64).max_by_key(|folded| folded.bytes());
        let newest = newest.map(|folded| format!(" · {} lines: {}", folded.lines(), folded.last().unwrap_or_default()));
        let text = format!("… {seconds} s {what}{}", newest.unwrap_or_default());
        let line = crate::frame::fitting(&guard(&text), columns() - 1);
        let mut out = io::stderr().lock();
        let _ = write!(out, "{CLEAR}{}", self.dressed(Style::Quiet, &line)).and_then(|()| out.flush());
        self.is_drawn = true;
    }

    /// Our own words. What of them is not ours was shown before.
    pub(crate) fn say(&mut self, style: Style, text: &str) {
        self.row(style, &FrameRow::Own(text.to_owned()));
    }

    /// A shown line of others.
    fn rest(&mut self, style: Style, text: &str) {
        self.above = None;
        self.wipe();
        self.end_line();
        self.put(style, text);
    }

    /// Draws a row: on a terminal so that it is visible whose it is.
    pub(crate) fn row(&mut self, style: Style, row: &FrameRow) {
        self.above = None;
        self.wipe();
        self.end_line();
        if self.is_seen {
            draw(row, columns()).iter().for_each(|row| self.put(style, row));
        } else {
            self.put(style, &plain(row));
        }
    }

    /// A command, and where it runs. Its first line stands behind our words; the others are visibly not ours.
    fn announce(&mut self, style: Style, announced: &Announced) {
        let lines = lines(&announced.command, Form::Script);
        let (first, more) = lines.split_first().map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
        self.say(style, &format!("{}$ {}", announced.place, cut(first, REMARK)));
        more.iter().take(LINES).for_each(|line| self.row(style, &FrameRow::Theirs(cut(line, REMARK))));
        if more.len() > LINES {
            self.say(Style::Quiet, &format!("… {} more lines of this command", more.len() - LINES));
        }
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }

    fn put(&self, style: Style, text: &str) {
        if self.is_quiet && style != Style::Bad {
            return;
        }
        let _ = writeln!(io::stderr(), "{}", self.dressed(style, &guard(text)));
    }

    fn dressed(&self, style: Style, text: &str) -> String {
        match style.code() {
            Some(code) if self.colours => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Quiet,
    Strong,
    Note,
    Bad,
}

impl Style {
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Quiet => Some("2"),
            Self::Strong => Some("1"),
            Self::Note => Some("33"),
            Self::Bad => Some("31"),
        }
    }
}

/// The badge of the environment that a call is for.
pub(crate) fn badge(view: &CallView) -> String {
    view.place.as_ref().map(|id| format!("[{}] ", word(id))).unwrap_or_default()
}

/// What is said of a call that has no rows of its own, line by line.
pub(crate) fn headings(view: &CallView, tool: &str) -> Vec<String> {
    let place = badge(view);
    match &view.action {
        CallAction::Files(files) => files.iter().map(|file| format!("{place}{} {}", file.change, word(&file.path))).collect(),
        CallAction::McpTool { server, tool, arguments } => {
            vec![format!("{place}{} {} {}", word(server), word(tool), cut(&word(&arguments.to_string()), REMARK))]
        }
        CallAction::Command { .. } | CallAction::Plan(_) | CallAction::Other => vec![format!("{place}{}", word(tool))],
    }
}

/// How a call ended, if that is worth a word.
pub(crate) fn ending(end: &EndedCallView) -> Option<String> {
    Some(match &end.ending {
        CallEnding::Done | CallEnding::RunsOn => return None,
        CallEnding::Exited { code, stopped_by: Some(limit), .. } => format!("exit code {code}: stopped by {}", remark(limit)),
        CallEnding::Exited { code, sandbox_hint: Some(hint), .. } => format!("exit code {code}: {}", remark(hint)),
        CallEnding::Exited { code, .. } => format!("exit code {code}"),
        CallEnding::Failed(why) => remark(why.as_deref().unwrap_or("it failed")),
        CallEnding::Declined => "declined".into(),
        CallEnding::Lost => "lost: its outcome is unknown".into(),
        CallEnding::Stopped => "stopped".into(),
    })
}

/// A command as it is announced.
#[derive(Clone)]
struct Announced {
    /// The badge of its environment; ids of environments are plain words.
    place: String,
    command: String,
}

fn columns() -> usize {
    tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(20))
}

/// Text that we did not write, as a part of a line of ours.
fn remark(text: &str) -> String {
    cut(&line(text), REMARK)
}

/// The call of a command, and how it is announced.
fn wanted(item: &Raw) -> Option<(String, Announced)> {
    let item: Value = item.read().ok()?;
    let arguments: Value = serde_json::from_str(item["arguments"].as_str().filter(|_| item["name"] == "exec_command")?).ok()?;
    // As the model wrote it: the call failed before the environment was looked up.
    let place = arguments["environment_id"].as_str().map(|id| format!("[{}] ", word(id))).unwrap_or_default();
    Some((item["call_id"].as_str()?.to_owned(), Announced { place, command: arguments["cmd"].as_str()?.to_owned() }))
}

/// Why a turn did not end well.
pub(crate) fn why(end: &TurnFinished) -> Option<String> {
    if end.status == TurnStatus::Completed {
        return None;
    }
    let error: Value = read(end.error.as_ref());
    let told = error["message"].as_str().map(str::to_owned);
    Some(told.unwrap_or_else(|| {
        let text = match (end.status, end.reason) {
            (TurnStatus::Interrupted, Some(InterruptReason::Shutdown)) => "the turn was interrupted because the program was asked to end",
            (TurnStatus::Interrupted, _) => "the turn was interrupted",
            _ => "the turn failed",
        };
        text.to_owned()
    }))
}

fn read(raw: Option<&Raw>) -> Value {
    raw.and_then(|raw| raw.read().ok()).unwrap_or_default()
}

/// All of the output that is kept, if some of it did not come as it was printed.
pub(crate) fn missing(shown: u64, end: &EndedCallView) -> Option<&str> {
    end.output.as_deref().filter(|_| end.output_bytes > shown)
}
