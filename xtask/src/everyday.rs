//! Everyday work of developers, bare and in the default sandbox, as root and as an ordinary user; the tables of `docs/everyday.md` and
//! `docs/sandbox.md`.
//!
//! The tasks are data (`tests/everyday/tasks`), and a shell script runs them (`tests/everyday/run.sh`), so that the same runs on any host and in the tests.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::{cargo, install, sh, target};

const TASKS: &str = "tests/everyday/tasks";
const RUNNER: &str = "tests/everyday/run.sh";
const PAGE: &str = "docs/everyday.md";
const SANDBOX_PAGE: &str = "docs/sandbox.md";
const BEGIN: &str = "<!-- everyday: written by `cargo xtask everyday` -->";
const END: &str = "<!-- everyday: end -->";
/// A user of no machine, who gets a line in the user table for the time of the run.
const USER: &str = "54329";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Programs that tasks need and their Debian packages, where the two have different names.
const PACKAGES: [(&str, &str); 36] = [
    ("bats", "bats"),
    ("bc", "bc"),
    ("ccache", "ccache"),
    ("chromium", "chromium"),
    ("cc", "gcc"),
    ("g++", "g++"),
    ("cmake", "cmake"),
    ("entr", "entr"),
    ("expect", "expect"),
    ("fakeroot", "fakeroot"),
    ("fish", "fish"),
    ("gdb", "gdb"),
    ("gdbserver", "gdbserver"),
    ("git-lfs", "git-lfs"),
    ("go", "golang-go"),
    ("inotifywait", "inotify-tools"),
    ("java", "default-jdk-headless"),
    ("jq", "jq"),
    ("memcached", "memcached"),
    ("meson", "meson"),
    ("mvn", "maven"),
    ("nginx", "nginx-light"),
    ("ninja", "ninja-build"),
    ("npm", "npm"),
    ("php", "php-cli"),
    ("ping", "iputils-ping"),
    ("pre-commit", "pre-commit"),
    ("redis-server", "redis-server"),
    ("rg", "ripgrep"),
    ("rsync", "rsync"),
    ("ruby", "ruby"),
    ("sccache", "sccache"),
    ("shellcheck", "shellcheck"),
    ("socat", "socat"),
    ("sqlite3", "sqlite3"),
    ("zsh", "zsh"),
];

/// What came of one task: how it went, and why it did not pass.
struct Outcome {
    ecosystem: String,
    name: String,
    result: String,
    reason: String,
    promise: String,
    setting: String,
}

/// What is asked for on the command line.
#[derive(Default)]
struct Options {
    list: bool,
    only: Option<String>,
    users: Vec<Who>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    User,
    /// The user who runs this, who is not root and cannot become another.
    Oneself,
}

impl Options {
    fn parse(words: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => options.list = true,
                "--only" => options.only = Some((*words.next().context("--only needs a pattern")?).to_owned()),
                "--as" => options.users.push(match words.next() {
                    Some(&"root") => Who::Root,
                    Some(&"user") => Who::User,
                    _ => bail!("--as needs `root` or `user`"),
                }),
                other => bail!("everyday: `{other}` is not known; there are --list, --only PATTERN, --as root|user"),
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let mut options = Options::parse(words)?;
    let files = task_files()?;
    if options.list {
        list(&files);
        return Ok(());
    }
    let is_root = is_root();
    ensure!(is_root || options.users.is_empty(), "--as needs root");
    if options.users.is_empty() {
        options.users = if is_root { vec![Who::Root, Who::User] } else { vec![Who::Oneself] };
    }
    install_missing(&files);
    let ground = Ground::new(&files)?;
    let mut columns = Vec::new();
    for who in &options.users {
        let outcomes = ground.run(*who, options.only.as_deref())?;
        keep(*who, &outcomes)?;
        columns.push((*who, outcomes));
    }
    drop(ground);
    // A run of a part replaces its rows of the last whole one.
    if is_root && let Some(kept) = kept(&files) {
        write_pages(&kept)?;
    }
    let bad: Vec<String> = columns.iter().flat_map(|(who, outcomes)| bad(*who, outcomes)).collect();
    ensure!(columns.iter().any(|(_, outcomes)| !outcomes.is_empty()), "no task was run; see --list");
    ensure!(bad.is_empty(), "{} tasks pass bare and not as their rows say in the sandbox:\n  {}", bad.len(), bad.join("\n  "));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
fn list(files: &[PathBuf]) {
    for (ecosystem, name) in tasks(files) {
        println!("{ecosystem}: {name}");
    }
}

/// Each task: its ecosystem and its name.
fn tasks(files: &[PathBuf]) -> Vec<(String, String)> {
    let of = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.strip_prefix("## ")).filter(|name| *name != "prepare");
        names.map(|name| (stem(file), name.to_owned())).collect::<Vec<_>>()
    };
    files.iter().flat_map(of).collect()
}

/// Where the last outcome of each task is kept.
fn kept_file(who: Who) -> PathBuf {
    target().join(format!("everyday-{}.tsv", who.name()))
}

/// Remembers these outcomes in the place of earlier ones.
fn keep(who: Who, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let earlier = fs::read_to_string(kept_file(who)).unwrap_or_default();
    let is_older = |known: &&Outcome| !outcomes.iter().any(|outcome| outcome.is_of(&known.ecosystem, &known.name));
    let earlier: Vec<Outcome> = earlier.lines().filter_map(Outcome::read).collect();
    let lines: String = earlier.iter().filter(is_older).chain(outcomes).map(Outcome::line).collect();
    fs::write(kept_file(who), lines).context("what came of the tasks cannot be kept")
}

/// The last outcome of every task, as root and as a user, if there is one of each.
fn kept(files: &[PathBuf]) -> Option<Vec<(Who, Vec<Outcome>)>> {
    let mut columns = Vec::new();
    for who in [Who::Root, Who::User] {
        let text = fs::read_to_string(kept_file(who)).unwrap_or_default();
        let mut known: Vec<Outcome> = text.lines().filter_map(Outcome::read).collect();
        let mut column = Vec::new();
        for (ecosystem, name) in tasks(files) {
            let at = known.iter().position(|outcome| outcome.is_of(&ecosystem, &name))?;
            column.push(known.swap_remove(at));
        }
        columns.push((who, column));
    }
    Some(columns)
}

impl Outcome {
    /// From a line of the runner.
    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [ecosystem, name, result, reason, promise, setting] = fields[..] else { return None };
        let own = |text: &str| text.to_owned();
        Some(Self {
            ecosystem: own(ecosystem),
            name: own(name),
            result: own(result),
            reason: own(reason),
            promise: own(promise),
            setting: own(setting),
        })
    }

    fn line(&self) -> String {
        [&self.ecosystem, &self.name, &self.result, &self.reason, &self.promise, &self.setting].map(String::as_str).join("\t") + "\n"
    }

    fn is_of(&self, ecosystem: &str, name: &str) -> bool {
        self.ecosystem == ecosystem && self.name == name
    }
}

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn show(line: &str) {
    eprintln!("{line}");
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn task_files() -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(TASKS).with_context(|| format!("{TASKS}: run this in the project's directory"))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "sh")).collect();
    files.sort();
    Ok(files)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Installs what tasks need and is not here, as far as that can be done: a task whose program stays missing is not at hand.
fn install_missing(files: &[PathBuf]) {
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
    let needs: BTreeSet<&str> = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("# needs: "))
        .flat_map(str::split_whitespace)
        .collect();
    let missing: Vec<(&str, &str)> =
        PACKAGES.into_iter().filter(|(program, _)| needs.contains(program) && !install::is_there(program)).collect();
    if missing.is_empty() {
        return;
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    if let Err(error) = install::debian(&packages) {
        show(&format!("xtask: {error:#}; tasks that need one of these are not at hand"));
    }
}

/// A directory that every user may read, with the program, the runner, the tasks and what they download.
struct Ground {
    place: PathBuf,
    tasks: Vec<PathBuf>,
    toolchain: Option<PathBuf>,
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Ground {
    fn new(files: &[PathBuf]) -> anyhow::Result<Self> {
        sh(cargo().args(["build", "-p", "outpost"]))?;
        // Not in `/tmp`, of which a sandbox has its own, nor in the build directory, which may be closed to others.
        let place = PathBuf::from(format!("/var/tmp/outpost-everyday-{}", std::process::id()));
        fs::create_dir_all(place.join("toolchain"))?;
        let ground =
            Self { tasks: files.iter().map(|file| place.join(format!("{}.sh", stem(file)))).collect(), toolchain: toolchain(), place };
        for (from, to) in files.iter().zip(&ground.tasks) {
            fs::copy(from, to)?;
        }
        fs::copy(RUNNER, ground.place.join("run.sh"))?;
        fs::copy(target().join("debug/outpost"), ground.place.join("outpost"))?;
        sh(Command::new("strip").arg(ground.place.join("outpost")))?;
        fs::set_permissions(ground.place.join("outpost"), PermissionsExt::from_mode(0o755))?;
        for name in ["etc", "etc-work"] {
            fs::create_dir(ground.place.join(name))?;
        }
        fs::write(
            ground.place.join("etc/passwd"),
            with_user("/etc/passwd", &format!("everyday:x:{USER}:{USER}:Everyday:{}/scene/home:/bin/sh", ground.user_run().display()))?,
        )?;
        fs::write(ground.place.join("etc/group"), with_user("/etc/group", &format!("everyday:x:{USER}:"))?)?;
        // Kept between runs, and carried to where every user may read it.
        let prepared = target().join("everyday");
        fs::create_dir_all(&prepared)?;
        let mut prepare = Command::new("sh");
        prepare.arg(ground.place.join("run.sh")).arg("prepare").args(&ground.tasks).env("PREP", &prepared).env("PATH", ground.path());
        if !prepared.join("done").exists() {
            sh(&mut prepare)?;
            fs::write(prepared.join("done"), "")?;
        }
        sh(Command::new("cp").arg("-a").arg(&prepared).arg(ground.place.join("prep")))?;
        sh(Command::new("chmod").args(["-R", "a+rX"]).arg(&ground.place))?;
        Ok(ground)
    }

    /// Where the run of the user is, so that the user table can name its home: programs ask both the table and `HOME`.
    fn user_run(&self) -> PathBuf {
        self.place.join("user")
    }

    /// Programs of the system first, so that what is in the user's home makes no difference; then those of Rust.
    fn path(&self) -> String {
        match &self.toolchain {
            Some(toolchain) => format!("{PATH}:{}", toolchain.join("bin").display()),
            None => PATH.to_owned(),
        }
    }

    fn run(&self, who: Who, only: Option<&str>) -> anyhow::Result<Vec<Outcome>> {
        let place = self.place.display();
        // What this user sees of the machine is arranged in a namespace of mounts, so that nothing of it is left behind.
        let bind = self
            .toolchain
            .as_ref()
            .map_or_else(String::new, |toolchain| format!("mount --bind '{}' '{place}/toolchain'; ", toolchain.display()));
        let mut command = match who {
            Who::Oneself => Command::new("sh"),
            Who::Root => {
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-ec", &format!("{bind}exec \"$@\""), "sh", "sh"]);
                command
            }
            Who::User => {
                let mut command = Command::new("unshare");
                // A mount on the table itself is gone as soon as another program replaces the table.
                let layers = format!("lowerdir=/etc,upperdir={place}/etc,workdir={place}/etc-work");
                let users = format!("mount -t overlay overlay -o '{layers}' /etc; ");
                let drop = format!("exec setpriv --reuid={USER} --regid={USER} --clear-groups --inh-caps=-all \"$@\"");
                command.args(["-m", "sh", "-ec", &format!("{bind}{users}{drop}"), "sh", "sh"]);
                command
            }
        };
        let path = if who == Who::Oneself { self.path() } else { format!("{PATH}:{place}/toolchain/bin") };
        command.arg(self.place.join("run.sh")).args(&self.tasks).current_dir("/").env_clear().env("PATH", path);
        command.env("OUTPOST", self.place.join("outpost")).env("PREP", self.place.join("prep"));
        for name in ["PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "LANG"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if let Some(only) = only {
            command.env("ONLY", only);
        }
        if who == Who::User {
            fs::create_dir_all(self.user_run())?;
            std::os::unix::fs::chown(self.user_run(), Some(USER.parse()?), Some(USER.parse()?))?;
            command.env("RUN", self.user_run());
        }
        show(&format!("+ {command:?}"));
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start the runner")?;
        let mut outcomes = Vec::new();
        let lines = child.stdout.take().context("the runner has no output")?;
        for line in std::io::BufRead::lines(std::io::BufReader::new(lines)) {
            let line = line?;
            let outcome = Outcome::read(&line).with_context(|| format!("the runner said `{line}`"))?;
            let Outcome { ecosystem, name, result, reason, .. } = &outcome;
            show(&format!(
                "{}: {ecosystem}: {name}: {result}{}",
                who.name(),
                if result == "pass" || reason.is_empty() { String::new() } else { format!(" ({reason})") }
            ));
            outcomes.push(outcome);
        }
        // Its exit code says whether a task failed, which the lines say as well.
        child.wait()?;
        Ok(outcomes)
    }
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::User | Self::Oneself => "user",
        }
    }
}

/// The toolchain itself: the programs of rustup look for it in a home.
fn toolchain() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim())).filter(|path| path.join("bin/cargo").exists())
}

fn with_user(file: &str, line: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    Ok(format!("{}\n{line}\n", text.trim_end()))
}

/// Tasks that go otherwise than their rows say.
fn bad(who: Who, outcomes: &[Outcome]) -> Vec<String> {
    let wrong = outcomes.iter().filter(|outcome| !["pass", "forbidden", "not at hand"].contains(&outcome.result.as_str()));
    wrong
        .map(|outcome| format!("{}: {}: {}: {} ({})", who.name(), outcome.ecosystem, outcome.name, outcome.result, outcome.reason))
        .collect()
}

/// All rows go to a page of their own; the page of the sandbox gets the sums, and the rows that do not pass.
fn write_pages(columns: &[(Who, Vec<Outcome>)]) -> anyhow::Result<()> {
    fs::write(PAGE, page(columns)).with_context(|| format!("{PAGE} cannot be written"))?;
    let text = fs::read_to_string(SANDBOX_PAGE)?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{SANDBOX_PAGE} has no line `{BEGIN}`"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{SANDBOX_PAGE} has no line `{END}`"))?;
    fs::write(SANDBOX_PAGE, format!("{before}{BEGIN}\n\n{}\n{END}{after}", summary(columns)))?;
    Ok(())
}

fn cell(outcome: Option<&Outcome>) -> String {
    outcome.map_or_else(
        || "–".to_owned(),
        |outcome| match outcome.result.as_str() {
            "pass" | "forbidden" => outcome.result.clone(),
            result => format!("{result}: {}", outcome.reason),
        },
    )
}

/// Ecosystems in the order in which they were run.
fn ecosystems(columns: &[(Who, Vec<Outcome>)]) -> Vec<&str> {
    let mut seen: Vec<&str> = Vec::new();
    for outcome in columns.iter().flat_map(|(_, outcomes)| outcomes) {
        if !seen.contains(&outcome.ecosystem.as_str()) {
            seen.push(&outcome.ecosystem);
        }
    }
    seen
}

fn page(columns: &[(Who, Vec<Outcome>)]) -> String {
    let mut page = "# Everyday work in the sandbox\n\nWhat developers do every day, tried in the default sandbox and without one:\n\n<!-- not typed: runs these tests -->\n```sh\ncargo xtask everyday make     # one task; without a name, all of them\n```\n\nWritten by `cargo xtask everyday`, which runs each task bare and with `outpost run --sandbox workspace-write`, as root and as an ordinary user, each time in \
        a new workspace with a new home. *pass*: passes in the sandbox. *forbidden*: does not, and passes with the setting that is named; the promise that forbids it is named as well. \
        *not at hand*: does not pass bare on the machine of this run either. Each row is from the last run of its task. The tasks are in `tests/everyday/tasks`. [Sandboxes](sandbox.md).\n"
        .to_owned();
    for ecosystem in ecosystems(columns) {
        let _ = writeln!(
            page,
            "\n## {ecosystem}\n\n| task |{} what forbids it | what allows it |",
            columns.iter().map(|(who, _)| format!(" as {} |", who.name())).collect::<String>()
        );
        let _ = writeln!(page, "|---|{}---|---|", "---|".repeat(columns.len()));
        for outcome in columns.first().into_iter().flat_map(|(_, outcomes)| outcomes).filter(|outcome| outcome.ecosystem == ecosystem) {
            let cells: String = columns
                .iter()
                .map(|(_, outcomes)| {
                    format!(" {} |", cell(outcomes.iter().find(|other| other.ecosystem == ecosystem && other.name == outcome.name)))
                })
                .collect();
            let setting = if outcome.setting.is_empty() { String::new() } else { format!("`{}`", outcome.setting) };
            let _ = writeln!(page, "| {} |{cells} {} | {setting} |", outcome.name, outcome.promise);
        }
    }
    page
}

fn summary(columns: &[(Who, Vec<Outcome>)]) -> String {
    let mut text = format!(
        "| ecosystem |{}\n|---|{}\n",
        columns.iter().map(|(who, _)| format!(" pass as {} |", who.name())).collect::<String>(),
        "---|".repeat(columns.len())
    );
    let sums = |chosen: &dyn Fn(&Outcome) -> bool| -> String {
        let sum = |outcomes: &[Outcome]| {
            let at_hand = outcomes.iter().filter(|outcome| chosen(outcome) && outcome.result != "not at hand").count();
            let passed = outcomes.iter().filter(|outcome| chosen(outcome) && outcome.result == "pass").count();
            format!(" {passed} of {at_hand} |")
        };
        columns.iter().map(|(_, outcomes)| sum(outcomes)).collect()
    };
    for ecosystem in ecosystems(columns) {
        let _ = writeln!(text, "| {ecosystem} |{}", sums(&|outcome| outcome.ecosystem == ecosystem));
    }
    let _ = writeln!(text, "| all |{}\n", sums(&|_| true));
    text.push_str("What does not pass, and why:\n\n| task | promise that forbids it | what allows it |\n|---|---|---|\n");
    let mut seen = BTreeSet::new();
    for outcome in
        columns.iter().flat_map(|(_, outcomes)| outcomes).filter(|outcome| !["pass", "not at hand"].contains(&outcome.result.as_str()))
    {
        if seen.insert((&outcome.ecosystem, &outcome.name)) {
            let promise = if outcome.promise.is_empty() { format!("a fault of ours: {}", outcome.reason) } else { outcome.promise.clone() };
            let setting = if outcome.setting.is_empty() { "–".to_owned() } else { format!("`{}`", outcome.setting) };
            let _ = writeln!(text, "| {}: {} | {promise} | {setting} |", outcome.ecosystem, outcome.name);
        }
    }
    text
}
