//! Repositories as people have them: made just now, nested, with submodules and several working trees, above the workspace.

use std::fs;
use std::process::Command;

use super::{git, plain, repository, sandboxed, settled, try_git};
use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::{Ground, give};

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn a_repository_is_made_in_an_empty_workspace(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        fs::create_dir(&root).unwrap();
        give(who, &root);
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "test ! -e .git/HEAD && ! git status 2>/dev/null").await;
        let script = "git init -q -b trunk . && git config user.name agent && git config user.email agent@host && echo x > .git/hooks/pre-commit && \
            echo one > file && git add file && git commit -qm one && git config core.fsmonitor ./evil";
        plain(&ground, &mut client, &root, script).await;
        assert_eq!(git(who, &root, &["log", "--format=%s %an", "trunk"]), "one agent");
        assert_eq!(git(who, &root, &["status", "--porcelain", "-b"]), "## trunk");
        let config = fs::read_to_string(root.join(".git/config")).unwrap();
        assert!(config.contains("agent@host") && !config.contains("fsmonitor"), "{config}");
        assert!(!root.join(".git/hooks").exists() && !root.join("evil").exists());
        fs::write(root.join("file"), "two\n").unwrap();
        git(who, &root, &["commit", "-qam", "two"]);
        let output = plain(&ground, &mut client, &root, "git -c core.fsmonitor= log --format=%s && echo 3 > file && git -c core.fsmonitor= -c core.hooksPath=/dev/null commit -qam three").await;
        assert_eq!(output, "two\none\n");
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s"]), "three");
    }

    #[needs(MOUNTS)]
    async fn a_workspace_inside_a_repository_can_commit(who: Who) {
        let ground = Ground::new(who);
        let top = ground.path("top");
        repository(who, &top);
        let root = top.join("part");
        fs::create_dir(&root).unwrap();
        give(who, &root);
        let before = settled(&top.join(".git"));
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "echo x > new && git add new && git commit -qm part && ! touch ../file").await;
        assert_eq!(git(who, &top, &["log", "-1", "--format=%s"]), "part");
        assert_eq!(git(who, &top, &["status", "--porcelain"]), "");
        assert_eq!(settled(&top.join(".git")), before);
    }

    #[needs(MOUNTS)]
    async fn nested_repositories_are_held_like_the_first(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let inner = root.join("deep/inner");
        fs::create_dir(root.join("deep")).unwrap();
        give(who, &root.join("deep"));
        repository(who, &inner);
        let before = settled(&inner.join(".git"));
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "cd deep/inner && git config core.fsmonitor 'touch evil' && echo x > .git/hooks/post-commit && echo 2 > file && git -c core.fsmonitor= commit -qam inner").await;
        assert_eq!(git(who, &inner, &["log", "-1", "--format=%s"]), "inner");
        assert_eq!(settled(&inner.join(".git")), before);
    }

    #[needs(MOUNTS)]
    async fn submodules_and_working_trees_commit_where_they_are(who: Who) {
        let ground = Ground::new(who);
        let around = ground.path("around");
        fs::create_dir(&around).unwrap();
        give(who, &around);
        let (main, module) = (around.join("main"), around.join("module"));
        repository(who, &main);
        repository(who, &module);
        git(who, &main, &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../module", "sub"]);
        git(who, &main.join("sub"), &["config", "user.name", "agent"]);
        git(who, &main.join("sub"), &["config", "user.email", "agent@host"]);
        git(who, &main, &["commit", "-qm", "two"]);
        git(who, &main, &["worktree", "add", "-q", "../tree", "-b", "tree"]);
        let before = settled(&main.join(".git"));
        let mut client = ground.client().await;
        plain(&ground, &mut client, &main, "cd sub && echo s > file && git commit -qam sub && cd .. && git commit -qam moved && git submodule status").await;
        assert_eq!(git(who, &main.join("sub"), &["log", "-1", "--format=%s"]), "sub");
        assert_eq!(git(who, &main, &["log", "-1", "--format=%s"]), "moved");
        assert_eq!(git(who, &main, &["status", "--porcelain"]), "");
        // The working tree alone: its repository is elsewhere.
        let tree = around.join("tree");
        plain(&ground, &mut client, &tree, "echo t > file && git commit -qam tree && git switch -qc tree2").await;
        assert_eq!(git(who, &tree, &["log", "-1", "--format=%s"]), "tree");
        assert_eq!(git(who, &tree, &["status", "--porcelain", "-b"]), "## tree2");
        assert_eq!(git(who, &main, &["symbolic-ref", "HEAD"]), "refs/heads/main");
        for script in ["echo 'gitdir: /tmp/evil' > .git", "mv .git x", "rm -f .git"] {
            assert_ne!(sandboxed(&ground, &mut client, &tree, script).await.code, 0, "{script}");
        }
        let stays = |list: Vec<(std::path::PathBuf, Vec<u8>)>| -> Vec<_> {
            list.into_iter().filter(|(name, _)| !name.ends_with("index") && !name.ends_with("HEAD") && !name.starts_with("modules/sub/objects") && !name.to_string_lossy().contains("/logs") && !name.to_string_lossy().contains("/refs/")).collect()
        };
        assert_eq!(stays(settled(&main.join(".git"))), stays(before));
        // A working tree that is made inside is one inside.
        let done = sandboxed(&ground, &mut client, &main, "git worktree add -q -b made made && cd made && echo m > file && git commit -qam made").await;
        assert!(done.code == 0 && done.notices.iter().any(|notice| notice.contains("made")), "{} {:?}", done.output, done.notices);
        assert_eq!(git(who, &main, &["log", "-1", "--format=%s", "refs/heads/made"]), "made");
        assert!(!main.join(".git/worktrees/made").exists() && !try_git(who, &main.join("made"), &["status"]).0);
    }

    #[needs(MOUNTS)]
    async fn repositories_of_other_formats_commit_as_well(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let around = ground.path("formats");
        fs::create_dir(&around).unwrap();
        give(who, &around);
        // Objects with longer names.
        let modern = around.join("modern");
        fs::create_dir(&modern).unwrap();
        give(who, &modern);
        git(who, &modern, &["init", "-q", "-b", "main", "--object-format=sha256", "."]);
        git(who, &modern, &["commit", "-q", "--allow-empty", "-m", "one"]);
        let name = "git config user.name agent && git config user.email agent@host";
        plain(&ground, &mut client, &modern, &format!("{name} && echo two > file && git add file && git commit -qm two && git switch -qc topic && echo three > staged && git add staged")).await;
        assert_eq!(git(who, &modern, &["log", "--format=%s", "topic"]), "two\none");
        assert_eq!(git(who, &modern, &["rev-parse", "HEAD"]).len(), 64);
        assert_eq!(git(who, &modern, &["status", "--porcelain"]), "A  staged");
        git(who, &modern, &["fsck", "--strict"]);
        // One that is made inside.
        let made = around.join("made");
        fs::create_dir(&made).unwrap();
        give(who, &made);
        plain(&ground, &mut client, &made, &format!("git init -q -b main --object-format=sha256 . && {name} && echo one > file && git add file && git commit -qm one")).await;
        assert_eq!(git(who, &made, &["log", "--format=%s"]), "one");
        assert_eq!(git(who, &made, &["rev-parse", "HEAD"]).len(), 64);
        // Without the past, and without the files that are not needed now.
        let origin = around.join("origin");
        repository(who, &origin);
        git(who, &origin, &["config", "uploadpack.allowFilter", "true"]);
        git(who, &origin, &["config", "uploadpack.allowAnySHA1InWant", "true"]);
        for round in ["two", "three"] {
            fs::write(origin.join("file"), round).unwrap();
            git(who, &origin, &["commit", "-qam", round]);
        }
        let from = format!("file://{}", origin.display());
        // Everything once more, where git has it (2.36).
        let help = Command::new("git").args(["fetch", "-h"]).output().unwrap();
        let help = String::from_utf8_lossy(&[help.stdout, help.stderr].concat()).replace("--[no-]", "--");
        let again = if help.contains("--refetch") { "--refetch" } else { "--tags" };
        for (name_of, option) in [("shallow", "--depth=1"), ("partial", "--filter=blob:none")] {
            git(who, &around, &["-c", "protocol.file.allow=always", "clone", "-q", option, &from, name_of]);
            let copy = around.join(name_of);
            assert!(copy.join(".git/shallow").exists() == (name_of == "shallow"));
            plain(&ground, &mut client, &copy, &format!("{name} && echo inside > file && git commit -qam inside && echo new > new && git add new && git commit -qm new")).await;
            assert_eq!(git(who, &copy, &["log", "-2", "--format=%s"]), "new\ninside", "{name_of}");
            assert_eq!(git(who, &copy, &["status", "--porcelain"]), "", "{name_of}");
            git(who, &copy, &["fsck"]);
            // What was committed can be pushed, and what is missing can still be fetched.
            git(who, &copy, &["-c", "protocol.file.allow=always", "push", "-q", "origin", &format!("HEAD:refs/heads/{name_of}")]);
            assert_eq!(git(who, &origin, &["log", "-1", "--format=%s", name_of]), "new");
            git(who, &copy, &["-c", "protocol.file.allow=always", "log", "-p", "--format=%s"]);
            // The next command sees what the user fetched.
            git(who, &copy, &["-c", "protocol.file.allow=always", "fetch", "-q", again, "origin"]);
            plain(&ground, &mut client, &copy, "git log --oneline >/dev/null && git status >/dev/null && git commit -q --allow-empty -m last").await;
            assert_eq!(git(who, &copy, &["log", "-1", "--format=%s"]), "last");
        }
        // A new tree names files beside its own that were never fetched.
        fs::write(origin.join("unused"), "unused").unwrap();
        git(who, &origin, &["add", "unused"]);
        git(who, &origin, &["commit", "-qm", "four"]);
        let sparse = around.join("sparse");
        let filtered = ["-c", "protocol.file.allow=always", "clone", "-q", "--filter=blob:none", "--no-checkout", &from, "sparse"];
        git(who, &around, &filtered);
        git(who, &sparse, &["sparse-checkout", "set", "--no-cone", "/file"]);
        git(who, &sparse, &["-c", "protocol.file.allow=always", "checkout", "-q", "main"]);
        plain(&ground, &mut client, &sparse, &format!("{name} && echo inside > file && git commit -qam inside")).await;
        assert_eq!(git(who, &sparse, &["log", "-1", "--format=%s"]), "inside");
        let missing = git(who, &sparse, &["rev-list", "--objects", "--missing=print", "HEAD"]);
        assert!(missing.contains('?'), "everything was fetched: {missing}");
    }

    #[needs(MOUNTS)]
    async fn what_cannot_be_carried_over_is_read_only_and_says_so(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let config = fs::read_to_string(root.join(".git/config")).unwrap();
        fs::write(root.join(".git/config"), format!("{config}[extensions]\n\trefStorage = reftable\n")).unwrap();
        let mut client = ground.client().await;
        let done = sandboxed(&ground, &mut client, &root, "touch .git/x").await;
        assert!(done.code != 0 && done.notices.iter().any(|notice| notice.contains("reftable")), "{} {:?}", done.output, done.notices);
    }
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn the_machine_says_what_commands_may_do(who: Who) {
        for (mode, script, is_well, crosses) in [
            ("read-only", "touch .git/x || touch deep/inner/.git/x", false, false),
            ("full", "touch .git/x && touch deep/inner/.git/x", true, true),
            ("commit", "touch .git/x && touch deep/inner/.git/x", true, false),
        ] {
            let ground = Ground::with(who, &["-c", &format!("git={mode:?}")]);
            let root = ground.path("work");
            repository(who, &root);
            fs::create_dir(root.join("deep")).unwrap();
            give(who, &root.join("deep"));
            repository(who, &root.join("deep/inner"));
            let mut client = ground.client().await;
            let info = client.result("environment/info", serde_json::json!({})).await;
            let row = info["sandbox"].as_array().unwrap().iter().find(|row| row["promise"].as_str().unwrap().starts_with("of a repository")).unwrap();
            assert_eq!(row["holds"], serde_json::json!(mode != "full"), "{row}");
            assert_eq!(row["reason"].is_null(), mode == "commit", "{row}");
            let done = sandboxed(&ground, &mut client, &root, script).await;
            assert_eq!((done.code == 0, root.join(".git/x").exists()), (is_well, crosses), "{mode}: {}", done.output);
            assert_eq!(root.join("deep/inner/.git/x").exists(), crosses, "{mode}");
        }
    }
}
