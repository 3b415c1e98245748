//! X2: what is denied stays denied, however it is named, and whatever was renamed before.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::{MOUNTS, can_mount};
use crate::support::{Bound, Ground, Who, directory, entry, give, is_root, number};

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn pattern(pattern: &str) -> Value {
    json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"})
}

/// The same policy, which is another sandbox.
fn with_network(policy: &Value) -> Value {
    let mut policy = policy.clone();
    policy["permissions"]["network"] = json!("enabled");
    policy
}

/// A policy whose work is in one directory, which may be written.
fn about(ground: &Ground, root: &Path, denied: &[Value]) -> Value {
    let mut entries = vec![special("root", "read"), special("project_roots", "write")];
    entries.extend_from_slice(denied);
    let uri = PathUri::from_native(root).unwrap().to_string();
    with(ground.policy(json!(entries)), json!({"cwd": uri, "workspaceRoots": [uri]}))
}

/// Makes a file with a secret, and the directories on its way.
fn keep_secret(who: Who, root: &Path, name: &str) {
    let path = root.join(name);
    let mut missing: Vec<_> = path.ancestors().skip(1).take_while(|directory| !directory.exists()).collect();
    missing.reverse();
    for directory in missing {
        fs::create_dir(directory).unwrap();
        give(who, directory);
    }
    fs::write(&path, "secret").unwrap();
    give(who, &path);
}

async fn run_in(ground: &Ground, client: &mut Client, directory: &Path, sandbox: &Value, script: &str) -> (i64, String) {
    let id = number();
    let uri = PathUri::from_native(directory).unwrap().to_string();
    client.start(with(ground.shell(&id, script), json!({"sandbox": sandbox, "cwd": uri}))).await;
    let (code, output) = client.outcome(&id).await;
    (code, String::from_utf8_lossy(&output).into_owned())
}

/// Neither a command nor a file call gets at the file.
async fn assert_secret(ground: &Ground, client: &mut Client, sandbox: &Value, file: &Path) {
    let (code, output) = run_in(ground, client, Path::new("/"), sandbox, &format!("cat '{}'", file.display())).await;
    assert!(code != 0 && !output.contains("secret"), "{}: {output}", file.display());
    let uri = PathUri::from_native(file).unwrap().to_string();
    let answer = client.call("fs/readFile", json!({"path": uri, "sandbox": sandbox})).await;
    assert!(answer.get("error").is_some(), "{}: {answer}", file.display());
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn what_is_mounted_a_second_time_is_denied_there_as_well(who: Who) {
        if !is_root() || !can_mount() {
            return;
        }
        let (ground, outside) = (Ground::new(who), directory(who));
        let vault = outside.path().canonicalize().unwrap().join("vault");
        keep_secret(who, &vault, "inner/key");
        keep_secret(who, &ground.path(""), ".git/hooks/kept");
        for name in ["bound", "part", "git", "file"] {
            fs::create_dir(ground.path(name)).unwrap();
            give(who, &ground.path(name));
        }
        let _mounts = [
            Bound::new(&vault, ground.path("bound")),
            Bound::new(&vault.join("inner"), ground.path("part")),
            Bound::new(&ground.path(".git"), ground.path("git")),
        ];
        let mut client = ground.client().await;
        let root = ground.path("");
        let denied = about(&ground, &root, &[entry(&vault, "deny")]);
        for name in ["bound/inner/key", "part/key"] {
            assert_secret(&ground, &mut client, &denied, &ground.path(name)).await;
        }
        // What is protected is not written through another name.
        let script = "echo evil > git/hooks/kept; echo evil > git/hooks/new; rm -rf git/hooks; echo evil > bound/new; echo evil > part/new; echo end";
        let (_, output) = run_in(&ground, &mut client, &root, &denied, script).await;
        assert!(output.contains("end"), "{output}");
        assert_eq!(fs::read_to_string(ground.path(".git/hooks/kept")).unwrap(), "secret");
        assert!(!ground.path(".git/hooks/new").exists() && !vault.join("new").exists() && !vault.join("inner/new").exists(), "{output}");
        // A single file, of which the rest is shown.
        let denied = about(&ground, &root, &[entry(&vault.join("inner/key"), "deny")]);
        assert_secret(&ground, &mut client, &denied, &ground.path("bound/inner/key")).await;
        // What the policy itself names under the other name is what it wants.
        if who == Who::User {
            let given = about(&ground, &root, &[entry(&vault, "deny"), entry(&ground.path("part"), "read")]);
            let (code, output) = run_in(&ground, &mut client, &root, &given, "cat part/key").await;
            assert!(code == 0 && output == "secret", "{output}");
        }
    }

    #[needs(MOUNTS)]
    async fn a_pattern_denies_behind_a_link(who: Who) {
        let ground = Ground::new(who);
        let (real, link) = (ground.path("real"), ground.path("link"));
        keep_secret(who, &real, "sub/a.env");
        keep_secret(who, &real, "b.env");
        symlink(&real, &link).unwrap();
        let mut client = ground.client().await;
        let absolute = format!("{}/**/*.env", link.display());
        for (root, pattern_text) in [(&link, absolute.as_str()), (&link, "**/*.env"), (&ground.path(""), "link/**/*.env")] {
            let policy = about(&ground, root, &[pattern(pattern_text)]);
            for file in [link.join("sub/a.env"), real.join("sub/a.env"), link.join("b.env")] {
                assert_secret(&ground, &mut client, &policy, &file).await;
            }
        }
    }

    #[needs(MOUNTS)]
    async fn a_ceiling_denies_behind_a_link(who: Who) {
        let allowed = directory(who);
        let root = allowed.path().canonicalize().unwrap();
        let (real, link) = (root.join("real"), root.join("link"));
        keep_secret(who, &real, "sub/a.env");
        symlink(&real, &link).unwrap();
        let file = root.join("ceiling.toml");
        fs::write(&file, format!("read = ['/']\nwrite = ['{0}']\ndeny = ['{0}/**/*.env']\n", link.display())).unwrap();
        give(who, &file);
        let ground = Ground::with(who, &["--ceiling", file.to_str().unwrap()]);
        let mut client = ground.client().await;
        let policy = about(&ground, &link, &[]);
        assert_secret(&ground, &mut client, &policy, &link.join("sub/a.env")).await;
        assert_secret(&ground, &mut client, &policy, &real.join("sub/a.env")).await;
    }

    #[needs(MOUNTS)]
    async fn a_pattern_denies_in_a_directory_with_marks_in_its_name(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        for name in ["[id]", "a*", "what?", "[open"] {
            let root = ground.path(name);
            keep_secret(who, &root, "sub/a.env");
            let policy = about(&ground, &root, &[pattern("**/*.env")]);
            assert_secret(&ground, &mut client, &policy, &root.join("sub/a.env")).await;
            // A file that comes later is still out of reach of file calls.
            keep_secret(who, &root, "later.env");
            let uri = PathUri::from_native(&root.join("later.env")).unwrap().to_string();
            let answer = client.call("fs/readFile", json!({"path": uri, "sandbox": policy})).await;
            assert!(answer.get("error").is_some(), "{name}: {answer}");
        }
    }

    #[needs(MOUNTS)]
    async fn no_rename_gives_back_what_was_denied(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("");
        keep_secret(who, &root, "a/b/secret/key");
        keep_secret(who, &root, "a/b/file");
        keep_secret(who, &root, "inner/w/deep/shown");
        fs::write(ground.path("inner/w/deep/shown"), "shown").unwrap();
        let denied = [
            entry(&ground.path("a/b/secret"), "deny"),
            entry(&ground.path("a/b/file"), "deny"),
            entry(&ground.path("inner/w"), "write"),
            entry(&ground.path("inner/w/deep"), "read"),
        ];
        let policy = about(&ground, &root, &denied);
        let mut client = ground.client().await;
        for script in [
            "mv a b",
            "mv a/b a/c",
            "mv -T a/b b",
            "perl -e 'rename q(a), q(b) or die qq($!\\n)'",
            "rm -rf a; test ! -e a",
            "mv inner outer",
            "mv inner/w w",
            "mkdir x && mv -T x a",
        ] {
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        // Whoever comes next, in another sandbox or another session, finds the same thing denied.
        let mut second = ground.client().await;
        for client in [&mut client, &mut second] {
            let policy = with_network(&policy);
            let (_, output) = ground.run(client, &policy, "find . -type f -exec cat {} + 2> /dev/null; echo x > inner/w/deep/shown").await;
            assert!(output.contains("shown") && !output.contains("secret") && output.contains("ead-only"), "{output}");
        }
        // What is usually done in such directories can still be done.
        let work = "cd a/b && echo x > new && mv new newer && mkdir d && mv newer d/ && mv d e && cat e/newer && rm -r e && \
            mkdir ../sub && echo x > ../sub/x && mv ../sub ../other && echo y > z && mv z ../other/ && ls ../other && cd ../.. && \
            git init -q repo && cd repo && git config user.email a@b && git config user.name a && mkdir s && echo 1 > s/f && git add . && \
            git commit -qm one && git mv s t && git commit -qm two && git status --short && cd .. && rm -rf repo a/other";
        let (code, output) = ground.run(&mut client, &policy, work).await;
        assert_eq!((code, output.as_str()), (0, "x\nx\nz\n"));
        assert_eq!(fs::read_to_string(ground.path("a/b/secret/key")).unwrap(), "secret");
        assert_eq!(fs::read_to_string(ground.path("inner/w/deep/shown")).unwrap(), "shown");
    }

    #[needs(MOUNTS)]
    async fn our_own_files_stay_out_of_reach_where_they_are(who: Who) {
        let ground = Ground::around_its_files(who);
        let home = ground.executor.home().canonicalize().unwrap();
        let name = home.file_name().unwrap().to_str().unwrap();
        keep_secret(who, &home, "tokens/app");
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let script = format!("mv state moved && mkdir -p state/{name}");
        let (code, output) = ground.run(&mut client, &policy, &script).await;
        assert!(code != 0 && output.contains("busy"), "{output}");
        let script = format!("find . -name app -exec cat {{}} +; echo x >> state/{name}/tokens/app; echo x >> moved/{name}/tokens/app");
        let (_, output) = ground.run(&mut client, &with_network(&policy), &script).await;
        assert!(!output.contains("secret"), "{output}");
        assert_eq!(fs::read_to_string(home.join("tokens/app")).unwrap(), "secret");
    }

    #[needs(MOUNTS)]
    async fn whoever_may_write_everywhere_is_held_to_the_rest(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("");
        keep_secret(who, &root, "a/b/key");
        let external = json!({"permissions": {"type": "external", "network": "restricted"}, "cwd": ground.uri(""), "windowsSandboxLevel": "disabled"});
        let mut client = ground.client().await;
        if who == Who::Root {
            let refused = client.error("process/start", with(ground.shell("p", "true"), json!({"sandbox": external}))).await;
            assert!(refused.1.contains("would have to be root"), "{refused:?}");
            return;
        }
        let home = ground.executor.home().display();
        let script = format!("echo x > new && mv new newer && cat newer a/b/key < /dev/null && ! ls {home}/run && ! mv {home} {home}-moved");
        let (code, output) = ground.run(&mut client, &external, &script).await;
        assert!(code == 0 && output.starts_with("x\nsecret"), "{output}");
        let (code, output) = ground.run(&mut client, &external, "grep -c : /proc/net/dev; echo x > /dev/tcp/127.0.0.1/1").await;
        assert!(code != 0 && output.starts_with("1\n"), "{output}");
    }

    #[needs(MOUNTS)]
    async fn a_rename_does_not_lead_out_of_a_pattern(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("");
        keep_secret(who, &root, "one/x.env");
        keep_secret(who, &root, "two/keys/x.pem");
        let mut client = ground.client().await;
        // This one means the file by its own name: its directories may be moved, and it stays denied where it comes to be.
        let policy = about(&ground, &root, &[pattern("**/*.env"), pattern("*/keys/*")]);
        let (code, output) = ground.run(&mut client, &policy, "mkdir deep && mv one deep/other && ! cat deep/other/x.env").await;
        assert_eq!(code, 0, "{output}");
        assert_secret(&ground, &mut client, &with_network(&policy), &ground.path("deep/other/x.env")).await;
        // These mean the directory as well.
        for script in ["mv two/keys two/other", "mv two deep/two", "mv two/keys ."] {
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        assert_secret(&ground, &mut client, &with_network(&policy), &ground.path("two/keys/x.pem")).await;
    }

    #[needs(MOUNTS)]
    async fn what_a_pattern_denies_is_held_whole_or_refused(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("");
        let policy = about(&ground, &root, &[pattern("**/*.env")]);
        let mut client = ground.client().await;
        let refused = async |client: &mut Client, text: &str| {
            let start = with(ground.shell(&number(), "cat many/*.env deep/*.env"), json!({"sandbox": policy}));
            let (_, message) = client.error("process/start", start).await;
            assert!(message.contains(text) && message.contains("*.env"), "{message}");
            let file = json!({"path": ground.uri("many/0.env"), "sandbox": policy});
            assert!(client.call("fs/readFile", file).await.get("error").is_some());
        };
        fs::create_dir(ground.path("many")).unwrap();
        for number in 0..4097 {
            fs::write(ground.path(&format!("many/{number}.env")), "secret").unwrap();
        }
        refused(&mut client, "more than the 4096 paths").await;
        fs::remove_dir_all(ground.path("many")).unwrap();
        let deep = ground.path("deep").join("d/".repeat(70));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x.env"), "secret").unwrap();
        refused(&mut client, "64 directories deep").await;
        fs::remove_dir_all(ground.path("deep")).unwrap();
        assert_eq!(ground.run(&mut client, &policy, "echo fine").await, (0, "fine\n".into()));
    }

    #[needs(MOUNTS)]
    async fn a_locked_directory_is_not_passed_by(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("");
        keep_secret(who, &root, "d/sub/x.env");
        let policy = about(&ground, &root, &[pattern("**/*.env")]);
        let mut client = ground.client().await;
        for mode in ["000", "111"] {
            let (code, output) = ground.run(&mut client, &policy, &format!("chmod {mode} d")).await;
            assert_eq!(code, 0, "{output}");
            let mut next = ground.client().await;
            let (code, output) = ground.run(&mut next, &policy, "chmod 755 d; cat d/sub/x.env").await;
            assert!(code != 0 && !output.contains("secret"), "{output}");
            next.result("session/end", json!({})).await;
            let (code, output) = ground.run(&mut client, &policy, "chmod 755 d && test -d d/sub").await;
            assert_eq!(code, 0, "{output}");
        }
    }

    async fn what_the_executor_inherited_stays_with_it(who: Who) {
        let outside = directory(who);
        keep_secret(who, outside.path(), "key");
        let out = outside.path().canonicalize().unwrap();
        let ground = Ground::after(who, &format!("exec 3< {0} 4< {0}/key 9< {0}", out.display()));
        let mut client = ground.client().await;
        let script = "cat /proc/self/fd/3/key /proc/self/fd/9/key; cat <&4; ls /proc/self/fd | grep -v '^[0123]$'; test ! -e /proc/self/fd/9";
        let policy = about(&ground, &ground.path(""), &[entry(&out, "deny")]);
        let (code, output) = ground.run(&mut client, &policy, script).await;
        assert!(code == 0 && !output.contains("secret"), "{output}");
        // Without a sandbox, too.
        client.start(ground.shell("open", script)).await;
        let (code, output) = client.outcome("open").await;
        let output = String::from_utf8_lossy(&output);
        assert!(code == 0 && !output.contains("secret"), "{output}");
    }
}
