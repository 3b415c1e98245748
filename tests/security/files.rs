//! X2, X4: reads and writes only where the policy says, and what is protected stays as it is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::json;

use crate::as_root_and_user;
use crate::support::{Ground, directory, entry, give};

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
        let (code, output) = ground.run(&mut client, &policy, "head -1 /etc/passwd && ls / > /dev/null").await;
        assert_eq!(code, 0, "{output}");
    }

    async fn a_read_only_policy_writes_nowhere(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        fs::write(ground.path("file"), "old").unwrap();
        give(who, &ground.path("file"));
        for script in ["echo x > file", "rm file", "touch new", "mkdir d", "echo x > /tmp/x", "chmod 600 file", "ln file link", "mv file f"] {
            let (code, output) = ground.run(&mut client, &ground.read_only(), script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        assert_eq!(fs::read_to_string(ground.path("file")).unwrap(), "old");
        let (code, output) = ground.run(&mut client, &ground.read_only(), "cat file").await;
        assert_eq!((code, output.as_str()), (0, "old"));
    }

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
            "echo x > .git/config",
            "echo x > .git/hooks/pre-commit",
            "mv .git moved",
            "rm -rf .git; test -d .git && ! test -e .git/config",
            "ln -s /tmp/hooks .git/hooks/x",
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
        assert_eq!(fs::read_to_string(ground.path(".git/config")).unwrap(), "old");
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
        for script in [
            format!("ln -s {out}/file l && echo x > l"),
            format!("ln -s {out} d && echo x > d/new"),
            format!("ln {out}/file hard && echo x > hard"),
            format!("echo x > /proc/self/root{out}/file"),
            format!("echo x > /proc/self/cwd/../../..{out}/file"),
            format!("cd .. && echo x > {out}/file"),
            format!("exec 3< {out}/file && echo x > /proc/self/fd/3"),
            format!("mv {out}/file ."),
            format!("rm {out}/file"),
            format!("chmod 777 {out}/file"),
            format!("touch -d 2001-01-01 {out}/file"),
        ] {
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
