# git: what was committed inside must be there outside afterwards.

## commit in a repository that is there
# needs: git
# test
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
echo two >>file && git add file && git commit -q -m two && git log --oneline | grep -q two
### after
git log --oneline | grep -q two && [ -z "$(git status --porcelain)" ] && git fsck --strict

## init in an empty directory and commit
# needs: git
# test
### inside
git init -q -b main . && git config core.autocrlf input && echo one >file && git add . && git commit -q -m one
### after
git log --oneline | grep -q one && [ -z "$(git status --porcelain)" ]

## branch, switch, merge
# needs: git
# test
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
git switch -q -c topic && echo two >two && git add two && git commit -q -m two
git switch -q main && git merge -q --no-ff -m merged topic && git branch -d topic
### after
git log --oneline | grep -q merged && [ -f two ]

## stash and pop
# needs: git
# test
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
echo two >file && git stash -q && [ "$(cat file)" = one ] && git stash pop -q && [ "$(cat file)" = two ]

## rebase with a conflict
# needs: git
# test
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
git switch -q -c topic && echo topic >file && git commit -q -a -m topic
git switch -q main && echo main >file && git commit -q -a -m main && git switch -q topic
### inside
git rebase main && exit 1
echo both >file && git add file && GIT_EDITOR=true git rebase --continue
### after
[ "$(git log --format=%s | tr '\n' ' ')" = 'topic main one ' ]

## a worktree beside the checkout
# needs: git
# test
### before
git init -q -b main app && cd app && echo one >file && git add file && git commit -q -m one
### inside
cd app && git worktree add -q ../topic -b topic && cd ../topic && echo two >two && git add two && git commit -q -m two
### after
cd app && git log --oneline topic | grep -q two

## commit in a worktree that is there
# needs: git
### before
git init -q -b main app && cd app && echo one >file && git add file && git commit -q -m one && git worktree add -q ../topic -b topic
### inside
cd topic && echo two >two && git add two && git commit -q -m two
### after
cd topic && git log --oneline | grep -q two && [ -z "$(git status --porcelain)" ]

## commit in a submodule
# needs: git
### before
git init -q -b main lib && (cd lib && echo one >file && git add file && git commit -q -m one)
git init -q -b main app && cd app && git -c protocol.file.allow=always submodule --quiet add ../lib lib && git commit -q -m app
### inside
cd app/lib && echo two >two && git add two && git commit -q -m two && cd .. && git add lib && git commit -q -m 'newer lib'
### after
cd app && git log --oneline | grep -q 'newer lib' && git -C lib log --oneline | grep -q two

## commit in a repository in a subdirectory
# needs: git
# test
### before
mkdir -p some/where && cd some/where && git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
cd some/where && echo two >file && git commit -q -a -m two
### after
cd some/where && git log --oneline | grep -q two

## clone a repository of the workspace and push to it
# needs: git
### before
git init -q --bare -b main hub.git && git clone -q hub.git seed 2>/dev/null && cd seed && echo one >file && git add file && git commit -q -m one && git push -q origin HEAD:main
### inside
git clone -q hub.git copy && cd copy && echo two >two && git add two && git commit -q -m two && git push -q origin HEAD:main
cd ../seed && git pull -q && [ -f two ]

## amend, reset, revert, cherry-pick
# needs: git
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one && git branch other
### inside
echo two >two && git add two && git commit -q -m two && git commit -q --amend -m 'two, better'
git revert --no-edit HEAD && git reset -q --hard HEAD~1
git switch -q other && git cherry-pick main
### after
git log --oneline other | grep -q 'two, better' && [ "$(git symbolic-ref --short HEAD)" = other ]

## tags, describe, archive
# needs: git
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
git tag -a v1 -m v1 && [ "$(git describe)" = v1 ] && git archive v1 | tar -t | grep -q file
### after
[ "$(git describe)" = v1 ]

## gc, repack, fsck
# needs: git
### before
git init -q -b main . && for i in 1 2 3; do echo $i >file && git add file && git commit -q -m $i; done
### inside
git gc -q --prune=now && git repack -q -a -d && git fsck --strict
### after
git fsck --strict && [ "$(git rev-list --count HEAD)" = 3 ]

## bisect run
# needs: git
### before
git init -q -b main . && for i in 1 2 3 4 5 6; do echo $i >file && git add file && git commit -q -m $i; done
### inside
git bisect start HEAD HEAD~5 && git bisect run sh -c '[ $(cat file) -lt 4 ]' | grep -q 'first bad commit' && git bisect reset

## format-patch and am
# needs: git
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
echo two >file && git commit -q -a -m two && git format-patch -q -1 -o patches && git reset -q --hard HEAD~1 && git am -q patches/*.patch
### after
git log --oneline | grep -q two

## log, blame, grep, diff
# needs: git
# test
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one && echo two >>file
### inside
git --no-pager log -p >/dev/null && git blame file >/dev/null && git grep -q one && git diff --stat | grep -q file && git status --porcelain | grep -q '^ M file'

## a hook of the repository runs on commit
# needs: git
### before
git init -q -b main . && printf '#!/bin/sh\necho ran >hook-ran\n' >.git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
### inside
echo one >file && git add file && git commit -q -m one && [ -f hook-ran ]
### after
git log --oneline | grep -q one

## hooks in the tree, as husky sets them up
# needs: git
### before
git init -q -b main . && mkdir .husky && printf '#!/bin/sh\necho ran >hook-ran\n' >.husky/pre-commit && chmod +x .husky/pre-commit && git config core.hooksPath .husky
### inside
echo one >file && git add file && git commit -q -m one && [ -f hook-ran ]

## git config --global
# needs: git
# forbidden: of the home only directories of caches and settings are written; git outside reads ~/.gitconfig
# allow: --sandbox danger-full-access
### inside
git config --global init.defaultBranch trunk && git config --global init.defaultBranch | grep -q trunk

## git-lfs: a file that is there is checked out, a new one is committed
# needs: git git-lfs
### before
git init -q -b main . && git lfs install --local >/dev/null && git lfs track '*.bin' >/dev/null && head -c 100000 /dev/urandom >one.bin && git add . && git commit -q -m one
### inside
rm one.bin && git checkout -q one.bin && [ "$(wc -c <one.bin)" = 100000 ] && head -c 50000 /dev/urandom >two.bin && git add two.bin && git commit -q -m two && git lfs ls-files | grep -q two.bin
### after
git lfs fsck >/dev/null && rm two.bin && git checkout -q two.bin && [ "$(wc -c <two.bin)" = 50000 ]

## a stash is left for the user
# needs: git
### before
git init -q -b main . && echo one >file && git add file && git commit -q -m one
### inside
echo two >file && git stash -q && [ "$(cat file)" = one ]
### after
[ -n "${BARE:-}" ] || git stash apply -q "$(git for-each-ref --format='%(refname)' 'refs/outpost/*/stashes/0')" && { [ -z "${BARE:-}" ] || git stash pop -q; } && [ "$(cat file)" = two ]

## sign a commit with an ssh key
# needs: git ssh-keygen
# forbidden: private keys in the home are not readable
# allow: -c sandbox_home.show=[".ssh"]
### before
mkdir -p "$HOME/.ssh" && ssh-keygen -q -t ed25519 -N '' -f "$HOME/.ssh/id_ed25519"
git init -q -b main . && git config gpg.format ssh && git config user.signingKey "$HOME/.ssh/id_ed25519"
### inside
echo one >file && git add file && git commit -q -S -m one
### after
git cat-file commit HEAD | grep -q 'BEGIN SSH SIGNATURE'

## push to a repository outside of the workspace
# needs: git
# forbidden: writes only in the workspace
# allow: -c sandbox_workspace_write.writable_roots=["$ELSEWHERE"]
### before
git init -q --bare -b main "$ELSEWHERE/hub.git" && git init -q -b main . && git remote add origin "$ELSEWHERE/hub.git" && echo one >file && git add file && git commit -q -m one
### inside
git push -q origin main
