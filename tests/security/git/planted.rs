//! Each row of what can be planted below a gitdir: planted from inside, and without effect on what the user does outside.

use std::fs;
use std::path::Path;

use super::{git, repository, sandboxed, settled, try_git};
use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::{Ground, Who, directory, give};

/// What is planted, by its row of the table in SECURITY.md. `$M` is a command that leaves a mark outside, `$C` a directory outside.
const ROWS: &[(&str, &str)] = &[
    (
        "1 config",
        "git config core.fsmonitor \"$M\"; git config core.pager \"$M\"; git config diff.external \"$M\"; git config alias.status \"!$M\"; git config core.sshCommand \"$M\"",
    ),
    (
        "2 hooks",
        "mkdir -p .git/hooks; for hook in pre-commit post-commit post-index-change post-checkout reference-transaction pre-auto-gc post-rewrite; do \
         printf '#!/bin/sh\\n%s\\n' \"$M\" > .git/hooks/$hook; chmod +x .git/hooks/$hook; done",
    ),
    (
        "2 hooks, where there were none",
        "mkdir -p .git/hooks; for hook in post-index-change reference-transaction; do printf '#!/bin/sh\\n%s\\n' \"$M\" > .git/hooks/$hook; chmod +x .git/hooks/$hook; done",
    ),
    (
        "3 config.worktree",
        "git config extensions.worktreeConfig true; printf '[core]\\n\\tfsmonitor = %s\\n' \"$M\" > .git/config.worktree",
    ),
    (
        "4 commondir",
        "mkdir -p evil/objects evil/refs; printf '[core]\\n\\tfsmonitor = %s\\n' \"$M\" > evil/config; echo 'ref: refs/heads/main' > evil/HEAD; echo ../evil > .git/commondir",
    ),
    ("5 .git itself", "mv .git moved; rm -rf .git; ln -sfn evil .git; echo 'gitdir: evil' > .git; true"),
    (
        "6 a bare repository around it",
        "mkdir -p objects refs; echo 'ref: refs/heads/main' > HEAD; printf '[core]\\n\\tbare = true\\n\\tfsmonitor = %s\\n' \"$M\" > config; : > .git/HEAD; mv .git/objects .git/x",
    ),
    ("7 paths of the index", "make_index .git/hooks/post-checkout 100755; git ls-files"),
    ("7 paths of the index, upwards", "make_index ../escaped 100644"),
    ("7 paths of the index, absolute", "make_index /escaped 100644"),
    (
        "8 MERGE_RR",
        "mkdir -p .git/rr-cache/1111111111111111111111111111111111111111; echo x > .git/rr-cache/1111111111111111111111111111111111111111/postimage; \
         echo x > .git/rr-cache/1111111111111111111111111111111111111111/preimage; printf '1111111111111111111111111111111111111111\\t../escaped\\0' > .git/MERGE_RR; git config rerere.enabled true",
    ),
    (
        "9 rebase todo",
        "mkdir .git/rebase-merge; echo \"exec $M\" > .git/rebase-merge/git-rebase-todo; echo refs/heads/main > .git/rebase-merge/head-name; git rev-parse HEAD > .git/rebase-merge/onto; \
         git rev-parse HEAD > .git/rebase-merge/orig-head; : > .git/rebase-merge/interactive; echo 1 > .git/rebase-merge/msgnum; echo 1 > .git/rebase-merge/end; : > .git/rebase-merge/done",
    ),
    (
        "10 strategies",
        "mkdir -p git-merge-x .git/rebase-merge .git/sequencer; printf '#!/bin/sh\\n%s\\n' \"$M\" > git-merge-x/p; chmod +x git-merge-x/p; echo x/p > .git/rebase-merge/strategy; \
         printf '[options]\\n\\tstrategy = x/p\\n' > .git/sequencer/opts; git rev-parse HEAD > .git/sequencer/head; echo \"pick $(git rev-parse HEAD)\" > .git/sequencer/todo; git rev-parse HEAD > .git/CHERRY_PICK_HEAD",
    ),
    (
        "11 progress of a rebase",
        "mkdir .git/rebase-merge .git/rebase-apply; for n in msgnum end; do echo \"\\$($M)\" > .git/rebase-merge/$n; done; for n in next last; do echo \"\\$($M)\" > .git/rebase-apply/$n; done",
    ),
    (
        "12 options of am",
        "mkdir .git/rebase-apply; echo 1 > .git/rebase-apply/next; echo 1 > .git/rebase-apply/last; echo \"--build-fake-ancestor=$C/made\" > .git/rebase-apply/apply-opt; : > .git/rebase-apply/applying; \
         for n in threeway scissors keep quiet sign utf8 messageid; do echo f > .git/rebase-apply/$n; done; git rev-parse HEAD > .git/rebase-apply/abort-safety; git rev-parse HEAD > .git/rebase-apply/orig-head",
    ),
    (
        "13 a new module",
        "mkdir -p .git/modules/new sub; git init -q --bare .git/modules/new; git --git-dir=.git/modules/new config core.fsmonitor \"$M\"; git --git-dir=.git/modules/new config core.worktree ../../../sub; \
         printf '[submodule \"new\"]\\n\\tpath = sub\\n\\turl = ./x\\n' > .gitmodules; git config submodule.new.url ./x",
    ),
    (
        "14 links",
        "for n in COMMIT_EDITMSG FETCH_HEAD index packed-refs logs/HEAD logs/refs/heads/main ORIG_HEAD; do rm -f .git/$n; mkdir -p .git/logs/refs/heads; ln -s $C/canary .git/$n; done; ln -s $C .git/refs/heads/d; rm -rf .git/objects/pack; ln -s $C .git/objects/pack",
    ),
    ("15 links to directories", "for n in worktrees rebase-merge rebase-apply sequencer; do ln -s $C .git/$n; done"),
    (
        "16 another working tree",
        "mkdir -p .git/worktrees/x; echo $C/.git > .git/worktrees/x/gitdir; echo ../.. > .git/worktrees/x/commondir; echo 'ref: refs/heads/main' > .git/worktrees/x/HEAD",
    ),
    ("17 HEAD upwards", "echo 'ref: refs/../../../escaped' > .git/HEAD"),
    ("18 alternates", "echo $C/objects > .git/objects/info/alternates"),
    (
        "19 remotes",
        "mkdir -p .git/remotes .git/branches; echo \"URL: ext::$M\" > .git/remotes/origin; echo \"ext::$M\" > .git/branches/other; git init -q --bare main2; printf '#!/bin/sh\\n%s\\n' \"$M\" > main2/hooks/pre-receive",
    ),
    ("23 attributes of the gitdir", "mkdir -p .git/info; echo '* filter=planted' > .git/info/attributes; echo changed > file"),
    ("22 a gitlink upwards", "make_index ../other 160000"),
    (
        "25 signing",
        "mkdir .git/rebase-merge; echo -Sevil > .git/rebase-merge/gpg_sign_opt; printf '[options]\\n\\tgpg-sign = evil\\n' > .git/sequencer-opts",
    ),
    ("26 replaced objects", "echo other > other && git add other && git commit -qm other && git replace HEAD HEAD~1"),
    (
        "27 what misleads",
        "mkdir -p .git/info; echo \"$(git rev-parse HEAD)\" > .git/info/grafts; git rev-parse HEAD > .git/shallow; echo '*' > .git/info/exclude; echo '* -diff' > .git/info/attributes; \
         echo changed > file; git update-index --skip-worktree file; git update-index --assume-unchanged file",
    ),
    ("28 bisection", "echo --orphan=z > .git/BISECT_START; echo x > .git/BISECT_LOG; : > .git/BISECT_NAMES"),
];

/// Writes an index with one entry of any path, which git itself would not make.
const MAKE_INDEX: &str = r#"make_index() {
    oid=$(echo payload | git hash-object -w --stdin)
    perl -MDigest::SHA=sha1 -e 'my ($path, $mode, $oid) = @ARGV;
        my $entry = pack("N6 N N N N", 0, 0, 0, 0, 0, 0, oct($mode), 0, 0, 0) . pack("H*", $oid) . pack("n", length $path) . $path;
        $entry .= "\0" x (8 - length($entry) % 8);
        my $index = "DIRC" . pack("N2", 2, 1) . $entry;
        open my $out, ">", ".git/index.new" or die; print $out $index, sha1($index); close $out; rename ".git/index.new", ".git/index"' "$1" "$2" "$oid"
}
"#;

/// What the user does afterwards.
const USER: &[&[&str]] = &[
    &["status"],
    &["diff"],
    &["log", "-p", "-3"],
    &["show", "HEAD"],
    &["ls-files", "-s"],
    &["fetch", "-q", "."],
    &["rebase", "--continue"],
    &["rebase", "--skip"],
    &["rebase", "--quit"],
    &["am", "--skip"],
    &["am", "--quit"],
    &["cherry-pick", "--continue"],
    &["cherry-pick", "--quit"],
    &["rerere"],
    &["bisect", "reset"],
    &["restore", "."],
    &["checkout-index", "-a", "-f"],
    &["checkout", "-q", "."],
    &["add", "file"],
    &["commit", "-q", "--allow-empty", "-m", "user"],
    &["tag", "user"],
    &["branch", "user"],
    &["switch", "-q", "user"],
    &["worktree", "prune"],
    &["worktree", "repair"],
    &["worktree", "remove", "--force", "x"],
    &["submodule", "update", "--init"],
    &["stash", "list"],
    &["gc", "-q"],
    &["push", "-q", "origin", "--all"],
    &["push", "-q", "other"],
];

/// Plants one row and has the user work on.
async fn plant(ground: &Ground, who: Who, row: &str, script: &str) {
    let mut client = ground.client().await;
    let outside = directory(who);
    let canary = outside.path().canonicalize().unwrap();
    fs::write(canary.join("canary"), "old").unwrap();
    fs::create_dir(canary.join("objects")).unwrap();
    for name in ["canary", "objects"] {
        give(who, &canary.join(name));
    }
    let name = row.replace([' ', ',', '.'], "-");
    let root = ground.path(&name).join("work");
    fs::create_dir(ground.path(&name)).unwrap();
    give(who, &ground.path(&name));
    repository(who, &root);
    let mark = canary.join("mark");
    // A driver of the user's own, which nothing in the tree names.
    git(who, &root, &["config", "filter.planted.clean", &format!("touch {}; cat", mark.display())]);
    if row.ends_with("where there were none") {
        fs::remove_dir_all(root.join(".git/hooks")).unwrap();
    }
    let before = settled(&root.join(".git"));
    let script = format!("M='touch {}'; C='{}'; {MAKE_INDEX}\n{script}", mark.display(), canary.display());
    let done = sandboxed(ground, &mut client, &root, &script).await;
    assert_eq!(settled(&root.join(".git")), before, "{row}: {} {:?}", done.output, done.notices);
    let head = fs::read_to_string(root.join(".git/HEAD")).unwrap();
    assert_eq!(head, "ref: refs/heads/main\n", "{row}");
    let mut said = String::new();
    for arguments in USER {
        said += &format!("{arguments:?}: {}\n", try_git(who, &root, arguments).1);
        assert!(!mark.exists(), "{row}: {arguments:?} ran what was planted\n{said}");
    }
    assert_eq!(fs::read_to_string(canary.join("canary")).unwrap(), "old", "{row}: {said}");
    let left: Vec<_> = fs::read_dir(&canary).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{row}: {left:?} {said}");
    for escaped in [ground.path(&name).join("escaped"), root.join("escaped"), Path::new("/escaped").to_owned()] {
        assert!(!escaped.exists(), "{row}: {}", escaped.display());
    }
    assert!(!root.join(".git/objects/info/alternates").exists(), "{row}");
    assert!(said.contains("[\"status\"]: On branch main"), "{row}: the repository does not work any more: {said}");
    // The next command in the sandbox is not kept from working either.
    client.result("session/end", serde_json::json!({})).await;
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn nothing_planted_below_a_gitdir_has_an_effect_outside(who: Who) {
        let ground = Ground::new(who);
        for (row, script) in ROWS {
            plant(&ground, who, row, script).await;
        }
    }

    // The same below the gitdirs of a submodule and of a second working tree, and in the files that lead there.
    #[needs(MOUNTS)]
    async fn nothing_planted_in_a_submodule_or_a_working_tree_has_an_effect_outside(who: Who) {
        let ground = Ground::new(who);
        let outside = directory(who);
        let mark = outside.path().canonicalize().unwrap().join("mark");
        let around = ground.path("around");
        fs::create_dir(&around).unwrap();
        give(who, &around);
        let (main, module, tree) = (around.join("main"), around.join("module"), around.join("tree"));
        repository(who, &main);
        repository(who, &module);
        git(who, &main, &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../module", "sub"]);
        git(who, &main, &["commit", "-qm", "two"]);
        git(who, &main, &["worktree", "add", "-q", "../tree", "-b", "tree"]);
        let evil = "mkdir -p evil/objects evil/refs; printf '[core]\\n\\tfsmonitor = %s\\n' \"$M\" > evil/config; echo 'ref: refs/heads/main' > evil/HEAD; E=$PWD/evil";
        for (row, script) in [
            ("1 config of a submodule", "git -C main/sub config core.fsmonitor \"$M\""),
            ("2 hooks of a submodule", "mkdir -p main/.git/modules/sub/hooks; printf '#!/bin/sh\\n%s\\n' \"$M\" > main/.git/modules/sub/hooks/post-index-change; chmod +x main/.git/modules/sub/hooks/*"),
            ("4 commondir of a submodule", "echo $E > main/.git/modules/sub/commondir"),
            ("4 commondir of a working tree", "echo $E > main/.git/worktrees/tree/commondir"),
            ("5 the file of a working tree", "echo \"gitdir: $E\" > tree/.git; ln -sfn $E tree/.git; mv tree/.git tree/x; rm -f tree/.git"),
            ("5 the file of a submodule", "echo \"gitdir: $E\" > main/sub/.git; ln -sfn $E main/sub/.git; mv main/sub/.git main/sub/x; rm -f main/sub/.git"),
            ("5 the directory around the file", "mv tree elsewhere && mkdir tree && echo \"gitdir: $E\" > tree/.git; mv main/sub main/elsewhere && mkdir main/sub && echo \"gitdir: $E\" > main/sub/.git"),
            ("16 gitdir of a working tree", "echo $E/.git > main/.git/worktrees/tree/gitdir"),
        ] {
            let mut client = ground.client().await;
            let before = settled(&main.join(".git"));
            let script = format!("M='touch {}'; {evil}; {script}", mark.display());
            let done = sandboxed(&ground, &mut client, &around, &script).await;
            let changed: Vec<_> = settled(&main.join(".git")).into_iter().filter(|file| !before.contains(file)).map(|(name, _)| name).collect();
            assert!(changed.is_empty(), "{row}: {changed:?}");
            let mut said = String::new();
            for at in [&main, &main.join("sub"), &tree] {
                for arguments in [&["status"][..], &["add", "file"], &["commit", "-q", "--allow-empty", "-m", "user"], &["worktree", "repair"]] {
                    let (is_well, told) = try_git(who, at, arguments);
                    said += &format!("{}: {arguments:?}: {is_well} {told}\n", at.display());
                    assert!(!mark.exists(), "{row}: {said} {}", done.output);
                }
            }
            assert!(!said.contains(": false"), "{row}: {said} {} {:?}", done.output, done.notices);
            client.result("session/end", serde_json::json!({})).await;
        }
    }

    // The rows have an effect where sandboxed code has the repository itself: otherwise the test above would show nothing.
    #[needs(MOUNTS)]
    async fn planted_in_the_repository_itself_it_runs(who: Who) {
        let ground = Ground::with(who, &["-c", "git=full"]);
        let mut client = ground.client().await;
        for row in ["1 config", "2 hooks", "3 config.worktree", "9 rebase todo"] {
            let outside = directory(who);
            let mark = outside.path().canonicalize().unwrap().join("mark");
            let root = ground.path(&row.replace([' ', '.'], "-"));
            repository(who, &root);
            let script = ROWS.iter().find(|(name, _)| *name == row).unwrap().1;
            let done = sandboxed(&ground, &mut client, &root, &format!("M='touch {}'; C=/nonexistent; {script}", mark.display())).await;
            assert!(!mark.exists(), "{row}: {}", done.output);
            USER.iter().for_each(|arguments| drop(try_git(who, &root, arguments)));
            assert!(mark.exists(), "{row} has no effect: {}", done.output);
        }
    }

    #[needs(MOUNTS)]
    async fn what_misleads_is_not_carried_over(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let mut client = ground.client().await;
        // A change that the index says is none, with all that it says about times.
        let script = "echo hidden > file && git update-index --skip-worktree file && git update-index --assume-unchanged file && echo x > new && git add new";
        let done = sandboxed(&ground, &mut client, &root, script).await;
        assert_eq!(done.code, 0, "{}", done.output);
        assert_eq!(git(who, &root, &["status", "--porcelain"]), " M file\nA  new");
        let script = "perl -e 'open F, \"+<\", \".git/index\"; 1' && git add file && git update-index --cacheinfo 100644,$(git rev-parse HEAD:file),file; git update-index -q --refresh; true";
        sandboxed(&ground, &mut client, &root, script).await;
        assert_eq!(git(who, &root, &["status", "--porcelain"]), " M file\nA  new");
    }
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn what_git_would_run_in_a_tree_is_told(who: Who) {
        let home = directory(who);
        let root_of = |ground: &Ground| ground.path("work");
        // The user has a driver, and settings that lead into the workspace.
        let settings = "[filter \"lower\"]\n\tclean = tr A-Z a-z\n[core]\n\thooksPath = tools/hooks\n[merge \"own\"]\n\tdriver = ./tools/merge %A\n";
        fs::write(home.path().join(".gitconfig"), settings).unwrap();
        give(who, &home.path().join(".gitconfig"));
        let ground = Ground::at_home(who, home.path(), &[]);
        let root = root_of(&ground);
        repository(who, &root);
        for name in ["tools", "tools/hooks"] {
            fs::create_dir(root.join(name)).unwrap();
            give(who, &root.join(name));
        }
        let mut client = ground.client().await;
        assert!(sandboxed(&ground, &mut client, &root, "echo x > plain").await.notices.is_empty());
        for (script, told) in [
            // Row 20, also as a gitlink.
            ("git init -q nested && cd nested && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && cd .. && git add nested 2>/dev/null && git commit -qm nested", "nested/.git"),
            // Row 21.
            ("git init -q --bare deep/bare", "deep/bare"),
            // Row 19: what `git push` takes for a remote of this name.
            ("git init -q --bare upstream", "upstream"),
            // Row 23.
            ("echo '*.txt filter=lower' > .gitattributes", "filter=lower"),
            // Row 24.
            ("echo evil > tools/hooks/pre-commit", "core.hookspath"),
            ("echo evil > tools/merge", "tools/merge"),
        ] {
            let done = sandboxed(&ground, &mut client, &root, script).await;
            assert!(done.notices.iter().any(|notice| notice.contains(told)), "{script}: {} {:?}", done.output, done.notices);
        }
        // The index does not list the nested repository, so that git at the top does not run in it.
        assert!(!git(who, &root, &["ls-files", "-s"]).contains("nested"));
        assert!(sandboxed(&ground, &mut client, &root, "echo y > plain").await.notices.is_empty());
    }
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn bad_objects_are_refused(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let tip = git(who, &root, &["rev-parse", "main"]);
        let mut client = ground.client().await;
        // A tree that holds a gitdir, one that is missing, and a branch that leads nowhere.
        let scripts = [
            "blob=$(git rev-parse HEAD:file); inner=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree); raw=$(printf %s $inner | sed 's/../\\\\x&/g'); \
             tree=$({ printf '40000 .git\\0'; perl -e 'print pack \"H*\", shift' $inner; } | git hash-object -w -t tree --literally --stdin); git update-ref refs/heads/evil $(git commit-tree -m evil $tree)",
            "tree=$(printf '100644 blob 1111111111111111111111111111111111111111\\tx\\n' | git mktree --missing); git update-ref refs/heads/evil $(git commit-tree -m evil $tree)",
            "echo 1111111111111111111111111111111111111111 > .git/refs/heads/evil",
        ];
        for script in scripts {
            let done = sandboxed(&ground, &mut client, &root, script).await;
            assert!(done.code == 0 && !done.notices.is_empty(), "{script}: {} {} {:?}", done.code, done.output, done.notices);
            assert!(!try_git(who, &root, &["rev-parse", "--verify", "-q", "refs/heads/evil"]).0, "{script}");
            sandboxed(&ground, &mut client, &root, "rm -f .git/refs/heads/evil").await;
        }
        assert_eq!(git(who, &root, &["rev-parse", "main"]), tip);
        git(who, &root, &["fsck", "--strict", "--connectivity-only"]);
        // Good work goes on.
        sandboxed(&ground, &mut client, &root, "echo good > file && git commit -qam good").await;
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s"]), "good");
    }
}
