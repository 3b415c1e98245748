# What happens when something of a host is broken, or breaks: lines "fault: expected<TAB>ok" or "…<TAB>FAILED: why".
# The argument is the kind of host. Run as root, with OUTPOST naming the program; PODMAN names a podman with the image, SLURM_CONF a cluster.
set -u
W=$(mktemp -d /var/tmp/outpost-faults.XXXXXX); cd "$W" || exit 1
export W OUTPOST OUTPOST_HOME="$W/home" HOME="$W/user"
mkdir "$HOME" "$W/work" "$W/bin"; cd "$W/work" || exit 1
trap 'cd /; umount -l "$W/far" 2>/dev/null; rm -rf "$W"' EXIT
say() { printf '%s\t%s\n' "$1" "$2"; }
last() { tail -n 2 "$W/err" | tr '\n\t|' '   ' | cut -c 1-220; }
until_so() { i=0; while ! eval "$1" && [ $i -lt "${2:-300}" ]; do i=$((i + 1)); sleep 0.1; done; eval "$1"; }
# judge NAME: ok if the command before was true
judge() { if [ "$2" = 0 ]; then say "$1" ok; else say "$1" "FAILED: $(last)"; fi; }
outpost() { "$OUTPOST" "$@" </dev/null; }
# Runs a script in a mount namespace of its own.
apart() { unshare --mount --propagation private sh -c "$1" >"$W/out" 2>"$W/err" </dev/null; }
wrote() { grep -i "$1" "$W/out" "$W/err" >/dev/null; }

# A killed zygote is replaced at the next start.
zygote() {
    "$OUTPOST" executor --listen "unix://$W/sock" >/dev/null 2>"$W/err" </dev/null & executor=$!
    until_so '[ -S "$W/sock" ]'
    outpost env add here --url "unix://$W/sock" >/dev/null 2>&1
    outpost run -e here -- true >/dev/null 2>"$W/err"; before=$?
    for child in $(pgrep -P $executor) $(pgrep outpost-zygote); do
        [ "$(cat "/proc/$child/comm" 2>/dev/null)" = outpost-zygote ] && [ "$(awk '/^PPid/ {print $2}' "/proc/$child/status")" = $executor ] && kill -9 "$child" && killed=yes
    done
    outpost run -e here -- sh -c 'echo again' >"$W/out" 2>"$W/err"
    [ $before = 0 ] && [ "${killed:-}" = yes ] && [ "$(cat "$W/out")" = again ]; judge "the zygote is killed: the next command works" $?
    kill $executor; wait $executor 2>/dev/null
}

here() {
    apart 'for m in $(awk "\$2 ~ /^\/sys\/fs\/cgroup/ {print \$2}" /proc/mounts); do mount -o remount,bind,ro "$m"; done
        "$OUTPOST" run -- true && "$OUTPOST" doctor; "$OUTPOST" -c limits.required=true run -- true && echo STARTED'
    wrote 'control group' && wrote 'per session: none\|per session: rlimit' && ! wrote STARTED
    judge "read-only /sys/fs/cgroup: works, the weaker limits are told, limits.required refuses" $?

    apart 'mount -t tmpfs -o size=1m,mode=1777 none /tmp; "$OUTPOST" run -- true && "$OUTPOST" exec "$ echo made > made" && dd if=/dev/zero of="$W/big" bs=1M count=8 2>/dev/null &&
        "$OUTPOST" cp "$W/big" "local:$W/copy" && cmp "$W/big" "$W/copy"'
    [ $? = 0 ] && [ -s made ]; judge "/tmp of 1 MB: commands, agents and copies work" $?

    apart 'mount -t tmpfs none /dev/pts; mount --bind /dev/null /dev/ptmx; "$OUTPOST" run -- echo plain; "$OUTPOST" run -t -- true; echo "code $?"'
    wrote plain && wrote 'terminal\|pts\|pty' && ! wrote 'code 0'; judge "no /dev/pts: plain commands work, a terminal is refused" $?

    mkdir "$W/far"; printf '#!/bin/sh\nfor last; do :; done\ncd "%s/far" && exec env -i HOME="%s/far" PATH=/usr/bin:/bin sh -c "$last"\n' "$W" "$W" >"$W/bin/ssh"; chmod +x "$W/bin/ssh"
    apart 'mount -t tmpfs -o noexec none "$W/far"; PATH="$W/bin:$PATH" "$OUTPOST" env add far --ssh far; echo "code $?"; "$OUTPOST" env list'
    wrote 'noexec\|cannot be run\|does not run\|permission denied' && ! wrote 'code 0' && ! grep '^far ' "$W/out" >/dev/null
    judge "noexec home behind ssh: refused with the reason, nothing written down" $?

    apart 'mount -t tmpfs -o noexec none "$HOME"; OUTPOST_HOME="$HOME/o" "$OUTPOST" run -- echo plain && cd "$W/work" && OUTPOST_HOME="$HOME/o" "$OUTPOST" exec "$ echo held > held"'
    [ -s held ]; judge "noexec home here: commands and agents work" $?

    if [ -n "${PODMAN:-}" ]; then
        printf '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["unshare"],"action":"SCMP_ACT_KILL_PROCESS"}]}' >"$W/kill.json"
        "$PODMAN" run --rm --network none --security-opt "seccomp=$W/kill.json" -e HOME=/var/tmp -e OUTPOST_HOME=/var/tmp/o -v "${OUTPOST%/*}:${OUTPOST%/*}:ro" localhost/outpost-hosts \
            sh -c "mkdir /var/tmp/w && cd /var/tmp/w && $OUTPOST exec '\$ echo held > held'; cat held; $OUTPOST doctor" >"$W/out" 2>"$W/err" </dev/null
        wrote '^held' && wrote 'level of the sandbox: landlock'; judge "a seccomp profile that kills unshare: the level landlock, told" $?

        # By its own name, as `env add --podman` calls it.
        ln -s "$PODMAN" "$W/bin/podman"; PATH="$W/bin:$PATH"; export PATH
        "$PODMAN" run -d --name outpost-faults --network none localhost/outpost-hosts sleep 900 >/dev/null 2>"$W/err"
        outpost env add box --podman outpost-faults >"$W/out" 2>"$W/err"
        { outpost run -e box -- sh -c 'touch /began; i=0; while [ $i -lt 40 ]; do sleep 0.1; i=$((i + 1)); done; echo done' >"$W/ran" 2>"$W/ranerr"; echo $? >"$W/code"; } & runner=$!
        until_so '"$PODMAN" exec outpost-faults test -e /began' 100
        "$PODMAN" pause outpost-faults >/dev/null 2>"$W/err"; sleep 60; "$PODMAN" unpause outpost-faults >/dev/null 2>&1
        wait $runner; cp "$W/ranerr" "$W/err"
        [ "$(cat "$W/ran")" = done ] && [ "$(cat "$W/code")" = 0 ]; judge "a container is paused for a minute: its command ends and nothing of its output is lost" $?
        { outpost run --patience 5 -e box -- sleep 300 >/dev/null 2>"$W/ranerr"; echo $? >"$W/code"; } & runner=$!
        sleep 3; "$PODMAN" rm -f -t 0 outpost-faults >/dev/null 2>&1
        wait $runner; cp "$W/ranerr" "$W/err"
        [ "$(cat "$W/code")" != 0 ] && [ -s "$W/err" ]; judge "a container is removed under a command: an error that names it" $?
    fi
    zygote
}

slurm() {
    node=$(sinfo -h -o %N)
    allocate() { salloc -Q --no-shell -n1 "$@" 2>"$W/err"; squeue -h -o %i | sort -n | tail -n 1; }
    job=$(allocate); outpost env add gpu --slurm "$job" >"$W/out" 2>"$W/err"; judge "a job is joined: ready" $?
    { outpost run -e gpu -- sh -c "touch $W/began; while [ ! -e $W/cut ]; do sleep 0.1; done; sleep 2; echo kept" >"$W/ran" 2>"$W/ranerr"; echo $? >"$W/code"; } & runner=$!
    until_so '[ -e "$W/began" ]'
    # The login link is the srun that carries the connection; the keeper's own step is another one, which reads nothing.
    for pid in $(pgrep -x srun); do [ "$(readlink "/proc/$pid/fd/0")" = /dev/null ] && continue; grep -z -- --overlap "/proc/$pid/cmdline" >/dev/null 2>&1 && kill -9 "$pid" && cut=yes; done; : >"$W/cut"
    wait $runner; cp "$W/ranerr" "$W/err"
    [ "${cut:-}" = yes ] && [ "$(cat "$W/ran")" = kept ] && [ "$(cat "$W/code")" = 0 ]; judge "the login link is cut: the command in the job goes on and its output arrives" $?
    scontrol update "NodeName=$node" State=DRAIN Reason=faults
    outpost run -e gpu -- echo drained >"$W/out" 2>"$W/err"; wrote drained; judge "the node is drained: the job that runs is served" $?
    pending=$(sbatch --parsable -n1 --wrap 'sleep 600' 2>"$W/err"); outpost env add later --slurm "$pending" >"$W/out" 2>"$W/err"
    [ $? != 0 ] && wrote 'does not run yet'; judge "a job that waits for a drained node: refused with its state" $?
    scancel "$pending"; scontrol update "NodeName=$node" State=RESUME
    { outpost run -e gpu -- sh -c "touch $W/long; exec sleep 8642" >"$W/ran" 2>"$W/ranerr"; echo $? >"$W/code"; } & runner=$!
    until_so '[ -e "$W/long" ]'; scancel "$job"; wait $runner; cp "$W/ranerr" "$W/err"
    gone() { ! grep -l "sleep.864[2]\\|outpost-faults.*__keepe[r]\\|$OUTPOST.__keepe[r]" /proc/[0-9]*/cmdline 2>/dev/null | grep . >/dev/null; }
    # Ended by the signal that the job got, as a shell tells it, or with an error of ours.
    ended() { code=$(cat "$W/code"); [ "$code" -ge 125 ]; }
    until_so gone 400 && ended; judge "the job is cancelled: the command is told as ended, keeper and command are gone" $?
    outpost env check gpu >"$W/out" 2>"$W/err"; [ $? = 3 ] && wrote 'is over or not known'; judge "a job that is over: told as such" $?
    job=$(allocate --time=1); outpost env add short --slurm "$job" >"$W/out" 2>"$W/err"
    { outpost run -e short -- sh -c 'exec sleep 8642' >"$W/ran" 2>"$W/ranerr"; echo $? >"$W/code"; } & runner=$!
    wait $runner; cp "$W/ranerr" "$W/err"
    until_so gone 400 && ended; judge "the time limit of the job: the command is told as ended, keeper and command are gone" $?
}

machine() {
    zygote
    chown -R dev "$W"
    doctor() { "$@" -E "OUTPOST_HOME=$W/home" -E "HOME=$W/user" sh -c "cd $W/work && $OUTPOST run -- true && $OUTPOST doctor" >"$W/out" 2>"$W/err" </dev/null; }
    doctor systemd-run -q --wait --pipe -p User=dev -p Delegate=pids
    wrote 'processes per session: cgroup v2' && wrote 'memory per session: '; judge "Delegate=pids only: processes by the group, memory by the next mechanism, told" $?
    half=/sys/fs/cgroup/half; mkdir $half; chown dev $half $half/cgroup.procs
    su dev -c "env -u XDG_RUNTIME_DIR OUTPOST_HOME=$W/home HOME=$W/user sh -c 'true'" >/dev/null 2>&1
    sh -c "echo \$\$ > $half/cgroup.procs; exec setpriv --reuid=dev --regid=dev --clear-groups env -u XDG_RUNTIME_DIR sh -c 'cd $W/work && $OUTPOST run -- true && $OUTPOST doctor'" >"$W/out" 2>"$W/err" </dev/null
    wrote 'per session: rlimit\|per session: cgroup v2' && wrote 'level of the sandbox: full'; judge "a group that is ours and has no controllers: works, what limits is told" $?
    chown -R root "$W"
    # A second factor: a key, and then a password by keyboard-interactive.
    echo dev:right | chpasswd; mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$W/key"; cat "$W/key.pub" >>/home/dev/.ssh/authorized_keys
    /usr/sbin/sshd -p 2022 -o UsePAM=yes -o KbdInteractiveAuthentication=yes -o AuthenticationMethods=publickey,keyboard-interactive -o PidFile="$W/sshd.pid"
    mkdir -p "$HOME/.ssh"; printf 'Host box\n HostName 127.0.0.1\n Port 2022\n User dev\n IdentityFile %s/key\n StrictHostKeyChecking no\n NumberOfPasswordPrompts 1\n' "$W" >"$W/config"
    printf '#!/bin/sh\nexec /usr/bin/ssh -F %s/config "$@"\n' "$W" >"$W/bin/ssh"; chmod +x "$W/bin/ssh"; PATH="$W/bin:$PATH"; export PATH
    outpost env add box --ssh box --offline >"$W/out" 2>"$W/err"
    outpost env check box >"$W/out" 2>"$W/err"; [ $? = 3 ] && wrote 'needs login'; judge "a host with a second factor: needs login, nothing is tried again" $?
    login() { printf '#!/bin/sh\necho %s\n' "$1" >"$W/askpass"; chmod +x "$W/askpass"; SSH_ASKPASS="$W/askpass" SSH_ASKPASS_REQUIRE=force DISPLAY=:0 setsid -w "$OUTPOST" env login box </dev/null >"$W/out" 2>"$W/err"; }
    login wrong; [ $? != 0 ] && wrote 'denied'; judge "a wrong second factor: refused, with what ssh said" $?
    outpost env check box >"$W/out" 2>"$W/err"; [ $? = 3 ] && wrote 'needs login'; judge "after a wrong second factor: still needs login" $?
    # The program was not carried there when the environment was added: that needs the login, and shares it.
    login right; outpost env upgrade box >"$W/out" 2>"$W/err" && outpost run -e box -- echo in >"$W/out" 2>"$W/err"; wrote '^in'; judge "the right second factor: ready, commands share the login" $?
    outpost env login box --end >/dev/null 2>&1; kill "$(cat "$W/sshd.pid")"
}

case $1 in
here-*) here ;;
slurm-*) slurm ;;
vm-*) machine ;;
esac
