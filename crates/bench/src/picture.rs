//! A picture of a conversation: a real program on a real terminal, and what that shows as SVG.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use outpost_testkit::TestTerminal;
use outpost_testkit::model::{Reply, ScriptedModel, call, message};
use serde_json::json;

const ROWS: u16 = 46;
const COLUMNS: u16 = 92;
/// The size of a cell.
const WIDE: f32 = 8.4;
const HIGH: f32 = 18.0;
/// Around the text, with room for the bar of a window above.
const MARGIN: f32 = 14.0;
const BAR: f32 = 26.0;

const PATCH: &str =
    "*** Begin Patch\n*** Update File: parse.py\n@@\n def port(text):\n-    return int(text)\n+    return int(text or 80)\n*** End Patch\n";
const TEST: &str = "import parse\n\nassert parse.port('8080') == 8080\nassert parse.port('') == 80\nprint('2 passed')\n";

pub(crate) fn run(outpost: &Path, file: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let plan = json!({"plan": [{"step": "Run the tests", "status": "completed"}, {"step": "Take the default where no port is given", "status": "in_progress"}, {"step": "Run the tests again", "status": "pending"}]});
    let model = runtime.block_on(ScriptedModel::with(vec![
        Reply::Items(vec![message("I look at the tests first."), call("a", "exec_command", &json!({"cmd": "python3 test.py"}))]),
        Reply::Items(vec![message("`port` does not take an empty text. Two steps are left:"), call("b", "update_plan", &plan)]),
        Reply::call("c", "apply_patch", &json!({"input": PATCH})),
        Reply::call("d", "exec_command", &json!({"cmd": "git commit -am 'Take the default where no port is given'", "justification": "the tests pass with it", "prefix_rule": ["git", "commit"]})),
    ]));
    let (home, work) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let project = work.path().join("server");
    std::fs::create_dir(&project)?;
    std::fs::write(project.join("parse.py"), "def port(text):\n    return int(text)\n")?;
    std::fs::write(project.join("test.py"), TEST)?;
    let config = format!(
        "model = \"gpt-5\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\napproval_policy = \"untrusted\"\n\
         [model_providers.scripted]\nbase_url = \"{}\"\n",
        model.base_url()
    );
    std::fs::write(home.path().join("config.toml"), config)?;
    std::fs::write(home.path().join("rules.toml"), "[[rules]]\nprefix = [\"python3\"]\ndecision = \"allow\"\n")?;
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let mut command = Command::new(std::path::absolute(outpost)?);
    command.arg("chat").current_dir(&project).env("OUTPOST_HOME", home.path()).env("HOME", work.path()).env("TERM", "xterm-256color");
    for name in ["NO_COLOR", "OUTPOST_PLAIN", "OUTPOST_EXEC_SERVER_URL"] {
        command.env_remove(name);
    }
    let mut terminal = TestTerminal::start(&command);
    terminal.resize(ROWS, COLUMNS);
    terminal.wait_for_row("/help");
    terminal.type_keys("why does the test fail? fix it\r");
    // The patch is asked about as well; a yes to it, and the picture shows the last question.
    terminal.wait_for_row("Change these files?");
    terminal.wait_for_row("> y");
    terminal.type_keys("y\r");
    terminal.wait_for_row("Run this command?");
    terminal.wait_until("the question and the status", |rows| rows.last().is_some_and(|row| row.contains("Esc stops")));
    let place = work.path().to_str().context("the directory has no name")?;
    let picture = svg(&terminal.snapshot(), &|text| text.replace(place, "/home/you"));
    std::fs::write(file, picture).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(())
}

/// Cells of one look become one text.
fn svg(screen: &vt100::Screen, rename: &dyn Fn(&str) -> String) -> String {
    let (rows, columns) = screen.size();
    let (width, height) = (f32::from(columns.get()).mul_add(WIDE, 2.0 * MARGIN), f32::from(rows.get()).mul_add(HIGH, 2.0 * MARGIN + BAR));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-labelledby=\"t\" \
         font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"14\">\n<title id=\"t\">outpost chat on a terminal</title>\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"10\" fill=\"#161c23\"/>\n\
         <circle cx=\"20\" cy=\"18\" r=\"6\" fill=\"#e66a6a\"/><circle cx=\"40\" cy=\"18\" r=\"6\" fill=\"#e9b949\"/><circle cx=\"60\" cy=\"18\" r=\"6\" fill=\"#3ebd93\"/>\n"
    );
    for row in 0..rows.get() {
        let y = f32::from(row).mul_add(HIGH, MARGIN + BAR) + HIGH * 0.75;
        let mut column = 0;
        while column < columns.get() {
            let Some(first) = screen.cell(row, column) else { break };
            let (look, start) = (Look::of(first), column);
            let mut text = String::new();
            while let Some(cell) = screen.cell(row, column).filter(|cell| column < columns.get() && Look::of(cell) == look) {
                text.push_str(if cell.contents().is_empty() { " " } else { cell.contents() });
                column += 1;
            }
            if !text.trim().is_empty() || look.inverse {
                look.draw(&mut out, f32::from(start).mul_add(WIDE, MARGIN), y, rename(&text).trim_end());
            }
        }
    }
    out.push_str("</svg>\n");
    out
}

#[derive(PartialEq)]
struct Look {
    colour: vt100::Color,
    bold: bool,
    dim: bool,
    inverse: bool,
}

impl Look {
    fn of(cell: &vt100::Cell) -> Self {
        Self { colour: cell.fgcolor(), bold: cell.bold(), dim: cell.dim(), inverse: cell.inverse() }
    }

    fn draw(&self, out: &mut String, x: f32, y: f32, text: &str) {
        let ink = match self.colour {
            vt100::Color::Idx(1) => "#f29b9b",
            vt100::Color::Idx(2) => "#65d6ad",
            vt100::Color::Idx(3) => "#f7d070",
            vt100::Color::Idx(4) => "#7cb8f5",
            vt100::Color::Idx(5) => "#d6a4f0",
            vt100::Color::Idx(6) => "#6fd3d6",
            _ if self.dim => "#9fb3c8",
            _ => "#f5f7fa",
        };
        let count = text.chars().count();
        let wide = WIDE * f32::from(u16::try_from(count).unwrap_or(u16::MAX));
        let ink = if self.inverse {
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{HIGH}\" fill=\"{ink}\"/>",
                HIGH.mul_add(-0.75, y)
            );
            "#161c23"
        } else {
            ink
        };
        let weight = if self.bold { " font-weight=\"600\"" } else { "" };
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        // The length is given, so that every font draws the same columns.
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{ink}\"{weight} xml:space=\"preserve\" textLength=\"{wide:.1}\" lengthAdjust=\"spacingAndGlyphs\">{escaped}</text>"
        );
    }
}
