//! X2, X4: reads and writes only where the policy says, and what is protected stays as it is.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use outpost_testkit::bench::with;
use serde_json::json;

use crate::as_root_and_user;
use crate::card::{MOUNTS, PRIVATE, PROTECTED, denies, is_at_least};
use crate::support::{Ground, Who, directory, entry, give};

as_root_and_user! {
    async fn a_workspace_can_be_written_and_nothing_else(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let script = "mkdir sub && echo hi > sub/file && mv sub other && cat other/file && ls -ld .";
        let (code, output) = ground.run(&mut client, &policy, script).await;
        assert_eq!((code, output.lines().next()), (0, Some("hi")), "{output}");
        // What was made belongs to whoever owns the workspace.
        let made = fs::metadata(ground.path("other/file")).unwrap();
        let owner = fs::metadata(ground.path("")).unwrap();
        assert_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()));
        for place in ["/etc/x", "/var/tmp/x", "/usr/x", "/x", "/home/x", "/run/x", "/dev/x", "/var/lib/x"] {
            let (code, output) = ground.run(&mut client, &policy, &format!("echo x > {place}")).await;
            assert_ne!(code, 0, "{place}: {output}");
            assert!(!Path::new(place).exists(), "{place}");
        }
        let (code, output) = ground.run(&mut client, &policy, "head -1 /etc/passwd && ls /usr > /dev/null").await;
        assert_eq!(code, 0, "{output}");
    }

    async fn a_read_only_policy_writes_nowhere(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        fs::write(ground.path("file"), "old").unwrap();
        give(who, &ground.path("file"));
        let mut scripts = vec!["echo x > file", "rm file", "touch new", "mkdir d", "echo x > /tmp/x", "ln file link", "mv file f"];
        // Landlock alone leaves modes and times to the owner of a file, and the card says so.
        if is_at_least(who, MOUNTS).await {
            scripts.push("chmod 600 file");
        }
        for script in scripts {
            let (code, output) = ground.run(&mut client, &ground.read_only(), script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        assert_eq!(fs::read_to_string(ground.path("file")).unwrap(), "old");
        let (code, output) = ground.run(&mut client, &ground.read_only(), "cat file").await;
        assert_eq!((code, output.as_str()), (0, "old"));
    }

    #[needs(PROTECTED)]
    async fn what_runs_later_outside_stays_as_it_is(who: Who) {
        let ground = Ground::new(who);
        for name in [".git", ".git/hooks"] {
            fs::create_dir(ground.path(name)).unwrap();
            give(who, &ground.path(name));
        }
        for name in [".git/config", ".envrc"] {
            fs::write(ground.path(name), "old").unwrap();
            give(who, &ground.path(name));
        }
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        for script in [
            "mv .git moved",
            "rm -rf .git; test ! -e .git",
            "echo x >> .envrc",
            "mv .envrc x",
            "rm -f .envrc",
            // These do not exist yet.
            "mkdir .codex/x",
            "rmdir .codex",
            "ln -s /etc .agents && test -h .agents",
        ] {
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        // What is seen as `.git` may be written, and is not the one of the machine.
        let script = "mkdir -p .git/hooks && echo x > .git/config && echo x > .git/hooks/pre-commit && ln -s /tmp/hooks .git/hooks/x";
        let (code, output) = ground.run(&mut client, &policy, script).await;
        assert_eq!(code, 0, "{output}");
        assert_eq!(fs::read_to_string(ground.path(".git/config")).unwrap(), "old");
        assert_eq!(fs::read_dir(ground.path(".git/hooks")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(ground.path(".envrc")).unwrap(), "old");
        // Elsewhere the same names are anybody's, and nothing stays behind of the placeholders.
        let (code, output) = ground.run(&mut client, &policy, "mkdir -p sub/.git && echo x > sub/.git/config && echo x > sub/.envrc").await;
        assert_eq!(code, 0, "{output}");
        client.result("session/end", json!({})).await;
        let left = || {
            let names = fs::read_dir(ground.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.filter(|name| name != "x").collect();
            names.sort_unstable();
            names
        };
        outpost_testkit::executor::eventually("placeholders are gone", || left() == [".envrc", ".git", "sub"]).await;
    }

    async fn no_link_and_no_path_leads_out(who: Who) {
        let ground = Ground::new(who);
        let outside = directory(who);
        fs::write(outside.path().join("file"), "old").unwrap();
        give(who, &outside.path().join("file"));
        let out = outside.path().display().to_string();
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let mut scripts = vec![
            format!("ln -s {out}/file l && echo x > l"),
            format!("ln -s {out} d && echo x > d/new"),
            format!("ln {out}/file hard && echo x > hard"),
            format!("echo x > /proc/self/root{out}/file"),
            format!("echo x > /proc/self/cwd/../../..{out}/file"),
            format!("cd .. && echo x > {out}/file"),
            format!("exec 3< {out}/file && echo x > /proc/self/fd/3"),
            format!("mv {out}/file ."),
            format!("rm {out}/file"),
        ];
        if is_at_least(who, MOUNTS).await {
            scripts.extend([format!("chmod 777 {out}/file"), format!("touch -d 2001-01-01 {out}/file")]);
        }
        for script in scripts {
            let (code, output) = ground.run(&mut client, &policy, &script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        // A bounded race: a directory and a link change places while something writes through them.
        let race = format!(
            "mkdir a; ln -s {out} b; (for i in $(seq 300); do mv -T a c; mv -T b a; mv -T a b; mv -T c a; done) & \
             for i in $(seq 300); do echo x > a/file; echo x > b/file; done 2> /dev/null; wait; true"
        );
        let (code, output) = ground.run(&mut client, &policy, &race).await;
        assert_eq!(code, 0, "{output}");
        assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "old");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[needs(MOUNTS)]
    async fn what_is_denied_cannot_be_read(who: Who) {
        let ground = Ground::new(who);
        let outside = directory(who);
        fs::write(outside.path().join("file"), "secret").unwrap();
        for name in ["sub", "denied"] {
            fs::create_dir(ground.path(name)).unwrap();
            give(who, &ground.path(name));
        }
        for name in ["sub/open", "sub/key.env", "denied/file", "hidden"] {
            fs::write(ground.path(name), "secret").unwrap();
            give(who, &ground.path(name));
        }
        let mut client = ground.client().await;
        let minimal = json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"});
        let workspace = json!({"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": "write"});
        let glob = json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"});
        let policy = ground.policy(json!([minimal, workspace, entry(&ground.path("denied"), "deny"), entry(&ground.path("hidden"), "none"), glob]));
        let out = outside.path().join("file").display().to_string();
        for script in [
            format!("cat {out}"),
            "cat denied/file".into(),
            "ls denied".into(),
            "cat hidden".into(),
            "cat sub/key.env".into(),
            "mv denied moved && cat moved/file".into(),
            "rm -f hidden && cat hidden".into(),
            "cp -r sub copy && cat copy/key.env".into(),
            "ls /home".into(),
            "cat /proc/1/root/etc/shadow".into(),
        ] {
            let (code, output) = ground.run(&mut client, &policy, &script).await;
            assert_ne!(code, 0, "{script}: {output}");
            assert!(!output.contains("secret"), "{script}: {output}");
        }
        let (code, output) = ground.run(&mut client, &policy, "cat sub/open && echo x > sub/new && /bin/ls /usr > /dev/null").await;
        assert_eq!((code, output.as_str()), (0, "secret"), "{output}");
    }

    #[needs(PRIVATE)]
    async fn temporary_files_are_the_sessions_own(who: Who) {
        let ground = Ground::new(who);
        let theirs = tempfile::Builder::new().prefix("outpost-seen-").tempfile_in("/tmp").unwrap();
        let name = theirs.path().display().to_string();
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let (code, output) = ground.run(&mut client, &policy, &format!("test ! -e {name} && echo mine > /tmp/outpost-mine")).await;
        assert_eq!(code, 0, "{output}");
        // The same under another policy of the same session, and not in another session.
        let other = ground.policy(json!([
            entry(Path::new("/"), "read"),
            json!({"path": {"type": "special", "value": {"kind": "slash_tmp"}}, "access": "write"}),
        ]));
        assert_eq!(ground.run(&mut client, &other, "cat /tmp/outpost-mine").await, (0, "mine\n".into()));
        let mut second = ground.client().await;
        assert_ne!(ground.run(&mut second, &policy, "cat /tmp/outpost-mine").await.0, 0);
        assert!(!Path::new("/tmp/outpost-mine").exists());
    }
}

/// Without a placeholder, sandboxed code could make its directory writable and put something there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_its_user_may_only_read_is_refused_with_a_way_out() {
    if denies(Who::User, &[MOUNTS]).await {
        return;
    }
    let ground = Ground::new(Who::User);
    let mut client = ground.client().await;
    let own = directory(Who::User);
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let policy = |access: &str| ground.policy(json!([entry(Path::new("/"), "read"), entry(own.path(), access)]));
    let refused = client.call("process/start", with(ground.shell("own", "true"), json!({"sandbox": policy("write")}))).await;
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("no placeholder can be put there") && why.contains("read-only"), "{refused}");
    assert_eq!(ground.run(&mut client, &policy("read"), "true").await.0, 0);
}
