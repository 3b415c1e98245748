//! What stands at the bottom of the terminal: what goes on, what the keys are for, and the status.

use std::time::Instant;

use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::painter::LiveRegion;
use outpost_wire::shown::FRAME;

use super::{ChatUi, Focus};
use crate::commands::chat::view::framed;
use crate::frame::line;

impl ChatUi<'_> {
    pub(super) fn paint(&mut self) {
        let now = Instant::now();
        let (columns, rows) = (self.terminal.painter.columns(), self.terminal.painter.rows());
        let (bottom, cursor) = self.bottom(columns, rows);
        let room = rows.saturating_sub(bottom.len() + 3);
        let mut region = self.view.live_rows(now, room.min(rows / 2));
        let above = region.len();
        region.extend(bottom);
        region.push(self.status.line(now, columns - 1));
        let lasting = self.view.take_lasting();
        self.terminal.paint(&lasting, LiveRegion { rows: region, cursor: (above + cursor.0, cursor.1) });
    }

    /// What the keys are for, and where the cursor stands in it.
    fn bottom(&self, columns: usize, rows: usize) -> (Vec<InkLine>, (usize, usize)) {
        let mut bottom = Vec::new();
        if let Focus::Menu(_) | Focus::Answer = &self.focus
            && let Some(question) = self.questions.first()
        {
            let (asked, facts) = question.parts();
            let (asked, facts) = (framed(&asked, columns), framed(&facts, columns));
            // What does not fit was drawn above, where all of it can be read.
            if asked.len() + facts.len() + 12 <= rows {
                bottom.extend(asked);
            }
            bottom.extend(facts);
        }
        if let Focus::Menu(menu) = &self.focus {
            bottom.push(InkLine::of(Ink::Note, format!("{FRAME} Allow?")));
            bottom.extend(menu.view(&format!("{FRAME} "), rows.saturating_sub(bottom.len() + 2)));
            let last = bottom.len() - 1;
            bottom.extend(self.hint.iter().map(|hint| InkLine::of(Ink::Note, format!("{FRAME} {hint}"))));
            return (bottom, (last, 0));
        }
        let mark = if matches!(self.focus, Focus::Answer) { InkLine::of(Ink::Note, "? ") } else { InkLine::of(Ink::Strong, "> ") };
        let view = self.editor.view(&mark, columns - 1, (rows / 3).clamp(1, 10));
        let cursor = (bottom.len() + view.cursor.0, view.cursor.1);
        bottom.extend(view.rows);
        if !self.offered.is_empty() {
            let names = self.offered.iter().map(|name| line(name)).collect::<Vec<_>>().join("  ");
            bottom.extend(InkLine::of(Ink::Quiet, names).wrapped(columns - 1, &InkLine::default()).into_iter().take(4));
        }
        let waits = !self.questions.is_empty() && matches!(self.focus, Focus::Editor);
        let waiting = waits.then(|| "a question waits for an answer: Tab shows it, what you type stays".to_owned());
        bottom.extend(self.hint.clone().or(waiting).map(|hint| InkLine::of(Ink::Note, format!("{FRAME} {hint}"))));
        (bottom, cursor)
    }
}
