//! X2 to X4 for file calls: the same fence as for commands, by a worker inside the sandbox.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::support::{Ground, directory, entry, give};

fn uri(path: &Path) -> String {
    PathUri::from_native(path).unwrap().to_string()
}

/// A client's file calls under one policy.
struct Files<'a> {
    client: &'a mut Client,
    sandbox: Value,
}

impl Files<'_> {
    fn params(&self, path: &Path, more: Value) -> Value {
        with(with(json!({"path": uri(path), "sandbox": self.sandbox}), json!({})), more)
    }

    async fn call(&mut self, method: &str, path: &Path, more: Value) -> Value {
        let params = self.params(path, more);
        self.client.call(method, params).await
    }

    async fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let answer = self.call("fs/readFile", path, json!({})).await;
        match answer.get("result") {
            Some(result) => Ok(decode(&result["dataBase64"])),
            None => Err(answer["error"]["message"].as_str().unwrap().to_owned()),
        }
    }

    async fn write(&mut self, path: &Path, data: &str) -> Result<(), String> {
        let answer = self.call("fs/writeFile", path, json!({"dataBase64": base64(data)})).await;
        match answer.get("result") {
            Some(_) => Ok(()),
            None => Err(answer["error"]["message"].as_str().unwrap().to_owned()),
        }
    }

    /// Every call that could change something there.
    async fn changes(&mut self, path: &Path, beside: &Path) -> Vec<(String, Value)> {
        let mut answers = Vec::new();
        for (method, params) in [
            ("fs/writeFile", self.params(path, json!({"dataBase64": base64("changed")}))),
            ("fs/open", self.params(path, json!({"handleId": "h", "mode": "replace"}))),
            ("fs/createDirectory", self.params(&path.join("made"), json!({"recursive": false}))),
            ("fs/remove", self.params(path, json!({}))),
            ("fs/rename", json!({"sourcePath": uri(path), "destinationPath": uri(&beside.join("moved")), "sandbox": self.sandbox})),
            ("fs/rename", json!({"sourcePath": uri(&beside.join("mine")), "destinationPath": uri(path), "sandbox": self.sandbox})),
            (
                "fs/copy",
                json!({"sourcePath": uri(&beside.join("mine")), "destinationPath": uri(path), "recursive": true, "sandbox": self.sandbox}),
            ),
        ] {
            answers.push((method.to_owned(), self.client.call(method, params).await));
        }
        answers
    }
}

/// A refusal names the path and the rule.
fn is_refusal(answer: &Value, path: &Path) -> bool {
    answer["error"]["message"].as_str().is_some_and(|text| text.contains(path.to_str().unwrap()) && text.contains("(os error"))
}

as_root_and_user! {
    async fn x2_files_are_written_where_the_policy_says_and_nowhere_else(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let outside = directory(who);
        let outside = outside.path().canonicalize().unwrap();
        fs::write(outside.join("file"), "theirs").unwrap();
        give(who, &outside.join("file"));
        let mut files = Files { client: &mut client, sandbox: ground.workspace_write() };
        files.write(&ground.path("made"), "by a call").await.unwrap();
        assert_eq!(files.read(&ground.path("made")).await.unwrap(), b"by a call");
        // The same for commands, and by the same user.
        let (code, output) = ground.run(files.client, &files.sandbox, "cat made && echo more >> made && echo of a command > other").await;
        assert_eq!((code, output.as_str()), (0, "by a call"));
        files.write(&ground.path("other"), "taken over").await.unwrap();
        let owners: Vec<_> = ["", "made", "other"].map(|name| fs::metadata(ground.path(name)).unwrap().uid()).into();
        assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
        // Reading is allowed everywhere by this policy, changing is not.
        assert_eq!(files.read(&outside.join("file")).await.unwrap(), b"theirs");
        fs::write(ground.path("mine"), "mine").unwrap();
        give(who, &ground.path("mine"));
        for target in [outside.join("file"), outside.join("new"), "/etc/hostname".into()] {
            for (method, answer) in files.changes(&target, &ground.path("")).await {
                assert!(is_refusal(&answer, &target), "{method} {}: {answer}", target.display());
            }
        }
        assert_eq!((fs::read(outside.join("file")).unwrap(), outside.join("new").exists()), (b"theirs".to_vec(), false));
        assert!(ground.path("mine").exists());
    }

    async fn x2_what_runs_later_outside_stays_read_only(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        fs::create_dir_all(ground.path(".git/hooks")).unwrap();
        for name in [".git", ".git/hooks"] {
            give(who, &ground.path(name));
        }
        fs::write(ground.path("mine"), "mine").unwrap();
        give(who, &ground.path("mine"));
        let mut files = Files { client: &mut client, sandbox: ground.workspace_write() };
        for name in [".git/hooks/pre-commit", ".git/config", ".agents/x", ".codex/config.toml", ".git"] {
            let path = ground.path(name);
            for (method, answer) in files.changes(&path, &ground.path("")).await {
                assert!(answer.get("error").is_some(), "{method} {name}: {answer}");
            }
            assert!(files.write(&path, "x").await.unwrap_err().contains(" is read-only ("));
        }
        assert!(!ground.path(".agents/x").is_file() && !ground.path(".git/config").exists());
        assert_eq!(fs::read_dir(ground.path(".git/hooks")).unwrap().count(), 0);
    }

    async fn x2_links_lead_only_where_the_policy_lets_them(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let outside = directory(who);
        let outside = outside.path().canonicalize().unwrap();
        for name in ["secret", "deep/secret"] {
            fs::create_dir_all(outside.join(name).parent().unwrap()).unwrap();
            fs::write(outside.join(name), "secret").unwrap();
            give(who, &outside.join(name));
        }
        symlink(outside.join("secret"), ground.path("link")).unwrap();
        symlink(&outside, ground.path("door")).unwrap();
        symlink("door/deep", ground.path("chain")).unwrap();
        symlink("/proc/self/root", ground.path("magic")).unwrap();
        fs::write(ground.path("inside"), "inside").unwrap();
        give(who, &ground.path("inside"));
        symlink(ground.path("inside"), ground.path("absolute")).unwrap();
        // Nothing but the workspace, and what programs need.
        let minimal = json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"});
        let sandbox = ground.policy(json!([minimal, entry(&ground.path(""), "write")]));
        let mut files = Files { client: &mut client, sandbox };
        assert_eq!(files.read(&ground.path("absolute")).await.unwrap(), b"inside");
        let magic = ground.path("magic").join(outside.strip_prefix("/").unwrap()).join("secret");
        let dots = ground.path("").join("..").join(outside.file_name().unwrap()).join("secret");
        for path in [outside.join("secret"), ground.path("link"), ground.path("door/secret"), ground.path("chain/secret"), magic, dots] {
            for (method, more) in [
                ("fs/readFile", json!({})),
                ("fs/open", json!({"handleId": "h"})),
                ("fs/getMetadata", json!({})),
                ("fs/canonicalize", json!({})),
                ("fs/writeFile", json!({"dataBase64": base64("changed")})),
                ("fs/open", json!({"handleId": "h", "mode": "replace"})),
            ] {
                let answer = files.call(method, &path, more).await;
                assert!(answer.get("error").is_some(), "{method} {}: {answer}", path.display());
            }
        }
        for path in [outside.clone(), ground.path("door"), ground.path("chain")] {
            let options = json!({"maxDepth": 3, "maxDirectories": 10, "maxEntries": 10, "followDirectorySymlinks": true});
            for (method, more) in [("fs/readDirectory", json!({})), ("fs/walk", json!({"options": options}))] {
                let answer = files.call(method, &path, more).await;
                assert!(!answer.to_string().contains("secret\"") && answer.get("error").is_some(), "{method} {}: {answer}", path.display());
            }
        }
        // A link is copied as a link, so that nothing comes in with it.
        let copy = json!({"sourcePath": uri(&ground.path("link")), "destinationPath": uri(&ground.path("copied")), "recursive": true,
            "sandbox": files.sandbox});
        files.client.call("fs/copy", copy).await;
        assert!(files.read(&ground.path("copied")).await.is_err());
        assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    }

    async fn x4_a_refusal_names_the_path_and_the_rule(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let sandbox = ground.read_only();
        let answer = client.call("fs/writeFile", json!({"path": ground.uri("x"), "dataBase64": "", "sandbox": sandbox})).await;
        let expected = format!("Read-only file system (os error 30): writing {} is refused: / is read-only (the policy)", ground.path("x").display());
        assert_eq!(answer["error"], json!({"code": -32603, "message": expected}));
        fs::create_dir(ground.path("hidden")).unwrap();
        fs::write(ground.path("hidden/x"), "").unwrap();
        let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
        let sandbox = ground.policy(json!([root, entry(&ground.path("hidden"), "deny")]));
        for path in [ground.path("hidden/x"), ground.path("hidden/missing")] {
            let answer = client.call("fs/readFile", json!({"path": uri(&path), "sandbox": sandbox})).await;
            let expected = format!("Permission denied (os error 13): reading {} is refused: {} is denied (the policy)", path.display(), ground.path("hidden").display());
            assert_eq!(answer["error"], json!({"code": -32600, "message": expected}));
        }
        // What is merely not there is told as that.
        let missing = client.call("fs/readFile", json!({"path": ground.uri("missing"), "sandbox": sandbox})).await;
        assert_eq!(missing["error"]["code"], -32004);
    }

    async fn x2_a_watch_tells_nothing_of_what_is_denied(who: Who) {
        let ground = Ground::new(who);
        for name in ["secret", "secret/deep", "other"] {
            fs::create_dir(ground.path(name)).unwrap();
            give(who, &ground.path(name));
        }
        let mut client = ground.client().await;
        let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
        let denied = ground.policy(json!([root, entry(&ground.path("secret"), "deny")]));
        let pattern = json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"});
        let pattern = ground.policy(json!([root, pattern]));
        for (path, recursive, sandbox) in [
            ("secret", false, &denied),
            ("secret/deep", false, &denied),
            ("secret/not-there", false, &denied),
            ("", true, &denied),
            ("", true, &pattern),
        ] {
            let params = json!({"watchId": "w", "path": ground.uri(path), "recursive": recursive, "sandbox": sandbox});
            let (_, message) = client.error("fs/watch", params).await;
            assert!(message.contains("refused"), "{path}: {message}");
        }
        client.result("fs/watch", json!({"watchId": "w", "path": ground.uri("other"), "recursive": true, "sandbox": denied})).await;
        fs::write(ground.path("secret/key"), "").unwrap();
        fs::write(ground.path("other/file"), "").unwrap();
        let told = client.until(|message| message["method"] == "fs/changed").await;
        assert!(told.to_string().contains("other/file") && !told.to_string().contains("secret"), "{told}");
    }

    async fn x1_the_executors_own_things_are_out_of_reach(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let pid = ground.executor.pid();
        let home = ground.executor.home().canonicalize().unwrap();
        let mut files = Files { client: &mut client, sandbox: ground.read_only() };
        for path in [home.join("executor/identity"), format!("/proc/{pid}/environ").into(), format!("/proc/{pid}/root/etc/passwd").into(), "/proc/1/environ".into()] {
            assert!(files.read(&path).await.is_err(), "{} can be read", path.display());
        }
        for path in ["/proc/sys/kernel/hostname", "/proc/sys/vm/swappiness", "/sys/kernel/mm/ksm/run", "/dev/kmsg"] {
            assert!(files.write(Path::new(path), "1").await.is_err(), "{path} can be written");
        }
        // Nobody can be made root by a file.
        let mut files = Files { client: &mut client, sandbox: ground.workspace_write() };
        files.write(&ground.path("tool"), "#!/bin/sh\n").await.unwrap();
        let (_, output) = ground.run(files.client, &files.sandbox, "chmod 4755 tool; chmod 755 tool && echo plain").await;
        assert!(output.contains("plain"), "{output}");
        files.write(&ground.path("tool"), "#!/bin/sh\ntrue\n").await.unwrap();
        assert_eq!(fs::metadata(ground.path("tool")).unwrap().permissions().mode() & 0o7777, 0o755);
    }

    async fn x2_no_race_gets_out(who: Who) {
        let tries: u64 = std::env::var("OUTPOST_SOAK_RACES").ok().and_then(|count| count.parse().ok()).unwrap_or(1_700);
        let ground = Ground::new(who);
        let outside = directory(who);
        let outside = outside.path().canonicalize().unwrap();
        for name in ["file", "dir/file"] {
            fs::create_dir_all(outside.join(name).parent().unwrap()).unwrap();
            fs::write(outside.join(name), "secret").unwrap();
            give(who, &outside.join(name));
        }
        give(who, &outside.join("dir"));
        let work = ground.path("");
        for name in ["real", "real/dir"] {
            fs::create_dir(work.join(name)).unwrap();
            give(who, &work.join(name));
        }
        fs::write(work.join("real/dir/file"), "inside").unwrap();
        give(who, &work.join("real/dir/file"));
        symlink(&outside, work.join("link")).unwrap();
        symlink(outside.join("file"), work.join("filelink")).unwrap();
        fs::write(work.join("filereal"), "inside").unwrap();
        give(who, &work.join("filereal"));
        // Somebody swaps a directory with a link to outside, and a file with a link, as quickly as possible.
        let over = Arc::new(AtomicBool::new(false));
        let swapper = std::thread::spawn({
            let (over, work) = (over.clone(), work.clone());
            move || {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                while !over.load(Ordering::Relaxed) {
                    let _ = renameat_with(CWD, work.join("real"), CWD, work.join("link"), RenameFlags::EXCHANGE);
                    let _ = renameat_with(CWD, work.join("filereal"), CWD, work.join("filelink"), RenameFlags::EXCHANGE);
                }
            }
        });
        let minimal = json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"});
        let sandbox = ground.policy(json!([minimal, entry(&work, "write")]));
        let mut client = ground.client().await;
        let mut seen = [0, 0];
        let targets = ["real/dir/file", "link/dir/file", "filereal", "filelink"].map(|name| work.join(name));
        // Several rounds at once: the executor is never idle, and a million calls take minutes.
        for first in (0..tries).step_by(16) {
            let rounds: Vec<_> = (first..tries.min(first + 16))
                .map(|round| {
                    let path = &targets[round as usize % targets.len()];
                    let made = path.with_file_name("made");
                    let read = client.request("fs/readFile", json!({"path": uri(path), "sandbox": sandbox}));
                    let writes = [path, &made].map(|path| {
                        client.request("fs/writeFile", json!({"path": uri(path), "dataBase64": base64("inside"), "sandbox": sandbox}))
                    });
                    (round, read, writes)
                })
                .collect();
            for (round, read, writes) in rounds {
                let answer = client.answer(read).await;
                for write in writes {
                    client.answer(write).await;
                }
                seen[usize::from(answer.get("result").is_some())] += 1;
                if let Some(data) = answer.get("result") {
                    assert_ne!(decode(&data["dataBase64"]), b"secret", "read from outside in round {round}");
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
        for name in ["file", "dir/file"] {
            assert_eq!(fs::read(outside.join(name)).unwrap(), b"secret", "written outside");
        }
        assert!(!outside.join("made").exists() && !outside.join("dir/made").exists(), "made outside");
        assert!(seen.iter().all(|count| *count > 0), "the race was never close: {seen:?}");
        eprintln!("{} calls were raced as {who:?}; none got out ({seen:?} reads refused and answered)", tries * 3);
    }

    async fn l8_a_sandboxed_write_keeps_modes_and_other_names(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let (alone, linked, other) = (ground.path("alone"), ground.path("linked"), ground.path("other"));
        for path in [&alone, &linked] {
            fs::write(path, "old").unwrap();
            give(who, path);
            fs::set_permissions(path, fs::Permissions::from_mode(0o750)).unwrap();
        }
        fs::hard_link(&linked, &other).unwrap();
        let mut files = Files { client: &mut client, sandbox: ground.workspace_write() };
        for path in [&alone, &linked] {
            files.write(path, "new").await.unwrap();
            assert_eq!((fs::read(path).unwrap(), fs::metadata(path).unwrap().mode() & 0o7777), (b"new".to_vec(), 0o750));
        }
        assert_eq!((fs::read(&other).unwrap(), fs::metadata(&other).unwrap().nlink()), (b"new".to_vec(), 2));
        // A large file goes both ways, and a directory in one piece.
        let large = "x".repeat(3 << 20);
        files.write(&alone, &large).await.unwrap();
        assert!(files.read(&alone).await.unwrap() == large.as_bytes());
        let listed = files.call("fs/readDirectory", &ground.path(""), json!({})).await;
        assert!(listed["result"]["entries"].as_array().unwrap().iter().any(|entry| entry["fileName"] == "alone"), "{listed}");
    }
}
