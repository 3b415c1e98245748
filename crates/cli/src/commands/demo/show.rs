//! The demo as it is read.

use std::io::{self, IsTerminal, Write};

use crate::Process;

/// So many characters of a message are shown.
const WIDTH: usize = 80;

pub struct Show {
    colours: bool,
    steps: usize,
}

impl Show {
    pub fn new(own: &Process) -> Self {
        let is_set = |name: &str| own.variables.get(name).is_some_and(|value| !value.is_empty());
        let dumb = own.variables.get("TERM").is_none_or(|term| term == "dumb");
        Self { colours: io::stdout().is_terminal() && !dumb && !is_set("NO_COLOR"), steps: 0 }
    }

    pub fn title(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(&self.dressed("1", text))
    }

    pub fn plain(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(text)
    }

    pub fn warning(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(&self.dressed("33", text))
    }

    pub fn step(&mut self, text: &str) -> anyhow::Result<()> {
        self.steps += 1;
        self.line("")?;
        self.line(&self.dressed("1", &format!("{}  {text}", self.steps)))
    }

    /// A command, where it runs, and what it printed.
    pub fn command(&mut self, place: &str, command: &str, output: &str) -> anyhow::Result<()> {
        let place = format!("[{place}]");
        self.line(&format!("   {}{command}", self.dressed("36", &format!("{place:<9}$ "))))?;
        output.lines().try_for_each(|line| self.line(&format!("            {line}")))
    }

    pub fn event(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(&format!("            {}", self.dressed("33", text)))
    }

    pub fn remark(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(&format!("            {}", self.dressed("32", text)))
    }

    /// A turn of a history.
    pub fn turn(&mut self, whose: &str, number: usize, said: &str) -> anyhow::Result<()> {
        let said = said.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("  ");
        let cut = said.char_indices().nth(WIDTH).map(|(end, _)| format!("{}…", &said[..end]));
        self.line(&format!("   {} {number}  {}", self.dressed("36", &format!("{whose:<9}")), cut.unwrap_or(said)))
    }

    pub fn end(&mut self, lines: &[(&str, String)]) -> anyhow::Result<()> {
        self.line("")?;
        lines.iter().try_for_each(|(what, text)| self.line(&format!("{}  {text}", self.dressed("1", &format!("{what:<7}")))))
    }

    fn dressed(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn line(&self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }
}
