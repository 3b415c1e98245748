//! Machines that hold less than everything: what is told of them holds, and what cannot be held is refused or told.
//!
//! Each executor here is started where something is forbidden that the stronger levels need: user namespaces, as in docker's default
//! container, or a process table of its own, as in podman's.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use serde_json::{Value, json};

use crate::card::{FULL, MOUNTS, can_mount, denies};
use crate::support::{Ground, OUTPOST, Who, directory, entry, is_root, number};

/// As an ordinary user in a world of its own, where it can forbid itself something; it has no rights afterwards.
pub(crate) fn in_a_world(forbid: &str) -> String {
    let user = if is_root() { 54_321 } else { rustix::process::geteuid().as_raw() };
    format!(
        "exec unshare -U --map-user={user} --map-group={user} --keep-caps -m -- sh -c '{forbid}; exec setpriv --inh-caps=-all --ambient-caps=-all \"$0\" executor --no-auth' \"$0\""
    )
}

pub(crate) const NO_NAMESPACES: &str = "echo 0 > /proc/sys/user/max_user_namespaces";
/// Every process table that can be seen is masked: the kernel allows a fresh one as long as one of them is whole.
pub(crate) const MASKED: &str = "while read -r _ at kind _; do test $kind != proc || mount -t tmpfs none $at/acpi || mount --bind /dev/null $at/kcore; done < /proc/self/mounts";

async fn row(client: &mut Client, promise: &str) -> Value {
    let info = client.result("environment/info", json!({})).await;
    let rows = info["sandbox"].as_array().unwrap().clone();
    rows.iter().find(|row| row["promise"] == promise).unwrap_or_else(|| panic!("{rows:?}")).clone()
}

/// Why a command is not started.
async fn refusal(ground: &Ground, client: &mut Client, sandbox: &Value) -> String {
    let answer = client.call("process/start", with(ground.shell(&number(), "true"), json!({"sandbox": sandbox}))).await;
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_namespaces_landlock_holds() {
    if denies(Who::User, &[FULL]).await {
        return;
    }
    let ground = Ground::after(Who::User, &in_a_world(NO_NAMESPACES));
    let elsewhere = directory(Who::User);
    let outside = elsewhere.path().join("file");
    std::fs::write(&outside, "kept").unwrap();
    crate::support::give(Who::User, &outside);
    let mut client = ground.client().await;
    let level = row(&mut client, "a level of the sandbox").await;
    assert_eq!((&level["mechanism"], &level["holds"]), (&json!("landlock"), &json!(true)), "{level}");
    assert!(level["reason"].as_str().unwrap().contains("namespaces"), "{level}");
    // What cannot be held is told by name.
    let protected = row(&mut client, "protected paths stay read-only, also before they exist").await;
    assert!(protected["holds"] == json!(false) && protected["reason"].as_str().unwrap().contains(".git"), "{protected}");
    let git = row(&mut client, "of a repository only what is committed and staged leaves a sandbox").await;
    assert!(git["holds"] == json!(false) && git["reason"].as_str().unwrap().contains("unprotected"), "{git}");
    let policy = ground.workspace_write();
    let (out, own, pid) = (outside.display(), ground.executor.home().display().to_string(), ground.executor.pid());
    let attacks = [
        (
            "the workspace and /tmp can be written",
            "echo x > here && mkdir d && mv here d/ && echo x > /tmp/outpost-levels-$$ && rm /tmp/outpost-levels-$$".to_owned(),
            true,
        ),
        ("something else cannot", format!("echo x > {out}"), false),
        ("nor emptied", format!("perl -e 'truncate(\"{out}\", 0) or exit 1'"), false),
        ("nor emptied by opening", format!("perl -MFcntl -e 'sysopen(my $f, \"{out}\", O_RDONLY | O_TRUNC) or exit 1'"), false),
        ("nor removed, renamed or linked", format!("rm -f {out} || mv {out} x || ln {out} x"), false),
        ("nor anything made beside it", format!("touch {}/new", elsewhere.path().display()), false),
        ("it can be read", format!("cat {out}"), true),
        ("the executor's own files cannot", format!("ls {own} || cat {own}/*"), false),
        ("no network", "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_STREAM, 0) or exit 1'".to_owned(), false),
        ("no sockets of other programs", "perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit 1'".to_owned(), false),
        ("a pair of its own", "perl -MSocket -e 'socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or exit 1'".to_owned(), true),
        ("the executor cannot be looked into", format!("cat /proc/{pid}/environ || ls /proc/{pid}/root/"), false),
        ("no new namespaces", "unshare -U true".to_owned(), false),
        ("no set-id files", "cp /bin/true t && chmod u+s t".to_owned(), false),
        ("no memory of others", "perl -e 'shmget(7, 100, 0666 | 512) or exit 1'".to_owned(), false),
        (
            "no rights to be had",
            "grep -q '^CapEff:.*[1-9a-f]' /proc/self/status || ! grep -q 'NoNewPrivs:.*1' /proc/self/status".to_owned(),
            false,
        ),
    ];
    for (what, script, works) in attacks {
        let (code, output) = ground.run(&mut client, &policy, &script).await;
        assert_eq!(code == 0, works, "{what}: {output}");
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
    let others = row(&mut client, "other processes are out of reach").await;
    let (code, _) = ground.run(&mut client, &policy, &format!("kill -CONT {pid}")).await;
    assert_eq!(others["holds"] == json!(true), code != 0, "{others}");
    let (code, output) = ground.run(&mut client, &ground.read_only(), "touch x").await;
    assert_ne!(code, 0, "{output}");
    // File calls are held by the same.
    let denied = client.call("fs/writeFile", json!({"path": format!("file://{out}"), "dataBase64": "eA==", "sandbox": policy})).await;
    assert!(denied.get("error").is_some(), "{denied}");
    // What Landlock cannot take away inside a writable root is refused.
    let root = |more: Value| {
        let mut entries = vec![entry(Path::new("/"), "read"), entry(&ground.path(""), "write")];
        entries.push(more);
        ground.policy(json!(entries))
    };
    for more in [
        entry(&ground.path("secret"), "deny"),
        entry(&ground.path("vendor"), "read"),
        json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"}),
    ] {
        let refused = refusal(&ground, &mut client, &root(more)).await;
        assert!(refused.contains("level `mounts`") && refused.contains("holds `landlock`"), "{refused}");
    }
}

/// Landlock knows directories and not their names: one that was moved away must not stay writable for what is started next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_namespaces_a_workspace_that_is_made_anew_is_the_new_one() {
    if denies(Who::User, &[FULL]).await {
        return;
    }
    let ground = Ground::after(Who::User, &in_a_world(NO_NAMESPACES));
    let (root, old) = (ground.path("project"), ground.path("old"));
    let make = || {
        std::fs::create_dir(&root).unwrap();
        crate::support::give(Who::User, &root);
    };
    make();
    let uri = |path: &Path| format!("file://{}", path.display());
    let policy = with(
        ground.policy(json!([entry(Path::new("/"), "read"), entry(&root, "write")])),
        json!({"cwd": uri(&root), "workspaceRoots": [uri(&root)]}),
    );
    let mut client = ground.client().await;
    let write = |path: &Path| json!({"path": uri(path), "dataBase64": "eA==", "sandbox": policy});
    // A worker that makes file calls is there before, too.
    client.result("fs/writeFile", write(&root.join("first"))).await;
    std::fs::rename(&root, &old).unwrap();
    make();
    client.result("fs/writeFile", write(&root.join("second"))).await;
    let (code, output) = ground.run(&mut client, &policy, &format!("cd {} && echo x > third", root.display())).await;
    assert_eq!(code, 0, "{output}");
    assert!(root.join("second").exists() && root.join("third").exists());
    let (code, output) = ground.run(&mut client, &policy, &format!("echo x > {}/third", old.display())).await;
    assert_ne!(code, 0, "{output}");
    let refused = client.call("fs/writeFile", write(&old.join("second"))).await;
    assert!(refused.get("error").is_some(), "{refused}");
    assert!(old.join("first").exists() && !old.join("second").exists() && !old.join("third").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_masked_process_table_mounts_hold() {
    if denies(Who::User, &[MOUNTS]).await {
        return;
    }
    let ground = Ground::after(Who::User, &in_a_world(MASKED));
    let mut client = ground.client().await;
    let level = row(&mut client, "a level of the sandbox").await;
    assert_eq!((&level["mechanism"], &level["holds"]), (&json!("mounts"), &json!(true)), "{level}");
    assert!(level["reason"].as_str().unwrap().contains("process table"), "{level}");
    let (policy, pid) = (ground.workspace_write(), ground.executor.pid());
    let attacks = [
        ("the workspace can be written", "echo x > here && cat here".to_owned(), true),
        ("protected names cannot", "mv .git x || touch .codex/x".to_owned(), false),
        ("nothing else can", "touch /var/tmp/x || echo 1 > /proc/sys/kernel/panic".to_owned(), false),
        ("/tmp is its own", "test -z \"$(ls -A /tmp)\" && touch /tmp/x".to_owned(), true),
        ("the executor cannot be looked into", format!("cat /proc/{pid}/environ || ls /proc/{pid}/root/ || cat /proc/{pid}/mem"), false),
        (
            "the loopback is there",
            "perl -MIO::Socket -e 'IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1)) or exit 1'".to_owned(),
            true,
        ),
        ("a process knows itself", "test -e /proc/$$/status && test \"$(cat /proc/self/comm)\" = cat".to_owned(), true),
    ];
    for (what, script, works) in attacks {
        let (code, output) = ground.run(&mut client, &policy, &script).await;
        assert_eq!(code == 0, works, "{what}: {output}");
    }
    let others = row(&mut client, "other processes are out of reach").await;
    let (code, _) = ground.run(&mut client, &policy, &format!("kill -CONT {pid}")).await;
    assert_eq!(others["holds"] == json!(true), code != 0, "{others}");
    let secret = ground.policy(json!([
        entry(Path::new("/"), "read"),
        entry(&ground.path(""), "write"),
        json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"}),
    ]));
    std::fs::write(ground.path("x.env"), "secret").unwrap();
    let (code, output) = ground.run(&mut client, &secret, "cat x.env").await;
    assert!(code != 0 && !output.contains("secret"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn less_than_the_minimum_is_refused() {
    if denies(Who::User, &[FULL]).await {
        return;
    }
    let script = in_a_world(NO_NAMESPACES).replace("executor --no-auth", "-c sandbox_minimum=mounts executor --no-auth");
    let ground = Ground::after(Who::User, &script);
    let mut client = ground.client().await;
    let refused = refusal(&ground, &mut client, &ground.workspace_write()).await;
    assert!(refused.contains("level `landlock`") && refused.contains("sandbox_minimum = \"mounts\""), "{refused}");
    assert_eq!(row(&mut client, "a level of the sandbox").await["holds"], json!(false));
    // Nobody is told that it is ready.
    let home = tempfile::tempdir().unwrap();
    let outpost = |arguments: &[&str]| Command::new(OUTPOST).args(arguments).env("OUTPOST_HOME", home.path()).output().unwrap();
    assert!(outpost(&["env", "add", "box", "--url", ground.executor.url()]).status.success());
    let checked = outpost(&["env", "check", "box"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success() && said.contains("failed") && said.contains("no sandboxed command can be started there"), "{said}");
    // Without a sandbox it is not asked.
    client.start(ground.shell("free", "echo free")).await;
    assert_eq!(client.outcome("free").await, (0, b"free\n".to_vec()));
}

/// Writes what is there already: harmless if it works, which it must not.
const SETTINGS: &str =
    "cat /proc/sys/kernel/core_pattern > settings; ! cat settings > /proc/sys/kernel/core_pattern && ! echo 0 > /proc/self/oom_score_adj";

/// A workspace on a file system whose users cannot be mapped.
struct Overlay(tempfile::TempDir);

impl Overlay {
    fn new() -> Self {
        let point = directory(Who::Root);
        let options = |layers: &Path| format!("lowerdir={0}/l,upperdir={0}/u,workdir={0}/w", layers.display());
        let layers = point.path().join("layers");
        for name in ["layers", "layers/l", "layers/u", "layers/w", "work"] {
            std::fs::create_dir(point.path().join(name)).unwrap();
        }
        let mount = Command::new("mount").args(["-t", "overlay", "none", "-o", &options(&layers)]).arg(point.path().join("work")).status();
        assert!(mount.unwrap().success());
        Self(point)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("work")).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_workspace_without_idmapped_mounts_is_its_owners() {
    if !is_root() || !can_mount() {
        return;
    }
    let overlay = Overlay::new();
    let work = overlay.0.path().join("work").canonicalize().unwrap();
    let ground = Ground::new(Who::Root);
    let mut client = ground.client().await;
    let policy = json!({
        "permissions": {"type": "managed", "network": "restricted",
            "file_system": {"type": "restricted", "entries": [entry(Path::new("/"), "read"), entry(&work, "write")]}},
        "cwd": format!("file://{}", work.display()), "windowsSandboxLevel": "disabled",
    });
    let (work_text, beside) = (work.display(), overlay.0.path().join("beside"));
    let script = format!(
        "cd {work_text} && test $(id -u) -ne 0 && echo made > made && ! touch {0} && ! touch /usr/x && ! mount -t tmpfs none /mnt && \
         ! grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && ! touch .codex/x && {SETTINGS}",
        beside.display()
    );
    let (code, output) = ground.run(&mut client, &policy, &script).await;
    assert_eq!(code, 0, "{output}");
    let made = std::fs::metadata(work.join("made")).unwrap();
    assert_eq!((made.uid(), beside.exists()), (0, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_without_the_right_to_mount_works_as_the_owner() {
    if !is_root() || denies(Who::Root, &[FULL]).await {
        return;
    }
    let ground =
        Ground::after(Who::Root, "exec setpriv --bounding-set=-sys_admin,-sys_ptrace --inh-caps=-all -- \"$0\" executor --no-auth");
    let mut client = ground.client().await;
    assert_eq!(row(&mut client, "a level of the sandbox").await["mechanism"], json!("full"));
    let script = format!("test $(id -u) -ne 0 && echo x > made && touch .git/x && ! touch .codex/x && ! touch /usr/x && {SETTINGS}");
    let (code, output) = ground.run(&mut client, &ground.workspace_write(), &script).await;
    assert_eq!(code, 0, "{output}");
    assert_eq!(std::fs::metadata(ground.path("made")).unwrap().uid(), 0);
    assert!(!ground.path(".git/x").exists());
}
