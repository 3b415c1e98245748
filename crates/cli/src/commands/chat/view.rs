//! A conversation as it stands on the screen: events go in, lines that stay and rows at the bottom come out.
//!
//! It knows no terminal and no task. Rows of our own begin with the frame's bar, which no text of others can show.

use std::time::Instant;

use outpost_runtime::live::ThreadEvent;
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::model::ModelProgress;
use outpost_terminal::diff;
use outpost_terminal::folded::{FoldedEnd, FoldedOutput};
use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::markdown::{MarkdownStream, rendered};
use outpost_thread::{
    CallAction, CallEnding, CallFinished, CallId, CallStarted, CallView, EndedCallView, Fact, FileView, GeneratedImage, PlannedStepStatus,
    TurnFinished, said,
};
use outpost_wire::shown::{FRAME, Form};

use crate::frame::{FrameRow, cut, draw, line, lines, word};
use crate::progress::size;
use crate::render::{badge, ending, headings, missing, why};

/// So many of the last lines of a running command are shown.
const RECENT: usize = 5;
/// So many lines of a command, of a difference, of a parameter.
const COMMAND_LINES: usize = 12;
const DIFF_LINES: usize = 60;
const REMARK: usize = 2000;

#[derive(Default)]
pub(super) struct ConversationView {
    columns: usize,
    /// Lines that stay, not drawn yet.
    lasting: Vec<InkLine>,
    stream: MarkdownStream,
    /// What was streamed of the answer that is being given.
    streamed: String,
    running: Vec<RunningView>,
    /// What is waited for, and since when.
    waits: Option<(String, Instant)>,
}

/// A command that runs.
struct RunningView {
    call: CallId,
    place: String,
    command: String,
    since: Instant,
    /// It ran before this program came: not all of its output was heard here.
    is_found: bool,
    head: Vec<String>,
    output: FoldedOutput,
}

impl ConversationView {
    pub(super) fn new(columns: usize) -> Self {
        Self { columns, ..Self::default() }
    }

    pub(super) fn resize(&mut self, columns: usize) {
        self.columns = columns;
    }

    /// The lines to be drawn above the region, once.
    pub(super) fn take_lasting(&mut self) -> Vec<InkLine> {
        std::mem::take(&mut self.lasting)
    }

    /// Our own words.
    pub(super) fn say(&mut self, ink: Ink, text: &str) {
        self.lasting.push(InkLine::of(ink, format!("{FRAME} {text}")));
    }

    pub(super) fn push(&mut self, lines: impl IntoIterator<Item = InkLine>) {
        self.lasting.extend(lines);
    }

    pub(super) fn rows_of(&mut self, rows: &[FrameRow]) {
        let drawn = framed(rows, self.columns);
        self.lasting.extend(drawn);
    }

    /// What the user sent.
    pub(super) fn sent(&mut self, text: &str) {
        self.gap();
        let shown = lines(text, Form::Text);
        for (number, row) in shown.iter().take(COMMAND_LINES).enumerate() {
            self.lasting.push(InkLine::of(Ink::Strong, if number == 0 { "> " } else { "  " }).with(Ink::Strong, cut(row, REMARK)));
        }
        if shown.len() > COMMAND_LINES {
            self.lasting.push(InkLine::of(Ink::Quiet, format!("  … {} more lines", shown.len() - COMMAND_LINES)));
        }
    }

    /// What the agent said before this program came.
    pub(super) fn markdown(&mut self, text: &str) {
        self.gap();
        self.lasting.extend(rendered(text, self.width()));
    }

    fn gap(&mut self) {
        self.lasting.push(InkLine::default());
    }

    fn width(&self) -> usize {
        self.columns.saturating_sub(1).clamp(20, 120)
    }

    /// What is going on, at most so many rows: the end of the answer, and the commands that run.
    pub(super) fn live_rows(&self, now: Instant, most: usize) -> Vec<InkLine> {
        let mut rows = self.stream.begun(self.width());
        for running in &self.running {
            let progress = running.progress(now);
            let title = InkLine::of(Ink::Strong, format!("{FRAME} {}", running.title()));
            rows.push(title.cut(self.columns.saturating_sub(progress.len() + 2)).with(Ink::Quiet, progress));
            let waiting = running.output.waiting();
            let recent: Vec<&String> = running.head.iter().chain(&waiting).collect();
            let skipped = recent.len().saturating_sub(RECENT);
            rows.extend(recent.into_iter().skip(skipped).map(|row| InkLine::plain(format!("  {row}"))));
        }
        if let Some((what, since)) = self.waits.as_ref().filter(|_| self.running.is_empty() && rows.is_empty()) {
            let seconds = now.saturating_duration_since(*since).as_secs();
            if seconds > 0 {
                rows.push(InkLine::of(Ink::Quiet, format!("{FRAME} {what} … {seconds} s")));
            }
        }
        let skipped = rows.len().saturating_sub(most);
        rows.into_iter().skip(skipped).collect()
    }

    /// A call that runs already. What it does besides commands is too short to be found.
    pub(super) fn found_running(&mut self, started: &CallStarted, now: Instant) {
        let view = started.view();
        if let CallAction::Command { command, .. } = &view.action {
            self.command_started(started, badge(&view), command, now);
            self.running.iter_mut().filter(|running| running.call == started.call).for_each(|running| running.is_found = true);
        }
    }

    pub(super) fn event(&mut self, event: &ThreadEvent, now: Instant) {
        match event {
            ThreadEvent::Entry(entry) => self.fact(&entry.fact, now),
            ThreadEvent::Progress { progress: ModelProgress::TextDelta { delta, .. }, .. } => {
                if self.streamed.is_empty() {
                    self.gap();
                }
                self.streamed.push_str(delta);
                self.stream.push(delta);
                let done = self.stream.finished_blocks(self.width());
                self.lasting.extend(done);
            }
            ThreadEvent::Progress { progress: ModelProgress::Retrying { attempt, of, reason }, .. } => {
                self.end_stream();
                self.say(Ink::Note, &format!("{}; asking again ({attempt} of {of})", cut(&line(reason), REMARK)));
            }
            ThreadEvent::Mcp(McpEvent::Startup { state, error: Some(error), .. }) if state == "failed" => {
                self.say(Ink::Note, &cut(&line(error), REMARK));
            }
            ThreadEvent::Mcp(McpEvent::Warning { message }) | ThreadEvent::Warning { message } => {
                self.say(Ink::Note, &cut(&line(message), REMARK))
            }
            ThreadEvent::Output { call, bytes } => {
                if let Some(running) = self.running.iter_mut().find(|running| running.call == *call) {
                    running.head.extend(running.output.push(bytes));
                }
            }
            _ => {}
        }
    }

    fn fact(&mut self, fact: &Fact, now: Instant) {
        match fact {
            Fact::ModelAsked(asked) => self.waits = Some((word(asked.model.as_deref().unwrap_or("the model")), now)),
            Fact::ModelAnswered(answered) => {
                self.waits = None;
                let texts: Vec<String> = answered.items.iter().filter_map(said).filter(|text| !text.is_empty()).collect();
                let whole = texts.concat();
                // What came while there was no connection follows what was shown before.
                let rest = whole.strip_prefix(self.streamed.as_str()).filter(|_| !self.streamed.is_empty());
                rest.iter().for_each(|rest| self.stream.push(rest));
                let is_shown = rest.is_some();
                self.end_stream();
                if !is_shown {
                    texts.iter().for_each(|text| self.markdown(text));
                }
                let images = answered.items.iter().filter_map(GeneratedImage::of);
                images.for_each(|image| self.say(Ink::Note, &line(&image.to_string())));
            }
            Fact::CallStarted(started) => self.started(started, now),
            Fact::CallFinished(finished) => self.finished(finished),
            Fact::ContextCompacted(_) => self.say(Ink::Quiet, "the conversation was summed up"),
            Fact::TurnFinished(finished) => self.turn_finished(finished),
            _ => {}
        }
    }

    /// An answer that broke off, or is whole.
    fn end_stream(&mut self) {
        if !std::mem::take(&mut self.streamed).is_empty() {
            let rest = self.stream.finish(self.width());
            self.lasting.extend(rest);
        }
    }

    fn turn_finished(&mut self, finished: &TurnFinished) {
        self.end_stream();
        self.waits = None;
        // What still runs does so in the background; its output is asked for by later calls.
        self.running.clear();
        if let Some(why) = why(finished) {
            self.say(Ink::Bad, &cut(&line(&why), REMARK));
        }
    }

    fn started(&mut self, started: &CallStarted, now: Instant) {
        self.end_stream();
        let view = started.view();
        match &view.action {
            CallAction::Command { command, .. } => self.command_started(started, badge(&view), command, now),
            CallAction::Plan(steps) => {
                self.say(Ink::Strong, "plan");
                for step in steps {
                    let (mark, ink) = match step.status {
                        PlannedStepStatus::Completed => ("[x]", Ink::Good),
                        PlannedStepStatus::InProgress => ("[>]", Ink::Note),
                        PlannedStepStatus::Pending => ("[ ]", Ink::Plain),
                    };
                    let row = InkLine::of(Ink::Strong, format!("{FRAME} ")).with(ink, format!("{mark} {}", cut(&line(&step.step), REMARK)));
                    self.lasting.push(row);
                }
            }
            CallAction::Files(_) | CallAction::McpTool { .. } | CallAction::Other => {
                headings(&view, &started.tool).iter().for_each(|heading| self.say(Ink::Strong, heading));
            }
        }
    }

    fn command_started(&mut self, started: &CallStarted, place: String, command: &str, now: Instant) {
        self.running.push(RunningView {
            call: started.call.clone(),
            place,
            command: command.to_owned(),
            since: now,
            is_found: false,
            head: Vec::new(),
            output: FoldedOutput::default(),
        });
    }

    fn finished(&mut self, finished: &CallFinished) {
        let end = finished.view();
        let running = self.running.iter().position(|running| running.call == finished.call).map(|at| self.running.remove(at));
        match (running, &end.refused) {
            (Some(running), _) => self.command_ended(running, &end),
            (None, Some(view @ CallView { action: CallAction::Command { command, .. }, .. })) => self.announce(&badge(view), command),
            (None, _) => {}
        }
        end.files.iter().for_each(|file| self.changed(file));
        if let Some(words) = ending(&end) {
            self.say(Ink::Bad, &format!("  {words}"));
        } else if end.ending == CallEnding::RunsOn {
            self.say(Ink::Quiet, "  running in the background");
        }
        end.notices.iter().for_each(|notice| self.say(Ink::Note, &line(notice)));
    }

    fn command_ended(&mut self, mut running: RunningView, end: &EndedCallView) {
        self.announce(&running.place, &running.command);
        let plain = |row: &String| InkLine::plain(format!("  {row}"));
        let kept = end.output.as_deref().unwrap_or_default();
        if running.output.bytes() == 0 || (running.is_found && !kept.is_empty()) {
            // It was not followed while it ran, or not all the time: this is what the thread keeps of it.
            let mut folded = FoldedOutput::default();
            let head = folded.push(kept.as_bytes());
            self.lasting.extend(head.iter().map(plain));
            let FoldedEnd { left_out, tail } = folded.end();
            left_out.into_iter().for_each(|(lines, bytes)| self.say(Ink::Quiet, &format!("  … {lines} lines ({}) left out", size(bytes))));
            self.lasting.extend(tail.iter().map(plain));
            return;
        }
        if let Some(missed) = missing(running.output.bytes(), end).and_then(|whole| running.output.missed(whole)) {
            running.head.extend(running.output.push(missed.as_bytes()));
        }
        let missed = end.output_bytes.saturating_sub(running.output.bytes());
        self.lasting.extend(running.head.iter().map(plain));
        let FoldedEnd { left_out, tail } = running.output.end();
        if let Some((lines, bytes)) = left_out {
            self.say(Ink::Quiet, &format!("  … {lines} lines ({}) left out", size(bytes)));
        }
        if missed > 0 {
            self.say(Ink::Quiet, &format!("  … {missed} bytes of its output were not shown"));
        }
        self.lasting.extend(tail.iter().map(plain));
    }

    /// A command, and where it ran: its first line behind our words, the others visibly not ours.
    fn announce(&mut self, place: &str, command: &str) {
        let shown = lines(command, Form::Script);
        let (first, more) = shown.split_first().map_or(("", &[][..]), |(first, more)| (first.as_str(), more));
        self.say(Ink::Strong, &format!("{place}$ {}", cut(first, REMARK)));
        let rows: Vec<FrameRow> = more.iter().take(COMMAND_LINES).map(|row| FrameRow::Theirs(cut(row, REMARK))).collect();
        self.rows_of(&rows);
        if more.len() > COMMAND_LINES {
            self.say(Ink::Quiet, &format!("… {} more lines of this command", more.len() - COMMAND_LINES));
        }
    }

    /// A file that a patch changed.
    fn changed(&mut self, file: &FileView) {
        let Some(text) = &file.diff else { return };
        let (added, removed) = diff::counts(text);
        self.say(Ink::Quiet, &format!("{} {} (+{added} -{removed})", file.change, word(&file.path)));
        let rows = diff::coloured(text);
        let count = rows.len();
        self.lasting.extend(rows.into_iter().take(DIFF_LINES).map(|row| indented(&row)));
        if count > DIFF_LINES {
            self.say(Ink::Quiet, &format!("… {} more lines; /diff shows all of them", count - DIFF_LINES));
        }
    }
}

impl RunningView {
    fn title(&self) -> String {
        let first = word(self.command.lines().next().unwrap_or_default());
        format!("{}$ {first}", self.place)
    }

    fn progress(&self, now: Instant) -> String {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        match self.output.lines() {
            0 => format!("  {seconds} s"),
            count => format!("  {seconds} s, {count} lines"),
        }
    }
}

/// A difference below what it is about.
pub(super) fn indented(row: &InkLine) -> InkLine {
    let mut whole = InkLine::plain("  ");
    row.0.iter().for_each(|span| whole.push(span.ink, span.text.clone()));
    whole
}

/// Rows in a frame, so that it is visible whose each of them is.
pub(super) fn framed(rows: &[FrameRow], columns: usize) -> Vec<InkLine> {
    let ink = |row: &FrameRow| match row {
        FrameRow::Theirs(text) if text.starts_with("  +") => Ink::Added,
        FrameRow::Theirs(text) if text.starts_with("  -") => Ink::Removed,
        FrameRow::Theirs(_) => Ink::Plain,
        FrameRow::Own(_) | FrameRow::Fact(..) => Ink::Note,
    };
    rows.iter().flat_map(|row| draw(row, columns).into_iter().map(|text| InkLine::of(ink(row), text))).collect()
}
