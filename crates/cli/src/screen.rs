//! A thread as people see it: what happens on standard error, the answer on standard output.
//!
//! On a terminal the last line tells what is being waited for, and for how long; it is gone when something is said. Where
//! nobody looks there is no such line and there are no colours.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use outpost_runtime::live::Event;
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::model::Progress;
use outpost_thread::{CallFinished, CallId, CallOutcome, CallStarted, Fact, InterruptReason, Raw, ThreadId, TurnFinished, TurnStatus};
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::agent_args::Colour;
use crate::streamed::Streamed;
use crate::variables::Variables;

/// So many lines of a command's output are shown.
const LINES: usize = 12;
const CLEAR: &str = "\r\x1b[K";

pub struct Screen {
    colours: bool,
    /// Whether there is a line that tells what is being waited for.
    live: bool,
    waits_for: Option<(String, Instant)>,
    is_drawn: bool,
    /// Calls that run, as they were announced. Several may run at once.
    running: BTreeMap<CallId, String>,
    /// Commands that the user wrote and that run: all of their output is shown, as it comes.
    streams: BTreeMap<CallId, Streamed>,
    /// Commands that the model wants to run, by their calls. Not all of them come to be started.
    wanted: BTreeMap<String, String>,
    /// The call that was announced by the line above.
    above: Option<CallId>,
    /// A line that was begun and not ended: a prompt, or a part of an answer.
    open: Option<Open>,
}

/// Where a line was begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Output,
    Prompt,
}

impl Screen {
    pub fn new(colour: Option<Colour>, own: &Variables) -> Self {
        let is_set = |name: &str| own.get(name).is_some_and(|value| !value.is_empty());
        let dumb = own.get("TERM").is_none_or(|term| term == "dumb");
        let live = io::stderr().is_terminal() && !dumb;
        let colours = match colour.unwrap_or(Colour::Auto) {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => live && !is_set("NO_COLOR"),
        };
        Self {
            colours,
            live,
            waits_for: None,
            is_drawn: false,
            running: BTreeMap::new(),
            streams: BTreeMap::new(),
            wanted: BTreeMap::new(),
            above: None,
            open: None,
        }
    }

    pub fn thread(&mut self, id: ThreadId) {
        self.say(Style::Quiet, &format!("thread {id}"));
    }

    pub fn show(&mut self, event: &Event) {
        match event {
            Event::Entry(entry) => self.fact(&entry.fact),
            Event::Progress { progress: Progress::Retrying { attempt, of, reason }, .. } => {
                self.say(Style::Note, &format!("{reason}; asking again ({attempt} of {of})"));
            }
            Event::Mcp(McpEvent::Startup { state, error: Some(error), .. }) if state == "failed" => self.say(Style::Note, error),
            Event::Mcp(McpEvent::Warning { message }) => self.say(Style::Note, message),
            Event::Output { call, bytes } => self.output(call, bytes),
            _ => {}
        }
    }

    /// Output of a command that still runs.
    fn output(&mut self, call: &CallId, bytes: &[u8]) {
        let Some(stream) = self.streams.get_mut(call) else { return };
        let lines = stream.push(bytes);
        lines.iter().for_each(|line| self.line_of(call, Style::Plain, line));
    }

    /// A line that belongs to a command, below the line that says which one it is.
    fn line_of(&mut self, call: &CallId, style: Style, line: &str) {
        let header = self.running.get(call).filter(|_| self.above.as_ref() != Some(call)).cloned();
        header.into_iter().for_each(|header| self.say(Style::Quiet, &header));
        self.say(style, &format!("  {line}"));
        self.above = Some(call.clone());
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::ModelAsked(asked) => self.wait_for(asked.model.as_deref().unwrap_or("the model")),
            Fact::ModelAnswered(answered) => self.wanted = answered.items.iter().filter_map(wanted).collect(),
            Fact::CallStarted(started) => self.started(started),
            Fact::CallFinished(finished) => self.finished(finished),
            Fact::ContextCompacted(_) => self.say(Style::Quiet, "the conversation was summed up"),
            Fact::TurnFinished(_) => self.wait_for_nothing(),
            _ => {}
        }
    }

    fn started(&mut self, started: &CallStarted) {
        let detail: Value = read(started.detail.as_ref());
        let place = started.environment.as_ref().map(|id| format!("[{id}] ")).unwrap_or_default();
        match detail["type"].as_str() {
            Some("commandExecution") => {
                let command = detail["command"].as_str().unwrap_or_default();
                let line = format!("{place}$ {command}");
                self.say(Style::Strong, &line);
                self.wanted.remove(&started.call.to_string());
                self.running.insert(started.call.clone(), line);
                if detail["untilItEnds"] == true || detail["source"] == "userShell" {
                    self.streams.insert(started.call.clone(), Streamed::default());
                }
                self.above = Some(started.call.clone());
                self.wait_for(command);
            }
            Some("fileChange") => {
                for change in detail["changes"].as_array().into_iter().flatten() {
                    let kind = change["kind"]["type"].as_str().unwrap_or_default();
                    self.say(Style::Strong, &format!("{place}{kind} {}", change["path"].as_str().unwrap_or_default()));
                }
            }
            Some("mcpToolCall") => {
                let word = |name: &str| detail[name].as_str().unwrap_or_default().to_owned();
                self.say(Style::Strong, &format!("{place}{} {} {}", word("server"), word("tool"), detail["arguments"]));
            }
            Some("plan") => {
                for step in detail["plan"].as_array().into_iter().flatten() {
                    let mark = match step["status"].as_str() {
                        Some("completed") => "x",
                        Some("in_progress") => ">",
                        _ => " ",
                    };
                    self.say(Style::Quiet, &format!("[{mark}] {}", step["step"].as_str().unwrap_or_default()));
                }
            }
            _ => self.say(Style::Strong, &format!("{place}{}", started.tool)),
        }
    }

    fn finished(&mut self, finished: &CallFinished) {
        let detail: Value = read(finished.detail.as_ref());
        if let Some(stream) = self.streams.remove(&finished.call).filter(|stream| stream.bytes() > 0) {
            return self.stream_ended(finished, stream, &detail);
        }
        // Whose output it is shows only as long as nothing stands between.
        match self.running.remove(&finished.call) {
            Some(line) if self.above.as_ref() != Some(&finished.call) => self.say(Style::Quiet, &line),
            Some(_) => {}
            None => {
                let line = self.wanted.remove(&finished.call.to_string());
                line.into_iter().for_each(|line| self.say(Style::Strong, &line));
            }
        }
        if let Some(output) = detail["aggregatedOutput"].as_str() {
            let lines: Vec<&str> = output.lines().collect();
            for line in lines.iter().take(LINES) {
                self.say(Style::Plain, &format!("  {line}"));
            }
            if lines.len() > LINES {
                self.say(Style::Quiet, &format!("  … {} more lines", lines.len() - LINES));
            }
        }
        if let Some(end) = ending(finished, &detail) {
            self.say(Style::Bad, &format!("  {end}"));
        }
    }

    /// The end of a command whose output was shown as it came.
    fn stream_ended(&mut self, finished: &CallFinished, mut stream: Streamed, detail: &Value) {
        if let Some(rest) = stream.rest() {
            self.line_of(&finished.call, Style::Plain, &rest);
        }
        let missed = detail["outputBytes"].as_u64().unwrap_or_default().saturating_sub(stream.bytes());
        if missed > 0 {
            self.line_of(&finished.call, Style::Quiet, &format!("… {missed} bytes of its output came too fast to be shown"));
        }
        if let Some(end) = ending(finished, detail) {
            self.line_of(&finished.call, Style::Bad, &end);
        }
        self.running.remove(&finished.call);
    }

    /// The answer.
    pub fn answer(&mut self, answer: Option<&str>) -> io::Result<()> {
        self.wait_for_nothing();
        let Some(answer) = answer else { return Ok(()) };
        let mut out = io::stdout().lock();
        // Whatever a model says, it does not get hold of the terminal.
        if out.is_terminal() {
            writeln!(out, "{}", clean(answer))?
        } else {
            writeln!(out, "{answer}")?
        }
        out.flush()
    }

    /// A part of an answer, as it comes.
    pub fn stream(&mut self, delta: &str) -> io::Result<()> {
        self.wait_for_nothing();
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            write!(out, "{}", clean(delta))?
        } else {
            write!(out, "{delta}")?
        }
        self.open = Some(Open::Output);
        out.flush()
    }

    /// Asks for a line.
    pub fn prompt(&mut self, mark: &str) {
        self.wait_for_nothing();
        self.end_line();
        if self.live {
            let mut err = io::stderr().lock();
            let _ = write!(err, "{mark}").and_then(|()| err.flush());
            self.open = Some(Open::Prompt);
        }
    }

    /// What was typed ended the line by itself.
    pub fn typed(&mut self) {
        self.open = None;
    }

    /// Ends a line that was begun.
    pub fn end_line(&mut self) {
        let _ = match self.open.take() {
            Some(Open::Output) => writeln!(io::stdout()),
            Some(Open::Prompt) => writeln!(io::stderr()),
            None => Ok(()),
        };
    }

    /// What went wrong, if anything did.
    pub fn problem(&mut self, problem: Option<&str>) {
        if let Some(problem) = problem {
            self.say(Style::Bad, &format!("outpost: {problem}"));
        }
    }

    fn wait_for(&mut self, what: &str) {
        self.waits_for = Some((what.lines().next().unwrap_or_default().to_owned(), Instant::now()));
    }

    fn wait_for_nothing(&mut self) {
        self.waits_for = None;
        self.wipe();
    }

    /// Draws the last line anew.
    pub fn tick(&mut self) {
        let Some((what, since)) = self.waits_for.as_ref().filter(|_| self.live && self.open.is_none()) else { return };
        let seconds = since.elapsed().as_secs();
        if seconds < 1 {
            return;
        }
        let columns = tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(20));
        let line: String = clean(&format!("… {seconds} s {what}")).chars().take(columns - 1).collect();
        let mut out = io::stderr().lock();
        let _ = write!(out, "{CLEAR}{}", self.dressed(Style::Quiet, &line)).and_then(|()| out.flush());
        self.is_drawn = true;
    }

    pub fn say(&mut self, style: Style, text: &str) {
        self.above = None;
        self.wipe();
        self.end_line();
        self.put(style, text);
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }

    fn put(&self, style: Style, text: &str) {
        let _ = writeln!(io::stderr(), "{}", self.dressed(style, &clean(text)));
    }

    fn dressed(&self, style: Style, text: &str) -> String {
        match style.code() {
            Some(code) if self.colours => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
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

/// How a call ended, if that is worth a word.
fn ending(finished: &CallFinished, detail: &Value) -> Option<String> {
    Some(match finished.outcome {
        CallOutcome::Completed => match (detail["exitCode"].as_i64().filter(|code| *code != 0)?, detail["limit"].as_str()) {
            (code, Some(limit)) => format!("exit code {code}: stopped by {limit}"),
            (code, None) => format!("exit code {code}"),
        },
        CallOutcome::Failed => detail["error"].as_str().unwrap_or("it failed").to_owned(),
        CallOutcome::Declined => "declined".into(),
        CallOutcome::Lost => "lost: nobody knows what became of it".into(),
        CallOutcome::Aborted => "stopped".into(),
    })
}

/// The call of a command, and how it is shown.
fn wanted(item: &Raw) -> Option<(String, String)> {
    let item: Value = item.read().ok()?;
    let arguments: Value = serde_json::from_str(item["arguments"].as_str().filter(|_| item["name"] == "exec_command")?).ok()?;
    let place = arguments["environment_id"].as_str().map(|id| format!("[{id}] ")).unwrap_or_default();
    Some((item["call_id"].as_str()?.to_owned(), format!("{place}$ {}", arguments["cmd"].as_str()?)))
}

/// A text without anything that a terminal would obey. Of a line that was written over, the last state counts.
fn clean(text: &str) -> String {
    let last = |line: &str| line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().to_owned();
    let lines: Vec<String> = text.split('\n').map(last).collect();
    lines.join("\n").chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Why a turn did not end well.
pub fn why(end: &TurnFinished) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_reaches_the_terminal_as_a_command() {
        assert_eq!(clean("a\x1b[2Jb\u{9b}31mc\x07\td"), "a[2Jb31mc\td");
        assert_eq!(clean("10%\r50%\r100%\nnext\r\n"), "100%\nnext\n");
    }
}
