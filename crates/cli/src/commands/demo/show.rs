//! The demo as it is read.

use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;

use crate::ProcessContext;
use crate::out;

/// So wide a turn is, and everything on a terminal.
const WIDTH: usize = 100;
/// So far to the right begins what was said in a turn.
const TURN: usize = 16;
/// So far to the right begins what the last lines say.
const END: usize = 9;

pub(super) struct Show {
    colours: bool,
    steps: usize,
    /// Of the terminal; elsewhere nothing is broken into lines.
    width: Option<usize>,
}

impl Show {
    pub(super) fn new(own: &ProcessContext) -> Self {
        let is_set = |name: &str| own.variables.get(name).is_some_and(|value| !value.is_empty());
        let dumb = own.variables.get("TERM").is_none_or(|term| term == "dumb");
        let width = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let width = width.map(|columns| columns.clamp(40, WIDTH));
        Self { colours: io::stdout().is_terminal() && !dumb && !is_set("NO_COLOR"), steps: 0, width }
    }

    pub(super) fn title(&mut self, text: &str) -> anyhow::Result<()> {
        wrapped(text, self.room(0)).iter().try_for_each(|line| self.line(&self.dressed("1", line)))
    }

    pub(super) fn plain(&mut self, text: &str) -> anyhow::Result<()> {
        wrapped(text, self.room(0)).iter().try_for_each(|line| self.line(line))
    }

    pub(super) fn warning(&mut self, text: &str) -> anyhow::Result<()> {
        wrapped(text, self.room(0)).iter().try_for_each(|line| self.line(&self.dressed("33", line)))
    }

    pub(super) fn step(&mut self, text: &str) -> anyhow::Result<()> {
        self.steps += 1;
        self.line("")?;
        for (number, line) in wrapped(text, self.room(3)).iter().enumerate() {
            let step = if number == 0 { self.steps.to_string() } else { " ".to_owned() };
            self.line(&self.dressed("1", &format!("{step}  {line}")))?;
        }
        Ok(())
    }

    /// A command, where it runs, and what it printed.
    pub(super) fn command(&mut self, place: &str, command: &str, output: &str) -> anyhow::Result<()> {
        let place = format!("[{place}]");
        self.line(&format!("   {}{}", self.dressed("36", &format!("{place:<9}$ ")), out::on_line(command)))?;
        out::on_lines(output).lines().try_for_each(|line| self.line(&format!("            {line}")))
    }

    pub(super) fn event(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(&format!("            {}", self.dressed("33", text)))
    }

    pub(super) fn remark(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(&format!("            {}", self.dressed("32", text)))
    }

    /// A turn of a history.
    pub(super) fn turn(&mut self, whose: &str, number: usize, said: &str) -> anyhow::Result<()> {
        let said = out::on_lines(said);
        let said = said.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("  ");
        let cut = said.char_indices().nth(self.width.unwrap_or(WIDTH) - TURN).map(|(end, _)| format!("{}…", &said[..end]));
        self.line(&format!("   {} {number}  {}", self.dressed("36", &format!("{whose:<9}")), cut.unwrap_or(said)))
    }

    pub(super) fn end(&mut self, lines: &[(&str, String)]) -> anyhow::Result<()> {
        self.line("")?;
        for (what, text) in lines {
            for (number, line) in wrapped(text, self.room(END)).iter().enumerate() {
                let what = if number == 0 { what } else { "" };
                self.line(&format!("{}  {line}", self.dressed("1", &format!("{what:<7}"))))?;
            }
        }
        Ok(())
    }

    /// How wide a text may be that begins so far to the right.
    fn room(&self, indent: usize) -> usize {
        self.width.map_or(usize::MAX, |columns| columns - indent)
    }

    fn dressed(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn line(&self, text: &str) -> anyhow::Result<()> {
        out::print_coloured(&format!("{text}\n"))
    }
}

/// A text in lines of that width. What a reader may want to copy stays whole: a word, and what stands between backquotes.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        let mut quoted = false;
        let words = paragraph.split(|c| {
            quoted ^= c == '`';
            c == ' ' && !quoted
        });
        for word in words {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_wide_as_they_may_be_and_words_stay_whole() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("a much-too-long b", 4), ["a", "much-too-long", "b"]);
        assert_eq!(wrapped("do `a b c`, then d", 6), ["do", "`a b c`,", "then d"]);
        assert_eq!(wrapped("\na", 4), ["", "a"]);
    }
}
