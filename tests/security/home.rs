//! The home of the executor's user: tools write into a layer of the workspace, and keys and tokens are not seen.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::as_root_and_user;
use crate::card::{KEPT, MOUNTS, is_at_least};
use crate::support::{Ground, Who, directory, entry, give};

/// A home with tools, caches, settings and keys in it.
fn home(who: Who) -> TempDir {
    let home = directory(who);
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for (name, text) in [
        (".cache/old/blob", "cached"),
        (".config/tool/settings", "theirs"),
        (".config/gh/hosts.yml", "oauth_token: secret-1"),
        (".ssh/id_ed25519", "secret-2"),
        (".ssh/config", "Host example\n"),
        (".aws/credentials", "secret-3"),
        (".netrc", "secret-4"),
        (".npmrc", "fund=false\n//r.example.org/:_authToken=secret-5\n"),
        (".docker/config.json", "{\"auths\": {\"r.example.org\": {\"auth\": \"secret-6\"}}, \"detachKeys\": \"ctrl-a\"}"),
        (".cargo/credentials.toml", "secret-7"),
        (".bash_history", "secret-8"),
        ("notes/today", "theirs"),
        (".bashrc", "theirs"),
    ] {
        put(who, home.path(), name, text);
    }
    home
}

fn put(who: Who, home: &Path, name: &str, text: &str) {
    let path = home.join(name);
    let parent = path.parent().unwrap();
    fs::create_dir_all(parent).unwrap();
    parent.ancestors().take_while(|ancestor| *ancestor != home).for_each(|ancestor| give(who, ancestor));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    give(who, &path);
}

/// Everything that is in a directory, with its bytes.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => drop(found.insert(entry.path(), fs::read(entry.path()).unwrap())),
            }
            found.entry(entry.path()).or_default();
        }
    }
    found
}

async fn run(ground: &Ground, client: &mut Client, policy: &Value, home: &TempDir, script: &str) -> (i64, String) {
    ground.run(client, policy, &format!("export HOME={}; cd $HOME; {script}", home.path().canonicalize().unwrap().display())).await
}

/// The workspace policy for a directory of this name.
fn in_workspace(ground: &Ground, who: Who, name: &str) -> Value {
    let path = ground.path(name);
    if !path.exists() {
        fs::create_dir(&path).unwrap();
        give(who, &path);
    }
    let uri = PathUri::from_native(&path).unwrap().to_string();
    with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}))
}

as_root_and_user! {
    #[needs(MOUNTS, KEPT)]
    async fn tools_write_into_a_layer_and_the_home_stays_as_it_is(who: Who) {
        let home = home(who);
        let before = contents(home.path());
        let ground = Ground::at_home(who, home.path(), &[]);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        // What is there is read, changed, removed and replaced; what is not there is made.
        let script = "cat .cache/old/blob && echo new > .cache/new && mkdir -p .npm/_logs go/pkg .local/share/x && echo x > .npm/_logs/l && \
            echo ours > .config/tool/settings && rm -r .cache/old && mv .cache/new .cache/newer && ln -s /etc .config/link && chmod 755 .config/tool && \
            printf '#!/bin/sh\\necho planted\\n' > .local/share/x/run && chmod +x .local/share/x/run && .local/share/x/run";
        assert_eq!(run(&ground, &mut client, &policy, &home, script).await, (0, "cachedplanted\n".into()));
        // Another command, and one of another policy, find what the first one left.
        let found = "cat .cache/newer .config/tool/settings .npm/_logs/l; test ! -e .cache/old && cat notes/today";
        assert_eq!(run(&ground, &mut client, &policy, &home, found).await, (0, "new\nours\nx\ntheirs".into()));
        let online = with(policy.clone(), json!({}));
        let mut online = online;
        online["permissions"]["network"] = json!("enabled");
        assert_eq!(run(&ground, &mut client, &online, &home, &format!("{found} && echo online > .cache/online")).await.0, 0);
        assert_eq!(run(&ground, &mut client, &ground.read_only(), &home, "cat .cache/online && ! touch .cache/x").await.1.lines().next(), Some("online"));
        // Everything else is as read-only as it was.
        for script in ["touch new", "echo >> .bashrc", "echo > notes/today", "rm notes/today", "mkdir .new", "mv .bashrc .cache/", "rmdir .cache", "mv .cache x"] {
            let (code, output) = run(&ground, &mut client, &policy, &home, script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        assert_eq!(contents(home.path()), before);
        // The next session of the same workspace goes on with it.
        client.result("session/end", json!({})).await;
        let mut client = ground.client().await;
        assert_eq!(run(&ground, &mut client, &policy, &home, found).await, (0, "new\nours\nx\ntheirs".into()));
        assert_eq!(contents(home.path()), before);
        // File calls see and write the same.
        let at = |name: &str| json!({"path": PathUri::from_native(&home.path().canonicalize().unwrap().join(name)).unwrap().to_string(), "sandbox": policy});
        client.result("fs/writeFile", with(at(".cache/call"), json!({"dataBase64": "Y2FsbA=="}))).await;
        assert_eq!(client.result("fs/readFile", at(".cache/call")).await["dataBase64"], "Y2FsbA==");
        assert_eq!(run(&ground, &mut client, &policy, &home, "cat .cache/call").await, (0, "call".into()));
        assert!(!home.path().join(".cache/call").exists());
        client.error("fs/writeFile", with(at("notes/call"), json!({"dataBase64": "Y2FsbA=="}))).await;
    }

    #[needs(MOUNTS)]
    async fn a_layer_is_its_workspaces_own(who: Who) {
        let home = home(who);
        let ground = Ground::at_home(who, home.path(), &[]);
        let (one, other) = (in_workspace(&ground, who, "one"), in_workspace(&ground, who, "other"));
        let mut client = ground.client().await;
        assert_eq!(run(&ground, &mut client, &one, &home, "echo mine > .cache/mine; rm -r .cache/old").await.0, 0);
        let (code, output) = run(&ground, &mut client, &other, &home, "test ! -e .cache/mine && cat .cache/old/blob").await;
        assert_eq!((code, output.as_str()), (0, "cached"));
        // A session at the same time has a layer of its own, of the same workspace as well.
        let mut second = ground.client().await;
        let (code, output) = run(&ground, &mut second, &one, &home, "echo x > .cache/second; test ! -e .cache/mine && cat .cache/old/blob").await;
        assert_eq!((code, output.as_str()), (0, "cached"));
        assert_eq!(run(&ground, &mut client, &one, &home, "test ! -e .cache/second && cat .cache/mine").await, (0, "mine\n".into()));
        // Where the layers are kept cannot be seen.
        let own = ground.executor.home().join("layers");
        assert!(own.is_dir());
        let (code, output) = run(&ground, &mut client, &one, &home, &format!("ls {} {}", own.display(), own.parent().unwrap().display())).await;
        assert_ne!(code, 0, "{output}");
        let (_, output) = run(&ground, &mut client, &one, &home, "cat /proc/self/mountinfo").await;
        // Containers of the machine may have mounts of the same names elsewhere.
        let above = format!("{}/", ground.executor.home().canonicalize().unwrap().display());
        let is_ours = |line: &&str| line.split(' ').nth(4).is_some_and(|point| point.starts_with(&above));
        assert_eq!(output.lines().find(is_ours), None);
    }

    async fn keys_and_tokens_are_not_seen(who: Who) {
        let home = home(who);
        let ground = Ground::at_home(who, home.path(), &[]);
        let mut client = ground.client().await;
        let all = "grep -r secret- . ; cat .ssh/* .aws/* .netrc .npmrc .docker/config.json .config/gh/* .cargo/credentials.toml .bash_history; true";
        for policy in [ground.workspace_write(), ground.read_only()] {
            let (_, output) = run(&ground, &mut client, &policy, &home, all).await;
            assert!(!output.contains("secret-"), "{output}");
            // Landlock alone can only close such settings.
            let are_shown = is_at_least(who, MOUNTS).await;
            assert!(!are_shown || output.contains("fund=false") && output.contains("ctrl-a") && output.contains("Host example"), "{output}");
        }
        let policy = ground.workspace_write();
        // Nothing that is done inside uncovers them.
        for script in [
            "mkdir -p .config/gh && rmdir .config/gh; cat .config/gh/*",
            "rm -rf .config/gh .ssh/* .docker/config.json; mkdir -p .docker; cat .docker/config.json .ssh/id_ed25519",
            "mv .config/tool .config/t2; cp -r .config .cache/c; cat .cache/c/gh/*",
            "ln -s ../.aws .cache/aws; cat .cache/aws/credentials",
            "cat /proc/self/root$HOME/.netrc /proc/self/cwd/.netrc",
        ] {
            let (_, output) = run(&ground, &mut client, &policy, &home, script).await;
            assert!(!output.contains("secret-"), "{script}: {output}");
        }
        // What comes later is not seen either, by programs that run already as well.
        let id = crate::support::number();
        let waits = format!("cd {0}; while ! test -e {1}/go; do sleep 0.02; done; cat .pypirc .gnupg/private-keys-v1.d/* .config/gh/*; echo end", home.path().display(), ground.path("").display());
        client.start(with(ground.shell(&id, &waits), json!({"sandbox": policy}))).await;
        put(who, home.path(), ".pypirc", "secret-9");
        put(who, home.path(), ".gnupg/private-keys-v1.d/k", "secret-10");
        fs::remove_dir_all(home.path().join(".config/gh")).unwrap();
        put(who, home.path(), ".config/gh/hosts.yml", "secret-11");
        fs::write(ground.path("go"), "").unwrap();
        let (_, output) = client.outcome(&id).await;
        let output = String::from_utf8_lossy(&output).into_owned();
        assert!(output.contains("end") && !output.contains("secret-"), "{output}");
        let (_, output) = run(&ground, &mut client, &policy, &home, "cat .pypirc .gnupg/private-keys-v1.d/* .config/gh/*").await;
        assert!(!output.contains("secret-"), "{output}");
        // File calls.
        for name in [".netrc", ".aws/credentials", ".ssh/id_ed25519", ".pypirc"] {
            let uri = PathUri::from_native(&home.path().canonicalize().unwrap().join(name)).unwrap().to_string();
            client.error("fs/readFile", json!({"path": uri, "sandbox": policy})).await;
        }
        // A policy that names one of them shows that one.
        let path = home.path().canonicalize().unwrap();
        let entries = json!([entry(Path::new("/"), "read"), entry(&ground.path(""), "write"), entry(&path.join(".aws"), "read")]);
        let (_, output) = run(&ground, &mut client, &ground.policy(entries), &home, all).await;
        assert!(output.contains("secret-3") && !output.contains("secret-2") && !output.contains("secret-1\n"), "{output}");
    }

    #[needs(MOUNTS)]
    async fn a_workspace_in_the_home_is_the_real_one(who: Who) {
        let home = home(who);
        put(who, home.path(), "go/src/project/main.go", "package main");
        put(who, home.path(), "go/pkg/old", "old");
        let work = home.path().canonicalize().unwrap().join("go/src/project");
        give(who, &work);
        let ground = Ground::at_home(who, home.path(), &[]);
        let uri = PathUri::from_native(&work).unwrap().to_string();
        let policy = with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}));
        let mut client = ground.client().await;
        let script = "cd go/src/project && echo made > made && cat main.go && echo x > ../../pkg/new && cat ../../pkg/old";
        assert_eq!(run(&ground, &mut client, &policy, &home, script).await, (0, "package mainold".into()));
        assert_eq!(fs::read_to_string(work.join("made")).unwrap(), "made\n");
        assert!(!home.path().join("go/pkg/new").exists());
        // What is changed outside is seen at once.
        put(who, home.path(), "go/src/project/later", "later");
        put(who, home.path(), "notes/later", "later");
        assert_eq!(run(&ground, &mut client, &policy, &home, "cat go/src/project/later notes/later").await, (0, "laterlater".into()));
    }

    #[needs(MOUNTS)]
    async fn a_command_in_the_home_itself_sees_no_keys(who: Who) {
        let home = home(who);
        let ground = Ground::at_home(who, home.path(), &[]);
        let uri = PathUri::from_native(&home.path().canonicalize().unwrap()).unwrap().to_string();
        let policy = with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}));
        let mut client = ground.client().await;
        let (_, output) = run(&ground, &mut client, &policy, &home, "cat .ssh/* .aws/* .netrc .npmrc .config/gh/* .bash_history; echo x > .cache/x; echo end").await;
        assert!(output.contains("end") && !output.contains("secret-"), "{output}");
        // It is written as the policy says: there is no layer over what may be written.
        assert_eq!(fs::read_to_string(home.path().join(".cache/x")).unwrap(), "x\n");
        assert!(run(&ground, &mut client, &policy, &home, "echo evil >> .bashrc").await.0 != 0);
    }

    #[needs(MOUNTS, KEPT)]
    async fn a_layer_that_is_too_large_is_emptied(who: Who) {
        let home = home(who);
        let ground = Ground::at_home(who, home.path(), &["--limit", "home-layer=8M"]);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let id = crate::support::number();
        let script = format!("cd {}; head -c 32M /dev/zero > .cache/large; while :; do sleep 0.1; done", home.path().display());
        client.start(with(ground.shell(&id, &script), json!({"sandbox": policy}))).await;
        let (code, _) = client.outcome(&id).await;
        assert_ne!(code, 0);
        assert_eq!(run(&ground, &mut client, &policy, &home, "test ! -e .cache/large && echo x > .cache/x && cat .cache/x").await, (0, "x\n".into()));
    }
}

/// A directory on an overlay of so many layers: one cannot hold the upper directory of another, and over two there can be none.
struct Stacked(TempDir, Vec<PathBuf>);

impl Stacked {
    fn new(who: Who, depth: usize) -> Self {
        let top = directory(who);
        let mut stacked = Self(top, Vec::new());
        let mut lower = stacked.0.path().join("lower");
        fs::create_dir(&lower).unwrap();
        give(who, &lower);
        for number in 0..depth {
            let [upper, work, merged] = ["upper", "work", "merged"].map(|name| stacked.0.path().join(format!("{name}{number}")));
            // The next one needs an upper directory on a disk that holds one.
            [&upper, &work, &merged].into_iter().for_each(|path| {
                fs::create_dir(path).unwrap();
                give(who, path);
            });
            let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
            let mounted = std::process::Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged).status();
            assert!(mounted.unwrap().success());
            stacked.1.push(merged.clone());
            lower = merged;
        }
        stacked
    }

    fn path(&self) -> &Path {
        self.1.last().unwrap()
    }
}

impl Drop for Stacked {
    fn drop(&mut self) {
        for merged in self.1.iter().rev() {
            let _ = std::process::Command::new("umount").arg("-l").arg(merged).status();
        }
    }
}

async fn row(client: &mut Client, promise: &str) -> Value {
    let info = client.result("environment/info", json!({})).await;
    let rows = info["sandbox"].as_array().unwrap().clone();
    rows.iter().find(|row| row["promise"] == promise).unwrap_or_else(|| panic!("{rows:?}")).clone()
}

const LAYER: &str = "tools write their caches and settings into a layer of the workspace";
const KEYS: &str = "keys and tokens in the home are not seen";
const ALL_KEYS: &str =
    "grep -r secret- . ; cat .ssh/* .aws/* .netrc .npmrc .docker/config.json .config/gh/* .cargo/credentials.toml .bash_history; true";

as_root_and_user! {
    #[needs(crate::card::MOUNTS)]
    async fn where_the_disk_holds_no_layer_it_is_in_memory_and_goes_with_the_session(who: Who) {
        if !crate::support::is_root() || !crate::card::can_mount() {
            return;
        }
        let disk = Stacked::new(who, 1);
        let home = home(who);
        let before = contents(home.path());
        let ground = Ground::at_home_on(who, home.path(), disk.path());
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let script = "cat .cache/old/blob && echo new > .cache/new && mkdir -p .npm/_logs && echo ours > .config/tool/settings && rm -r .cache/old && ! touch notes/x 2>/dev/null";
        assert_eq!(run(&ground, &mut client, &policy, &home, script).await, (0, "cached".into()));
        let layer = row(&mut client, LAYER).await;
        assert!(layer["holds"] == json!(true) && layer["mechanism"] == "overlay, in memory", "{layer}");
        assert!(layer["reason"].as_str().unwrap().contains("goes with the session"), "{layer}");
        // The next command and another policy of the session find it; keys are as hidden as anywhere.
        assert_eq!(run(&ground, &mut client, &policy, &home, "cat .cache/new .config/tool/settings; test ! -e .cache/old").await, (0, "new\nours\n".into()));
        assert_eq!(run(&ground, &mut client, &ground.read_only(), &home, "cat .cache/new").await, (0, "new\n".into()));
        let (_, output) = run(&ground, &mut client, &policy, &home, ALL_KEYS).await;
        assert!(!output.contains("secret-") && output.contains("fund=false"), "{output}");
        assert_eq!(contents(home.path()), before);
        client.result("session/end", json!({})).await;
        let mut client = ground.client().await;
        assert_eq!(run(&ground, &mut client, &policy, &home, "test ! -e .cache/new && cat .cache/old/blob").await, (0, "cached".into()));
        assert_eq!(contents(home.path()), before);
    }

    #[needs(crate::card::MOUNTS)]
    async fn where_no_overlay_can_be_mounted_keys_are_masked_and_caches_read_only(who: Who) {
        if !crate::support::is_root() || !crate::card::can_mount() {
            return;
        }
        let disk = Stacked::new(who, 2);
        let filled = home(who);
        let there = disk.path().join("home");
        assert!(std::process::Command::new("cp").arg("-a").arg(filled.path()).arg(&there).status().unwrap().success());
        let home = TempDir::with_prefix_in("home-", disk.path()).unwrap();
        fs::remove_dir(home.path()).unwrap();
        fs::rename(&there, home.path()).unwrap();
        let before = contents(home.path());
        let ground = Ground::at_home(who, home.path(), &[]);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        assert_eq!(ground.run(&mut client, &policy, "echo x > made && cat made").await, (0, "x\n".into()));
        // Root's home is closed to others, and cannot be shown to the sandbox's user on such a disk.
        if who == Who::User {
            let (code, output) = run(&ground, &mut client, &policy, &home, "cat .cache/old/blob .config/tool/settings && ! touch .cache/new 2>/dev/null").await;
            assert_eq!((code, output.as_str()), (0, "cachedtheirs"));
        }
        let layer = row(&mut client, LAYER).await;
        assert!(layer["holds"] == json!(false) && layer["mechanism"] == "none" && layer["reason"].is_string(), "{layer}");
        assert_eq!(row(&mut client, KEYS).await["holds"], json!(true));
        for policy in [ground.workspace_write(), ground.read_only()] {
            let (_, output) = run(&ground, &mut client, &policy, &home, ALL_KEYS).await;
            assert!(!output.contains("secret-"), "{output}");
        }
        // Keys that were replaced outside stay hidden for the next command.
        fs::remove_file(home.path().join(".netrc")).unwrap();
        put(who, home.path(), ".netrc", "secret-12");
        let (_, output) = run(&ground, &mut client, &policy, &home, ALL_KEYS).await;
        assert!(!output.contains("secret-"), "{output}");
        for name in [".aws/credentials", ".ssh/id_ed25519"] {
            let uri = PathUri::from_native(&home.path().canonicalize().unwrap().join(name)).unwrap().to_string();
            client.error("fs/readFile", json!({"path": uri, "sandbox": policy})).await;
        }
        fs::write(home.path().join(".netrc"), "secret-4").unwrap();
        assert_eq!(contents(home.path()), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_level_landlock_keys_cannot_be_read_and_caches_not_written() {
    use crate::levels::{NO_NAMESPACES, in_a_world};
    if crate::card::denies(Who::User, &[crate::card::FULL]).await {
        return;
    }
    let home = home(Who::User);
    let before = contents(home.path());
    let ground = Ground::after_at_home(Who::User, &in_a_world(NO_NAMESPACES), home.path());
    let mut client = ground.client().await;
    assert_eq!(row(&mut client, "a level of the sandbox").await["mechanism"], json!("landlock"));
    let layer = row(&mut client, LAYER).await;
    assert!(layer["holds"] == json!(false) && layer["reason"].as_str().unwrap().contains("without mounts"), "{layer}");
    let keys = row(&mut client, KEYS).await;
    assert!(keys["holds"] == json!(true) && keys["mechanism"] == "Landlock" && keys["reason"].is_string(), "{keys}");
    let policy = ground.workspace_write();
    let (code, output) = run(
        &ground,
        &mut client,
        &policy,
        &home,
        "cat .cache/old/blob .config/tool/settings notes/today && ! touch .cache/new 2>/dev/null",
    )
    .await;
    assert_eq!((code, output.as_str()), (0, "cachedtheirstheirs"));
    for policy in [ground.workspace_write(), ground.read_only()] {
        let (_, output) = run(&ground, &mut client, &policy, &home, ALL_KEYS).await;
        assert!(!output.contains("secret-"), "{output}");
    }
    assert_eq!(contents(home.path()), before);
}
