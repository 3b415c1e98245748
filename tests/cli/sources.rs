//! Environments in containers and jobs and behind a login, with stand-ins (`world.rs`) for the programs that lead there. Real ones are
//! tried by hand (docs/environments.md).

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use outpost_testkit::TestTerminal;
use serde_json::Value;

use crate::OUTPOST;
use crate::world::{World, text};

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2400 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: still not so after two minutes");
}

#[test]
fn a_program_is_carried_into_a_container_that_is_started_for_it() {
    let world = World::new();
    world.container("web", "exited");
    let mut add = world.command(OUTPOST);
    add.args(["env", "add", "web", "--docker", "web", "-u", "dev", "--label", "ci", "--setup", "echo ready > $HOME/ready"]);
    let mut terminal = TestTerminal::start(add.env("TERM", "xterm"));
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let added = terminal.text();
    assert!(added.contains("copied") && added.contains("web is ready"), "{added}");
    let shares: Vec<u64> = added.split('%').filter_map(|before| before.rsplit(' ').next()?.parse().ok()).collect();
    assert!(added.contains("web [") && added.contains("B/s "), "how far the program is on its way is shown: {added}");
    assert!(shares.iter().any(|share| *share > 0), "{shares:?}");
    assert!(added.contains("+ echo ready"), "what a set-up does is shown: {added}");
    assert_eq!((world.status("web"), fs::read_to_string(world.path("state/web/ready")).unwrap()), ("running".into(), "ready\n".into()));
    assert!(world.log("docker").contains("start web") && world.log("docker").contains("exec -i -u dev web"), "{}", world.log("docker"));
    assert_eq!(world.done(&["run", "-e", "web", "--", "sh", "-c", "echo $HOME"]).trim(), world.path("state/web").display().to_string());
    let listed: Value = serde_json::from_str(&world.done(&["env", "list", "--json", "--label", "ci"])).unwrap();
    assert_eq!(listed["environments"].as_array().unwrap().len(), 1);
    assert_eq!((&listed["environments"][0]["address"], &listed["environments"][0]["labels"][0]), (&"docker web".into(), &"ci".into()));
    // A container that was made anew has nothing of it: the program and the set-up come with the next connection.
    fs::remove_dir_all(world.path("state/web")).unwrap();
    eventually("the keeper of the old one is gone", || !text(&world.output(&["run", "-e", "web", "--", "true"])).contains("lost"));
    assert_eq!(world.done(&["run", "-e", "web", "--", "sh", "-c", "cat $HOME/ready"]), "ready\n");
}

#[test]
fn a_program_is_carried_without_a_word_if_that_is_wanted() {
    for quiet in [&["-q"][..], &[]] {
        let world = World::new();
        world.container("web", "running");
        let mut add = world.command(OUTPOST);
        add.args(quiet).args(["env", "add", "web", "--docker", "web"]);
        let mut terminal = TestTerminal::start(add.env("TERM", "xterm"));
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
        let added = terminal.text();
        assert_eq!(added.contains("B/s "), quiet.is_empty(), "{added}");
        assert_eq!(added.contains("\x1b[K"), quiet.is_empty(), "{added:?}");
    }
}

#[test]
fn an_image_becomes_a_container_and_is_stopped_when_nobody_uses_it() {
    let world = World::new().with_program();
    world.done(&["env", "add", "tmp", "--docker", "image:1", "--idle-stop", "1s", "--run-arg=--network=none"]);
    let log = world.log("docker");
    assert!(log.contains("run -d --name outpost-tmp --network=none --entrypoint sh image:1"), "{log}");
    world.refused(&["env", "add", "no", "--docker", "image:2"], 3, "knows neither a container nor an image `image:2`");
    assert!(!fs::read_to_string(world.path("home/environments.toml")).unwrap().contains("image:2"));
    let mut watching = world.command(OUTPOST).args(["env", "watch", "tmp"]).stdout(Stdio::null()).spawn().unwrap();
    eventually("it is stopped", || world.status("outpost-tmp") == "exited");
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert_eq!(world.done(&["run", "-e", "tmp", "--", "echo", "woken"]), "woken\n");
    assert!(world.log("docker").contains("start outpost-tmp"), "{}", world.log("docker"));
    // Nobody of ours is left to see that it is not used, and it is stopped all the same.
    eventually("it is stopped again", || world.status("outpost-tmp") == "exited");
}

#[test]
fn pods_and_what_is_behind_ssh_are_entered_in_order() {
    let world = World::new().with_program();
    world.container("c", "running");
    world.done(&["env", "add", "api", "--kubectl", "api-0", "-c", "app", "-n", "prod"]);
    assert!(world.log("kubectl").contains("exec -i -n prod api-0 -c app -- sh -c"), "{}", world.log("kubectl"));
    assert_eq!(world.done(&["run", "-e", "api", "--", "echo", "in a pod"]), "in a pod\n");
    world.done(&["env", "add", "deep", "--ssh", "me@box", "--docker", "c"]);
    assert_eq!(world.done(&["run", "-e", "deep", "--", "sh", "-c", "echo $HOME"]).trim(), world.path("state/c").display().to_string());
    assert!(world.done(&["env", "list"]).contains("ssh me@box, docker c"));
    world.refused(&["env", "add", "x", "--docker", "a", "--podman", "b"], 2, "cannot be used with");
    world.refused(&["env", "add", "x", "--kubectl", "p", "--idle-stop", "5m"], 1, "`idle_stop` needs");
    world.refused(&["env", "add", "x", "--url", "ws://127.0.0.1:1", "--setup", "true"], 1, "`setup` needs");
    world.refused(&["env", "add", "x", "--docker", "c", "--setup", "exit 3"], 1, "failed with code 3 in `exit 3`");
    assert!(!world.done(&["env", "list"]).contains("\nx "));
}

#[test]
fn a_dev_container_is_brought_up_and_entered_in_its_workspace() {
    let world = World::new().with_program();
    let folder = world.path("project").display().to_string();
    fs::create_dir(&folder).unwrap();
    world.done(&["env", "add", "dev", "--devcontainer", &folder]);
    let (up, entered) = (format!("up --docker-path docker --workspace-folder {folder}"), "exec --docker-path docker --workspace-folder");
    let log = world.log("devcontainer");
    assert!(log.find(&up).is_some_and(|up| log.find(entered).is_some_and(|entered| up < entered)), "{log}");
    let workspace = world.path("state/dev/workspaces/project").canonicalize().unwrap();
    assert_eq!(world.done(&["run", "-e", "dev", "--", "pwd"]).trim(), workspace.display().to_string());
    assert!(world.done(&["env", "list"]).contains(&format!("devcontainer {folder}")));
    // Its own program is missing: what to install is named.
    world.tool("devcontainer", "exit 127");
    world.refused(&["env", "add", "other", "--devcontainer", &folder], 3, "devcontainer");
}

/// What hangs is ended, and nothing is written down.
#[test]
fn a_set_up_that_takes_too_long_is_given_up() {
    let world = World::new().with_program();
    world.container("c", "running");
    let slow = ["env", "add", "slow", "--docker", "c", "--setup", "echo begun; sleep 1000", "--setup-timeout", "1"];
    let output = world.output(&slow);
    let told = text(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("begun") && told.contains("took longer than 1 s; `setup_timeout_sec` allows more"), "{told}");
    assert!(!world.done(&["env", "list"]).contains("slow"));
}

#[test]
fn a_deleted_pod_is_told_with_what_kubectl_said() {
    let world = World::new().with_program();
    world.done(&["env", "add", "api", "--kubectl", "api-0"]);
    fs::write(world.path("state/deleted"), "").unwrap();
    world.refused(&["env", "check", "api"], 3, "pods \"api-0\" not found");
    world.refused(&["run", "-e", "api", "--", "true"], 125, "pods \"api-0\" not found");
    world.refused(&["env", "add", "other", "--kubectl", "api-0"], 3, "pods \"api-0\" not found");
    assert!(!world.done(&["env", "list"]).contains("other"), "nothing is written down");
    // One of the same name is reached again.
    fs::remove_file(world.path("state/deleted")).unwrap();
    assert_eq!(world.done(&["run", "-e", "api", "--", "echo", "back"]), "back\n");
}

#[test]
fn a_job_is_joined_and_ends_with_it() {
    let world = World::new().with_program();
    fs::write(world.path("state/job"), "PENDING\n").unwrap();
    world.refused(&["env", "add", "gpu", "--slurm", "9"], 3, "does not run yet: PENDING");
    fs::write(world.path("state/job"), "RUNNING\n").unwrap();
    world.done(&["env", "add", "gpu", "--slurm", "9"]);
    assert!(world.log("srun").contains("--overlap --jobid=9"), "{}", world.log("srun"));
    assert_eq!(world.done(&["run", "-e", "gpu", "--", "sh", "-c", "echo $SLURM_JOB_ID"]), "9\n");
    fs::write(world.path("state/job"), "COMPLETED\n").unwrap();
    world.refused(&["env", "check", "gpu"], 3, "the Slurm job 9 is over or not known");
    world.refused(&["env", "add", "x", "--slurm", "9;id"], 1, "is not a Slurm job number");
}

/// The way there works, so ssh is not what to look at.
#[test]
fn a_missing_program_behind_ssh_is_no_trouble_of_ssh() {
    let world = World::new().with_program();
    world.done(&["env", "add", "box", "--ssh", "me@box"]);
    fs::remove_file(world.path("inside").join("outpost")).unwrap();
    for arguments in [&["env", "check", "box"][..], &["run", "-e", "box", "--", "true"], &["doctor"]] {
        let said = text(&world.output(arguments));
        assert!(said.contains("there is no outpost there") && said.contains("outpost env upgrade box"), "{said}");
        assert!(!said.contains("behind ssh"), "{said}");
    }
}

#[test]
fn a_host_with_a_second_factor_needs_a_login_and_then_does_not() {
    let world = World::new().with_program();
    world.done(&["env", "add", "box", "--ssh", "me@box"]);
    fs::write(world.path("state/factor"), "").unwrap();
    let output = world.output(&["env", "check", "box", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &found["environments"][0]["state"]), (Some(3), &"needs login".into()), "{found}");
    assert!(found["environments"][0]["reason"].as_str().unwrap().contains("`outpost env login box`"), "{found}");
    let tries = world.log("ssh").lines().count();
    world.refused(&["run", "-e", "box", "--", "true"], 125, "outpost env login box");
    assert_eq!(world.log("ssh").lines().count(), tries + 1, "it is not tried again and again");
    let said = text(&world.output(&["env", "login", "box"]));
    assert!(said.contains("Verification code") && said.contains("box is ready"), "{said}");
    assert_eq!(world.done(&["run", "-e", "box", "--", "echo", "in"]), "in\n");
    assert!(text(&world.output(&["env", "login", "box"])).contains("logged in already"));
    world.done(&["env", "login", "box", "--end"]);
    world.refused(&["env", "check", "box"], 3, "needs login");
    world.done(&["env", "add", "far", "--url", "ws://127.0.0.1:1"]);
    world.refused(&["env", "login", "far"], 1, "only a machine behind ssh");
}

#[test]
fn hosts_are_imported_and_environments_upgraded() {
    let world = World::new().with_program();
    let config = world.path("ssh_config");
    fs::write(&config, "Host box gpu.example.org\n  User me\nHost *\n  Compression yes\n").unwrap();
    let config = config.to_str().unwrap();
    let shown = world.done(&["env", "import", "ssh", "--ssh-config", config]);
    assert!(shown.contains("gpu.example.org") && !shown.contains('*'), "{shown}");
    world.refused(&["env", "import", "ssh", "--ssh-config", config, "other"], 1, "knows no host `other`");
    world.done(&["env", "import", "ssh", "--ssh-config", config, "--all", "--offline"]);
    let listed = world.done(&["env", "list"]);
    assert!(listed.contains("box") && listed.contains("gpu-example-org"), "{listed}");
    assert!(text(&world.output(&["env", "import", "ssh", "--ssh-config", config, "--all"])).contains("nothing was added"));
    let upgraded = text(&world.output(&["env", "upgrade", "--all", "--now"]));
    assert!(upgraded.contains("box is ready") && upgraded.contains("gpu-example-org is ready"), "{upgraded}");
    world.refused(&["env", "upgrade"], 2, "NAME");
    world.refused(&["env", "upgrade", "nobody"], 1, "there is no environment `nobody`");
    assert!(Path::new(config).exists());
}

/// A program that has to be copied shows how far that is, to people only.
#[test]
fn the_copy_of_the_program_shows_how_far_it_is() {
    let world = World::new();
    let mut add = world.command(OUTPOST);
    add.args(["env", "add", "box", "--ssh", "me@box"]).env("TERM", "xterm").env_remove("OUTPOST_PLAIN");
    let mut terminal = TestTerminal::start(&add);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let shown = terminal.text();
    let (during, after) = shown.split_once("copied ").expect(&shown);
    let bar = during.rsplit("\x1b[K").find(|line| line.contains('%')).expect(during);
    assert!(bar.contains("B/s") && bar.contains(':'), "the rate and what remains: {bar:?}");
    assert!(!after.contains('%'), "it is gone in the end: {after:?}");
    let other = World::new();
    let piped = text(&other.output(&["env", "add", "box", "--ssh", "me@box"]));
    assert!(piped.contains("copied ") && !piped.contains("B/s"), "{piped}");
}
