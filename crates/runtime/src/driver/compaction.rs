//! Making the context smaller: the model sums up what happened, and the thread goes on with that and the user's last words.
//! History is neither copied nor cut: the new beginning names what it keeps.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use outpost_store::Need;
use outpost_thread::{CompactReason, Context, ContextCompacted, Kept, Raw, TurnId, estimate, said};
use serde::Deserialize;

use super::last_words::CompactionBudget;
use super::step::{AnnouncedContext, user_message};
use super::{Done, Driver, Stop, work_state};
use crate::model::{HistoryItem, ModelError, ModelHistory, ModelResponse};
use crate::tools::command_report::SESSION_ID;
use crate::tools::processes::RunningCommand;

const REQUEST: &str = "<compaction_request>\n\
The conversation is about to be continued without its history. Write a summary from which the work can be continued: what the user \
wants, what was decided and why, what was done and in which environment (name files, commands, ids), what is still open, and what was \
tried in vain. Be exact about names and states. Write nothing else.\n\
</compaction_request>";

impl Driver {
    pub(super) async fn begin_compaction(&mut self, turn: TurnId, reason: CompactReason) -> Result<(), Stop> {
        let model = match self.shared.models.get(self.thread.effective_settings().model_provider.as_deref()) {
            Ok(model) => model,
            Err(error) => return self.fail_turn(turn, &error).await,
        };
        let prompt = self.request_aside(REQUEST).await?;
        self.turn.compacting = reason;
        self.turn.asking = Some(self.work.spawn(async move {
            // When even this does not fit, the oldest part is left out until it does.
            let mut prompt = prompt;
            let answer = loop {
                match model.ask(&prompt, &|_| {}).await {
                    Err(ModelError::ContextExceeded { .. }) if prompt.history.items().len() > 2 => {
                        let cut = (prompt.history.items().len() / 4).max(1);
                        prompt.history = ModelHistory::new(without_orphans(&prompt.history.items()[cut..]));
                    }
                    answer => break answer,
                }
            };
            Done::Summarised { turn, answer }
        }));
        Ok(())
    }

    pub(super) async fn summarised(&mut self, turn: TurnId, answer: Result<ModelResponse, ModelError>) -> Result<(), Stop> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fail_turn(turn, &error).await,
        };
        let summary: String = answer.items.iter().filter_map(said).collect();
        self.seat.used(answer.usage.total_tokens);
        if summary.trim().is_empty() {
            let provider = self.thread.settings.model_provider.clone().unwrap_or_else(|| "the model".into());
            let reason = "it was asked to sum up the conversation and said nothing; the history is as it was".into();
            return self.fail_turn(turn, &ModelError::Nonsense { provider, reason }).await;
        }
        let budget = CompactionBudget::of(self.window());
        let located: Vec<(u64, &Raw)> = self.model.context.iter().flat_map(Context::located).collect();
        let (mut beginning, words) = budget.last_words(&located);
        let summary = user_message(&format!("<context_summary>\n{}\n</context_summary>", budget.summary(summary.trim())));
        let mut tokens = words + estimate([&summary]);
        beginning.push(Kept::Item(summary));
        if let Some(state) = self.work_state() {
            tokens += estimate([&state]);
            beginning.push(Kept::Item(state));
        }
        let context_generation = self.thread.context_generation + 1;
        let compacted = ContextCompacted { turn: Some(turn), reason: self.turn.compacting, kept: beginning, tokens, context_generation };
        self.record(vec![compacted.into()], Need::Stored).await?;
        // Whatever was told about the surroundings is gone with the rest.
        self.model.told = AnnouncedContext::default();
        Ok(())
    }

    /// What must not depend on how well the model sums up.
    fn work_state(&self) -> Option<Raw> {
        let items = self.model.context.as_ref()?.items();
        let line = |(session, command): &(u64, Arc<RunningCommand>)| {
            let environment = command.detail.environment_id.as_deref().map(|id| format!(" in {id}")).unwrap_or_default();
            format!("{SESSION_ID} {session}{environment}: {}", command.detail.command.lines().next().unwrap_or_default())
        };
        let running: Vec<String> = self.processes.running().iter().map(line).collect();
        work_state::message(items, &running).map(|text| user_message(&text))
    }
}

#[derive(Deserialize)]
struct CallItem<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    call_id: Option<Cow<'a, str>>,
}

/// Without results whose calls are gone: models refuse them.
fn without_orphans(items: &[HistoryItem]) -> Vec<HistoryItem> {
    let mut calls = HashSet::new();
    let belongs = |item: &&HistoryItem| {
        let Ok(CallItem { kind, call_id: Some(id) }) = serde_json::from_str(item.get()) else { return true };
        if kind.ends_with("_output") {
            return calls.contains(id.as_ref());
        }
        calls.insert(id.into_owned());
        true
    };
    items.iter().filter(belongs).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_go_with_their_calls() {
        let items: Vec<HistoryItem> = [
            json!({"type": "function_call_output", "call_id": "1", "output": "old"}),
            json!({"type": "message", "role": "user", "content": []}),
            json!({"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": ""}),
            json!({"type": "custom_tool_call_output", "call_id": "2", "output": "new"}),
        ]
        .map(HistoryItem::from)
        .into();
        assert_eq!(without_orphans(&items), items[1..]);
    }
}
