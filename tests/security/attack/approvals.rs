//! Answers to other questions than those that were asked: the model asks for the same command in another directory, in another environment, in
//! an agent; a client answers twice, late, and to questions that are over; the server is killed and its sandbox changed between a
//! question and its answer. Nothing runs that was not agreed to: this command, there, in this sandbox, and as often as it was.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outpost_testkit::app::{AppServer, begin, thread};
use outpost_testkit::model::{Reply, call};
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Episode, Random, Steps};
use crate::support::OUTPOST;

const REQUEST: &str = "item/commandExecution/requestApproval";
const DIRECTORIES: &[&str] = &["", "a", "b"];
const FILES: &[&str] = &["m0", "m1"];
const LOCAL: &str = "local";
const WORKER: &str = "worker";
const ENVIRONMENTS: &[&str] = &[LOCAL, LOCAL, WORKER];
const SANDBOXES: &[&str] = &["danger-full-access", "workspace-write"];

/// An environment, a command, and where it is to run there.
type Proposal = (&'static str, String, PathBuf);

struct Scene {
    app: AppServer,
    worker: ExecutorProcess,
    client: Client,
    outside: TempDir,
    thread: String,
    steps: Steps,
    /// How often each may have run, and how often without a sandbox.
    allowed: BTreeMap<Proposal, usize>,
    free: BTreeMap<Proposal, usize>,
    /// What was allowed for as long as a thread is loaded, by thread, and whether without a sandbox.
    lasting: BTreeMap<(String, Proposal), bool>,
    /// Questions that are over.
    old: Vec<Value>,
    calls: usize,
}

/// What is done with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Accept,
    AcceptForSession,
    Decline,
    /// No, and at once yes.
    DeclineThenAccept,
    Cancel,
}

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let sandbox = random.pick(SANDBOXES);
    let config = format!("approval_policy = \"untrusted\"\nsandbox_mode = \"{sandbox}\"\n[agents]\nmax_depth = 2\n");
    let mut app = AppServer::start_with(OUTPOST, vec![], &config).await;
    let home = tempfile::tempdir().unwrap();
    // Commands say by their home which executor ran them: both work in the same directories.
    let variables = [("HOME", home.path().display().to_string())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let worker = ExecutorProcess::start_with(Path::new(OUTPOST), &["--no-auth"], &variables, home);
    let table = format!("[[environments]]\nid = \"{WORKER}\"\nurl = \"{}\"\n", worker.url());
    std::fs::write(app.home().join("environments.toml"), table).unwrap();
    app.restart();
    let mut client = app.client().await;
    for name in &DIRECTORIES[1..] {
        std::fs::create_dir(app.work().join(name)).unwrap();
    }
    let places = [LOCAL, WORKER].map(|id| json!({"environmentId": id, "cwd": app.cwd()}));
    let thread = thread(&mut client, json!({"environments": places})).await;
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let (allowed, free, lasting, old) = Default::default();
    let mut scene = Scene { app, worker, client, outside, thread, steps, allowed, free, lasting, old, calls: 0 };
    for number in 0..2 + random.below(3) {
        scene.turn(number, &mut random).await;
        scene.judge();
    }
}

impl Scene {
    /// Says that it ran where it ran, and tries to say so outside of the workspace.
    fn command(&self, file: &str) -> String {
        let name = format!("{file}-$(basename \"$HOME\")");
        format!("echo ran >> {name}; echo ran 2>/dev/null >> {}/$(basename \"$PWD\")-{name}", self.outside.path().display())
    }

    /// By which commands of an environment are known.
    fn home(&self, environment: &str) -> String {
        let home = if environment == LOCAL { self.app.home() } else { self.worker.home() };
        home.file_name().unwrap().to_string_lossy().into_owned()
    }

    fn proposal(&self, random: &mut Random) -> (Value, Proposal) {
        let (file, directory, environment) = (random.pick(FILES), random.pick(DIRECTORIES), random.pick(ENVIRONMENTS));
        let (command, work) = (self.command(file), self.app.work().canonicalize().unwrap());
        let place = if directory.is_empty() { work } else { work.join(directory) };
        let mut arguments = json!({"cmd": command});
        if environment != LOCAL || random.percent(30) {
            arguments["environment_id"] = json!(environment);
        }
        if !directory.is_empty() {
            arguments["workdir"] = json!(if random.percent(50) { directory.to_owned() } else { place.display().to_string() });
        }
        (arguments, (environment, command, place))
    }

    async fn turn(&mut self, number: usize, random: &mut Random) {
        let in_agent = random.percent(25);
        let count = if in_agent { 1 } else { 1 + random.below(3) };
        let proposals: Vec<(Value, Proposal)> = (0..count).map(|_| self.proposal(random)).collect();
        let calls: Vec<Value> = proposals
            .iter()
            .map(|(arguments, _)| {
                self.calls += 1;
                call(&format!("call-{}", self.calls), "exec_command", arguments)
            })
            .collect();
        let said = format!("turn-{number}");
        let spelled = |text: &str| format!("\"text\":\"{text}\"");
        if in_agent {
            self.app.model.push_for(&spelled(&format!("job-{number}")), Reply::Items(calls));
            let spawn = call(&format!("spawn-{number}"), "spawn_agent", &json!({"message": format!("job-{number}")}));
            self.app.model.push_for(&spelled(&said), Reply::Items(vec![spawn]));
        } else {
            self.app.model.push_for(&spelled(&said), Reply::Items(calls));
        }
        let asked_for: Vec<Proposal> = proposals.into_iter().map(|(_, proposal)| proposal).collect();
        self.steps.note(format!("turn {number}, in an agent: {in_agent}: {asked_for:?}"));
        let (allowed_before, free_before, lasting_before) = (self.allowed.clone(), self.free.clone(), self.lasting.clone());
        let turn = begin(&mut self.client, &self.thread, &said).await;
        let (mut working, mut restarts, mut waits_for_agent) = (self.thread.clone(), 0, in_agent);
        let (mut accepted, mut was_cut) = (Vec::new(), false);
        loop {
            let is_question = |message: &Value| message["method"] == REQUEST && message.get("id").is_some();
            let is_end = |message: &Value| message["method"] == "turn/completed";
            let message = self.client.until(|message| is_question(message) || is_end(message)).await;
            if is_end(&message) {
                let of = message["params"]["threadId"].as_str().unwrap_or_default();
                if of == working && (in_agent || message["params"]["turn"]["id"] == turn.as_str()) && !waits_for_agent {
                    break;
                }
                continue;
            }
            if in_agent {
                working = message["params"]["threadId"].as_str().unwrap().to_owned();
                waits_for_agent = false;
            }
            let params = &message["params"];
            let environment = ENVIRONMENTS.iter().find(|id| params["environmentId"] == **id).copied().unwrap_or_default();
            let proposal = (environment, params["command"].as_str().unwrap().to_owned(), PathBuf::from(params["cwd"].as_str().unwrap()));
            assert!(asked_for.contains(&proposal), "a question about something else: {params}");
            if restarts < 2 && random.percent(20) {
                (restarts, was_cut) = (restarts + 1, true);
                let is_over = self.restart(random).await != "active";
                // An earlier answer may have ended the turn just before. An agent goes on without the thread that made it.
                if is_over && !in_agent {
                    break;
                }
                continue;
            }
            match self.answer(&message, &proposal, &working, in_agent, random) {
                Answer::Accept | Answer::AcceptForSession => accepted.push(proposal),
                Answer::Cancel => was_cut = true,
                Answer::Decline | Answer::DeclineThenAccept => {}
            }
        }
        // An attack that nothing gets through, also what is allowed, shows nothing.
        for (environment, _, place) in accepted.iter().filter(|_| !was_cut) {
            let home = self.home(environment);
            let ran = FILES.iter().filter(|file| place.join(format!("{file}-{home}")).exists()).count();
            assert!(ran > 0, "what was allowed did not run in {environment}, in {}", place.display());
        }
        // What was allowed for the thread need not be asked about again.
        for proposal in &asked_for {
            let key = (working.clone(), proposal.clone());
            // It may have run before a kill ended what lasted until then.
            let Some(is_free) = lasting_before.get(&key).or_else(|| self.lasting.get(&key)).copied() else { continue };
            let times = asked_for.iter().filter(|other| *other == proposal).count();
            let least = |counts: &mut BTreeMap<Proposal, usize>, before: &BTreeMap<Proposal, usize>| {
                let known = counts.entry(proposal.clone()).or_default();
                *known = (*known).max(before.get(proposal).copied().unwrap_or_default() + times);
            };
            least(&mut self.allowed, &allowed_before);
            if is_free {
                least(&mut self.free, &free_before);
            }
        }
    }

    fn answer(&mut self, message: &Value, proposal: &Proposal, thread: &str, in_agent: bool, random: &mut Random) -> Answer {
        let mut answers = vec![Answer::Accept, Answer::Accept, Answer::AcceptForSession, Answer::Decline, Answer::DeclineThenAccept];
        if !in_agent {
            answers.push(Answer::Cancel);
        }
        let answer = random.pick(&answers);
        self.steps.note(format!("{answer:?} to {} about {proposal:?} in {}", message["id"], message["params"]["terms"]["sandbox"]));
        let yes = json!({"decision": "accept"});
        // Questions that are over, and some that never were.
        for _ in 0..random.below(3) {
            let id = if self.old.is_empty() || random.percent(30) { json!(900_000 + random.below(9)) } else { random.pick(&self.old) };
            if id != message["id"] {
                self.client.send(&json!({"id": id, "result": yes}));
            }
        }
        let say = |decision: &str| self.client.send(&json!({"id": message["id"], "result": {"decision": decision}}));
        match answer {
            Answer::Accept | Answer::AcceptForSession => {
                let is_free = message["params"]["terms"]["sandbox"] == "none";
                *self.allowed.entry(proposal.clone()).or_default() += 1;
                *self.free.entry(proposal.clone()).or_default() += usize::from(is_free);
                if answer == Answer::AcceptForSession {
                    self.lasting.insert((thread.to_owned(), proposal.clone()), is_free);
                }
                say(if answer == Answer::Accept { "accept" } else { "acceptForSession" });
                if random.percent(30) {
                    say("accept");
                }
            }
            Answer::Decline => say("decline"),
            Answer::DeclineThenAccept => {
                say("decline");
                say("accept");
            }
            Answer::Cancel => say("cancel"),
        }
        self.old.push(message["id"].clone());
        answer
    }

    /// kill -9, perhaps with another sandbox afterwards. What was allowed for the life of a thread ends with it. Returns what the thread does then.
    async fn restart(&mut self, random: &mut Random) -> String {
        let file = self.app.home().join("config.toml");
        let mut config = std::fs::read_to_string(&file).unwrap();
        let sandbox = random.pick(SANDBOXES);
        for known in SANDBOXES {
            config = config.replace(known, sandbox);
        }
        std::fs::write(&file, config).unwrap();
        self.steps.note(format!("killed; the sandbox is {sandbox}"));
        self.app.restart();
        self.lasting.clear();
        self.old.clear();
        self.client = self.app.client().await;
        let resumed = self.client.result("thread/resume", json!({"threadId": self.thread})).await;
        resumed["thread"]["status"]["type"].as_str().unwrap_or_default().to_owned()
    }

    /// What ran, and how often.
    fn judge(&self) {
        let lines = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().lines().count();
        for environment in [LOCAL, WORKER] {
            let home = self.home(environment);
            for (directory, file) in DIRECTORIES.iter().flat_map(|directory| FILES.iter().map(move |file| (directory, file))) {
                let work = self.app.work().canonicalize().unwrap();
                let place = if directory.is_empty() { work } else { work.join(directory) };
                let proposal = (environment, self.command(file), place.clone());
                let may = |counts: &BTreeMap<Proposal, usize>| counts.get(&proposal).copied().unwrap_or_default();
                let name = format!("{file}-{home}");
                let (ran, allowed) = (lines(place.join(&name)), may(&self.allowed));
                assert!(ran <= allowed, "{proposal:?} ran {ran} times and was allowed {allowed} times");
                let name = format!("{}-{name}", place.file_name().unwrap().to_string_lossy());
                let (ran, allowed) = (lines(self.outside.path().join(name)), may(&self.free));
                assert!(ran <= allowed, "{proposal:?} ran {ran} times without a sandbox and was allowed {allowed} times");
            }
        }
    }
}
