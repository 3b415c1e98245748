//! What others ask of a thread.

use outpost_store::{AppendError, Need, Store};
use outpost_thread::{
    ApprovalAnswered, ApprovalAsked, ApprovalId, ApprovalKind, Decision, Fact, InputId, InputOrigin, InputReceived, InterruptReason, Raw,
};
use outpost_thread::{CallId, CallStarted, SelectionChanged, Settings, SettingsChanged, TurnId, TurnKind, TurnStarted, TurnStatus};
use outpost_wire::SharedError;
use serde::Deserialize;
use serde_json::json;

use super::{Driver, Stop};
use crate::approvals::key_in;
use crate::live::{Accepted, BackgroundProcess, CommandError, DriverCommand, InputMode, NewInput, UserCommand};
use crate::rules::{self, CommandRule, Word};
use crate::tools::Consent;
use crate::tools::earlier::asked_at;
use crate::tools::left::LeftCommands;
use crate::tools::permit;

/// What a command came to; an error that concerns only it is not the driver's end.
pub(super) type Outcome<T> = Result<Result<T, CommandError>, Stop>;

impl Driver {
    pub(super) async fn command(&mut self, command: DriverCommand) -> Result<(), Stop> {
        self.is_asked = !matches!(
            command,
            DriverCommand::Shutdown(_) | DriverCommand::Leave(_) | DriverCommand::LastCalls(_) | DriverCommand::HandOver
        );
        let done = self.obey(command).await;
        self.is_asked = false;
        done
    }

    async fn obey(&mut self, command: DriverCommand) -> Result<(), Stop> {
        match command {
            DriverCommand::Input(input, reply) => {
                let outcome = self.input(*input).await;
                answer(outcome, reply)
            }
            DriverCommand::Interrupt { turn, reason, reply } => {
                let outcome = self.interrupt(turn, reason).await;
                answer(outcome, reply)
            }
            DriverCommand::Answer { approval, decision, detail, by, reply } => {
                let outcome = self.take_answer(approval, decision, detail, by).await;
                answer(outcome, reply)
            }
            DriverCommand::Change(mut facts, reply) => {
                let given = facts.iter_mut().filter_map(|fact| if let Fact::SettingsChanged(change) = fact { Some(change) } else { None });
                let taken: Result<(), _> = given.into_iter().try_for_each(|change| self.shared.take_servers(&mut change.settings));
                if let Err(error) = taken {
                    let _ = reply.send(Err(CommandError::Invalid(SharedError::new(error))));
                    return Ok(());
                }
                let named = facts
                    .iter()
                    .find_map(|fact| if let Fact::SelectionChanged(change) = fact { change.capability_roots.as_ref() } else { None });
                if let Some(Err(error)) = named.map(|roots| self.shared.check_roots(roots, &self.thread.capability_roots)) {
                    let _ = reply.send(Err(CommandError::Invalid(SharedError::new(error))));
                    return Ok(());
                }
                // A turn that is over has no settings to change.
                let own =
                    facts.iter().find_map(|fact| if let Fact::TurnSettingsChanged(change) = fact { Some(&change.turn) } else { None });
                let running = self.thread.turn.as_ref().map(|turn| &turn.id);
                let refused = match (own, running) {
                    (None, _) => None,
                    (Some(_), None) => Some(CommandError::NoTurn),
                    (Some(expected), Some(running)) if expected == running => None,
                    (Some(expected), Some(running)) => {
                        Some(CommandError::OtherTurn { expected: expected.clone(), running: running.clone() })
                    }
                };
                if let Some(error) = refused {
                    let _ = reply.send(Err(error));
                    return Ok(());
                }
                let outcome = self.record(facts, Need::Stored).await.map(Ok);
                answer(outcome, reply)
            }
            DriverCommand::Queue(change, reply) => {
                let outcome = self.queue(change).await;
                answer(outcome, reply)
            }
            DriverCommand::Compact(reply) => {
                let outcome = self.compact_on_demand().await;
                answer(outcome, reply)
            }
            DriverCommand::Sample(sample, reply) => self.sample(sample, reply).await,
            DriverCommand::Revert(before, reply) => {
                let outcome = self.revert(before).await;
                answer(outcome, reply)
            }
            DriverCommand::Shell { command, environment, reply } => {
                let outcome = self.shell(command, environment).await;
                answer(outcome, reply)
            }
            DriverCommand::StopCall(call) => {
                if let Some(running) = self.calls.running.get(&call) {
                    running.cancel.cancel();
                }
                Ok(())
            }
            DriverCommand::Snapshot(reply) => {
                let _ = reply.send(self.thread.clone());
                Ok(())
            }
            DriverCommand::KeepServers(servers) => {
                self.keep_servers(servers);
                Ok(())
            }
            DriverCommand::Terminals(reply) => {
                let _ = reply.send(self.terminals());
                Ok(())
            }
            DriverCommand::FindCommands(reply) => {
                self.own_processes().await;
                // Machines may have to be reached for it.
                let search = LeftCommands {
                    registry: self.shared.registry.clone(),
                    store: self.journal.store.clone(),
                    processes: self.processes.clone(),
                    thread: self.thread.clone(),
                };
                tokio::spawn(async move {
                    let _ = reply.send(search.find().await);
                });
                Ok(())
            }
            DriverCommand::Terminate { session, reply } => {
                // What the user ends is not waited for.
                self.forget_wakes(session).await?;
                let ended = self.terminate(session);
                answer(Ok(Ok(ended)), reply)
            }
            DriverCommand::Shutdown(reason) => {
                if let Some(turn) = self.thread.turn.as_ref().map(|turn| turn.id.clone()) {
                    self.finish_turn(turn, TurnStatus::Interrupted, Some(reason), None).await?;
                }
                self.forget_wakes(None).await?;
                self.processes.terminate_all().await;
                Err(Stop::Unloaded)
            }
            DriverCommand::LastCalls(reply) => {
                self.calls.gate.close();
                self.last_calls.get_or_insert_default().push(reply);
                Ok(())
            }
            DriverCommand::HandOver => Err(if self.has_work() { Stop::HandedOver } else { Stop::Unloaded }),
            DriverCommand::Leave(reason) => {
                if let Some(turn) = self.thread.turn.as_ref().map(|turn| turn.id.clone()) {
                    self.finish_turn(turn, TurnStatus::Interrupted, Some(reason), None).await?;
                }
                // Of what is kept in memory only, no later program can ask.
                if matches!(self.journal.store, Store::Memory(_)) {
                    self.processes.terminate_all().await;
                    return Err(Stop::Unloaded);
                }
                // The next program follows its commands without being asked.
                Err(if self.thread.wakes.is_empty() { Stop::Unloaded } else { Stop::HandedOver })
            }
        }
    }

    /// The commands that outlived their calls and still run.
    fn terminals(&self) -> Vec<BackgroundProcess> {
        let running = self.processes.running().into_iter();
        running
            .map(|(session, running)| BackgroundProcess {
                session,
                call: running.call.clone(),
                asked_ordinal: asked_at(session).0,
                command: running.detail.command.clone(),
                environment: running.process.environment().name().to_owned(),
            })
            .collect()
    }

    /// Asks such commands to end; that they have ended is told when it happens.
    fn terminate(&self, session: Option<u64>) -> usize {
        let wanted = self.processes.running().into_iter().filter(|(own, _)| session.is_none_or(|session| session == *own));
        let wanted: Vec<_> = wanted.map(|(_, running)| running).collect();
        let count = wanted.len();
        tokio::spawn(async move {
            for running in wanted {
                let _ = tokio::time::timeout(std::time::Duration::from_secs(5), running.process.terminate()).await;
            }
        });
        count
    }

    async fn input(&mut self, mut input: NewInput) -> Outcome<Accepted> {
        if let Err(error) = self.shared.take_servers(&mut input.settings) {
            return Ok(Err(CommandError::Invalid(SharedError::new(error))));
        }
        if let Some(known) = input.client_key.as_deref().and_then(|key| self.thread.keyed(key)) {
            return Ok(Ok(Accepted::Known(known.turn.clone())));
        }
        let running = self.thread.turn.as_ref().map(|turn| (turn.id.clone(), turn.kind));
        let steered = match (&input.mode, running) {
            (InputMode::Steer { .. }, None) => return Ok(Err(CommandError::NoTurn)),
            (InputMode::Steer { expected: Some(expected) }, Some((running, _))) if *expected != running => {
                return Ok(Err(CommandError::OtherTurn { expected: expected.clone(), running }));
            }
            (InputMode::StartIfIdle, Some(_)) => return Ok(Err(CommandError::Busy)),
            (InputMode::Queue, Some(_)) | (_, None) => None,
            (_, Some((running, TurnKind::Regular | TurnKind::Review))) => Some(running),
            (InputMode::Steer { .. }, Some(_)) => return Ok(Err(CommandError::NotSteerable)),
            // A turn that cannot be steered is waited for.
            (_, Some(_)) => None,
        };
        let is_idle = self.thread.turn.is_none();
        // Whatever is meant for another machine never joins a turn that runs on this one.
        if !is_idle && (input.turn_selection.is_some() || input.output_schema.is_some()) {
            return Ok(Err(CommandError::OwnTurn));
        }
        if is_idle && !self.seat.work() {
            return Ok(Err(CommandError::Invalid(self.shared.too_many_agents().into())));
        }
        if (is_idle || steered.is_some()) && input.trace.is_some() {
            self.turn.trace = input.trace;
        }
        let id = InputId((self.shared.ids)());
        let mut facts = changes(input.settings, input.selection);
        facts.push(
            InputReceived {
                input: id.clone(),
                turn: steered.clone(),
                origin: input.origin,
                client_key: input.client_key,
                by: input.by,
                content: input.content,
                items: input.items,
            }
            .into(),
        );
        if let Some(turn) = steered {
            self.record(facts, Need::Stored).await?;
            return Ok(Ok(Accepted::Steered(turn)));
        }
        if !is_idle {
            self.record(facts, Need::Stored).await?;
            return Ok(Ok(Accepted::Queued));
        }
        let turn = TurnId((self.shared.ids)());
        let takes_queue = input.turn_selection.is_none() && input.output_schema.is_none();
        let waiting = self.thread.queued.iter().filter(|_| takes_queue).map(|input| input.id.clone());
        let inputs = waiting.chain([id]).collect();
        let started = TurnStarted {
            kind: input.kind,
            selection: input.turn_selection,
            output_schema: input.output_schema,
            ..TurnStarted::new(turn.clone(), inputs)
        };
        facts.push(started.into());
        self.begin_turn(facts).await?;
        Ok(Ok(Accepted::Started(turn)))
    }

    async fn interrupt(&mut self, turn: Option<TurnId>, reason: InterruptReason) -> Outcome<()> {
        let Some(running) = self.thread.turn.as_ref().map(|turn| turn.id.clone()) else {
            // It has ended already; that is what was wanted.
            return Ok(Ok(()));
        };
        if let Some(expected) = turn.filter(|turn| *turn != running) {
            return Ok(Err(CommandError::OtherTurn { expected, running }));
        }
        self.finish_turn(running, TurnStatus::Interrupted, Some(reason), None).await?;
        Ok(Ok(()))
    }

    async fn take_answer(&mut self, approval: ApprovalId, decision: Decision, detail: Option<Raw>, by: Option<String>) -> Outcome<()> {
        let asked = self.thread.turn.iter().flat_map(|turn| &turn.approvals).find(|asked| asked.id == approval).cloned();
        let Some(asked) = asked else { return Ok(Err(CommandError::NoQuestion(approval))) };
        if decision.permits()
            && let Some(rule) = amendment(&asked.asked, detail.as_ref())
        {
            let amended = rule
                .map_err(|why| CommandError::Invalid(why.into()))
                .and_then(|rule| self.shared.amend(rule).map_err(|error| CommandError::Invalid(SharedError::new(error))));
            if let Err(error) = amended {
                return Ok(Err(error));
            }
        }
        let detail = match asked.asked.kind {
            ApprovalKind::Permissions if decision.permits() => permit::complete(&asked.asked, decision, detail.as_ref()),
            _ => detail,
        };
        // Permissions are a fact of their own once they are given.
        if decision == Decision::ApprovedForThread && asked.asked.kind != ApprovalKind::Permissions {
            self.grants.remember(&asked.asked);
        }
        if let Some(call) = &asked.call {
            let consent = Consent::Given { answer: detail.clone(), key: key_in(&asked.asked) };
            self.turn.answers.insert(call.clone(), consent);
        }
        let said = self.calls.elicitations.remove(&approval).map(|waiting| (waiting, detail.clone()));
        self.record(vec![ApprovalAnswered { approval, decision, detail, by }.into()], Need::Stored).await?;
        if let Some((waiting, detail)) = said {
            waiting.answer(decision, detail.as_ref());
        }
        Ok(Ok(()))
    }

    async fn compact_on_demand(&mut self) -> Outcome<TurnId> {
        if self.thread.turn.is_some() {
            return Ok(Err(CommandError::Busy));
        }
        let turn = TurnId((self.shared.ids)());
        let started = TurnStarted { kind: TurnKind::Compact, ..TurnStarted::new(turn.clone(), vec![]) };
        self.begin_turn(vec![started.into()]).await?;
        Ok(Ok(turn))
    }

    /// A command of the user's: no model, no question. It is a turn of its own, unless one is running: then it runs beside what
    /// that one does, and belongs to it.
    async fn shell(&mut self, command: String, environment: Option<String>) -> Outcome<UserCommand> {
        let running = self.thread.turn.as_ref().map(|turn| (turn.id.clone(), turn.kind));
        if matches!(running, Some((_, TurnKind::Compact))) {
            return Ok(Err(CommandError::Busy));
        }
        self.own_processes().await;
        let tools = self.tools().await?;
        let place = match tools.place(environment.as_deref()) {
            Ok(place) => place.attachment.environment_id.clone(),
            Err(why) => return Ok(Err(CommandError::Invalid(why.into()))),
        };
        let is_own_turn = running.is_none();
        let turn = running.map_or_else(|| TurnId((self.shared.ids)()), |(turn, _)| turn);
        let call = CallId((self.shared.ids)());
        let input = InputId((self.shared.ids)());
        let text = Raw::from(json!({"type": "text", "text": command}));
        let note = json!({"type": "message", "role": "user", "content": [{"type": "input_text",
            "text": format!("<user_shell_command>\n{command}\n</user_shell_command>")}]});
        let run = tools.user_command(&call, &command, &place);
        let received = InputReceived {
            input: input.clone(),
            turn: None,
            // What is said to a running turn would make the model answer it.
            origin: if is_own_turn { InputOrigin::Shell } else { InputOrigin::History },
            client_key: None,
            by: None,
            content: vec![text],
            items: vec![Raw::from(note)],
        };
        let begun = TurnStarted { kind: TurnKind::Shell, ..TurnStarted::new(turn.clone(), vec![input]) };
        let begun = is_own_turn.then(|| Fact::from(begun));
        let started: CallStarted = run.started(turn.clone());
        let facts = [Fact::from(received)].into_iter().chain(begun).chain([started.into()]).collect();
        self.record(facts, Need::BeforeEffect).await?;
        self.spawn_all(&turn, vec![run]);
        Ok(Ok(UserCommand { turn, call, is_own_turn }))
    }
}

/// The rule that an answer about a command makes, if it names the first words of commands that may run from now on; or why it
/// may not be made. It is about the command in question: an answer is no way to write any other rule.
fn amendment(asked: &ApprovalAsked, answer: Option<&Raw>) -> Option<Result<CommandRule, String>> {
    #[derive(Deserialize)]
    struct Amended {
        prefix: Vec<String>,
    }
    let prefix = answer.filter(|_| asked.kind == ApprovalKind::Command)?.read::<Amended>().ok()?.prefix;
    if prefix.iter().any(|word| word.is_empty() || word.chars().any(char::is_control)) {
        return Some(Err("a rule is made of words, and one of these is none".into()));
    }
    if rules::is_broad(&prefix) {
        return Some(Err(format!("a rule that allows every command with `{}` would allow everything; name more words", prefix.join(" "))));
    }
    let question = asked.question();
    let command = question.command.filter(|_| question.typed_into.is_none()).unwrap_or_default();
    if !rules::begins(&command, &prefix) {
        return Some(Err(format!(
            "the command in question does not begin with `{}`, so an answer to it makes no such rule",
            prefix.join(" ")
        )));
    }
    let reason = Some("allowed by an answer".into());
    Some(Ok(CommandRule {
        prefix: prefix.into_iter().map(Word::One).collect(),
        decision: rules::RuleDecision::Allow,
        reason,
        environment: None,
    }))
}

/// What stays for later turns, as facts.
fn changes(settings: Settings, selection: Option<outpost_wire::intent::Selection>) -> Vec<Fact> {
    let mut facts = Vec::new();
    if settings != Settings::default() {
        facts.push(SettingsChanged { settings }.into());
    }
    if selection.is_some() {
        facts.push(SelectionChanged { selection, capability_roots: None }.into());
    }
    facts
}

/// Answers the caller. An error that ends the driver is sent to it, too.
fn answer<T>(outcome: Outcome<T>, reply: crate::live::CommandReply<T>) -> Result<(), Stop> {
    match outcome {
        Ok(answer) => {
            let _ = reply.send(answer);
            Ok(())
        }
        Err(stop) => {
            let _ = reply.send(Err(CommandError::NotStored(stop.to_string().into())));
            // On a full disk only what was asked is refused; the thread itself is whole.
            if matches!(stop, Stop::Append(AppendError::NoSpace { .. })) { Ok(()) } else { Err(stop) }
        }
    }
}
