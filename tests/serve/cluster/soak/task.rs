//! One thread with one command that prints for some seconds, followed by a client that goes to another node when its own fails.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outpost_testkit::model::{Reply, Voice};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Dice;
use super::arena::Arena;
use super::line::{Heard, Line, Trouble};

/// So long one task may take beside all faults.
const PATIENCE: Duration = Duration::from_secs(300);
/// So long an answer may take; a node may wait for its database.
const ANSWER: Duration = Duration::from_secs(45);
/// A command prints ten times a second: after so long without a word its client asks how it stands.
const SILENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(200);
/// So often the model begins anew when a command could not be started: its executor may be cut off.
const ATTEMPTS: usize = 60;
const THINKS: Duration = Duration::from_secs(1);

/// What the model was told of each task, all of it.
pub(super) type Told = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// What the model does with its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Waits for it in one call, as long as a call may take.
    Waits,
    /// Leaves it in the background, and asks for it.
    Asks,
    /// Ends its turn, and is woken.
    Wakes,
}

struct Task {
    name: String,
    kind: Kind,
    ticks: u64,
    place: &'static str,
}

pub(super) async fn keep_going(arena: Arc<Arena>) {
    while !arena.is_over() {
        let number = arena.next_task();
        let mut dice = Dice::of(arena.seed, number);
        if let Err(why) = run(&arena, number, &mut dice).await {
            arena.violation(format!("task {number}: {why}"));
        }
    }
}

async fn run(arena: &Arena, number: u64, dice: &mut Dice) -> Result<(), String> {
    let kind = match dice.below(10) {
        0..=5 => Kind::Waits,
        6 | 7 => Kind::Asks,
        _ => Kind::Wakes,
    };
    let (ticks, place) = (20 + dice.below(100), Arena::some_place(dice));
    let until = Instant::now() + PATIENCE;
    let mut task = Task { name: format!("t{number}"), kind, ticks, place };
    for again in 0.. {
        task.name = format!("t{number}x{again}");
        if let Some(thread) = task.begin(arena, dice, until).await? {
            arena.runs(&thread, &task.name);
            let followed = task.follow(arena, dice, &thread, until).await;
            arena.is_done(&thread);
            let (turns, heard) = followed?;
            return task.check(arena, &thread, &turns, &heard);
        }
    }
    Ok(())
}

impl Task {
    /// Starts a thread and its turn; nothing if its node failed before the thread came to be.
    async fn begin(&self, arena: &Arena, dice: &mut Dice, until: Instant) -> Result<Option<String>, String> {
        let mut begun: Option<String> = None;
        let mut why = String::new();
        while Instant::now() < until {
            sleep(AGAIN).await;
            let Some(url) = arena.some_node(dice) else { continue };
            let Some(mut line) = Line::open(&url).await else { continue };
            let thread = match &begun {
                Some(thread) => match line.call("thread/resume", json!({"threadId": thread}), ANSWER, &mut |_| {}).await {
                    Ok(_) => thread.clone(),
                    // It was never written: its node was killed before.
                    Err(Trouble::Refused(text)) if text.contains("no thread") || text.contains("not found") => return Ok(None),
                    Err(trouble) => {
                        why = format!("resume: {trouble:?}");
                        continue;
                    }
                },
                None => {
                    let place = json!([{"environmentId": self.place, "cwd": arena.work.path()}]);
                    match line.call("thread/start", json!({"environments": place}), ANSWER, &mut |_| {}).await {
                        Ok(answer) => answer["thread"]["id"].as_str().unwrap().to_owned(),
                        Err(trouble) => {
                            why = format!("start: {trouble:?}");
                            continue;
                        }
                    }
                }
            };
            begun = Some(thread.clone());
            let said = format!("soak {} {} {} .", self.name, self.ticks, self.kind.word());
            let input = json!([{"type": "text", "text": said}]);
            let params = json!({"threadId": thread, "input": input, "clientUserMessageId": self.name});
            match line.call("turn/start", params, ANSWER, &mut |_| {}).await {
                Ok(_) => return Ok(Some(thread)),
                Err(trouble) => why = format!("turn: {trouble:?}"),
            }
        }
        Err(format!("{} on {} cannot begin: {why}", self.name, self.place))
    }

    /// Follows the thread to the end of its work; its turns, and the items that a client was told of.
    async fn follow(&self, arena: &Arena, dice: &mut Dice, thread: &str, until: Instant) -> Result<(Vec<Value>, HashSet<String>), String> {
        let mut heard = HashSet::new();
        let mut why = String::new();
        while Instant::now() < until {
            sleep(AGAIN).await;
            let Some(url) = arena.some_node(dice) else { continue };
            let Some(mut line) = Line::open(&url).await else { continue };
            let mut hear = |message: &Value| note(arena, thread, message, &mut heard);
            if let Err(trouble) = line.call("thread/resume", json!({"threadId": thread}), ANSWER, &mut hear).await {
                why = format!("resume: {trouble:?}");
                continue;
            }
            while Instant::now() < until {
                match line.hear(SILENCE).await {
                    Heard::Message(message) => {
                        note(arena, thread, &message, &mut heard);
                        match message["method"].as_str() {
                            Some("turn/completed") => {}
                            Some("thread/closed") => break,
                            _ => continue,
                        }
                    }
                    Heard::Silence => {}
                    Heard::End => break,
                }
                let mut hear = |message: &Value| note(arena, thread, message, &mut heard);
                let params = json!({"threadId": thread, "includeTurns": true});
                match line.call("thread/read", params, ANSWER.min(Duration::from_secs(10)), &mut hear).await {
                    Ok(read) => {
                        let turns = read["thread"]["turns"].as_array().cloned().unwrap_or_default();
                        if self.is_over(&turns) {
                            return Ok((turns, heard));
                        }
                        why = format!("it stands at {:?}", turns.last().map(|turn| &turn["status"]));
                    }
                    Err(trouble) => {
                        why = format!("read: {trouble:?}");
                        break;
                    }
                }
            }
        }
        let row = arena.database.ask(&format!("select instance, epoch, claims, work, last from outpost_threads where id = '{thread}'"));
        Err(format!("{} on {}, thread {thread}, does not end: {why}; {row:?}", self.name, self.place))
    }

    /// The last thing that the model says is that it is over.
    fn is_over(&self, turns: &[Value]) -> bool {
        let is_ended = |turn: &Value| turn["status"] != "inProgress";
        let last = turns.last().and_then(|turn| turn["items"].as_array()).and_then(|items| items.last());
        let said = last.and_then(|item| item["text"].as_str()).unwrap_or_default();
        // A turn that failed says nothing.
        turns.iter().all(is_ended)
            && (said == format!("over {}", self.name) || turns.iter().any(|turn| turn["status"] != "completed"))
            && !turns.is_empty()
    }

    fn check(&self, arena: &Arena, thread: &str, turns: &[Value], heard: &HashSet<String>) -> Result<(), String> {
        let name = &self.name;
        if let Some(turn) = turns.iter().find(|turn| turn["status"] != "completed") {
            return Err(format!("{name}, thread {thread}: a turn did not complete: {turn}"));
        }
        let items: Vec<&Value> = turns.iter().filter_map(|turn| turn["items"].as_array()).flatten().collect();
        let known: HashSet<&str> = items.iter().filter_map(|item| item["id"].as_str()).collect();
        let lost: Vec<&String> = heard.iter().filter(|id| !known.contains(id.as_str())).collect();
        if !lost.is_empty() {
            return Err(format!("{name}, thread {thread}: a client was told of items that are lost: {lost:?}; {items:?}"));
        }
        let told = arena.told.lock().unwrap().remove(name).unwrap_or_default();
        let attempts = (1..=ATTEMPTS).filter(|attempt| has_run(arena.work.path(), name, *attempt).is_some()).count();
        if attempts > 1 {
            return Err(format!("{name}, thread {thread}: a command that ran was not found again: {told:?}"));
        }
        let last = (1..=ATTEMPTS).find(|attempt| has_run(arena.work.path(), name, *attempt).is_some());
        let Some(last) = last else { return Err(format!("{name}, thread {thread}: no command ever ran: {told:?}")) };
        let runs = has_run(arena.work.path(), name, last).unwrap();
        if runs != "ran\n" {
            return Err(format!("{name}, thread {thread}: a command ran {} times", runs.lines().count()));
        }
        let prefix = format!("{name}-{last} ");
        let lines: Vec<&str> = told.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with(&prefix)).collect();
        let whole: Vec<String> = (1..=self.ticks).map(|tick| format!("{prefix}{tick}")).collect();
        if lines != whole {
            return Err(format!("{name}, thread {thread}: the output is not whole; {} of {} lines: {told:?}", lines.len(), whole.len()));
        }
        if !told.iter().any(|text| text.contains("Exit code: 3")) {
            return Err(format!("{name}, thread {thread}: the command has no exit code: {told:?}"));
        }
        let mut tally = arena.tally.lock().unwrap();
        tally.tasks += 1;
        tally.turns += turns.len() as u64;
        tally.never_ran += last as u64 - 1;
        tally.whole(thread);
        Ok(())
    }
}

impl Kind {
    const ALL: [Self; 3] = [Self::Waits, Self::Asks, Self::Wakes];

    fn word(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Asks => "asks",
            Self::Wakes => "wakes",
        }
    }
}

fn note(arena: &Arena, thread: &str, message: &Value, heard: &mut HashSet<String>) {
    let params = &message["params"];
    if params["threadId"] != *thread {
        return;
    }
    match message["method"].as_str() {
        Some("item/commandExecution/outputDelta") => arena.tally.lock().unwrap().output(thread),
        Some("item/completed") => heard.extend(params["item"]["id"].as_str().map(str::to_owned)),
        _ => {}
    }
}

/// Whether a command of a task has begun and not ended.
pub(super) fn is_running(work: &Path, name: &str) -> bool {
    (1..=ATTEMPTS).any(|attempt| {
        let file = |ending: &str| work.join(format!("{name}-{attempt}.{ending}")).exists();
        file("ran") && !file("end")
    })
}

fn has_run(work: &Path, name: &str, attempt: usize) -> Option<String> {
    std::fs::read_to_string(work.join(format!("{name}-{attempt}.ran"))).ok()
}

/// A model that knows from what it is asked what comes next.
pub(super) fn voice(told: Told) -> Voice {
    Arc::new(move |body| {
        let items = body["input"].as_array()?;
        let texts = |item: &Value| -> String {
            let parts = item["content"].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
            parts.collect::<Vec<_>>().join("\n")
        };
        let asked = items.iter().find_map(|item| texts(item).split_once("soak ").map(|(_, rest)| rest.to_owned()))?;
        let words: Vec<&str> = asked.split_whitespace().collect();
        let (name, ticks, kind) = (*words.first()?, *words.get(1)?, *words.get(2)?);
        let kind = Kind::ALL.into_iter().find(|known| known.word() == kind)?;
        let outputs = items.iter().filter_map(|item| match item["type"].as_str() {
            Some("function_call_output") => item["output"].as_str().map(str::to_owned),
            _ => Some(texts(item)).filter(|text| text.contains("which was started with wake, has ended")),
        });
        let outputs: Vec<String> = outputs.collect();
        told.lock().unwrap().insert(name.to_owned(), outputs.clone());
        let calls = |tool: &str| items.iter().filter(|item| item["type"] == "function_call" && item["name"] == tool).count();
        let over = Some(Reply::message(&format!("over {name}")));
        let last = outputs.last().map(String::as_str).unwrap_or_default();
        if last.contains("Exit code: ") {
            return over;
        }
        if let Some((_, rest)) = last.split_once("Still running, session id: ") {
            if kind == Kind::Wakes {
                return Some(Reply::message("waiting"));
            }
            let session: u64 = rest.split_whitespace().next()?.parse().ok()?;
            let asked = calls("write_stdin") + 1;
            return Some(Reply::call(&format!("{name}-w{asked}"), "write_stdin", &json!({"session_id": session, "yield_time_ms": 10_000})));
        }
        let attempt = calls("exec_command") + 1;
        if attempt > ATTEMPTS {
            return over;
        }
        let file = format!("{name}-{attempt}");
        let script = format!(
            "echo ran >> {file}.ran; i=1; while [ $i -le {ticks} ]; do echo {file} $i; i=$((i+1)); sleep 0.1; done; touch {file}.end; exit 3"
        );
        let wait = match kind {
            Kind::Waits => 30_000,
            Kind::Asks => 1_000,
            Kind::Wakes => 250,
        };
        let call = Reply::call(&file, "exec_command", &json!({"cmd": script, "yield_time_ms": wait, "wake": kind == Kind::Wakes}));
        Some(if attempt == 1 { call } else { Reply::Later(THINKS, Box::new(call)) })
    })
}
