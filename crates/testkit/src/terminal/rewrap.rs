//! What a terminal makes of its rows when its window gets another size.

use super::nonzero;

/// As much as a user scrolls back.
pub(super) const SCROLLBACK: usize = 10_000;

/// A line of a program: the rows that the terminal broke it into.
pub(super) struct Line(Vec<Row>);

struct Row {
    text: String,
    /// With its colours.
    drawn: String,
    is_wrapped: bool,
}

impl Line {
    pub(super) fn text(&self) -> String {
        self.0.iter().map(|row| row.text.as_str()).collect::<String>().trim_end().to_owned()
    }

    fn height(&self, columns: usize) -> usize {
        self.text().chars().count().div_ceil(columns).max(1)
    }
}

fn row(screen: &vt100::Screen, at: u16) -> Row {
    let columns = screen.size().1.get();
    let nth = usize::from(at);
    Row {
        text: screen.rows(0, columns).nth(nth).unwrap_or_default(),
        drawn: screen.rows_formatted(0, columns).nth(nth).unwrap_or_default(),
        is_wrapped: screen.row_wrapped(at),
    }
}

/// Everything from the beginning of the scrollback to the end of what is seen.
pub(super) fn lines(model: &mut vt100::Parser) -> Vec<Line> {
    let (lines, _) = lines_and_cursor(model);
    lines
}

/// With the line that the cursor is in, and the row of that.
fn lines_and_cursor(model: &mut vt100::Parser) -> (Vec<Line>, (usize, usize)) {
    let screen = model.screen_mut();
    let cursor = screen.cursor_position().0;
    let behind = screen.scrollback_len();
    let mut rows = Vec::new();
    for offset in (1..=behind).rev() {
        screen.set_scrollback(offset);
        rows.push(row(screen, 0));
    }
    screen.set_scrollback(0);
    rows.extend((0..screen.size().0.get()).map(|at| row(screen, at)));
    let cursor = behind + usize::from(cursor);
    while rows.len() > cursor + 1 && rows.last().is_some_and(|row| row.text.trim().is_empty()) {
        rows.pop();
    }
    let (mut lines, mut place, mut goes_on) = (Vec::<Line>::new(), (0, 0), false);
    for (number, row) in rows.into_iter().enumerate() {
        let is_wrapped = row.is_wrapped;
        match lines.last_mut().filter(|_| goes_on) {
            Some(line) => line.0.push(row),
            None => lines.push(Line(vec![row])),
        }
        if number == cursor {
            place = (lines.len() - 1, lines[lines.len() - 1].0.len() - 1);
        }
        goes_on = is_wrapped;
    }
    (lines, place)
}

/// Breaks every line anew. The cursor stays at its letter, and the end of everything at the bottom.
pub(super) fn rewrap(model: &mut vt100::Parser, rows: u16, columns: u16) {
    let (lines, (line, row)) = lines_and_cursor(model);
    let was = usize::from(model.screen().size().1.get());
    let at = row * was + usize::from(model.screen().cursor_position().1);
    let wide = usize::from(columns);
    // Behind the last letter of a full row the cursor stays at its end.
    let is_behind = at > 0 && at % wide == 0 && at >= lines[line].text().chars().count();
    let (down, across) = if is_behind { (at / wide - 1, wide - 1) } else { (at / wide, at % wide) };
    let mut fresh = vt100::Parser::new(nonzero(rows), nonzero(columns), SCROLLBACK);
    for (number, line) in lines.iter().enumerate() {
        if number > 0 {
            fresh.process(b"\r\n");
        }
        for row in &line.0 {
            fresh.process(row.drawn.as_bytes());
            fresh.process(b"\x1b[m");
        }
    }
    let below: usize = lines[line + 1..].iter().map(|line| line.height(wide)).sum();
    let below = below + lines[line].height(wide).saturating_sub(down + 1);
    let up = if below > 0 { format!("\x1b[{below}A") } else { String::new() };
    let right = if across > 0 { format!("\x1b[{across}C") } else { String::new() };
    fresh.process(format!("{up}\r{right}").as_bytes());
    *model = fresh;
}
