//! A list of threads from which the user chooses one.

use std::time::Duration;

use outpost_store::ThreadSummary;
use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::keys::{KeyDecoder, TerminalKey};
use outpost_terminal::menu::{Choice, ChoiceMenu, MenuOutcome};
use outpost_terminal::painter::LiveRegion;
use outpost_thread::ThreadId;
use outpost_wire::shown::FRAME;
use tokio::signal::unix::SignalKind;

use super::status::full_width;
use super::ui_terminal::UiTerminal;
use crate::agents::Agents;
use crate::commands::thread::list::title;
use crate::commands::thread::times::age;
use crate::frame::line;
use crate::signals::Watched;
use crate::store;

/// So many are offered.
const MOST: usize = 100;
/// A key that was begun is over if nothing follows for so long.
const SETTLE_TIME: Duration = Duration::from_millis(40);

/// Nothing if the user wants none of them.
pub(super) async fn pick(agents: &Agents, terminal: &mut UiTerminal) -> anyhow::Result<Option<ThreadId>> {
    let recent = agents.recent(MOST).await?;
    let threads: Vec<ThreadSummary> = recent.into_iter().filter(|thread| thread.parent.is_none()).collect();
    let now = store::now();
    let choices = threads.iter().map(|thread| Choice {
        letter: None,
        is_quick: false,
        text: format!("{:>6}  {}  {}", age(now, thread.updated_at), line(&title(thread)), line(thread.cwd.as_deref().unwrap_or_default())),
    });
    let (mut menu, mut decoder) = (ChoiceMenu::new(choices.collect()), KeyDecoder::default());
    let mut window = Watched::new(SignalKind::window_change())?;
    loop {
        let heading = if threads.is_empty() { "there is no thread yet" } else { "Which thread?" };
        let mut rows = vec![InkLine::of(Ink::Note, format!("{FRAME} {heading}"))];
        rows.extend(menu.view(&format!("{FRAME} "), terminal.painter.rows().saturating_sub(4).min(15)));
        let last = rows.len() - 1;
        rows.push(full_width(&format!("{FRAME} Enter opens it"), "Esc goes back", terminal.painter.columns() - 1));
        terminal.paint(&[], LiveRegion { rows, cursor: (last, 0) });
        let is_due = decoder.is_begun() || terminal.is_waiting();
        let keys = tokio::select! {
            typed = terminal.keys() => match typed {
                Some(typed) => decoder.feed(&typed.bytes),
                None => return Ok(None),
            },
            () = window.recv() => continue,
            () = tokio::time::sleep(SETTLE_TIME), if is_due => decoder.settle().into_iter().collect(),
        };
        for key in keys {
            if let TerminalKey::CursorAt(row, column) = key {
                terminal.cursor_at(row, column);
                continue;
            }
            match menu.key(&key) {
                MenuOutcome::Chosen(at) => return Ok(threads.get(at).map(|thread| thread.id)),
                MenuOutcome::Cancelled => return Ok(None),
                _ if matches!(key, TerminalKey::Ctrl('c' | 'd')) => return Ok(None),
                MenuOutcome::Moved | MenuOutcome::Ignored => {}
            }
        }
    }
}
