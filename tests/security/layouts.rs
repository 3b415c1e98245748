//! X2: workspaces as people have them: links into dotfile repositories, worktrees, submodules, a root that is a link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::{Ground, Who, directory, give};

fn about(ground: &Ground, roots: &[&Path]) -> Value {
    let uris: Vec<_> = roots.iter().map(|root| PathUri::from_native(root).unwrap().to_string()).collect();
    with(ground.workspace_write(), json!({"cwd": uris[0], "workspaceRoots": uris}))
}

fn make(who: Who, path: &Path, text: Option<&str>) {
    match text {
        Some(text) => fs::write(path, text).unwrap(),
        None => fs::create_dir(path).unwrap(),
    }
    give(who, path);
}

/// Runs git outside of any sandbox.
fn git(at: &Path, arguments: &[&str]) {
    let settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"];
    let done = Command::new("git").current_dir(at).args(settings).args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Gives everything below a directory to whoever runs the executor.
fn give_all(who: Who, directory: &Path) {
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        give(who, &path);
        if path.symlink_metadata().unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn links_in_a_workspace_are_held_with_what_they_lead_to(who: Who) {
        let ground = Ground::new(who);
        let outside = directory(who);
        let out = outside.path().canonicalize().unwrap();
        make(who, &out.join("profile"), Some("old"));
        make(who, &ground.path("dotfiles"), None);
        make(who, &ground.path("dotfiles/rc"), Some("old"));
        make(who, &ground.path("store"), None);
        make(who, &ground.path("store/hooks"), None);
        symlink("dotfiles/rc", ground.path(".envrc")).unwrap();
        symlink(out.join("profile"), ground.path(".codex")).unwrap();
        symlink("store", ground.path(".git")).unwrap();
        // To nothing, yet.
        symlink("dotfiles/later", ground.path(".agents")).unwrap();
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        for script in [
            "echo evil >> .envrc",
            "echo evil >> dotfiles/rc",
            "mv dotfiles/rc x",
            "mv dotfiles x",
            "ln -sf /tmp/rc .envrc",
            "rm .envrc",
            "echo evil >> .codex",
            "rm .codex",
            "mv store x",
            "rm .git",
            "ln -sfn dotfiles .git",
            "echo evil > .agents",
            "echo evil > dotfiles/later",
            "rm .agents",
        ] {
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        let (code, output) = ground.run(&mut client, &policy, "cat .envrc .codex && echo x > dotfiles/new && rm dotfiles/new").await;
        assert_eq!((code, output.as_str()), (0, "oldold"));
        let (code, output) = ground.run(&mut client, &policy, "echo evil > .git/hooks/pre-commit && echo evil > store/hooks/post-commit").await;
        assert_eq!(code, 0, "{output}");
        assert_eq!(fs::read_dir(ground.path("store/hooks")).unwrap().count(), 0);
    }

    #[needs(MOUNTS)]
    async fn a_root_that_is_a_link_is_one(who: Who) {
        let ground = Ground::new(who);
        make(who, &ground.path("real"), None);
        make(who, &ground.path("real/.envrc"), Some("old"));
        symlink("real", ground.path("root")).unwrap();
        let mut client = ground.client().await;
        let policy = about(&ground, &[&ground.path("root")]);
        let script = format!("cd {} && echo x > file && cat file && ! echo evil >> .envrc", ground.path("root").display());
        let (code, output) = ground.run(&mut client, &policy, &script).await;
        assert!(code == 0 && output.starts_with("x\n"), "{output}");
        assert_eq!(fs::read_to_string(ground.path("real/.envrc")).unwrap(), "old");
    }

    #[needs(MOUNTS)]
    async fn worktrees_and_submodules_are_held_where_their_repository_is(who: Who) {
        let ground = Ground::new(who);
        let (main, module) = (ground.path("main"), ground.path("module"));
        for repository in [&main, &module] {
            fs::create_dir(repository).unwrap();
            git(repository, &["init", "-q"]);
            fs::write(repository.join("file"), "text").unwrap();
            git(repository, &["add", "."]);
            git(repository, &["commit", "-qm", "one"]);
        }
        git(&main, &["submodule", "--quiet", "add", "../module", "sub"]);
        git(&main, &["commit", "-qm", "two"]);
        git(&main, &["worktree", "add", "-q", "../tree"]);
        give_all(who, &ground.path(""));
        let tree = ground.path("tree");
        let mut client = ground.client().await;
        // The worktree and the repository are two roots; and once more the directory around both.
        let around = ground.path("");
        for roots in [&[tree.as_path(), main.as_path()][..], &[main.as_path(), tree.as_path()], &[tree.as_path(), around.as_path()]] {
            let policy = about(&ground, roots);
            for script in [
                "echo 'gitdir: /tmp/evil' > tree/.git",
                "mv tree/.git x",
                "mv tree/.git tree/x",
            ] {
                let (code, output) = ground.run(&mut client, &policy, script).await;
                assert_ne!(code, 0, "{roots:?} {script}: {output}");
            }
            let script = "mkdir -p main/.git/hooks && echo evil > main/.git/hooks/pre-commit && echo evil > main/.git/worktrees/tree/hooks && echo '# evil' >> main/.git/config && \
                mkdir -p main/.git/modules/sub/hooks && echo evil > main/.git/modules/sub/hooks/x";
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_eq!(code, 0, "{roots:?}: {output}");
            for name in ["hooks/pre-commit", "worktrees/tree/hooks", "modules/sub/hooks/x"] {
                assert!(!main.join(".git").join(name).exists(), "{roots:?} {name}");
            }
            assert!(!fs::read_to_string(main.join(".git/config")).unwrap().contains("evil"));
        }
        for script in ["echo 'gitdir: /tmp/evil' > main/sub/.git", "mv main/sub/.git main/sub/x", "mv main/sub main/x"] {
            let (code, output) = ground.run(&mut client, &about(&ground, &[&main]), script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        // Older versions of git take that an owner is trusted from a file of the user only.
        let trusted = "mkdir main/home && export HOME=$PWD/main/home && git config --global safe.directory '*' && git -C tree status --short";
        let (code, output) = ground.run(&mut client, &about(&ground, &[&main]), &format!("echo x > main/sub/new && {trusted}")).await;
        assert_eq!(code, 0, "{output}");
    }
}
