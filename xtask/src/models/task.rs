//! One small task: what is there before, what is asked, and how to see that it is done.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

/// So long a task may take.
const PATIENCE: Duration = Duration::from_secs(180);

pub(super) struct Task {
    pub name: String,
    pub prompt: String,
    machines: u64,
    files: BTreeMap<String, String>,
    check: String,
}

/// Who does it, and over which wire.
pub(super) struct Setting<'a> {
    pub outpost: &'a Path,
    pub address: &'a str,
    pub wire: &'a str,
    pub model: &'a str,
}

pub(super) struct Outcome {
    task: String,
    model: String,
    wire: String,
    done: bool,
    /// Nothing if the time was over.
    code: Option<i32>,
    steps: usize,
    /// The most calls in a row that were the same, with the same result.
    pub repeats: usize,
    tokens: (u64, u64),
    seconds: u64,
}

pub(super) fn all() -> anyhow::Result<Vec<Task>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tasks.json");
    let list: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(&file)?).with_context(|| format!("{} cannot be read", file.display()))?;
    let text = |task: &Value, name: &str| task[name].as_str().map(str::to_owned).with_context(|| format!("a task without `{name}`"));
    let files = |task: &Value| {
        let files = task["files"].as_object().into_iter().flatten();
        files.filter_map(|(path, content)| Some((path.clone(), content.as_str()?.to_owned()))).collect()
    };
    let read = |task: &Value| {
        let machines = task["machines"].as_u64().unwrap_or(1);
        Ok(Task { name: text(task, "name")?, prompt: text(task, "prompt")?, machines, files: files(task), check: text(task, "check")? })
    };
    list.iter().map(read).collect()
}

impl Task {
    pub(super) fn run(&self, setting: &Setting<'_>, runs: &Path) -> anyhow::Result<Outcome> {
        let place = runs.join(format!("{}-{}-{}", self.name, setting.model, setting.wire));
        let [home, here, there] = ["home", "here", "there"].map(|name| place.join(name));
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        for directory in [&home, &here, &there] {
            fs::create_dir_all(directory)?;
        }
        self.prepare(setting, &home, &here, &there)?;
        let mut command = Command::new(setting.outpost);
        command.args(["exec", "--json", "-e", &format!("local={}", here.display())]);
        if self.machines > 1 {
            command.args(["-e", &format!("box={}", there.display())]);
        }
        let lines = place.join("lines.jsonl");
        command.arg(&self.prompt).current_dir(&here).env("OUTPOST_HOME", &home).env("HOME", &home).stdin(Stdio::null());
        command.stdout(fs::File::create(&lines)?).stderr(fs::File::create(place.join("stderr"))?);
        let began = Instant::now();
        let code = ended(&mut command)?;
        let seconds = began.elapsed().as_secs();
        let done = Command::new("sh").args(["-c", &self.check]).current_dir(&here).env("BOX", &there).output()?.status.success();
        let calls = super::calls::of(&home)?;
        let (steps, repeats, tokens) = (calls.count, calls.repeats, read(&lines)?);
        let (task, model, wire) = (self.name.clone(), setting.model.to_owned(), setting.wire.to_owned());
        Ok(Outcome { task, model, wire, done, code, steps, repeats, tokens, seconds })
    }

    fn prepare(&self, setting: &Setting<'_>, home: &Path, here: &Path, there: &Path) -> anyhow::Result<()> {
        let config = format!(
            "model = \"{}\"\nmodel_provider = \"box\"\nsandbox_mode = \"danger-full-access\"\n[model_providers.box]\nbase_url = \"{}/v1\"\n\
             wire_api = \"{}\"\nquirks = [\"text_calls\"]\n",
            setting.model, setting.address, setting.wire
        );
        fs::write(home.join("config.toml"), config)?;
        if self.machines > 1 {
            let program = setting.outpost.display();
            let other =
                format!("[[environments]]\nid = \"box\"\nprogram = \"{program}\"\nargs = [\"executor\", \"--listen\", \"stdio\"]\n");
            fs::write(home.join("environments.toml"), other)?;
        }
        for (path, content) in &self.files {
            let file: PathBuf = match path.strip_prefix("box:") {
                Some(path) => there.join(path),
                None => here.join(path),
            };
            fs::create_dir_all(file.parent().context("a file without a directory")?)?;
            fs::write(file, content)?;
        }
        Ok(())
    }
}

/// The exit code; nothing if it had to be ended.
fn ended(command: &mut Command) -> anyhow::Result<Option<i32>> {
    let mut child = command.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code().unwrap_or(1)));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // It ends its commands with it when it is asked.
    let status = Command::new("kill").arg(child.id().to_string()).status()?;
    ensure!(status.success(), "the program cannot be ended");
    child.wait()?;
    Ok(None)
}

/// Tokens in and out, as the lines tell them.
fn read(lines: &Path) -> anyhow::Result<(u64, u64)> {
    let lines = fs::read_to_string(lines)?;
    let lines: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let usage = lines.iter().rev().find_map(|line| line["usage"].as_object());
    let tokens = |name: &str| usage.and_then(|usage| usage.get(name)?.as_u64()).unwrap_or(0);
    Ok((tokens("input_tokens"), tokens("output_tokens")))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.done { "done" } else { "not done" };
        let code = self.code.map_or_else(|| "timed out".to_owned(), |code| format!("exit {code}"));
        let (input, output) = self.tokens;
        write!(
            f,
            "{:<16} {:<20} {:<10} {done:<9} {code:<10} {:>3} calls {input:>7} + {output:>5} tokens {:>4} s",
            self.task, self.model, self.wire, self.steps, self.seconds
        )
    }
}

/// Counts of how tasks ended.
pub(super) fn summary(outcomes: &[Outcome]) -> String {
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    format!(
        "{} tasks: {} finished, {} timed out, {} failed with a true exit code, {} exited with 0 while the check fails; at most {} identical calls in a row",
        outcomes.len(),
        count(|outcome| outcome.done && outcome.code == Some(0)),
        count(|outcome| outcome.code.is_none()),
        count(|outcome| outcome.code.is_some_and(|code| code != 0)),
        count(|outcome| !outcome.done && outcome.code == Some(0)),
        outcomes.iter().map(|outcome| outcome.repeats).max().unwrap_or(0)
    )
}
