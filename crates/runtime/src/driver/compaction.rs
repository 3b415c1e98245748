//! Making the context smaller: the model sums up what happened, and the thread goes on with that and the user's last words.
//! History is neither copied nor cut: the new beginning names what it keeps.

use outpost_store::Need;
use outpost_thread::{CompactReason, ContextCompacted, Kept, Raw, TurnId, is_user_message, said};

use super::step::{Told, user_message};
use super::{Done, Driver, Stop};
use crate::model::{Answer, History, ModelError, Prompt};

/// So much of what the user said is kept word by word, in bytes.
const KEPT_BYTES: usize = 80_000;

const REQUEST: &str = "<compaction_request>\n\
The conversation is about to be continued without its history. Write a summary from which the work can be continued: what the user \
wants, what was decided and why, what was done and in which environment (name files, commands, ids), what is still open, and what was \
tried in vain. Be exact about names and states. Write nothing else.\n\
</compaction_request>";

impl Driver {
    pub(super) async fn begin_compaction(&mut self, turn: TurnId, reason: CompactReason) -> Result<(), Stop> {
        let model = match self.shared.models.get(self.thread.settings.model_provider.as_deref()) {
            Ok(model) => model,
            Err(error) => return self.fail_turn(turn, &error).await,
        };
        self.load_context().await?;
        let mut items = self.context.as_ref().map_or_else(Vec::new, |context| context.items().to_vec());
        items.push(user_message(REQUEST));
        let prompt = Prompt {
            model: self.shared.models.model_name(&self.thread.settings),
            instructions: self.shared.instructions(&self.thread),
            history: History::new(items),
            tools: [].into(),
            output_schema: None,
            effort: self.shared.config.effort(&self.thread.settings),
            cache_key: self.thread.id.to_string(),
        };
        self.compacting = reason;
        self.asking = Some(self.work.spawn(async move {
            // When even this does not fit, the oldest part is left out until it does.
            let mut prompt = prompt;
            let answer = loop {
                match model.ask(&prompt, &|_| {}).await {
                    Err(ModelError::ContextExceeded { .. }) if prompt.history.items().len() > 2 => {
                        let cut = (prompt.history.items().len() / 4).max(1);
                        prompt.history = History::new(prompt.history.items()[cut..].to_vec());
                    }
                    answer => break answer,
                }
            };
            Done::Summarised { turn, answer }
        }));
        Ok(())
    }

    pub(super) async fn summarised(&mut self, turn: TurnId, answer: Result<Answer, ModelError>) -> Result<(), Stop> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fail_turn(turn, &error).await,
        };
        let summary: String = answer.items.iter().filter_map(said).collect();
        self.seat.used(answer.usage.total_tokens);
        let mut kept = self.last_words();
        let bytes: usize = kept.iter().map(|(_, bytes)| bytes).sum();
        let text = format!("<context_summary>\n{}\n</context_summary>", summary.trim());
        let tokens = (bytes + text.len()).div_ceil(4) as u64;
        let mut beginning: Vec<Kept> = kept.drain(..).map(|(seq, _)| Kept::Entry(seq)).collect();
        beginning.push(Kept::Item(user_message(&text)));
        let window = self.thread.window + 1;
        let compacted = ContextCompacted { turn: Some(turn), reason: self.compacting, kept: beginning, tokens, window };
        self.record(vec![compacted.into()], Need::Stored).await?;
        // Whatever was told about the surroundings is gone with the rest.
        self.told = Told::default();
        Ok(())
    }

    /// The entries with the user's last messages, oldest first, and how large each is.
    fn last_words(&self) -> Vec<(u64, usize)> {
        let Some(context) = &self.context else { return Vec::new() };
        let mut words: Vec<(u64, usize)> = Vec::new();
        let mut bytes = 0;
        let located: Vec<(u64, &Raw)> = context.located().collect();
        for (seq, item) in located.into_iter().rev().filter(|(_, item)| is_user_message(item)) {
            bytes += item.get().len();
            if bytes > KEPT_BYTES {
                break;
            }
            if words.last().is_none_or(|(last, _)| *last != seq) {
                words.push((seq, item.get().len()));
            }
        }
        words.reverse();
        words
    }
}
