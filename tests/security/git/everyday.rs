//! What people do with git all day, inside a sandbox, and what the user sees of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{end, git, plain, repository, sandboxed, settled, start, try_git};
use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::{Ground, give};

/// Everything below a gitdir belongs to the owner of the working tree.
fn is_owned(gitdir: &Path, owner: u32) {
    let mut left = vec![gitdir.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        assert_eq!(metadata.uid(), owner, "{}", path.display());
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn what_is_committed_is_there_outside(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let before = settled(&root.join(".git"));
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "echo two > file && git commit -qam two && test -z \"$(git status --porcelain)\"").await;
        assert_eq!(git(who, &root, &["log", "--format=%s %an"]), "two agent\none user");
        assert_eq!(git(who, &root, &["status", "--porcelain"]), "");
        plain(&ground, &mut client, &root, "git switch -qc topic && mkdir d && echo 3 > d/new && git add d && git commit -qm three && git tag v1 && git tag -a v2 -m v2").await;
        assert_eq!(git(who, &root, &["status", "--porcelain", "-b"]), "## topic");
        assert_eq!(git(who, &root, &["tag", "-l"]), "v1\nv2");
        assert_eq!(git(who, &root, &["cat-file", "-t", "v2"]), "tag");
        // Staged and not committed.
        plain(&ground, &mut client, &root, "echo 4 > staged && git add staged && git rm -q file").await;
        assert_eq!(git(who, &root, &["status", "--porcelain"]), "D  file\nA  staged");
        assert_eq!(git(who, &root, &["show", ":staged"]), "4");
        plain(&ground, &mut client, &root, "git reset -q --hard && git branch -q -m topic other && git branch -q -d main").await;
        assert_eq!(git(who, &root, &["branch", "--format=%(refname:short)"]), "other");
        git(who, &root, &["fsck", "--strict"]);
        assert_eq!(settled(&root.join(".git")), before);
        is_owned(&root.join(".git"), root.metadata().unwrap().uid());
    }

    #[needs(MOUNTS)]
    async fn settings_hooks_and_stashes_stay_inside(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let before = settled(&root.join(".git"));
        let mut client = ground.client().await;
        sandboxed(&ground, &mut client, &root, "git config alias.st status && git remote add origin https://example.org/x && echo changed > file && git stash -q && cat file").await;
        let output = plain(&ground, &mut client, &root, "git st --porcelain && git stash list && git stash pop -q && cat file && git remote").await;
        assert!(output.contains("stash@{0}") && output.ends_with("changed\norigin\n"), "{output}");
        plain(&ground, &mut client, &root, "printf '#!/bin/sh\\necho hooked\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit && git commit -qam hooked && git gc -q && git fsck && git log -1 --format=%s").await;
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s"]), "hooked");
        assert!(git(who, &root, &["stash", "list"]).is_empty());
        assert_eq!(settled(&root.join(".git")), before);
    }

    #[needs(MOUNTS)]
    async fn what_was_put_away_inside_can_be_applied_outside(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let before = settled(&root.join(".git"));
        let mut client = ground.client().await;
        let stashes = || git(who, &root, &["for-each-ref", "--format=%(refname)", "refs/outpost"]);
        // One that is taken back in the same command leaves nothing.
        plain(&ground, &mut client, &root, "echo x > file && git stash -q && git stash pop -q && git checkout -q file").await;
        assert_eq!(stashes(), "");
        let done = sandboxed(&ground, &mut client, &root, "echo first > file && git stash -q && echo second > new && git add new && git stash -q -m named").await;
        let kept: Vec<String> = stashes().lines().map(str::to_owned).collect();
        assert!(kept.len() == 2 && kept[0].ends_with("/stashes/0") && kept[1].ends_with("/stashes/1"), "{kept:?}");
        assert!(done.code == 0 && done.notices.iter().any(|notice| notice.contains(&kept[0])), "{} {:?}", done.output, done.notices);
        assert!(git(who, &root, &["stash", "list"]).is_empty());
        assert_eq!(settled(&root.join(".git")), before);
        // They are said once, and are as many as there are inside.
        plain(&ground, &mut client, &root, "git stash list | grep -q 'stash@{1}' && git gc -q && git stash list | grep -q 'stash@{1}'").await;
        git(who, &root, &["stash", "apply", "-q", &kept[1]]);
        assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "first\n");
        git(who, &root, &["checkout", "-q", "file"]);
        plain(&ground, &mut client, &root, "git stash drop -q").await;
        assert_eq!(stashes(), kept[0]);
        assert!(git(who, &root, &["log", "-1", "--format=%s", &kept[0]]).starts_with("WIP on main"));
        git(who, &root, &["fsck", "--strict"]);
        plain(&ground, &mut client, &root, "git stash clear").await;
        assert_eq!(stashes(), "");
        // What is no stash is not kept, and breaks nothing.
        for script in [
            "echo 1111111111111111111111111111111111111111 > .git/refs/stash",
            "rm -f .git/refs/stash; ln -s /etc/hostname .git/refs/stash; mkdir -p .git/logs/refs; ln -sf /etc/passwd .git/logs/refs/stash",
        ] {
            sandboxed(&ground, &mut client, &root, script).await;
            assert_eq!(stashes(), "", "{script}");
        }
        sandboxed(&ground, &mut client, &root, "rm -f .git/refs/stash .git/logs/refs/stash; echo good > file && git commit -qam good").await;
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s"]), "good");
    }

    #[needs(MOUNTS)]
    async fn files_of_git_lfs_are_carried_over_if_they_are_what_their_names_say(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        // As git-lfs keeps them; the program itself is not needed for that.
        let own = "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4";
        for part in ["lfs", "lfs/objects", "lfs/objects/98", "lfs/objects/98/ea"] {
            fs::create_dir(root.join(".git").join(part)).unwrap();
            give(who, &root.join(".git").join(part));
        }
        let path = root.join(".git/lfs/objects/98/ea").join(own);
        fs::write(&path, "hi\n").unwrap();
        give(who, &path);
        let mut client = ground.client().await;
        // What the machine has is seen beside the objects, where git-lfs looks for it.
        let script = format!("store=$(dirname $(head -n 1 .git/objects/info/alternates))/lfs/objects && test \"$(cat $store/98/ea/{own})\" = hi && ! touch $store/x 2>/dev/null");
        plain(&ground, &mut client, &root, &script).await;
        let make = r#"keep() { oid=$(printf %s "$1" | sha256sum | cut -c 1-64); d=.git/lfs/objects/$(echo $oid | cut -c 1-2)/$(echo $oid | cut -c 3-4); mkdir -p $d; printf %s "$2" > $d/$oid; echo $oid; }"#;
        let script = format!("{make}; keep large large; keep forged other; echo $RANDOM >> file; git commit -qam large");
        let output = plain(&ground, &mut client, &root, &script).await;
        let names: Vec<&str> = output.lines().collect();
        let at = |oid: &str| root.join(".git/lfs/objects").join(&oid[..2]).join(&oid[2..4]).join(oid);
        assert_eq!(fs::read_to_string(at(names[0])).unwrap(), "large");
        assert_eq!(at(names[0]).metadata().unwrap().uid(), root.metadata().unwrap().uid());
        assert!(!at(names[1]).exists());
        // A link in the place of a file, or of a directory, carries nothing over.
        let script = format!("{make}; oid=$(keep linked x); f=$(find .git/lfs -name $oid); rm $f; ln -s /etc/hostname $f; rm -rf .git/lfs/objects/98; ln -s /etc .git/lfs/objects/98; echo more >> file; git commit -qam links");
        let done = sandboxed(&ground, &mut client, &root, &script).await;
        assert_eq!(done.code, 0, "{}", done.output);
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s"]), "links");
        assert_eq!(fs::read_to_string(&path).unwrap(), "hi\n");
        is_owned(&root.join(".git"), root.metadata().unwrap().uid());
    }

    #[needs(MOUNTS)]
    async fn a_rebase_goes_on_in_the_next_command(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "git switch -qc topic && echo topic > file && git commit -qam topic && git switch -q main && echo main > file && git commit -qam main && git switch -q topic").await;
        let tip = git(who, &root, &["rev-parse", "topic"]);
        let done = sandboxed(&ground, &mut client, &root, "git rebase -q main").await;
        assert_ne!(done.code, 0, "{}", done.output);
        // Outside nothing has moved meanwhile.
        assert_eq!(git(who, &root, &["symbolic-ref", "HEAD"]), "refs/heads/topic");
        assert_eq!(git(who, &root, &["rev-parse", "HEAD"]), tip);
        assert!(!root.join(".git/rebase-merge").exists());
        plain(&ground, &mut client, &root, "echo both > file && git add file && GIT_EDITOR=true git rebase --continue >/dev/null 2>&1 && git log --format=%s").await;
        assert_eq!(git(who, &root, &["log", "--format=%s", "topic"]), "topic\nmain\none");
        assert_eq!(git(who, &root, &["status", "--porcelain", "-b"]), "## topic");
        plain(&ground, &mut client, &root, "git switch -q main && git merge -q --no-ff -m merged topic && git cherry-pick --allow-empty HEAD~1 >/dev/null 2>&1 || git cherry-pick --quit").await;
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s", "--merges", "main"]), "merged");
    }

    #[needs(MOUNTS)]
    async fn what_the_user_commits_meanwhile_is_seen_inside(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "git log --oneline").await;
        for round in ["two", "three"] {
            fs::write(root.join("file"), round).unwrap();
            git(who, &root, &["commit", "-qam", round]);
            let output = plain(&ground, &mut client, &root, "git log -1 --format=%s && git status --porcelain").await;
            assert_eq!(output.trim_end(), round);
        }
        git(who, &root, &["switch", "-q", "-c", "users"]);
        fs::write(root.join("other"), "x").unwrap();
        give(who, &root.join("other"));
        git(who, &root, &["add", "other"]);
        let output = plain(&ground, &mut client, &root, "git status --porcelain -b && git commit -qm mine && git log -1 --format=%s").await;
        assert_eq!(output, "## users\nA  other\nmine\n");
        assert_eq!(git(who, &root, &["log", "-2", "--format=%s", "users"]), "mine\nthree");
        git(who, &root, &["pack-refs", "--all"]);
        git(who, &root, &["gc", "-q"]);
        plain(&ground, &mut client, &root, "echo y > other && git commit -qam packed").await;
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s"]), "packed");
    }

    #[needs(MOUNTS)]
    async fn nothing_is_overwritten_when_both_change_a_branch(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "true").await;
        let runs = start(&ground, &mut client, &root, "echo agent > agents && git add agents && git commit -qm agents && touch committed && until test -e go; do sleep 0.02; done").await;
        outpost_testkit::executor::eventually("it has committed", || root.join("committed").exists()).await;
        fs::write(root.join("users"), "user").unwrap();
        give(who, &root.join("users"));
        git(who, &root, &["add", "users"]);
        git(who, &root, &["commit", "-qm", "users"]);
        fs::write(root.join("go"), "").unwrap();
        let done = end(&mut client, &runs).await;
        assert_eq!(done.code, 0, "{}", done.output);
        let kept = git(who, &root, &["for-each-ref", "--format=%(refname)", "refs/outpost"]);
        assert!(kept.ends_with("/main") && done.notices.iter().any(|notice| notice.contains(&kept)), "{kept} {:?}", done.notices);
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s", "main"]), "users");
        assert_eq!(git(who, &root, &["log", "-1", "--format=%s", &kept]), "agents");
        // Once the user has brought both together, both sides agree again.
        // What was committed is in the working tree already.
        fs::remove_file(root.join("agents")).unwrap();
        git(who, &root, &["merge", "-q", "-m", "merged", &kept]);
        let output = plain(&ground, &mut client, &root, "git log -1 --format=%s && git status --porcelain --untracked-files=no").await;
        assert_eq!(output, "merged\n");
    }

    #[needs(MOUNTS)]
    async fn nothing_is_lost_that_is_deleted_inside(who: Who) {
        let ground = Ground::new(who);
        let root = ground.path("work");
        repository(who, &root);
        git(who, &root, &["branch", "old"]);
        let mut client = ground.client().await;
        plain(&ground, &mut client, &root, "git switch -q old && echo 2 > file && git commit -qam only && git switch -q main").await;
        let tip = git(who, &root, &["rev-parse", "old"]);
        let done = sandboxed(&ground, &mut client, &root, "git branch -q -D old").await;
        assert!(done.notices.iter().any(|notice| notice.contains(&tip[..12])), "{:?}", done.notices);
        assert!(!try_git(who, &root, &["rev-parse", "--verify", "-q", "refs/heads/old"]).0);
        let kept = git(who, &root, &["for-each-ref", "--format=%(objectname)", "refs/outpost"]);
        assert_eq!(kept, tip);
        // Removing everything inside removes nothing outside.
        let done = sandboxed(&ground, &mut client, &root, "rm -rf .git/refs .git/packed-refs .git/HEAD .git/index; git init -q; true").await;
        assert!(!done.notices.is_empty(), "{}", done.output);
        assert_eq!(git(who, &root, &["log", "--format=%s", "main"]), "one");
    }
}
