//! X2: what is denied or protected stays so while links are changed inside, and while files are replaced outside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use outpost_testkit::Client;
use outpost_testkit::bench::{connect, with};
use outpost_testkit::executor::eventually;
use outpost_wire::PathUri;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::{Ground, Who, directory, entry, give, number};

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn policy(ground: &Ground, denied: &[Value]) -> Value {
    let mut entries = vec![special("root", "read"), special("project_roots", "write")];
    entries.extend_from_slice(denied);
    ground.policy(json!(entries))
}

fn pattern(pattern: &str) -> Value {
    json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"})
}

/// A file of the workspace's owner, written as editors do: aside, and then renamed.
fn save(who: Who, path: &Path, text: &str) {
    let aside = path.with_file_name(format!("aside-{}", number()));
    fs::write(&aside, text).unwrap();
    give(who, &aside);
    fs::rename(&aside, path).unwrap();
}

fn make_directory(who: Who, path: &Path) {
    fs::create_dir(path).unwrap();
    give(who, path);
}

/// A client that hears what sandboxes lose.
async fn listening(ground: &Ground) -> Client {
    let mut client = Client::new(connect(ground.executor.url()).await);
    client.greet(json!({"clientName": "test", "extensions": ["sandboxLosses"]})).await;
    client
}

async fn loss(client: &mut Client, path: &Path) -> Value {
    let uri = PathUri::from_native(path).unwrap().to_string();
    client.until(|message| message["method"] == "sandbox/loss" && message["params"]["path"] == uri.as_str()).await["params"].clone()
}

/// Neither a command nor a file call reads a secret.
async fn assert_secret(ground: &Ground, client: &mut Client, sandbox: &Value, file: &Path) {
    let (code, output) = ground.run(client, sandbox, &format!("cat '{}'", file.display())).await;
    assert!(code != 0 && !output.contains("secret"), "{}: {output}", file.display());
    let uri = PathUri::from_native(file).unwrap().to_string();
    let answer = client.call("fs/readFile", json!({"path": uri, "sandbox": sandbox})).await;
    assert!(answer.get("error").is_some(), "{}: {answer}", file.display());
}

/// A secret outside of the workspace, to which `link` leads, and a directory `decoy` beside the link.
fn linked_secret(who: Who, ground: &Ground) -> (tempfile::TempDir, PathBuf) {
    let outside = directory(who);
    let real = outside.path().canonicalize().unwrap();
    fs::write(real.join("key"), "secret").unwrap();
    give(who, &real.join("key"));
    make_directory(who, &ground.path("decoy"));
    symlink(&real, ground.path("link")).unwrap();
    (outside, real)
}

/// A command under a policy that denies `link`, then one that lets it lead elsewhere; the policy of the first.
async fn repoint(ground: &Ground, client: &mut Client) -> Value {
    let denied = policy(ground, &[entry(&ground.path("link"), "deny")]);
    assert_eq!(ground.run(client, &denied, "true").await.0, 0);
    let (code, output) = ground.run(client, &policy(ground, &[]), "ln -sfn decoy link").await;
    assert_eq!(code, 0, "{output}");
    denied
}

/// Starts a script that waits for the file `go` and then does something.
async fn waiting(ground: &Ground, client: &mut Client, sandbox: &Value, script: &str) -> String {
    let id = number();
    let script = format!("echo ready; until [ -e go ]; do sleep 0.01; done; {script}");
    client.start(with(ground.shell(&id, &script), json!({"sandbox": sandbox}))).await;
    client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == id.as_str()).await;
    id
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn a_link_that_is_changed_gives_nothing_back(who: Who) {
        let ground = Ground::new(who);
        let outside = directory(who);
        let real = outside.path().canonicalize().unwrap();
        fs::write(real.join("key"), "secret").unwrap();
        give(who, &real.join("key"));
        make_directory(who, &ground.path("decoy"));
        make_directory(who, &ground.path("deep"));
        for name in ["link", "deep/link"] {
            symlink(&real, ground.path(name)).unwrap();
        }
        let mut client = ground.client().await;
        let denied = policy(&ground, &[entry(&ground.path("link"), "deny"), entry(&ground.path("deep/link/key"), "deny")]);
        for script in ["ln -sfn decoy link", "rm link", "mv link x", "ln -sfn ../decoy deep/link", "mv deep other", "mkdir d && mv -T d deep"] {
            let (code, output) = ground.run(&mut client, &denied, script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        // The link still leads where it led, for those who may go there.
        assert_eq!(fs::read_link(ground.path("link")).unwrap(), real);
        // Under a policy that does not speak of it, the same session may change it; where it led stays denied.
        let (code, output) = ground.run(&mut client, &policy(&ground, &[]), "ln -sfn decoy link && ln -sfn ../decoy deep/link").await;
        assert_eq!(code, 0, "{output}");
        assert_secret(&ground, &mut client, &denied, &real.join("key")).await;
        assert_secret(&ground, &mut client, &denied, &ground.path("link/key")).await;
        assert_secret(&ground, &mut client, &denied, &ground.path("deep/link/key")).await;
    }

    #[needs(MOUNTS)]
    async fn where_denied_paths_led_survives_a_kill(who: Who) {
        let ground = Ground::new(who);
        let (_outside, real) = linked_secret(who, &ground);
        let mut client = Client::new(connect(ground.executor.url()).await);
        let session = client.hello().await;
        let denied = repoint(&ground, &mut client).await;
        drop(client);
        let ground = ground.killed(who);
        let mut client = Client::new(connect(ground.executor.url()).await);
        assert_eq!(client.resume(&session).await, session);
        assert_secret(&ground, &mut client, &denied, &real.join("key")).await;
    }

    #[needs(MOUNTS)]
    async fn where_denied_paths_led_survives_adoption(who: Who) {
        let ground = Ground::new(who);
        let (_outside, real) = linked_secret(who, &ground);
        let (mut old, mut new) = (ground.client().await, ground.client().await);
        let denied = repoint(&ground, &mut old).await;
        let claim = |epoch: u64| json!({"secret": "0123456789abcdef0123456789abcdef", "epoch": epoch});
        old.start(with(ground.shell("runs", "sleep 600"), json!({"sandbox": denied, "adoption": claim(1)}))).await;
        new.result("process/adopt", with(claim(2), json!({"processId": "runs"}))).await;
        assert_secret(&ground, &mut new, &denied, &real.join("key")).await;
    }

    async fn nothing_is_given_by_a_link_that_sandboxed_code_changed(who: Who) {
        let ground = Ground::new(who);
        let (given, other) = (directory(who), directory(who));
        let (given, other) = (given.path().canonicalize().unwrap(), other.path().canonicalize().unwrap());
        symlink(&given, ground.path("out")).unwrap();
        let mut client = ground.client().await;
        let both = policy(&ground, &[entry(&ground.path("out"), "write")]);
        assert_eq!(ground.run(&mut client, &both, "echo x > out/file").await, (0, String::new()));
        let script = format!("ln -sfn {} out", other.display());
        let (code, output) = ground.run(&mut client, &policy(&ground, &[]), &script).await;
        assert_eq!(code, 0, "{output}");
        let start = with(ground.shell(&number(), "echo x > out/file"), json!({"sandbox": both}));
        let (_, message) = client.error("process/start", start).await;
        assert!(message.contains("leads to") && message.contains(other.to_str().unwrap()), "{message}");
        assert!(!other.join("file").exists());
    }

    #[needs(MOUNTS)]
    async fn a_file_that_is_replaced_outside_stays_denied(who: Who) {
        let ground = Ground::new(who);
        save(who, &ground.path(".env"), "secret");
        save(who, &ground.path(".envrc"), "old");
        let mut client = listening(&ground).await;
        let denied = policy(&ground, &[entry(&ground.path(".env"), "deny")]);
        let runs = waiting(&ground, &mut client, &denied, "cat .env; echo evil >> .envrc; echo end").await;
        // The next command, and a file call before any.
        for round in 0..3 {
            save(who, &ground.path(".env"), &format!("secret {round}"));
            if round == 1 {
                let answer = client.call("fs/readFile", json!({"path": ground.uri(".env"), "sandbox": denied})).await;
                assert!(answer.get("error").is_some(), "{answer}");
            }
            save(who, &ground.path(".envrc"), "new");
            let (_, output) = ground.run(&mut client, &denied, "cat .env; echo evil >> .envrc; rm -f .envrc; cat .envrc").await;
            assert!(!output.contains("secret") && output.contains("new"), "{output}");
            assert_eq!(fs::read_to_string(ground.path(".envrc")).unwrap(), "new");
        }
        // Each loss is told, and what already ran is held again.
        for name in [".env", ".envrc"] {
            let told = loss(&mut client, &ground.path(name)).await;
            assert_eq!(told["outcome"], "restored", "{told}");
        }
        fs::write(ground.path("go"), "").unwrap();
        let (_, output) = client.outcome(&runs).await;
        let output = String::from_utf8_lossy(&output);
        assert!(!output.contains("secret") && output.contains("end"), "{output}");
        assert_eq!(fs::read_to_string(ground.path(".envrc")).unwrap(), "new");
    }

    #[needs(MOUNTS)]
    async fn a_repository_that_is_made_anew_outside_stays_as_it_is(who: Who) {
        let ground = Ground::new(who);
        let make = || {
            for name in [".git", ".git/hooks"] {
                make_directory(who, &ground.path(name));
            }
        };
        make();
        let mut client = listening(&ground).await;
        let policy = policy(&ground, &[]);
        let attack = "echo evil > .git/hooks/pre-commit; mv .git x; echo end";
        let runs = waiting(&ground, &mut client, &policy, attack).await;
        for round in 0..3 {
            fs::rename(ground.path(".git"), ground.path(&format!("old-{round}"))).unwrap();
            make();
            let (_, output) = ground.run(&mut client, &policy, attack).await;
            assert!(output.contains("end"), "{output}");
            assert!(!ground.path(".git/hooks/pre-commit").exists() && !ground.path("x").exists(), "{output}");
        }
        assert_eq!(loss(&mut client, &ground.path(".git")).await["held"], "readOnly");
        fs::write(ground.path("go"), "").unwrap();
        let (_, output) = client.outcome(&runs).await;
        assert!(!ground.path(".git/hooks/pre-commit").exists() && !ground.path("x").exists(), "{}", String::from_utf8_lossy(&output));
    }

    #[needs(MOUNTS)]
    async fn a_protected_file_that_is_removed_outside_is_not_made_inside(who: Who) {
        let ground = Ground::new(who);
        save(who, &ground.path(".codex"), "old");
        let mut client = listening(&ground).await;
        let policy = policy(&ground, &[]);
        let runs = waiting(&ground, &mut client, &policy, "echo evil > .codex; echo end").await;
        fs::remove_file(ground.path(".codex")).unwrap();
        let told = loss(&mut client, &ground.path(".codex")).await;
        assert_eq!(told["outcome"], "missing", "{told}");
        let (_, output) = ground.run(&mut client, &policy, "echo evil > .codex; mkdir .codex/x; echo end").await;
        assert!(output.contains("end") && !ground.path(".codex").is_file() && !ground.path(".codex/x").exists(), "{output}");
        fs::write(ground.path("go"), "").unwrap();
        client.outcome(&runs).await;
        assert!(!ground.path(".codex").is_file());
        // Whoever makes it again outside gets it: the placeholder is an empty directory.
        save(who, &ground.path("aside"), "mine");
        // On a busy machine the next placeholder may be there before the rename.
        while fs::remove_dir(ground.path(".codex")).is_ok() && fs::rename(ground.path("aside"), ground.path(".codex")).is_err() {}
        let (_, output) = ground.run(&mut client, &policy, "echo evil >> .codex; cat .codex").await;
        assert!(output.contains("mine") && fs::read_to_string(ground.path(".codex")).unwrap() == "mine", "{output}");
    }

    #[needs(MOUNTS)]
    async fn what_is_made_where_a_protected_name_was_removed_is_told(who: Who) {
        let ground = Ground::new(who);
        let mut client = listening(&ground).await;
        let policy = policy(&ground, &[]);
        let runs = waiting(&ground, &mut client, &policy, "echo evil > .agents/skill; echo end").await;
        // A command that already runs could do the same in the moment in which there is no placeholder.
        make_directory(who, &ground.path("aside"));
        save(who, &ground.path("aside/skill"), "planted");
        fs::remove_dir(ground.path(".agents")).unwrap();
        assert_eq!(loss(&mut client, &ground.path(".agents")).await["outcome"], "missing");
        fs::rename(ground.path("aside"), ground.path(".agents")).unwrap();
        // On a busy machine the next placeholder is there before the rename, which takes it away.
        let told = loss(&mut client, &ground.path(".agents")).await;
        assert!(told["outcome"] == "made" || told["outcome"] == "restored", "{told}");
        fs::write(ground.path("go"), "").unwrap();
        client.outcome(&runs).await;
        assert_eq!(fs::read_to_string(ground.path(".agents/skill")).unwrap(), "planted");
        client.result("session/end", json!({})).await;
        // It is no placeholder of ours.
        eventually("the other placeholder is gone", || !ground.path(".codex").exists()).await;
        assert!(ground.path(".agents/skill").exists());
    }

    #[needs(MOUNTS)]
    async fn what_comes_to_match_a_pattern_is_denied(who: Who) {
        let ground = Ground::new(who);
        make_directory(who, &ground.path("sub"));
        save(who, &ground.path("first.env"), "secret");
        let mut client = ground.client().await;
        let denied = policy(&ground, &[pattern("**/*.env")]);
        // It ends as soon as it is refused, or when it has read for five seconds.
        let reading = "for i in $(seq 500); do cat sub/new/late.env > /dev/null 2>&1 || exit 7; sleep 0.01; done; exit 0";
        let runs = waiting(&ground, &mut client, &denied, reading).await;
        save(who, &ground.path("second.env"), "secret");
        save(who, &ground.path("sub/third.env"), "secret");
        let (_, output) = ground.run(&mut client, &denied, "cat first.env second.env sub/third.env; echo end").await;
        assert!(output.contains("end") && !output.contains("secret"), "{output}");
        // In a directory that is new, and one that came whole.
        make_directory(who, &ground.path("sub/new"));
        save(who, &ground.path("sub/new/late.env"), "secret");
        let whole = directory(who);
        save(who, &whole.path().join("x.env"), "secret");
        fs::rename(whole.keep(), ground.path("moved")).unwrap();
        let (_, output) = ground.run(&mut client, &denied, "cat sub/new/late.env moved/x.env; echo end").await;
        assert!(output.contains("end") && !output.contains("secret"), "{output}");
        fs::write(ground.path("go"), "").unwrap();
        assert_eq!(client.outcome(&runs).await.0, 7);
        // A flood of names overflows every queue; nothing is forgotten.
        for number in 0..20_000 {
            fs::write(ground.path(&format!("sub/{number}.txt")), "").unwrap();
        }
        save(who, &ground.path("sub/last.env"), "secret");
        save(who, &ground.path("first.env"), "secret");
        let (_, output) = ground.run(&mut client, &denied, "cat sub/last.env first.env; echo end").await;
        assert!(output.contains("end") && !output.contains("secret"), "{output}");
    }

    #[needs(MOUNTS)]
    async fn a_workspace_that_is_made_anew_is_held_like_the_first(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("project");
        let fill = || {
            make_directory(who, &root);
            save(who, &root.join(".env"), "secret");
        };
        fill();
        let uri = PathUri::from_native(&root).unwrap().to_string();
        let denied = with(policy(&ground, &[entry(&root.join(".env"), "deny")]), json!({"cwd": uri, "workspaceRoots": [uri]}));
        let mut client = listening(&ground).await;
        let script = format!("cd {} && cat .env; echo x > made && echo evil > .codex; echo end", root.display());
        let (_, output) = ground.run(&mut client, &denied, &script).await;
        assert!(output.contains("end") && !output.contains("secret") && root.join("made").exists(), "{output}");
        fs::rename(&root, ground.path("old")).unwrap();
        fill();
        let (_, output) = ground.run(&mut client, &denied, &script).await;
        assert!(output.contains("end") && !output.contains("secret") && root.join("made").exists(), "{output}");
        assert!(!root.join(".codex").is_file());
        assert_eq!(loss(&mut client, &root).await["held"], "root");
    }

    #[needs(MOUNTS)]
    async fn a_directory_on_the_way_that_becomes_a_link_shows_nothing(who: Who) {
        let ground = Ground::new(who);
        make_directory(who, &ground.path("a"));
        save(who, &ground.path("a/key"), "secret");
        make_directory(who, &ground.path("b"));
        save(who, &ground.path("b/key"), "secret");
        let mut client = ground.client().await;
        let denied = policy(&ground, &[entry(&ground.path("a/key"), "deny")]);
        assert_eq!(ground.run(&mut client, &denied, "true").await.0, 0);
        fs::rename(ground.path("a"), ground.path("c")).unwrap();
        symlink("b", ground.path("a")).unwrap();
        // What the path leads to now is denied, and what it led to is still hidden where it went.
        assert_secret(&ground, &mut client, &denied, &ground.path("a/key")).await;
        assert_secret(&ground, &mut client, &denied, &ground.path("b/key")).await;
    }

    // The system gives the number of a mount that is gone to the next one: a file that lost its mount is not taken for one that has it
    // because the directory around it was held anew.
    #[needs(MOUNTS)]
    async fn numbers_of_mounts_that_are_used_again_hide_nothing(who: Who) {
        let ground = Ground::new(who);
        // Something may have been put there to keep the names.
        let fill = || {
            let _ = fs::create_dir(ground.path("deep"));
            give(who, &ground.path("deep"));
            // A placeholder may come between the two.
            while fs::write(ground.path("deep/key"), "secret").is_err() {
                let _ = fs::remove_dir(ground.path("deep/key"));
            }
            give(who, &ground.path("deep/key"));
        };
        fill();
        let mut client = ground.client().await;
        let denied = policy(&ground, &[entry(&ground.path("deep/key"), "deny")]);
        assert_eq!(ground.run(&mut client, &denied, "true").await.0, 0);
        for round in 0..40 {
            fill();
            fs::rename(ground.path("deep"), ground.path(&format!("old-{round}"))).unwrap();
            fs::remove_dir_all(ground.path(&format!("old-{round}"))).unwrap();
            fill();
            let (_, output) = ground.run(&mut client, &denied, "cat deep/key; echo end").await;
            assert!(output.contains("end") && !output.contains("secret"), "in round {round}: {output}");
        }
    }

    // A directory that was replaced is heard in like the first one, also by a guard that is not asked.
    #[needs(MOUNTS)]
    async fn changes_in_a_directory_that_was_replaced_are_heard(who: Who) {
        let ground = Ground::new(who);
        make_directory(who, &ground.path("deep"));
        save(who, &ground.path("deep/key"), "secret");
        let mut client = listening(&ground).await;
        let denied = policy(&ground, &[entry(&ground.path("deep/key"), "deny")]);
        // It ends as soon as it is refused, or when it has read for ten seconds. Nothing else is started: only what the guard hears counts.
        let reading = "for i in $(seq 1000); do cat deep/key > /dev/null 2>&1 || exit 7; sleep 0.01; done; exit 0";
        let runs = waiting(&ground, &mut client, &denied, reading).await;
        fs::rename(ground.path("deep"), ground.path("old")).unwrap();
        fs::remove_dir_all(ground.path("old")).unwrap();
        assert_eq!(loss(&mut client, &ground.path("deep/key")).await["outcome"], "missing");
        let _ = fs::create_dir(ground.path("deep"));
        give(who, &ground.path("deep"));
        for _ in 0..5 {
            while fs::write(ground.path("deep/key"), "secret").is_err() {
                let _ = fs::remove_dir(ground.path("deep/key"));
            }
            give(who, &ground.path("deep/key"));
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        }
        fs::write(ground.path("go"), "").unwrap();
        assert_eq!(client.outcome(&runs).await.0, 7);
    }

    // In a workspace that is made anew, what matches a pattern is hidden from what already runs, too.
    #[needs(MOUNTS)]
    async fn patterns_hold_in_a_workspace_that_was_made_anew(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("project");
        let fill = || {
            make_directory(who, &root);
            save(who, &root.join("x.pem"), "secret");
        };
        fill();
        let uri = PathUri::from_native(&root).unwrap().to_string();
        let about = json!({"cwd": uri, "workspaceRoots": [uri]});
        let denied = with(policy(&ground, &[pattern("**/*.pem")]), about);
        let mut client = listening(&ground).await;
        let id = number();
        // It ends as soon as it is refused, or when it has read for ten seconds.
        let reading = format!("echo ready; until [ -e {0}/go ]; do sleep 0.01; done; for i in $(seq 1000); do cat {0}/x.pem || exit 7; sleep 0.01; done", root.display());
        client.start(with(ground.shell(&id, &reading), json!({"sandbox": denied, "cwd": "file:///"}))).await;
        client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == id.as_str()).await;
        fs::rename(&root, ground.path("old")).unwrap();
        fs::remove_file(ground.path("old/x.pem")).unwrap();
        fill();
        fs::write(root.join("go"), "").unwrap();
        assert_eq!(client.outcome(&id).await.0, 7);
    }

    #[needs(MOUNTS)]
    async fn what_another_executor_needs_no_more_is_no_loss(who: Who) {
        let (first, second) = (Ground::new(who), Ground::new(who));
        // The second works where the first does.
        let sandbox = policy(&first, &[entry(&first.path(".env"), "deny")]);
        let mut other = first.client().await;
        assert_eq!(first.run(&mut other, &sandbox, "true").await.0, 0);
        let stands = |name: &str| {
            let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            let found = statx(CWD, first.path(name), AtFlags::empty(), flags).ok()?;
            let is_directory = FileType::from_raw_mode(found.stx_mode.into()).is_dir();
            is_directory.then_some((found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
        };
        let of_the_first = (stands(".codex").unwrap(), stands(".env").unwrap());
        let mut client = listening(&second).await;
        let id = number();
        let waits = "cd $0; echo ready; until [ -e go ]; do sleep 0.01; done; mkdir .codex/x .env/x; echo x > .codex; echo end";
        let root = first.path("").display().to_string();
        let start = with(second.shell(&id, waits), json!({"sandbox": sandbox, "argv": ["/bin/sh", "-c", waits, root]}));
        client.start(start).await;
        client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == id.as_str()).await;
        other.result("session/end", json!({})).await;
        // Our own come to stand where the other executor's went, for what already runs as well.
        let is_ours = |name: &str, was| stands(name).is_some_and(|now| now != was);
        eventually("placeholders are back", || is_ours(".codex", of_the_first.0) && is_ours(".env", of_the_first.1)).await;
        assert_eq!(second.run(&mut client, &sandbox, "true").await.0, 0);
        fs::write(first.path("go"), "").unwrap();
        let (_, output) = client.outcome(&id).await;
        assert!(String::from_utf8_lossy(&output).contains("end"));
        assert!(!first.path(".codex/x").exists() && !first.path(".codex").is_file() && !first.path(".env/x").exists());
        let told = client.quiet(std::time::Duration::from_millis(300)).await;
        let losses: Vec<_> = told.iter().filter(|message| message["method"] == "sandbox/loss").collect();
        assert!(losses.is_empty(), "{losses:?}");
    }

    #[needs(MOUNTS)]
    async fn attributes_and_links_are_those_of_the_sandbox(who: Who) {
        let ground = Ground::new(who);
        save(who, &ground.path(".env"), "secret");
        save(who, &ground.path(".envrc"), "old");
        save(who, &ground.path("file"), "text");
        let mut client = ground.client().await;
        let denied = policy(&ground, &[entry(&ground.path(".env"), "deny")]);
        let at = |name: &str| json!({"path": ground.uri(name), "sandbox": denied});
        let attributes = client.result("fs/getAttributes", at("file")).await;
        assert_eq!((&attributes["kind"], &attributes["size"]), (&json!("file"), &json!(4)));
        client.result("fs/setMode", with(at("file"), json!({"mode": 0o600}))).await;
        client.result("fs/createLink", with(at("link"), json!({"target": "file"}))).await;
        assert_eq!(client.result("fs/getAttributes", at("link")).await["linkTarget"], "file");
        let listed = client.result("fs/listAttributes", at("")).await;
        assert!(listed["entries"].as_array().unwrap().iter().any(|entry| entry["name"] == "link"), "{listed}");
        for (method, params) in [
            ("fs/getAttributes", at(".env")),
            ("fs/setMode", with(at(".env"), json!({"mode": 0o644}))),
            ("fs/setMode", with(at(".envrc"), json!({"mode": 0o777}))),
            ("fs/createLink", with(at(".agents"), json!({"target": "file"}))),
            ("fs/createLink", json!({"path": "file:///etc/outpost-link", "target": "file", "sandbox": denied})),
        ] {
            let (_, message) = client.error(method, params).await;
            assert!(message.contains("refused"), "{method}: {message}");
        }
    }
}

/// How long a command that already runs sees what was replaced outside: not a test but a figure, for SECURITY.md.
/// `cargo test --test security -- --ignored --nocapture the_window`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints a figure"]
async fn the_window_that_remains() {
    const ROUNDS: usize = 300;
    // Reads as fast as it can, and says for how long it got something each time.
    const READER: &str = "import os, time
print('ready', flush=True)
first = last = rounds = 0
while rounds % 64 or not os.path.exists('go'):
    rounds += 1
    try:
        file = os.open('.env', os.O_RDONLY)
        data = os.read(file, 9)
        os.close(file)
    except OSError:
        data = b''
    now = time.time()
    if data:
        first, last = first or now, now
    elif first:
        print(int((last - first) * 1e6))
        first = 0
";
    for who in [Who::Root, Who::User].into_iter().filter(|who| *who == Who::User || crate::support::is_root()) {
        let ground = Ground::new(who);
        save(who, &ground.path(".env"), "secret");
        let mut client = listening(&ground).await;
        let denied = policy(&ground, &[entry(&ground.path(".env"), "deny")]);
        let id = number();
        client.start(with(ground.shell(&id, ""), json!({"sandbox": denied, "argv": ["/usr/bin/python3", "-c", READER]}))).await;
        client.until(|message| message["method"] == "process/output").await;
        for _ in 0..ROUNDS {
            save(who, &ground.path(".env"), "secret");
            loss(&mut client, &ground.path(".env")).await;
        }
        fs::write(ground.path("go"), "").unwrap();
        let (_, output) = client.outcome(&id).await;
        let output = String::from_utf8_lossy(&output).into_owned();
        let mut windows: Vec<u64> = output.lines().filter_map(|line| line.parse().ok()).collect();
        windows.sort_unstable();
        let at = |part: usize| windows.get((windows.len() * part / 100).min(windows.len().saturating_sub(1))).copied().unwrap_or(0);
        eprintln!(
            "{who:?}: seen in {} of {ROUNDS} replacements; median {} µs, p99 {} µs, most {} µs",
            windows.len(),
            at(50),
            at(99),
            at(100)
        );
    }
}
