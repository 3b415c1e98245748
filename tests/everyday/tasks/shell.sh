# Shells and the tools around them.

## sh: here-documents, pipes, background jobs, traps
# test
### inside
cat <<X | tr a-z A-Z | grep -q 'HERE'
here $((6 * 7))
X
sleep 0.1 & wait $! && mkfifo pipe && { echo through >pipe & } && [ "$(cat pipe)" = through ] && (trap 'echo trapped >t' EXIT; true) && [ -f t ]

## bash: process substitution, here-strings, coproc
# needs: bash
# test
### inside
bash -ec 'diff <(echo a) <(echo a); [ "$(cat <<<word)" = word ]; coproc cat; echo x >&"${COPROC[1]}"; read -r y <&"${COPROC[0]}"; [ "$y" = x ]; exec 3>/dev/fd/1'

## zsh: a here-document
# needs: zsh
### inside
zsh -c 'cat <<X
here
X' | grep -q here && zsh -fc '[[ "$(<<<word)" = word ]] && diff =(echo a) =(echo a)'

## fish
# needs: fish
### inside
fish -c 'echo hi | string upper' 2>said | grep -q HI && ! grep -i -E 'denied|read-only' said

## tar, gzip, xz, zstd
# needs: tar gzip xz zstd
### inside
mkdir d && seq 1000 >d/f && for c in z J; do tar -c${c}f a d && mkdir o && tar -x${c}f a -C o && cmp d/f o/d/f && rm -r o a; done && zstd -q d/f -o f.zst && zstd -dqc f.zst | cmp - d/f

## zip and unzip
# needs: zip unzip
### inside
seq 100 >f && zip -q a.zip f && mkdir o && unzip -q a.zip -d o && cmp f o/f

## cp -a, chmod, ln, touch -d, find, xargs
# test
### inside
mkdir -p a/b && seq 10 >a/b/f && chmod 750 a/b && ln -s b/f a/l && ln a/b/f a/h && touch -d '2020-01-02 03:04:05' a/b/f && cp -a a c
[ "$(stat -c '%a %Y' c/b)" = "$(stat -c '%a %Y' a/b)" ] && [ -L c/l ] && find c -type f -print0 | xargs -0 sed -i s/1/one/ && grep -q one c/b/f

## rsync between directories
# needs: rsync
### inside
mkdir a && seq 10 >a/f && chmod 640 a/f && rsync -a --delete a/ b/ && cmp a/f b/f && [ "$(stat -c %a b/f)" = 640 ]

## sort, awk, jq, bc, xxd
# needs: awk jq bc xxd
### inside
seq 200000 | sort -rn -S 1M | head -n 1 | grep -q 200000 && echo '{"a":[1,2]}' | jq -e '.a[1] == 2' >/dev/null && [ "$(echo '6*7' | bc)" = 42 ] && printf A | xxd | grep -q 41

## patch and diff
# needs: patch
### inside
echo one >f && printf -- '--- f\n+++ f\n@@ -1 +1 @@\n-one\n+two\n' | patch -s -p0 && grep -q two f

## rg and fd
# needs: rg
### inside
mkdir src && echo needle >src/f && rg -q needle && { ! command -v fdfind >/dev/null || fdfind -q '^f$'; }

## ssh-keygen into the workspace
# needs: ssh-keygen
# test
### inside
ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -l -f key.pub && ssh -V

## openssl: a certificate and a TLS server
# needs: openssl
### inside
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost 2>/dev/null
openssl s_server -accept 127.0.0.1:8921 -cert cert.pem -key key.pem -www >/dev/null 2>&1 & pid=$!
until_ok sh -c 'echo | openssl s_client -connect 127.0.0.1:8921 -CAfile cert.pem -verify_return_error'; kill $pid

## gpg: a key of the workspace, sign and verify
# needs: gpg
### inside
mkdir -m 700 g && export GNUPGHOME=$PWD/g && gpg -q --batch --passphrase '' --quick-gen-key dev@example.test 2>/dev/null && echo text >f && gpg -q --batch --yes -b f && gpg -q --verify f.sig f 2>/dev/null; gpgconf --kill all || true

## gpg signs with the key of the home
# needs: gpg
# forbidden: private keys in the home are not readable
# allow: -c sandbox_home.show=[".gnupg"]
### before
mkdir -m 700 "$HOME/.gnupg" && gpg -q --batch --passphrase '' --quick-gen-key dev@example.test 2>/dev/null; gpgconf --kill all || true
### inside
echo text >f && gpg -q --batch --yes -b f && [ -s f.sig ]

## curl and wget from a local server
# needs: curl wget python3
### inside
echo served >page && { python3 -m http.server --bind 127.0.0.1 8922 >/dev/null 2>&1 & } && until_ok curl -sf http://127.0.0.1:8922/page && [ "$(wget -qO- http://localhost:8922/page)" = served ]

## ping the loopback
# needs: ping
### inside
ping -c 1 -W 5 127.0.0.1 >/dev/null && ping -c 1 -W 5 ::1 >/dev/null

## socat between a port and a unix socket
# needs: socat
### inside
socat UNIX-LISTEN:s,fork EXEC:cat & a=$!; socat TCP-LISTEN:8923,bind=127.0.0.1,fork,reuseaddr UNIX-CONNECT:s & b=$!; until_ok sh -c 'echo hi | socat -t 5 - TCP:127.0.0.1:8923 | grep -q hi'; kill $a $b

## inotifywait
# needs: inotifywait
### inside
mkdir d && { inotifywait -q -t 20 -e close_write d >said 2>log & } && pid=$! && n=0; while kill -0 $pid 2>/dev/null && [ $n -lt 100 ]; do n=$((n + 1)); echo x >d/f; sleep 0.2; done; grep -q f said

## entr runs a command on a change
# needs: entr
### inside
echo one >f && { echo f | entr -n sh -c 'echo ran >>said' >/dev/null 2>&1 & } && pid=$! && until_ok grep -q ran said && n=0; while [ "$(wc -l <said)" -lt 2 ] && [ $n -lt 50 ]; do n=$((n + 1)); echo two >f; sleep 0.2; done; kill $pid; [ "$(wc -l <said)" -ge 2 ]

## tmux
# needs: tmux
### inside
tmux new-session -d -s work 'echo shown; sleep 30' && until_ok sh -c 'tmux capture-pane -p -t work | grep -q shown' && tmux kill-server

## script and expect: a terminal of its own
# needs: script
# test
### inside
script -qec 'test -t 0 && stty size && echo on a terminal' /dev/null | grep -q 'on a terminal'

## expect
# needs: expect
### inside
expect -c 'spawn sh -c {read x; echo got $x}; send "word\r"; expect "got word" {exit 0} timeout {exit 1}' >/dev/null

## ps, top, free, df, lsof, uptime
# needs: ps free
# test
### inside
ps aux | grep -q ps && ps -ef >/dev/null && free -m >/dev/null && df -h . >/dev/null && uptime >/dev/null && nproc >/dev/null && { ! command -v lsof >/dev/null || lsof -p $$ >/dev/null; }

## names: localhost, users, services, the resolver's file
# needs: getent
# test
### inside
getent hosts localhost >/dev/null && getent ahosts localhost | grep -q -E '127.0.0.1|::1' && getent services https >/dev/null && cat /etc/hosts >/dev/null && { [ ! -e /etc/resolv.conf ] || cat /etc/resolv.conf >/dev/null; } && hostname >/dev/null

## time zones, locales, terminfo
# test
### inside
[ "$(TZ=Asia/Tokyo date -d @0 +%H)" = 09 ] && [ "$(LC_ALL=C.UTF-8 printf 'é' | LC_ALL=C.UTF-8 wc -m)" = 1 ] && { ! command -v tput >/dev/null || TERM=xterm tput cols >/dev/null; }

## who am I, and whose files are these
# needs: id
# test
### inside
id >/dev/null && id -un >/dev/null && echo mine >f && chmod 600 f && [ -O f ] && ls -ld "$HOME" >/dev/null
### after
[ -O f ] && [ "$(stat -c %a f)" = 600 ]

## /dev: null, zero, urandom, full, shm, fd, stdin, tty
# test
### inside
head -c 8 /dev/urandom >/dev/null && head -c 8 /dev/zero | cmp -n 8 - /dev/zero && ! echo x 2>/dev/null >/dev/full && echo x >/dev/shm/everyday && rm /dev/shm/everyday && echo x | cat /dev/stdin >/dev/null && echo x | cat /dev/fd/0 >/dev/null

## mktemp, TMPDIR, flock
# needs: flock
# test
### inside
f=$(mktemp) && d=$(mktemp -d) && echo x >"$d/f" && rm -r "$f" "$d" && flock lock true && mkdir tmp && TMPDIR=$PWD/tmp mktemp | grep -q "$PWD/tmp"

## vim edits a file
# needs: vim
### inside
echo one >f && vim -es -u NONE -c '%s/one/two/' -c 'wq' f && grep -q two f

## write a setting below ~/.config and a file below ~/.cache
# test
### inside
mkdir -p "$HOME/.config/tool" "$HOME/.cache/tool" "$HOME/.local/share/tool" && echo a=1 >"$HOME/.config/tool/rc" && echo x >"$HOME/.cache/tool/f" && echo y >"$HOME/.local/share/tool/g" && grep -q a=1 "$HOME/.config/tool/rc"
### after
[ -n "${BARE:-}" ] || [ ! -e "$HOME/.config/tool/rc" ]

## read a setting and a cache that are there
# test
### before
mkdir -p "$HOME/.config/tool" "$HOME/.cache/tool" && echo a=1 >"$HOME/.config/tool/rc" && echo x >"$HOME/.cache/tool/f"
### inside
grep -q a=1 "$HOME/.config/tool/rc" && grep -q x "$HOME/.cache/tool/f" && echo b=2 >>"$HOME/.config/tool/rc" && grep -q b=2 "$HOME/.config/tool/rc"

## an empty workspace looks empty, but for three names that are taken while a session runs
# test
### inside
[ -z "$(ls)" ] && [ -z "$(ls -A | grep -v -x -e .git -e .agents -e .codex)" ]
### after
[ -z "$(ls -A)" ]

## a quiet command prints nothing
# test
### before
printf 'echo noise of a profile\necho noise of a profile >&2\n' | tee "$HOME/.profile" >"$HOME/.bashrc"
### inside
true
### after
[ -n "${BARE:-}" ] || [ ! -s "$SAID" ]

## shellcheck and bats
# needs: shellcheck bats
### inside
printf '#!/bin/sh\necho hi\n' >s && shellcheck s && printf '@test "adds" { [ $((1 + 1)) = 2 ]; }\n' >t.bats && bats -t t.bats | grep -q '^ok 1'

## fakeroot builds a package
# needs: fakeroot dpkg-deb
### inside
mkdir -p p/DEBIAN p/usr/bin && printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: d <d@example.test>\nDescription: p\n' >p/DEBIAN/control && fakeroot dpkg-deb -b p p.deb >/dev/null && [ -s p.deb ]

## the docker client starts
# needs: docker
### inside
docker --version | grep -q version && docker context ls >/dev/null

## docker builds and runs
# needs: docker
# forbidden: sockets of daemons outside are hidden
# allow: --sandbox danger-full-access
### inside
docker info >/dev/null 2>&1

## kubectl starts
# needs: kubectl
### before
mkdir -p "$HOME/.kube" && printf 'apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:1\ncontexts:\n- name: c\n  context:\n    cluster: c\n    user: u\nusers:\n- name: u\n  user:\n    token: everyday-secret\ncurrent-context: c\n' >"$HOME/.kube/config"
### inside
kubectl version --client >/dev/null && kubectl create deployment x --image=y --dry-run=client -o yaml | grep -q Deployment

## terraform validates
# needs: terraform
### inside
printf 'output "x" { value = 1 }\n' >main.tf && terraform fmt -check && terraform init -backend=false >/dev/null && terraform validate >/dev/null

## a container without a daemon
# needs: unshare
# forbidden: no new namespaces
# allow: --sandbox danger-full-access
### inside
unshare -rm true

## sudo
# needs: sudo
# forbidden: no set-id programs
# allow: --sandbox danger-full-access
### inside
sudo -n true

## write beside the workspace
# forbidden: writes only in the workspace
# allow: -c sandbox_workspace_write.writable_roots=["$ELSEWHERE"]
# test
### inside
echo x >"$ELSEWHERE/file"

## write to /dev/stdout and /dev/stderr
# test
### inside
echo out >/dev/stdout && echo err | tee /dev/stderr >/dev/null && cat /dev/stdin </dev/null
