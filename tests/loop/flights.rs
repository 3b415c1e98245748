//! How often work far away waits for the other side: flights are counted on the link, and each row of the table in
//! docs/performance.md is a budget that must not be exceeded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use outpost_environment::{ConnectPolicy, ConnectionState, Definition, FailureKind, Token};
use outpost_runtime::live::LiveThread;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::{StartThread, ThreadActivity};
use outpost_testkit::model::Reply;
use outpost_testkit::{CountedLink, ExecutorProcess, FlightClock, PIXEL};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Harness, OUTPOST, Setup, turn};

const PAGE: &str = include_str!("../../docs/performance.md");

/// The budget of a row: the first number after its name.
fn budget(row: &str) -> u64 {
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap_or_else(|| panic!("no row `{row}`"));
    line.split('|').nth(2).unwrap().trim().parse().unwrap_or_else(|_| panic!("no number in `{line}`"))
}

/// Counts a scenario, again with a slower link where it took too many: a machine that is busy lets answers overtake requests that do
/// not depend on them, which counts too much, and nothing counts too little.
#[expect(clippy::print_stdout, reason = "a run with --nocapture prints the table")]
async fn within_budget(row: &str, mut count: impl AsyncFnMut(Duration) -> u64) {
    let budget = budget(row);
    let mut least = u64::MAX;
    for delay in [30, 60, 150, 400, 1000] {
        least = least.min(count(Duration::from_millis(delay)).await);
        if least <= budget {
            break;
        }
    }
    println!("{row}: {least} flights, {budget} allowed");
    assert!(least <= budget, "{row}: {least} flights, {budget} allowed");
}

struct FarMachine {
    /// Only kept.
    _executor: ExecutorProcess,
    link: CountedLink,
    work: TempDir,
}

/// A runtime whose environments are all far away.
struct FarWorld {
    clock: FlightClock,
    machines: Vec<FarMachine>,
    harness: Harness,
}

impl FarWorld {
    async fn new(machines: usize, delay: Duration, replies: Vec<Reply>) -> Self {
        Self::of(machines, delay, Setup::new(&[], replies)).await
    }

    async fn of(machines: usize, delay: Duration, setup: Setup) -> Self {
        let clock = FlightClock::new(delay);
        let harness = Harness::new(setup).await;
        let mut far = Vec::new();
        for index in 0..machines {
            let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
            let link = clock.link(executor.address()).await;
            let mut definition = Definition::url(&link.url(), Token::None).unwrap();
            definition.connect = ConnectPolicy::Lazy;
            harness.runtime.registry().add(EnvironmentId::parse(&format!("far{index}")).unwrap(), definition).unwrap();
            far.push(FarMachine { _executor: executor, link, work: tempfile::tempdir().unwrap() });
        }
        Self { clock, machines: far, harness }
    }

    async fn thread(&self) -> LiveThread {
        let attach = |(index, machine): (usize, &FarMachine)| {
            let id = EnvironmentId::parse(&format!("far{index}")).unwrap();
            Attachment::new(id, PathUri::from_native(machine.work.path()).unwrap())
        };
        let mut start = StartThread::new();
        start.created.selection = Some(Selection::new(self.machines.iter().enumerate().map(attach).collect()).unwrap());
        self.harness.runtime.start(start).await.unwrap()
    }

    /// A thread that has worked there before, and whatever it has still to hear in the background has been heard.
    async fn warm_thread(&self, delay: Duration) -> LiveThread {
        let thread = self.thread().await;
        assert_eq!(turn(&thread, "first").await, ThreadActivity::Idle);
        tokio::time::sleep(delay * 8).await;
        assert_eq!(turn(&thread, "second").await, ThreadActivity::Idle);
        tokio::time::sleep(delay * 8).await;
        thread
    }

    async fn flights_of(&self, work: impl Future<Output = ()>) -> u64 {
        let before = self.clock.flights();
        work.await;
        self.clock.flights() - before
    }
}

/// A command without the profiles of this machine, which may do anything.
fn command(text: &str) -> Value {
    json!({"cmd": text, "login": false})
}

/// The model's answers for the two turns that warm a thread up.
fn after_warming(more: impl IntoIterator<Item = Reply>) -> Vec<Reply> {
    [Reply::message("one"), Reply::message("two")].into_iter().chain(more).collect()
}

async fn plain_turn(machines: usize, delay: Duration) -> u64 {
    let world = FarWorld::new(machines, delay, after_warming([])).await;
    let thread = world.warm_thread(delay).await;
    world.flights_of(async { assert_eq!(turn(&thread, "third").await, ThreadActivity::Idle) }).await
}

#[tokio::test]
async fn a_plain_turn_waits_for_no_machine() {
    within_budget("a turn in which nothing runs, 1 environment", async |delay| plain_turn(1, delay).await).await;
}

#[tokio::test]
async fn a_plain_turn_waits_for_none_of_three_machines() {
    within_budget("a turn in which nothing runs, 3 environments", async |delay| plain_turn(3, delay).await).await;
}

async fn commands(count: usize, delay: Duration) -> u64 {
    let replies = (0..count).map(|index| Reply::call(&format!("c{index}"), "exec_command", &command(&format!("echo {index}-done"))));
    let world = FarWorld::new(1, delay, after_warming(replies)).await;
    let thread = world.warm_thread(delay).await;
    let flights = world.flights_of(async { assert_eq!(turn(&thread, "run").await, ThreadActivity::Idle) }).await;
    let outputs = world.harness.outputs(thread.id()).await;
    assert_eq!(outputs.len(), count);
    assert!(outputs.iter().enumerate().all(|(index, (_, text))| text.contains(&format!("{index}-done"))), "{outputs:?}");
    flights
}

#[tokio::test]
async fn a_command_is_one_flight() {
    within_budget("a turn with 1 command", async |delay| commands(1, delay).await).await;
}

#[tokio::test]
async fn ten_commands_are_ten_flights() {
    within_budget("a turn with 10 commands, one after the other", async |delay| commands(10, delay).await).await;
}

#[tokio::test]
async fn the_first_turn_on_a_new_machine() {
    within_budget("the first turn on a new machine, connecting included", async |delay| {
        let world = FarWorld::new(1, delay, vec![Reply::message("hello")]).await;
        std::fs::write(world.machines[0].work.path().join("AGENTS.md"), "Speak softly.").unwrap();
        let thread = world.thread().await;
        let flights = world.flights_of(async { assert_eq!(turn(&thread, "first").await, ThreadActivity::Idle) }).await;
        assert!(world.harness.model.requests()[0].body.to_string().contains("Speak softly."));
        flights
    })
    .await;
}

#[tokio::test]
async fn a_patch_of_several_files() {
    within_budget("a patch of three files", async |delay| {
        let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** Add File: sub/b.txt\n+new\n*** Delete File: c.txt\n*** End Patch\n";
        let world = FarWorld::new(1, delay, after_warming([Reply::call("p", "apply_patch", &json!({"input": patch}))])).await;
        let work = world.machines[0].work.path();
        std::fs::write(work.join("a.txt"), "one\n").unwrap();
        std::fs::write(work.join("c.txt"), "old\n").unwrap();
        let thread = world.warm_thread(delay).await;
        let flights = world.flights_of(async { assert_eq!(turn(&thread, "patch").await, ThreadActivity::Idle) }).await;
        let outputs = world.harness.outputs(thread.id()).await;
        assert_eq!(std::fs::read_to_string(work.join("a.txt")).unwrap(), "two\n", "{outputs:?}");
        assert!(work.join("sub/b.txt").exists() && !work.join("c.txt").exists());
        flights
    })
    .await;
}

#[tokio::test]
async fn a_picture_is_one_flight() {
    within_budget("a picture that the model looks at", async |delay| {
        let world = FarWorld::new(1, delay, after_warming([Reply::call("v", "view_image", &json!({"path": "dot.png"}))])).await;
        std::fs::write(world.machines[0].work.path().join("dot.png"), PIXEL).unwrap();
        let thread = world.warm_thread(delay).await;
        let flights = world.flights_of(async { assert_eq!(turn(&thread, "look").await, ThreadActivity::Idle) }).await;
        let outputs = world.harness.outputs(thread.id()).await;
        assert!(outputs[0].1.contains("image"), "{outputs:?}");
        flights
    })
    .await;
}

#[tokio::test]
async fn the_turn_after_a_cut() {
    within_budget("the turn after a lost connection, connecting included", async |delay| {
        let world = FarWorld::new(1, delay, after_warming([])).await;
        let thread = world.warm_thread(delay).await;
        let handle = world.harness.runtime.registry().get(&EnvironmentId::parse("far0").unwrap()).unwrap();
        let mut states = handle.watch();
        world
            .flights_of(async {
                world.machines[0].link.cut();
                states.wait_for(|state| !matches!(state, ConnectionState::Ready(_))).await.unwrap();
                states.wait_for(|state| matches!(state, ConnectionState::Ready(_))).await.unwrap();
                assert_eq!(turn(&thread, "third").await, ThreadActivity::Idle);
            })
            .await
    })
    .await;
}

#[tokio::test]
async fn a_fresh_run() {
    within_budget("`outpost run -- true` over a websocket, connecting included", async |delay| {
        let clock = FlightClock::new(delay);
        let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
        let (link, home) = (clock.link(executor.address()).await, tempfile::tempdir().unwrap());
        let mut command = tokio::process::Command::new(OUTPOST);
        command.args(["run", "-e", &link.url(), "--", "sh", "-c", "echo far; exit 3"]).env("OUTPOST_HOME", home.path());
        let output = command.stdin(Stdio::null()).output().await.unwrap();
        let flights = clock.flights();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"far\n".as_slice()), "{output:?}");
        flights
    })
    .await;
}

/// Nothing gets through to the machine or back, and the turn does not notice.
#[tokio::test]
async fn a_plain_turn_needs_no_link() {
    let delay = Duration::from_millis(30);
    let world = FarWorld::new(1, delay, after_warming([])).await;
    let thread = world.warm_thread(delay).await;
    world.clock.freeze();
    assert_eq!(turn(&thread, "third").await, ThreadActivity::Idle);
    assert_eq!(world.harness.turn_ends(thread.id()).await.len(), 3);
    world.clock.thaw();
}

/// Inside a sandbox as well, where files are looked at by another process.
#[tokio::test]
async fn sandboxed_work_costs_no_more() {
    within_budget("a turn with 1 command", async |delay| {
        let replies = after_warming([Reply::call("c", "exec_command", &command("echo inside"))]);
        let mut setup = Setup::new(&[], replies);
        setup.config.sandbox = SandboxMode::WorkspaceWrite {
            writable_roots: vec![],
            network_access: false,
            exclude_tmpdir_env_var: false,
            exclude_slash_tmp: false,
        };
        let world = FarWorld::of(1, delay, setup).await;
        let thread = world.warm_thread(delay).await;
        let flights = world.flights_of(async { assert_eq!(turn(&thread, "run").await, ThreadActivity::Idle) }).await;
        let outputs = world.harness.outputs(thread.id()).await;
        assert!(outputs[0].1.contains("inside"), "{outputs:?}");
        flights
    })
    .await;
}

fn last_request(world: &FarWorld) -> String {
    world.harness.model.requests().last().unwrap().body.to_string()
}

/// What a command changed counts from the next turn on: it is told before the command's own end is.
#[tokio::test]
async fn what_a_command_changes_is_seen_in_the_next_turn() {
    let delay = Duration::from_millis(30);
    let change = Reply::call("c", "exec_command", &command("echo Be brief. > AGENTS.md"));
    let world = FarWorld::new(1, delay, after_warming([change, Reply::message("done")])).await;
    let thread = world.warm_thread(delay).await;
    turn(&thread, "change it").await;
    turn(&thread, "and now").await;
    assert!(last_request(&world).contains("Be brief."), "{}", last_request(&world));
}

/// Also a folder of skills that was not there, made below a folder that was not there.
#[tokio::test]
async fn a_skill_that_a_command_makes_is_seen_in_the_next_step() {
    let delay = Duration::from_millis(30);
    let skill = "mkdir -p .agents/skills/paint && printf -- '---\\nname: paint\\ndescription: Paints walls.\\n---\\nUse a brush.\\n' > .agents/skills/paint/SKILL.md";
    let make = Reply::call("c", "exec_command", &command(skill));
    let change = Reply::call("d", "exec_command", &command("sed -i s/walls/fences/ .agents/skills/paint/SKILL.md"));
    let world = FarWorld::new(1, delay, after_warming([make, change, Reply::message("done")])).await;
    let thread = world.warm_thread(delay).await;
    turn(&thread, "make it").await;
    let requests = world.harness.model.requests();
    let told = |index: usize| requests[requests.len() - index].body.to_string();
    assert!(told(2).contains("Paints walls."), "{}", told(2));
    assert!(told(1).contains("Paints fences."), "{}", told(1));
}

/// What programs of others change is seen as soon as the executor has heard of it.
#[tokio::test]
async fn what_others_change_is_seen() {
    let delay = Duration::from_millis(5);
    let world = FarWorld::new(1, delay, vec![]).await;
    let thread = world.warm_thread(delay).await;
    std::fs::write(world.machines[0].work.path().join("AGENTS.md"), "Be polite.").unwrap();
    for _ in 0..200 {
        turn(&thread, "again").await;
        if last_request(&world).contains("Be polite.") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it is never seen");
}

/// The calls that a connection begins with are for one executor: another one behind the same address carries none of them out.
#[tokio::test]
async fn another_executor_refuses_what_is_not_for_it() {
    let delay = Duration::from_millis(5);
    let world = FarWorld::new(1, delay, after_warming([])).await;
    let thread = world.warm_thread(delay).await;
    let handle = world.harness.runtime.registry().get(&EnvironmentId::parse("far0").unwrap()).unwrap();
    let stranger = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    world.machines[0].link.lead_to(stranger.address());
    world.machines[0].link.cut();
    let mut states = handle.watch();
    let failed = states.wait_for(|state| matches!(state, ConnectionState::Failed(_))).await.unwrap().clone();
    let ConnectionState::Failed(failure) = failed else { panic!() };
    assert_eq!(failure.kind, FailureKind::OtherExecutor, "{failure:?}");
    assert!(turn(&thread, "anyone").await == ThreadActivity::Idle);
    // The same by hand, with a call that would leave a trace.
    let link = outpost_testkit::bench::connect(stranger.url()).await;
    let mut client = outpost_testkit::Client::new(link);
    let trace = world.machines[0].work.path().join("trace");
    let start = json!({"processId": "p", "argv": ["touch", trace], "cwd": "file:///tmp", "env": {}, "tty": false, "arg0": null});
    let hello = |expected: &str| json!({"clientName": "t", "expectedExecutorId": expected, "calls": [{"method": "process/start", "params": start.clone()}]});
    let refused = client.call("initialize", hello("another one")).await;
    assert_eq!(refused["error"]["code"], outpost_wire::fault::OTHER_EXECUTOR, "{refused}");
    // Nothing was begun: the same connection may still introduce itself, and then has a session without any process.
    client.call("initialize", json!({"clientName": "t"})).await;
    client.notify("initialized", json!({}));
    let listed = client.call("process/list", json!(null)).await;
    assert_eq!(listed["result"]["processes"], json!([]), "{listed}");
    assert!(!trace.exists());
}

/// A tree of small files, each with its own content and permissions.
fn plant(root: &Path, files: usize) {
    use std::os::unix::fs::PermissionsExt;
    for index in 0..files {
        let folder = root.join(format!("d{}/e{}", index % 5, index % 3));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("f{index}"));
        std::fs::write(&file, format!("{index} ").repeat(200)).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(if index % 7 == 0 { 0o600 } else { 0o644 })).unwrap();
    }
    std::os::unix::fs::symlink("d0", root.join("link")).unwrap();
}

/// Every name below a folder, with what is there.
fn harvest(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let content = if metadata.is_symlink() {
                std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if metadata.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else {
                std::fs::read(&path).unwrap()
            };
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (metadata.permissions().mode(), content));
        }
    }
    found
}

async fn cp(more: &[&str], from: &str, to: &str) -> std::process::Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(OUTPOST);
    command.args(["cp", "-r"]).args(more).args([from, to]).env("OUTPOST_HOME", home.path());
    command.stdin(Stdio::null()).output().await.unwrap()
}

/// Copies a tree of small files between this machine and one that is far away; `is_there` says where it goes.
async fn copied(row: &str, is_there: bool) {
    within_budget(row, async |delay| {
        let clock = FlightClock::new(delay);
        let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
        let (link, source, target) = (clock.link(executor.address()).await, tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (source.path().join("tree"), target.path().join("copy"));
        plant(&from, 300);
        let (here, far) = (|path: &Path| path.display().to_string(), |path: &Path| format!("{}:{}", link.url(), path.display()));
        let output = if is_there { cp(&[], &here(&from), &far(&to)).await } else { cp(&[], &far(&from), &here(&to)).await };
        let flights = clock.flights();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(harvest(&from), harvest(&to));
        flights
    })
    .await;
}

/// The copy of a tree costs as many flights as it is deep, and none for the number of its files.
#[tokio::test]
async fn a_tree_there() {
    copied("`outpost cp -r` of 300 small files there, connecting included", true).await;
}

#[tokio::test]
async fn a_tree_back() {
    copied("`outpost cp -r` of 300 small files back, connecting included", false).await;
}

/// What is left out is neither copied nor removed; what is too much is removed after the copy, and a dry run only says so.
#[tokio::test]
async fn a_tree_is_made_equal() {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, into) = (here.path().join("tree"), there.path().join("tree"));
    plant(&from, 20);
    for (name, text) in [("d0/x.o", "object"), ("build/deep/file", "built")] {
        std::fs::create_dir_all(from.join(name).parent().unwrap()).unwrap();
        std::fs::write(from.join(name), text).unwrap();
    }
    for name in ["old/deep/file", "d0/old", "build/kept", "d1/kept.o"] {
        std::fs::create_dir_all(into.join(name).parent().unwrap()).unwrap();
        std::fs::write(into.join(name), "old").unwrap();
    }
    let before = harvest(&into);
    let to = format!("{}:{}", executor.url(), there.path().display());
    let options = ["--delete", "--exclude", "*.o", "--exclude", "/build"];
    let planned = cp(&[&options[..], &["--dry-run"]].concat(), from.to_str().unwrap(), &to).await;
    assert!(planned.status.success(), "{planned:?}");
    let planned = String::from_utf8(planned.stdout).unwrap();
    let line = |what: &str, name: &str| format!("{what} {}\n", into.join(name).display());
    assert!(planned.contains(&line("remove", "old")) && planned.contains(&line("remove", "d0/old")), "{planned}");
    assert!(planned.contains(&line("write", "link")) && !planned.contains(".o") && !planned.contains("build"), "{planned}");
    assert_eq!(harvest(&into), before, "a dry run changes nothing");
    let copied = cp(&options, from.to_str().unwrap(), &to).await;
    assert!(copied.status.success(), "{copied:?}");
    let (mut wanted, is_excluded) =
        (harvest(&from), |path: &Path| path.starts_with("build") || path.extension().is_some_and(|end| end == "o"));
    wanted.retain(|path, _| !is_excluded(path));
    let mut now = harvest(&into);
    let kept: Vec<PathBuf> = now.keys().filter(|path| is_excluded(path)).cloned().collect();
    assert_eq!(kept, [PathBuf::from("build"), "build/kept".into(), "d1/kept.o".into()]);
    now.retain(|path, _| !is_excluded(path));
    assert_eq!(now.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    assert!(now.iter().all(|(path, (_, content))| *content == wanted[path].1));
    let refused = cp(&["--exclude", "../x"], from.to_str().unwrap(), &to).await;
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("leads out of"), "{refused:?}");
}
