//! One step: freeze what it sees, tell the model what is new, ask, take the answer.

use std::sync::{Arc, PoisonError};

use outpost_store::Need;
use outpost_thread::{
    CallId, CallRequest, CompactReason, Fact, ModelAnswered, ModelAsked, Raw, Settings, StepCaptured, StepEnvironment, TokenTotals,
    TurnFinished, TurnId, TurnStatus,
};
use outpost_thread::{InterruptReason, Marker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::nudge::{Lack, asked};
use super::repeats::{POINTED_OUT, TOO_MANY, pointed_out, repeated};
use super::{Done, Driver, Stop};
use crate::capabilities::RootReport;
use crate::environment_context::EnvironmentContext;
use crate::live::ThreadEvent;
use crate::mcp::told::ToldServers;
use crate::model::{
    ModelError, ModelFacts, ModelHistory, ModelProgress, ModelProvider, ModelResponse, ModelUsage, NO_MODEL, Prompt, StopReason, WireApi,
    WrittenSoFar,
};
use crate::skills::listing::ToldCapabilities;
use crate::skills::mentioned;
use crate::tools::StepTools;
use crate::tools::command_report::SESSION_ID;

/// A conversation that fills so much of a model's window is summed up before that model is asked.
const FULL_PERCENT: u64 = 80;

/// What the model was told last. A step leaves behind what was new in it, for the steps after it and for clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AnnouncedContext {
    #[serde(skip_serializing_if = "Option::is_none")]
    surroundings: Option<EnvironmentContext>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<ToldCapabilities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<ToldServers>,
    /// Why each capability root is in the step, or why not. The model is told less.
    #[serde(skip_serializing_if = "Option::is_none")]
    roots: Option<Vec<RootReport>>,
}

impl AnnouncedContext {
    /// Takes over what a later step told.
    fn update(&mut self, news: Self) {
        self.surroundings = news.surroundings.or_else(|| self.surroundings.take());
        self.capabilities = news.capabilities.or_else(|| self.capabilities.take());
        self.servers = news.servers.or_else(|| self.servers.take());
        self.roots = news.roots.or_else(|| self.roots.take());
    }

    /// What of `now` is new.
    fn news(&self, now: Self) -> Self {
        fn new<T: PartialEq>(now: Option<T>, before: Option<&T>) -> Option<T> {
            now.filter(|now| before != Some(now))
        }
        Self {
            surroundings: new(now.surroundings, self.surroundings.as_ref()),
            // Nothing at all need not be told to begin with.
            capabilities: new(now.capabilities, self.capabilities.as_ref().or(Some(&ToldCapabilities::default()))),
            servers: new(now.servers, self.servers.as_ref().or(Some(&ToldServers::default()))),
            roots: new(now.roots, self.roots.as_ref().or(Some(&Vec::new()))),
        }
    }
}

impl Driver {
    /// Reads the model's view of the thread if it is not at hand.
    pub(super) async fn load_context(&mut self) -> Result<(), Stop> {
        if self.model.context.is_some() {
            return Ok(());
        }
        let mut told = AnnouncedContext::default();
        let context = outpost_store::context_with(&self.journal.store, &self.thread, |entry| {
            if let Fact::StepCaptured(step) = &entry.fact
                && let Some(Ok(news)) = step.detail.as_ref().map(Raw::read::<AnnouncedContext>)
            {
                told.update(news);
            }
        });
        self.model.context = Some(context.await?);
        self.model.written = WrittenSoFar::default();
        self.model.told = told;
        Ok(())
    }

    /// One entry of this thread.
    pub(super) async fn entry_at(&self, ordinal: u64) -> Result<Option<outpost_thread::Entry>, Stop> {
        Ok(self.journal.store.entries(self.thread.id, vec![ordinal]).await?.pop())
    }

    /// The tools of the present step; captured anew if it was begun in a previous run of this thread.
    pub(super) async fn tools(&mut self) -> Result<Arc<StepTools>, Stop> {
        if let Some(tools) = &self.turn.step {
            return Ok(tools.clone());
        }
        let seen = match self.thread.turn.as_ref().filter(|turn| turn.step.is_some()).map(|turn| turn.step_ordinal) {
            Some(ordinal) => self.entry_at(ordinal).await?,
            None => None,
        };
        let seen = seen.and_then(|entry| if let Fact::StepCaptured(step) = entry.fact { Some(step.environments) } else { None });
        Ok(self.capture(seen.filter(|seen| !seen.is_empty())).await)
    }

    async fn capture(&mut self, seen: Option<Vec<StepEnvironment>>) -> Arc<StepTools> {
        let names_session = |item: &Raw| item.get().contains(SESSION_ID);
        let sessions = self.model.context.as_ref().is_some_and(|context| context.items().iter().any(names_session));
        let captured = self.shared.capture(&self.thread, self.processes.clone(), sessions).await;
        let tools = Arc::new(StepTools { seen, ..captured });
        self.keep_servers(tools.mcp.clone());
        self.losses.hear(&tools.view, &self.audience.feed);
        self.turn.step = Some(tools.clone());
        tools
    }

    /// Requests of one tree of agents share what they begin with.
    fn cache_key(&self) -> String {
        self.thread.metadata.session.clone().unwrap_or_else(|| self.thread.id.to_string())
    }

    /// A request that is no step: all that the model knows of the thread and one message more, without tools.
    pub(super) async fn request_aside(&mut self, message: &str) -> Result<Prompt, Stop> {
        self.load_context().await?;
        let settings = self.thread.effective_settings();
        let provider = self.shared.models.provider_id(&settings);
        let mut items = self.model.context.as_ref().map_or_else(Vec::new, |context| context.whole_for(&provider).to_vec());
        items.push(user_message(message));
        let model = self.shared.models.model_name(&settings);
        let plain = Prompt::plain(model, self.shared.instructions(&self.thread), ModelHistory::new(items));
        let facts = Arc::new(self.shared.config.facts(&plain.model));
        let (effort, service_tier) = (self.shared.config.effort(&settings), self.shared.config.service_tier.clone());
        Ok(Prompt { facts, effort, service_tier, cache_key: self.cache_key(), trace: self.turn.trace.clone(), ..plain })
    }

    pub(super) async fn begin_step(&mut self, turn: TurnId, step: u32) -> Result<(), Stop> {
        let settings = self.thread.effective_settings();
        // They may come from a journal that another program wrote.
        if let Err(error) = crate::settings::check(&self.thread.settings) {
            return self.fail_turn_with(turn, json!({"message": error.to_string(), "kind": "unreadableSettings"})).await;
        }
        if let Some(why) = self.shared.config.policy_refusal(&self.thread.settings) {
            return self.fail_turn_with(turn, json!({"message": why, "kind": "forbiddenSettings"})).await;
        }
        let model = match self.shared.models.get(settings.model_provider.as_deref()) {
            Ok(model) => model,
            Err(error) => return self.fail_turn(turn, &error).await,
        };
        // Another provider's name for a model would be sent as it is, and refused with words that explain nothing.
        if self.shared.models.model_name(&settings) == NO_MODEL && model.provider().wire_api != WireApi::Offline {
            let why = format!(
                "provider `{}` has no model of its own: choose one for the thread, or set `model` in config.toml",
                self.shared.models.provider_id(&settings)
            );
            return self.fail_turn_with(turn, json!({"message": why, "kind": "noModel"})).await;
        }
        self.load_context().await?;
        let facts = self.facts(&settings, &model).await;
        if self.is_too_full(&facts, step) {
            return self.begin_compaction(turn, CompactReason::Full).await;
        }
        let repeated = self.model.context.as_ref().and_then(|context| repeated(context.items())).filter(|_| step > 0);
        if let Some((count, tool)) = repeated.as_ref().filter(|(count, _)| *count >= TOO_MANY) {
            let why = format!(
                "the model made the same call of `{tool}` {count} times in a row and got the same result each time; the turn was ended"
            );
            return self.fail_turn_with(turn, json!({"message": why, "kind": "repeatedCall"})).await;
        }
        let tools = self.capture(None).await;
        // A turn that runs goes on without a server that it had: the model is told, and can say so.
        if step == 0
            && let Some(why) = tools.mcp.missing()
        {
            return self.fail_turn_with(turn, json!({"message": why, "kind": "mcpServer"})).await;
        }
        if let Some(why) = self.shared.lacking_skills(&tools) {
            return self.fail_turn_with(turn, json!({"message": why, "kind": "skillsMissing"})).await;
        }
        for message in &tools.capabilities.missing_roots {
            // Once in a turn.
            if self.turn.notices.lock().unwrap_or_else(PoisonError::into_inner).insert(message.clone()) {
                self.audience.feed.publish(ThreadEvent::Warning { message: message.clone() }, 256);
            }
        }
        let surroundings = tools.surroundings(&self.shared.today()).after(self.model.told.surroundings.as_ref());
        let capabilities = ToldCapabilities::of(&tools.capabilities);
        let mut items = Vec::new();
        if step == 0 {
            if let Some(file) = &self.shared.config.user_instructions {
                items.extend(crate::instructions::of_user(file, self.model.context.as_ref()).await);
            }
            items.extend(tools.instructions(self.model.context.as_ref(), self.shared.config.discovery_patience).await);
        }
        let servers = ToldServers::of(&tools.mcp);
        let about_skills = capabilities.message(self.model.told.capabilities.as_ref());
        let about_servers = servers.message(self.model.told.servers.as_ref());
        let news = surroundings.message(self.model.told.surroundings.as_ref());
        items.extend(news.iter().chain(&about_skills).chain(&about_servers).map(|text| user_message(text)));
        items.extend(self.named_skills(&turn, &tools).await);
        let again = repeated.filter(|(count, _)| *count >= POINTED_OUT);
        items.extend(again.map(|(count, tool)| user_message(&pointed_out(count, &tool))));
        items.extend(self.turn.lack.take().map(|lack| user_message(&lack.message())));
        // Only what is new is written down.
        let roots = tools.capabilities.roots.clone();
        let now = AnnouncedContext {
            surroundings: Some(surroundings),
            capabilities: Some(capabilities),
            servers: Some(servers),
            roots: Some(roots),
        };
        let news = self.model.told.news(now);
        let captured = StepCaptured {
            turn: turn.clone(),
            step,
            environments: environments(&tools, self.shared.node_host()),
            items,
            detail: if news == AnnouncedContext::default() { None } else { Raw::of(&news).ok() },
        };
        let name = self.shared.models.model_name(&settings);
        let provider = Some(self.shared.models.provider_id(&settings));
        let facts = Arc::new(facts);
        let asked = ModelAsked { turn: turn.clone(), step, model: Some(name.clone()), provider };
        let before = self.model.context.as_ref().map(outpost_thread::Context::revision);
        self.record(vec![captured.into(), asked.into()], Need::Stored).await?;
        if before != self.model.context.as_ref().map(outpost_thread::Context::revision) {
            let message = format!(
                "the model provider changed to `{}`: what only the one before can read (its reasoning, its own tools) is left out from here on",
                self.shared.models.provider_id(&settings)
            );
            self.audience.feed.publish(ThreadEvent::Warning { message }, 256);
        }
        self.model.told.update(news);
        let (items, revision) = self.model.context.as_ref().map(|context| (context.shared(), context.revision())).unwrap_or_default();
        let history = self.model.written.follow((self.thread.context_generation, revision), items);
        let prompt = Prompt {
            model: name,
            instructions: self.shared.instructions(&self.thread),
            history,
            tools: tools.specs.clone(),
            output_schema: self.output_schema(),
            effort: self.shared.config.effort(&settings),
            service_tier: self.shared.config.service_tier.clone(),
            facts,
            cache_key: self.cache_key(),
            trace: self.turn.trace.clone(),
        };
        let (feed, notices) = (self.audience.feed.clone(), self.turn.notices.clone());
        self.turn.asking = Some(self.work.spawn(async move {
            let progress = |progress| {
                let (event, weight) = match progress {
                    ModelProgress::Notice { text } => {
                        if !notices.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()) {
                            return;
                        }
                        (ThreadEvent::Warning { message: text }, 256)
                    }
                    progress => (ThreadEvent::Progress { turn: turn.clone(), step, progress }, 512),
                };
                feed.publish(event, weight);
            };
            let answer = model.ask(&prompt, &progress).await;
            Done::Asked { turn, step, answer }
        }));
        Ok(())
    }

    /// The skills that the user has just named, as they are now, unless the model has read exactly that.
    async fn named_skills(&self, turn: &TurnId, tools: &StepTools) -> Vec<Raw> {
        let Some(context) = &self.model.context else { return Vec::new() };
        if tools.capabilities.skills.is_empty() {
            return Vec::new();
        }
        let words: Vec<String> = context.last_words(turn).into_iter().filter_map(outpost_thread::said).collect();
        let mut items = Vec::new();
        for skill in mentioned(&words.join("\n"), &tools.capabilities.skills) {
            let item = user_message(&skill.told_when_named().await);
            if !context.items().contains(&item) {
                items.push(item);
            }
        }
        items
    }

    fn output_schema(&self) -> Option<Arc<Value>> {
        let schema = self.thread.turn.as_ref()?.output_schema.as_ref()?;
        schema.read().ok().map(Arc::new)
    }

    pub(super) async fn answered(&mut self, turn: TurnId, step: u32, answer: Result<ModelResponse, ModelError>) -> Result<(), Stop> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(ModelError::ContextExceeded { .. }) if self.may_compact(step) => {
                return self.begin_compaction(turn, CompactReason::Full).await;
            }
            Err(error) => return self.fail_turn(turn, &error).await,
        };
        self.seat.used(answer.usage.total_tokens);
        let taken = self.thread.turn.iter().flat_map(|turn| &turn.calls).map(|call| call.id.clone()).collect();
        let items = self.save_images(answer.items).await;
        let (items, calls) = calls_of(items, taken, &*self.shared.ids);
        let is_refused = answer.stop == StopReason::Refused || refusal(&items).is_some();
        let why = refusal(&items);
        let asked = self.model.context.as_ref().and_then(|context| asked(context.items()));
        let lack = if calls.is_empty() && !is_refused { Lack::of(&items, answer.stop, asked.as_ref()) } else { None };
        let was_asked = asked.is_some();
        let goes_on = (lack.is_some() && !was_asked) || answer.stop == StopReason::Paused;
        let usage = Some(tokens(answer.usage));
        let answered = ModelAnswered { turn: turn.clone(), step, items, calls, complete: true, goes_on, usage, response: None };
        if answered.calls.is_empty() && !goes_on && !is_refused && lack.is_none() && self.thread.ends_with_answer() {
            // One append for both: a database far away is waited for once.
            let finished = TurnFinished { turn: Some(turn), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off };
            return self.end_turn_after(vec![answered.into()], finished).await;
        }
        self.record(vec![answered.into()], Need::Stored).await?;
        if is_refused {
            let why = why.map_or_else(|| "the model refused to answer".to_owned(), |why| format!("the model refused to answer: {why}"));
            return self.fail_turn_with(turn, json!({"message": why, "kind": "modelRefused"})).await;
        }
        match lack {
            Some(_) if !was_asked => self.turn.lack = lack,
            Some(lack) => {
                let (kind, message) = lack.failure();
                return self.fail_turn_with(turn, json!({"message": message, "kind": kind})).await;
            }
            None => {}
        }
        Ok(())
    }

    /// What is known of the model that is asked. A model that is not known, and a window that its server made smaller, are told once.
    async fn facts(&mut self, settings: &Settings, model: &ModelProvider) -> ModelFacts {
        let models = &self.shared.models;
        let (name, provider) = (models.model_name(settings), models.provider_id(settings));
        let mut facts = self.shared.config.facts(&name);
        let is_asked = model.provider().wire_api != WireApi::Offline;
        if !facts.is_known && is_asked && self.model.unknown.as_ref() != Some(&name) {
            let message = format!(
                "`{name}` is not in the table of models: a window of {} tokens, images and parallel calls are assumed; `[models.\"{name}\"]` \
                 in config.toml says otherwise",
                facts.context_window
            );
            self.audience.feed.publish(ThreadEvent::Warning { message }, 256);
            self.model.unknown = Some(name.clone());
        }
        let served = models.served_context(&provider, model, &name).await.filter(|served| *served < facts.context_window);
        if let Some(served) = served {
            if self.model.small_window != Some(served) {
                let message = format!(
                    "the server of `{provider}` gives `{name}` a context window of {served} tokens, and {} were assumed: the conversation is \
                     summed up earlier. Start the server with a larger one if the task needs it",
                    facts.context_window
                );
                self.audience.feed.publish(ThreadEvent::Warning { message }, 256);
                self.model.small_window = Some(served);
            }
            facts.context_window = served;
        }
        facts
    }

    /// The context window of the model that is asked, as far as it is known without asking its server.
    pub(super) fn window(&self) -> u64 {
        let (settings, models) = (self.thread.effective_settings(), &self.shared.models);
        let name = models.model_name(&settings);
        let served = models.known_context(&models.provider_id(&settings), &name);
        served.into_iter().chain([self.shared.config.context_window(&name)]).min().unwrap_or_default()
    }

    /// Whether the context must be made smaller before a step, although no limit of the thread's own is reached. What counts is the
    /// window of the model that is asked now: the thread may have begun with another one.
    fn is_too_full(&self, facts: &ModelFacts, step: u32) -> bool {
        let is_new = self.thread.turn.as_ref().is_some_and(|turn| turn.step != Some(step));
        is_new && self.may_compact(step) && self.thread.usage.active >= facts.context_window / 100 * FULL_PERCENT
    }

    fn may_compact(&self, step: u32) -> bool {
        self.thread.turn.as_ref().is_some_and(|turn| turn.compacted_before != Some(step))
    }

    /// Ends a turn with what went wrong in it. The thread stays as usable as before.
    pub(super) async fn fail_turn(&mut self, turn: TurnId, error: &ModelError) -> Result<(), Stop> {
        let mut detail = json!({"message": error.to_string(), "kind": error.kind()});
        if let Some(status) = error.status() {
            detail["httpStatus"] = status.into();
        }
        self.fail_turn_with(turn, detail).await
    }

    async fn fail_turn_with(&mut self, turn: TurnId, error: Value) -> Result<(), Stop> {
        self.end_turn(TurnFinished {
            turn: Some(turn),
            status: TurnStatus::Failed,
            reason: None::<InterruptReason>,
            error: Some(Raw::from(error)),
            marker: Marker::Off,
        })
        .await
    }
}

fn environments(tools: &StepTools, host: Option<&str>) -> Vec<StepEnvironment> {
    let member = |member: &outpost_environment::ViewMember| StepEnvironment {
        id: member.id.clone(),
        state: crate::tools::state_name(&member.captured).to_owned(),
        generation: member.captured.handle().map(outpost_environment::Environment::generation),
        executor: member.captured.handle().and_then(|handle| handle.identity()?.executor_id),
        cwd: member.attachment.as_ref().map(|attachment| attachment.cwd.to_syntax()),
        host: host.filter(|_| member.id == outpost_wire::EnvironmentId::local() && member.captured.handle().is_some()).map(str::to_owned),
    };
    tools.view.members().iter().map(member).collect()
}

/// A generated message to the model. Its text begins with a tag.
pub(crate) fn user_message(text: &str) -> Raw {
    Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
}

fn tokens(usage: ModelUsage) -> TokenTotals {
    TokenTotals {
        input: usage.input_tokens,
        cached_input: usage.cached_input_tokens,
        cache_write_input: usage.cache_write_tokens,
        output: usage.output_tokens,
        reasoning_output: usage.reasoning_tokens,
        total: usage.total_tokens,
    }
}

/// The words with which a model refused, in an answer that says nothing else.
fn refusal(items: &[Raw]) -> Option<String> {
    let refused = |item: &Raw| {
        let item: Value = item.read().ok().filter(|_| item.get().contains("\"refusal\""))?;
        let parts = item["content"].as_array()?;
        parts.iter().find_map(|part| part["refusal"].as_str().filter(|_| part["type"] == "refusal")).map(str::to_owned)
    };
    items.iter().find_map(refused)
}

/// The calls that an answer asks for. Two calls with one id cannot be told apart, so the second one gets another; a call
/// without an id gets one.
fn calls_of(items: Vec<Raw>, mut taken: Vec<CallId>, ids: &(dyn Fn() -> String + Send + Sync)) -> (Vec<Raw>, Vec<CallRequest>) {
    #[derive(Deserialize)]
    struct Asked {
        #[serde(rename = "type", default)]
        kind: String,
        #[serde(default)]
        name: String,
        #[serde(default)]
        call_id: String,
    }
    let mut calls = Vec::new();
    let items = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let Ok(asked) = item.read::<Asked>() else { return item };
            if !matches!(asked.kind.as_str(), "function_call" | "custom_tool_call") {
                return item;
            }
            let mut call = CallId(asked.call_id);
            let mut item = item;
            if call.as_str().is_empty() || taken.contains(&call) {
                call = CallId(format!("call_{}", ids()));
                if let Ok(mut value) = item.read::<Value>() {
                    value["call_id"] = call.as_str().into();
                    item = Raw::from(value);
                }
            }
            taken.push(call.clone());
            calls.push(CallRequest { call, tool: asked.name, item: index });
            item
        })
        .collect();
    (items, calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart() {
        let call = |id: &str| Raw::from(json!({"type": "function_call", "call_id": id, "name": "x", "arguments": "{}"}));
        let other = Raw::from(json!({"type": "hologram"}));
        let ids = || "new".to_owned();
        let (items, calls) = calls_of(vec![call("a"), other.clone(), call("a"), call("b"), call("")], vec![CallId("b".into())], &ids);
        let names: Vec<&str> = calls.iter().map(|call| call.call.as_str()).collect();
        assert_eq!(names, ["a", "call_new", "call_new", "call_new"]);
        assert_eq!(calls.iter().map(|call| call.item).collect::<Vec<_>>(), [0, 2, 3, 4]);
        assert_eq!(items[1], other);
        assert_eq!(items[2].read::<Value>().unwrap()["call_id"], "call_new");
    }
}
