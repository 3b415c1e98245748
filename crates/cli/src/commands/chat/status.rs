//! What the line below the prompt tells: where, with which model, for how long, and how much room is left.

use std::time::Instant;

use outpost_runtime::live::LiveThread;
use outpost_terminal::ink::{Ink, InkLine, width};

use crate::agents::Agents;
use crate::frame::word;

#[derive(Debug, Clone, Default)]
pub(super) struct ChatStatus {
    /// Their names, the primary first, and how they stand if they are not ready.
    pub environments: Vec<(String, Option<String>)>,
    pub directory: String,
    pub model: String,
    pub provider: String,
    pub tokens: u64,
    /// In dollars, at the list price of the model that answers now.
    pub cost: Option<f64>,
    /// What the context holds, and what it may hold.
    pub context: (u64, u64),
    pub background: usize,
    /// Since when a turn runs.
    pub running_since: Option<Instant>,
}

impl ChatStatus {
    pub(super) async fn of(agents: &Agents, thread: &LiveThread, running_since: Option<Instant>) -> Option<Self> {
        let state = thread.snapshot().await.ok()?;
        let model = agents.model(state.id, &state.effective_settings());
        let selection = state.effective_selection().cloned().unwrap_or_default();
        let directory = selection.primary().map(|primary| word(&primary.cwd.to_syntax())).unwrap_or_default();
        let known = agents.environments().await;
        let environments = selection.ids().map(|id| {
            let standing = known.iter().find(|row| row.id == *id);
            let unusual = match standing {
                Some(row) => (!row.is_usual).then(|| row.word.clone()),
                None => Some("missing".to_owned()),
            };
            (id.to_string(), unusual)
        });
        Some(Self {
            environments: environments.collect(),
            directory,
            context: (state.usage.active, model.context_window),
            cost: agents.cost(&model.name, &state.usage.total),
            model: word(&model.name),
            provider: word(&model.provider),
            tokens: state.usage.total.total,
            background: thread.terminals().await.map_or(0, |running| running.len()),
            running_since,
        })
    }

    /// As wide as the window: where it is broken by a terminal that becomes narrower, the painter sees it.
    pub(super) fn line(&self, now: Instant, columns: usize) -> InkLine {
        let places = self.environments.iter().map(|(name, standing)| match standing {
            Some(standing) => format!("{name} ({standing})"),
            None => name.clone(),
        });
        let places = places.collect::<Vec<_>>().join(" ");
        let mut parts = vec![if places.is_empty() { "no environment".to_owned() } else { places }, self.model.clone()];
        if let Some(since) = self.running_since {
            parts.push(format!("{} s", now.saturating_duration_since(since).as_secs()));
        }
        if self.tokens > 0 {
            parts.push(format!("{} tokens", short(self.tokens)));
        }
        if self.context.1 > 0 && self.context.0 > 0 {
            let left = 100 - (self.context.0.min(self.context.1) * 100 / self.context.1);
            parts.push(format!("{left}% context left"));
        }
        if self.background > 0 {
            parts.push(format!("{} in background", self.background));
        }
        let way_out = if self.running_since.is_some() { "Esc stops" } else { "/help" };
        full_width(&parts.join(" · "), way_out, columns)
    }
}

/// Words at the left, as far as there is room, and others at the right end.
pub(super) fn full_width(left: &str, right: &str, columns: usize) -> InkLine {
    let room = columns.saturating_sub(width(right) + 2);
    let line = InkLine::of(Ink::Quiet, left).cut(room);
    let gap = columns.saturating_sub(line.width() + width(right));
    line.with(Ink::Quiet, " ".repeat(gap)).with(Ink::Quiet, right).cut(columns)
}

/// Large numbers in three digits.
pub(super) fn short(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        1000..1_000_000 => format!("{:.1}k", number as f64 / 1000.0),
        _ => format!("{:.1}M", number as f64 / 1_000_000.0),
    }
}
