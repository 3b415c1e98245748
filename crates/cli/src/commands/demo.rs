//! `outpost demo`: one thread on two machines, as a newcomer sees it first.
//!
//! Nothing is staged: the demo starts this very program, as a user could by hand, and checks what it tells. The second machine
//! is a second executor in a directory of its own, behind a cable that can be pulled.

mod cable;
mod guard;
mod players;
mod show;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use outpost_config::Config;
use outpost_store::{ClaimMode, PageRequest, Store};
use outpost_thread::ThreadId;
use serde_json::Value;

use self::players::{Company, DemoDirectory, DemoRun};
use self::show::Show;
use crate::ProcessContext;
use crate::args::DemoArguments;
use crate::commands;
use crate::commands::thread::transcript::{TranscriptPiece, pieces};
use crate::home::Home;
use crate::signals::ForwardedSignals;
use crate::store;

/// Counts to eight, slowly, and leaves a trace of every step: the trace shows how often it ran.
const COUNT: &str = "for n in 1 2 3 4 5 6 7 8; do\n  echo $n >> \"$1\"\n  echo \"line $n\"\n  sleep 0.25\ndone\n";
const LINES: usize = 8;
/// So far it is when something happens to it.
const MIDDLE: usize = 3;
const OUTAGE: Duration = Duration::from_secs(1);
/// Longer than any step takes anywhere.
const PATIENCE: Duration = Duration::from_secs(60);

const HERE: &str = "echo 'made by local' > made.txt; cat made.txt";
const THERE: &str = "echo 'made by worker' > made.txt; cat made.txt";
const STRAY: &str = "echo stray > ../stray.txt";

pub(crate) async fn run(arguments: DemoArguments, own: &ProcessContext) -> ExitCode {
    let told = match arguments.stage {
        Some(scratch) => perform(&scratch, own).await,
        None => begin(own).await,
    };
    match told {
        Ok(code) => ExitCode::from(code),
        Err(error) => commands::failure(&error),
    }
}

/// What would go wrong is told before anything is made.
async fn begin(own: &ProcessContext) -> anyhow::Result<u8> {
    let home = home()?;
    home.usable()?;
    // The programs of the demo read it as well, and are not heard as well as this one.
    Config::read(Some(&home.config()), &own.settings)?;
    guard::watch(own).await
}

fn home() -> anyhow::Result<Home> {
    Home::from_environment().context("there is no home for the thread: set OUTPOST_HOME")
}

async fn perform(scratch: &Path, own: &ProcessContext) -> anyhow::Result<u8> {
    let home = home()?;
    let scratch = DemoDirectory::at(scratch);
    let mut signals = ForwardedSignals::listen()?;
    let mut show = Show::new(own);
    let made = RefCell::new(Vec::new());
    let told = tokio::select! {
        told = play(&scratch, &mut show, &home, &made) => told.map(|()| 0),
        code = signals.stop() => Ok(code),
        code = guard::gone() => Ok(code),
    };
    // All programs of the demo are gone by now, however it ended.
    scratch.remove().await;
    if !matches!(told, Ok(0)) {
        forget(&made.into_inner()).await;
    }
    if matches!(told, Ok(code) if code != 0) {
        show.plain("\nStopped. Nothing is left of the demo.")?;
    }
    told
}

async fn play(scratch: &DemoDirectory, show: &mut Show, home: &Home, made: &RefCell<Vec<String>>) -> anyhow::Result<()> {
    let company = Company::gather(scratch.path(), home).await?;
    let told = Story { company: &company, show, home, made }.tell().await;
    company.leave().await;
    told
}

/// Removes the demo's threads: the machine that they worked on is gone.
async fn forget(threads: &[String]) {
    let Ok(store) = store::open(Some("local"), &[]).await else { return };
    for id in threads.iter().filter_map(|thread| thread.parse::<ThreadId>().ok()) {
        if let Err(error) = store.delete(id, ClaimMode::TakeOver).await {
            tracing::debug!(%error, "a thread of the demo stays");
        }
    }
}

struct Story<'a> {
    company: &'a Company,
    show: &'a mut Show,
    home: &'a Home,
    /// The threads of the demo.
    made: &'a RefCell<Vec<String>>,
}

impl Story<'_> {
    async fn tell(mut self) -> anyhow::Result<()> {
        self.show.title("One thread, two machines. No key, no server: the offline model only runs what it is told.")?;
        if let Some(reason) = &self.company.no_sandbox {
            self.show.warning(&format!("This machine cannot hold the sandbox: {reason}"))?;
            self.show
                .warning("So the demo runs its few commands WITHOUT ONE, in a throw-away directory. `outpost doctor` says what to do.")?;
        } else if let Some(shortfall) = &self.company.shortfall {
            self.show.warning(shortfall)?;
        }
        self.show.plain(&format!("`local` is this program, `worker` a second executor in {}", self.company.scratch.display()))?;
        let thread = self.both_machines().await?;
        self.cut_connection(&thread).await?;
        self.killed_program(&thread).await?;
        self.fork(&thread).await?;
        self.end(&thread)
    }

    /// A turn that touches both; a command that goes astray is stopped by the sandbox.
    async fn both_machines(&mut self) -> anyhow::Result<String> {
        let sandboxed = self.company.no_sandbox.is_none();
        self.show.step(if sandboxed {
            "A turn on both machines at once, each command in a sandbox"
        } else {
            "A turn on both machines at once"
        })?;
        let stray = if sandboxed { format!("\n\n$ {STRAY}") } else { String::new() };
        let prompt = format!("$ {HERE}\n@worker $ {THERE}{stray}\n> Both files are made.");
        let mut run = self.company.begin(&prompt)?;
        let thread = run.thread(PATIENCE).await?;
        self.made.borrow_mut().push(thread.clone());
        let done = run.end(PATIENCE).await?;
        let said = outputs(&done);
        self.show.command("local", HERE, said.get(HERE).map_or("", String::as_str))?;
        self.show.command("worker", THERE, said.get(THERE).map_or("", String::as_str))?;
        for (place, text) in [(&self.company.local, "made by local\n"), (&self.company.worker, "made by worker\n")] {
            let made = std::fs::read_to_string(place.join("made.txt")).unwrap_or_default();
            ensure!(made == text, "{} is not as the command should have made it", place.join("made.txt").display());
        }
        if sandboxed {
            let refused = said.get(STRAY).and_then(|output| output.lines().last()).unwrap_or_default();
            self.show.command("local", STRAY, refused)?;
            ensure!(!self.company.scratch.join("stray.txt").exists(), "the sandbox let a file out of the workspace");
            self.show.remark("it may write in its workspace and nowhere else")?;
        }
        Ok(thread)
    }

    async fn cut_connection(&mut self, thread: &str) -> anyhow::Result<()> {
        self.show.step("The connection to `worker` is cut in the middle of a command")?;
        let mut run = self.company.resume(thread, Some("@worker $ sh count.sh cut.txt\n> It is done."))?;
        self.show.command("worker", "sh count.sh cut.txt", "")?;
        self.reached("cut.txt", &mut run).await?;
        self.company.cable.cut();
        self.show.event(&format!("cut after line {MIDDLE}"))?;
        tokio::time::sleep(OUTAGE).await;
        self.company.cable.mend();
        self.show.event(&format!("mended after {} s", OUTAGE.as_secs()))?;
        let done = run.end(PATIENCE).await?;
        self.counted_once("cut.txt", &done)?;
        self.show.remark("no line is lost or doubled; the command never noticed")
    }

    async fn killed_program(&mut self, thread: &str) -> anyhow::Result<()> {
        self.show.step("The program that runs the thread is killed (kill -9) in the middle of a command")?;
        let mut run = self.company.resume(thread, Some("@worker $ sh count.sh kill.txt\n> It is done."))?;
        self.show.command("worker", "sh count.sh kill.txt", "")?;
        self.reached("kill.txt", &mut run).await?;
        run.kill().await?;
        self.show.event(&format!("killed after line {MIDDLE}; no client is connected to `worker` now"))?;
        self.company.reaches("kill.txt", MIDDLE + 2, PATIENCE).await?;
        self.show.event(&format!("the command goes on there: line {}", MIDDLE + 2))?;
        let mut run = self.company.resume(thread, None)?;
        self.show.event("resumed: the thread finds its command again and waits for it")?;
        let done = run.end(PATIENCE).await?;
        self.counted_once("kill.txt", &done)?;
        self.show.remark("it ran once, and the turn ended as if nothing had happened")
    }

    async fn fork(&mut self, thread: &str) -> anyhow::Result<()> {
        self.show.step("A fork: one past, two futures")?;
        let fork = self.company.words(&["thread", "--store", "local", "fork", thread]).await?;
        self.made.borrow_mut().push(fork.clone());
        self.company.resume(&fork, Some("> The fork goes its own way."))?.end(PATIENCE).await?;
        self.company.resume(thread, Some("> The original goes on."))?.end(PATIENCE).await?;
        let store = store::open(Some("local"), &[]).await?;
        let (original, forked) = (turns(&store, thread).await?, turns(&store, &fork).await?);
        let shared = original.iter().zip(&forked).take_while(|(one, other)| one == other).count();
        ensure!(shared == 3 && original.len() == 4 && forked.len() == 4, "the histories are not as expected: {original:?} {forked:?}");
        for (number, turn) in (1..).zip(&original[..shared]) {
            self.show.turn("both", number, turn)?;
        }
        self.show.turn("original", shared + 1, &original[shared])?;
        self.show.turn("fork", shared + 1, &forked[shared])?;
        self.company.words(&["thread", "--store", "local", "rm", "--yes", &fork]).await?;
        Ok(())
    }

    fn end(self, thread: &str) -> anyhow::Result<()> {
        let outpost = self.company.called();
        let journal = journal(self.home, thread).map_or_else(|| "in the home".to_owned(), |path| short(&path));
        // Its end is enough to name it.
        let part = thread.rsplit('-').next().unwrap_or(thread);
        self.show.end(&[
            ("You saw", "one agent work on two machines; a cut cable and a kill -9 cost it nothing; its history forked.".to_owned()),
            ("It lies", format!("in {journal}; `{outpost} thread show {part}` prints it.")),
            (
                "Next",
                format!(
                    "`{outpost} env add box --ssh you@host`, then `OPENAI_API_KEY=… {outpost} exec -e local -e box 'why do the tests \
                     fail?'` (or `--provider ollama`)."
                ),
            ),
        ])
    }

    /// Waits until a count is in its middle.
    async fn reached(&self, file: &str, run: &mut DemoRun) -> anyhow::Result<()> {
        tokio::select! {
            reached = self.company.reaches(file, MIDDLE, PATIENCE) => reached,
            ended = run.end(PATIENCE) => bail!("the command ended too soon: {}", said(&ended?)),
        }
    }

    /// What the program tells and what was done there are the same, once.
    fn counted_once(&mut self, file: &str, done: &[Value]) -> anyhow::Result<()> {
        let told = outputs(done).into_values().next().unwrap_or_default();
        let expected: Vec<String> = (1..=LINES).map(|n| format!("line {n}")).collect();
        ensure!(told.lines().eq(expected.iter().map(String::as_str)), "the output is not what it should be: {}", said(done));
        let trace = std::fs::read_to_string(self.company.worker.join(file)).unwrap_or_default();
        let numbers: Vec<String> = (1..=LINES).map(|n| n.to_string()).collect();
        ensure!(trace.lines().eq(numbers.iter().map(String::as_str)), "the command did not run once: {trace:?}");
        self.show.event(&format!("{} … {}: {LINES} lines, each once", expected[0], expected[LINES - 1]))
    }
}

/// What commands printed, by command.
fn outputs(lines: &[Value]) -> std::collections::BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = lines.iter().filter(|line| line["type"] == "item.completed").map(|line| &line["item"]);
    let commands = items.filter(|item| item["type"] == "command_execution");
    commands.map(|item| (text(&item["command"]), text(&item["aggregated_output"]))).collect()
}

/// All that commands printed, for a complaint.
fn said(lines: &[Value]) -> String {
    let outputs: Vec<String> = outputs(lines).into_values().map(|output| output.trim_end().replace('\n', "; ")).collect();
    outputs.join("; ")
}

/// What the user said, turn by turn.
async fn turns(store: &Store, thread: &str) -> anyhow::Result<Vec<String>> {
    let page = store.page(thread.parse::<ThreadId>()?, PageRequest { turns: 100, ..PageRequest::default() }).await?;
    let said =
        pieces(&page.entries).into_iter().filter_map(|piece| if let TranscriptPiece::User(text) = piece { Some(text) } else { None });
    Ok(said.collect())
}

/// The file of a thread: `threads/YYYY/MM/DD/ID.jsonl`.
fn journal(home: &Home, thread: &str) -> Option<PathBuf> {
    let mut directories = vec![home.path().join("threads")];
    let since = Instant::now();
    while let Some(directory) = directories.pop().filter(|_| since.elapsed() < OUTAGE) {
        for entry in std::fs::read_dir(directory).ok()?.flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path if path.file_name().is_some_and(|name| name.to_string_lossy() == format!("{thread}.jsonl")) => return Some(path),
                _ => {}
            }
        }
    }
    None
}

/// A path as people write it.
fn short(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.parent().is_some());
    match home.and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(below) => format!("~/{}", below.display()),
        None => path.display().to_string(),
    }
}
