//! X3: what a killed executor leaves in a workspace stands in no program's way, and goes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Exit, IdleCells, Launch, LaunchIo, Launcher, LauncherSettings};
use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::json;

use crate::as_root_and_user;
use crate::card::{MOUNTS, PROTECTED, can_mount, denies};
use crate::support::{Ground, Who, give, is_root, number};

as_root_and_user! {
    #[needs(PROTECTED)]
    async fn after_a_kill_the_same_workspace_works(who: Who) {
        let ground = Ground::new(who);
        let names = [&b"plain"[..], b"two\nlines", b"\xff\xfe"].map(|name| ground.path("").join(OsStr::from_bytes(name)));
        names.iter().for_each(|path| {
            fs::create_dir(path).unwrap();
            give(who, path);
        });
        let policy = |ground: &Ground, root: &PathBuf| {
            let uri = PathUri::from_native(root).unwrap().to_string();
            with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}))
        };
        let mut client = ground.client().await;
        for root in &names {
            assert_eq!(ground.run(&mut client, &policy(&ground, root), "true").await.0, 0);
            assert!(root.join(".codex").is_dir());
        }
        let ground = ground.killed(who);
        // The first start in the same place, and nothing of the old one in the others.
        let mut client = ground.client().await;
        let (code, output) = ground.run(&mut client, &policy(&ground, &names[0]), "echo fine").await;
        assert_eq!((code, output.as_str()), (0, "fine\n"));
        for root in &names[1..] {
            assert_eq!(fs::read_dir(root).unwrap().count(), 0, "{root:?}");
        }
        client.result("session/end", json!({})).await;
        outpost_testkit::executor::eventually("placeholders are gone", || fs::read_dir(&names[0]).unwrap().count() == 0).await;
    }

    async fn after_a_polite_end_nothing_is_left(who: Who) {
        let mut ground = Ground::new(who);
        let mut client = ground.client().await;
        assert_eq!(ground.run(&mut client, &ground.workspace_write(), "true").await.0, 0);
        client.start(with(ground.shell(&number(), "sleep 300"), json!({"sandbox": ground.workspace_write()}))).await;
        assert_eq!(ground.executor.stop(), Some(0));
        let run = ground.executor.home().join("run");
        let left: Vec<_> = walk(&run);
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(fs::read_dir(ground.path("")).unwrap().count(), 0);
    }

    #[needs(MOUNTS)]
    async fn directories_that_their_owner_may_not_enter_are_removed_as_well(who: Who) {
        let mut ground = Ground::new(who);
        let mut client = ground.client().await;
        let close = "mkdir -p /tmp/closed/inner && chmod 0 /tmp/closed/inner /tmp/closed";
        assert_eq!(ground.run(&mut client, &ground.workspace_write(), close).await, (0, String::new()));
        assert_eq!(ground.executor.stop(), Some(0));
        let left = walk(&ground.executor.home().join("run"));
        assert!(left.is_empty(), "{left:?}");
    }
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn sandboxes_that_are_not_used_are_let_go(who: Who) {
        const ROOTS: usize = 24;
        let ground = Ground::new(who);
        let roots: Vec<PathBuf> = (0..ROOTS).map(|n| ground.path("").join(format!("root-{n}"))).collect();
        roots.iter().for_each(|path| {
            fs::create_dir(path).unwrap();
            give(who, path);
        });
        let policy = |root: &PathBuf| {
            let uri = PathUri::from_native(root).unwrap().to_string();
            with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}))
        };
        let is_held = |root: &PathBuf| root.join(".codex").exists();
        let mut client = ground.client().await;
        // Something goes on in the second one, and a file call was made in the third.
        for root in &roots[..3] {
            assert_eq!(ground.run(&mut client, &policy(root), "true").await.0, 0);
        }
        let left = roots[1].join("left");
        let script = format!("while :; do echo x >> '{}'; sleep 0.05; done", left.display());
        client.start(with(ground.shell("left", &script), json!({"sandbox": policy(&roots[1])}))).await;
        let call = |root: &PathBuf| json!({"path": PathUri::from_native(&root.join("said")).unwrap().to_string(), "dataBase64": "eA==", "sandbox": policy(root)});
        client.result("fs/writeFile", call(&roots[2])).await;
        let few = helpers(ground.executor.pid());
        for root in &roots[3..] {
            assert_eq!(ground.run(&mut client, &policy(root), "true").await.0, 0);
            client.result("fs/writeFile", call(root)).await;
        }
        let executor = ground.executor.pid();
        outpost_testkit::executor::eventually("the first ones are let go", || !is_held(&roots[0]) && !is_held(&roots[2])).await;
        // Sixteen that rest and the one in which something runs: each is itself, its guard, one that starts programs and one for files.
        outpost_testkit::executor::eventually("their helpers end", || helpers(executor) <= 17 * 5 + 4).await;
        assert!(few < helpers(executor) && is_held(&roots[1]) && is_held(&roots[ROOTS - 1]));
        let length = || fs::metadata(&left).unwrap().len();
        let before = length();
        outpost_testkit::executor::eventually("what ran goes on", || length() > before).await;
        // A client that comes back finds everything as it was, for commands and for files.
        let script = format!("cd '{}'; cat said; touch .codex/x 2> /dev/null || echo held", roots[2].display());
        let (code, said) = ground.run(&mut client, &policy(&roots[2]), &script).await;
        assert_eq!((code, said.as_str()), (0, "xheld\n"));
        client.result("fs/writeFile", call(&roots[0])).await;
        assert_eq!(fs::read(roots[0].join("said")).unwrap(), b"x");
    }
}

/// Whatever a program outside mounts on a placeholder, and whenever it takes it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placeholder_under_a_mount_is_removed_when_the_mount_is_gone() {
    let who = Who::Root;
    if !is_root() || !can_mount() || denies(who, &[PROTECTED]).await {
        return;
    }
    let ground = Ground::new(who);
    let (project, own) = (ground.path(""), tempfile::tempdir().unwrap());
    fs::write(own.path().join("own"), "").unwrap();
    let placeholder = project.join(".codex");
    let mount = |words: &[&str], paths: &[&Path]| assert!(Command::new(words[0]).args(&words[1..]).args(paths).status().unwrap().success());
    let mut client = ground.client().await;
    assert_eq!(ground.run(&mut client, &ground.workspace_write(), "true").await.0, 0);
    mount(&["mount", "--bind"], &[own.path(), &placeholder]);
    // Neither the next executor nor the end of its session may lose sight of it.
    let ground = ground.killed(who);
    let mut client = ground.client().await;
    assert_eq!(ground.run(&mut client, &ground.workspace_write(), "true").await.0, 0);
    mount(&["umount"], &[&placeholder]);
    client.result("session/end", json!({})).await;
    outpost_testkit::executor::eventually("nothing is left", || fs::read_dir(&project).unwrap().count() == 0).await;
    assert!(own.path().join("own").exists());
}

/// Processes that came of one, and of those.
fn helpers(of: u32) -> usize {
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid: &u32| *pid != of && std::iter::successors(Some(*pid), |pid| parent(*pid)).any(|above| above == of)).count()
}

/// The processes that fork sandboxes for this very process.
fn zygotes() -> usize {
    let own = std::process::id().to_string();
    let is_own = |pid: &str| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let parent = read("stat").rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1).map(str::to_owned));
        parent.as_deref() == Some(&own) && read("cmdline").contains("__zygote")
    };
    fs::read_dir("/proc").unwrap().flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_own)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_that_rest_for_long_end_and_so_does_the_process_that_forks_them() {
    let scratch = tempfile::tempdir().unwrap();
    let idle = IdleCells { patience: Duration::from_millis(300), ..IdleCells::default() };
    let settings = LauncherSettings { scratch: Some(scratch.path().join("cells")), idle, ..LauncherSettings::default() };
    let owner = Launcher::new(crate::support::OUTPOST, settings).owner();
    let launch = |program: &str, argument: &str| Launch {
        connect: None,
        program: program.into(),
        arg0: None,
        args: vec![argument.into()],
        env: Vec::new(),
        cwd: "/".into(),
        io: LaunchIo::Pipes { stdin: false },
        policy: Policy::Open,
    };
    for _ in 0..2 {
        let mut quick = owner.start(&launch("/bin/true", "")).unwrap();
        let mut slow = owner.start(&launch("/bin/sleep", "1")).unwrap();
        assert_eq!(quick.end.wait().await, Exit::Code(0));
        assert_eq!(zygotes(), 1);
        assert_eq!(slow.end.wait().await, Exit::Code(0), "it was not let go while something ran in it");
        // A handle of a child keeps its sandbox.
        drop((quick, slow));
        outpost_testkit::executor::eventually("nothing of it is left", || zygotes() == 0).await;
    }
}

/// Every file below a directory.
fn walk(directory: &std::path::Path) -> Vec<PathBuf> {
    let mut left = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files
}
