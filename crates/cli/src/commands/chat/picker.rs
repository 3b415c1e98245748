//! A list of threads from which the user chooses one.

use outpost_store::ThreadSummary;
use outpost_terminal::ink::{Ink, InkLine};
use outpost_terminal::keys::{KeyDecoder, TerminalKey};
use outpost_terminal::menu::{Choice, ChoiceMenu, MenuOutcome};
use outpost_terminal::painter::LiveRegion;
use outpost_thread::ThreadId;
use outpost_wire::shown::FRAME;

use super::ui_terminal::UiTerminal;
use crate::agents::Agents;
use crate::commands::thread::list::title;
use crate::commands::thread::times::age;
use crate::frame::line;
use crate::store;

/// So many are offered.
const MOST: usize = 100;

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
    loop {
        let heading =
            if threads.is_empty() { "there is no thread yet; Esc goes back" } else { "Which thread? Enter opens it, Esc goes back" };
        let mut rows = vec![InkLine::of(Ink::Note, format!("{FRAME} {heading}"))];
        rows.extend(menu.view(&format!("{FRAME} "), terminal.painter.rows().saturating_sub(3).min(15)));
        let last = rows.len() - 1;
        terminal.paint(&[], LiveRegion { rows, cursor: (last, 0) });
        let wait = std::time::Duration::from_millis(40);
        let keys = if decoder.is_begun() {
            match tokio::time::timeout(wait, terminal.keys()).await {
                Ok(Some(typed)) => decoder.feed(&typed.bytes),
                Ok(None) => return Ok(None),
                Err(_) => decoder.settle().into_iter().collect(),
            }
        } else {
            match terminal.keys().await {
                Some(typed) => decoder.feed(&typed.bytes),
                None => return Ok(None),
            }
        };
        for key in keys {
            match menu.key(&key) {
                MenuOutcome::Chosen(at) => return Ok(threads.get(at).map(|thread| thread.id)),
                MenuOutcome::Cancelled => return Ok(None),
                _ if matches!(key, TerminalKey::Ctrl('c' | 'd')) => return Ok(None),
                MenuOutcome::Moved | MenuOutcome::Ignored => {}
            }
        }
    }
}
