# The checks of one host, each a line "name<TAB>result": ok, told (it does not hold, and the executor says so), or what went wrong.
# Run as the user that the executor runs as, with OUTPOST naming the program. Needs a POSIX shell, coreutils or busybox, and perl or nc.
set -u
W=$(mktemp -d /var/tmp/outpost-hosts.XXXXXX); cd "$W" || exit 1
export OUTPOST_HOME="$W/home" HOME="${HOME:-$W}"
mkdir "$W/work" && cd "$W/work" || exit 1
finish() { cd /; [ -s "$W/far.pid" ] && kill "$(cat "$W/far.pid")" 2>/dev/null; chmod -R u+w "$W" 2>/dev/null; rm -rf "$W" 2>/dev/null; }
trap finish EXIT
say() { printf '%s\t%s\n' "$1" "$2"; }
agent() { "$OUTPOST" exec "\$ $1" >"$W/out" 2>"$W/err" </dev/null; }
last() { tail -n 1 "$W/err" | cut -c 1-160 | tr '\t|' '  '; }
"$OUTPOST" doctor >"$W/doctor" 2>&1 </dev/null
held() { grep -E "^ +(ok|weak) +$1" "$W/doctor" >/dev/null; }
# A promise that is told as held must hold, and one that is not must be told.
promise() { if [ "$3" = yes ]; then say "$1" ok; elif held "$2"; then say "$1" "TOLD TO HOLD, AND DOES NOT"; else say "$1" told; fi; }
# Waits up to ten seconds for something.
until_so() { i=0; while ! eval "$1" && [ $i -lt 100 ]; do i=$((i + 1)); sleep 0.1; done; eval "$1"; }

say kernel "$(uname -r)"
say level "$(sed -n 's/.* a level of the sandbox: \([a-z]*\).*/\1/p' "$W/doctor")"
say "processes limited by" "$(sed -n 's/.* a number of processes per session: \([a-z0-9 ]*\).*/\1/p' "$W/doctor")"
say "memory limited by" "$(sed -n 's/.* an amount of memory per session: \([a-z0-9 ]*\).*/\1/p' "$W/doctor")"
"$OUTPOST" run -- true >/dev/null 2>"$W/err" </dev/null && say run ok || say run "FAILED: $(last)"
"$OUTPOST" run -- sh -c 'exit 7' >/dev/null 2>&1 </dev/null; [ $? = 7 ] && say "exit codes" ok || say "exit codes" WRONG
"$OUTPOST" env check local >/dev/null 2>"$W/err" </dev/null && say "env check" ok || say "env check" "FAILED: $(last)"
agent "echo made > made"; [ "$(cat made 2>/dev/null)" = made ] && say "sandboxed exec" ok || say "sandboxed exec" "FAILED: $(last)"
mkdir "$W/else"; agent "touch $W/else/x /usr/outpost-x /etc/outpost-x"
[ ! -e "$W/else/x" ] && [ ! -e /usr/outpost-x ] && [ ! -e /etc/outpost-x ] && say "no writes elsewhere" ok || say "no writes elsewhere" ESCAPED
agent "cat $OUTPOST_HOME/executor/identity > leaked"; [ -s leaked ] && say "own files are closed" ESCAPED || say "own files are closed" ok
agent "mkdir -p .git/hooks && touch .git/hooks/x"; [ -e .git/hooks/x ] && yes=no || yes=yes; rm -rf .git
promise "protected names" "protected paths" "$yes"
agent 'id -u > who'; [ "$(cat who 2>/dev/null || echo 0)" != 0 ] && yes=yes || yes=no; promise "never root" "sandboxed code never runs as root" "$yes"

# Sockets by perl, or by busybox where there is no perl.
if command -v perl >/dev/null 2>&1; then
    listen() { perl -MIO::Socket::INET -e '$|=1; $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or exit 1; print $s->sockport, "\n"; $SIG{ALRM} = sub { exit }; alarm 60; while ($s->accept) {}'; }
    knock() { echo "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(PeerAddr => q(127.0.0.1:$1)) and print q(in)'"; }
    both="perl -MIO::Socket::INET -e 'my \$s = IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1)) or exit; IO::Socket::INET->new(PeerAddr => q(127.0.0.1), PeerPort => \$s->sockport) and print q(in)'"
else
    listen() { echo 47653; exec nc -ll -p 47653 -e true; }
    knock() { echo "echo | nc -w 2 127.0.0.1 $1 >/dev/null 2>&1 && printf in"; }
    both="nc -ll -p 47654 -e true & sleep 1; echo | nc -w 2 127.0.0.1 47654 >/dev/null 2>&1 && printf in"
fi
listen >"$W/port" & listener=$!
until_so '[ -s "$W/port" ]'
until_so '[ "$(sh -c "$(knock "$(cat "$W/port")")")" = in ]' || say "no network" "FAILED: nothing listens"
agent "{ $(knock "$(cat "$W/port")"); } > net"; [ "$(cat net 2>/dev/null)" = in ] && say "no network" ESCAPED || say "no network" ok
kill $listener 2>/dev/null
agent "{ $both; } > lo"
[ "$(cat lo 2>/dev/null)" = in ] && say loopback ok || { grep 'no loopback' "$W/doctor" >/dev/null && say loopback told || say loopback "DOWN"; }
sleep 300 & bystander=$!
agent "kill $bystander; cat /proc/$bystander/environ > environ"
if kill -0 $bystander 2>/dev/null && [ ! -s environ ]; then yes=yes; else yes=no; fi; kill $bystander 2>/dev/null
promise "other processes" "other processes are out of reach" "$yes"
# How many of 150 processes a command can start, with a limit and without: the host itself may allow fewer.
started() { "$OUTPOST" -c "limits.processes=$1" run -- sh -c 'i=0; while [ $i -lt 150 ]; do sleep 5 & i=$((i + 1)); echo $i; done' 2>"$W/err" </dev/null | tail -n 1 | tr -dc 0-9; }
free=$(started 1000) bound=$(started 40)
if [ "${free:-0}" -lt 60 ]; then say "a limit of processes" "FAILED: only ${free:-0} start without one: $(last)"
elif [ "${bound:-0}" -lt "$free" ]; then
    # Held by something: then the executor must know by what.
    grep 'a number of processes per session: none' "$W/doctor" >/dev/null && say "a limit of processes" "HELD, AND TOLD NOT TO BE" || say "a limit of processes" ok
elif grep 'FAIL  a number of processes\|a number of processes per session: rlimit' "$W/doctor" >/dev/null; then say "a limit of processes" told
else say "a limit of processes" "NOT HELD: $bound started"; fi
"$OUTPOST" -c limits.memory=100M run -- dd if=/dev/zero of=/dev/null bs=400M count=1 >/dev/null 2>&1 </dev/null
[ $? != 0 ] && say "a limit of memory" ok || say "a limit of memory" "NOT HELD"
"$OUTPOST" run -- sh -c 'setsid sleep 7654 >/dev/null 2>&1 & exit 0' >/dev/null 2>&1 </dev/null
gone() { ! grep -l 'sleep.765[4]' /proc/[0-9]*/cmdline 2>/dev/null | grep . >/dev/null; }
until_so gone && say "nothing outlives" ok || say "nothing outlives" LEFT
"$OUTPOST" exec resume --last '$ cat made' >"$W/out" 2>"$W/err" </dev/null; grep -s made "$W/out" "$W/err" >/dev/null && say resume ok || say resume "FAILED: $(last)"
echo copied >"$W/a"; "$OUTPOST" cp "$W/a" "local:$W/b" >/dev/null 2>"$W/err" </dev/null; [ "$(cat "$W/b" 2>/dev/null)" = copied ] && say cp ok || say cp "FAILED: $(last)"
if command -v script >/dev/null 2>&1; then
    # Typed once the shell shows something, as a person would.
    { until_so '[ -s "$W/typed" ]' >/dev/null; printf 'echo he""re $((6 * 7))\nexit\n'; sleep 2; } | SHELL=/bin/sh script -q -c "$OUTPOST shell" /dev/null >"$W/typed" 2>"$W/err"
    grep 'here 42' "$W/typed" >/dev/null && say shell ok || say shell "FAILED: $(last)"
else
    "$OUTPOST" run -t -- sh -c '[ -t 0 ] && echo here 42' >"$W/out" 2>"$W/err" </dev/null; grep 'here 42' "$W/out" >/dev/null && say shell ok || say shell "FAILED: $(last)"
fi
# A command outlives the bridge that it was started through, because a keeper holds it.
printf '#!/bin/sh\necho $$ >> "%s/bridge"\nexec "%s" executor --listen stdio --keep\n' "$W" "$OUTPOST" >"$W/via"; chmod +x "$W/via"
{ until_so '[ -e "$W/work/began" ]' && kill -9 "$(tail -n 1 "$W/bridge")"; : >"$W/work/cut"; } &
"$OUTPOST" run --via "$W/via" -- sh -c "touch $W/work/began; while [ ! -e $W/work/cut ]; do sleep 0.1; done; sleep 1; echo kept" >"$W/out" 2>"$W/err" </dev/null
[ "$(cat "$W/out")" = kept ] && [ "$(wc -l <"$W/bridge")" -ge 2 ] && say keeper ok || say keeper "FAILED: $(last)"
# The program is carried to a far home, and replaced there by another one. Of ssh only the command is used, which runs here.
mkdir "$W/bin" "$W/far" "$W/far-run"; chmod 700 "$W/far-run"
printf '#!/bin/sh\nfor last; do :; done\ncd "%s/far" && exec env -i HOME="%s/far" XDG_RUNTIME_DIR="%s/far-run" PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c "$last"\n' "$W" "$W" "$W" >"$W/bin/ssh"; chmod +x "$W/bin/ssh"
near() { PATH="$W/bin:$PATH" "$OUTPOST" "$@" >"$W/out" 2>"$W/err" </dev/null; }
cp "$OUTPOST" "$W/newer" && echo >>"$W/newer"
if near env add far --ssh far && near run -e far -- true && old=$(readlink "$W/far/.outpost/bin/outpost") &&
    near env upgrade far --now --binary "$W/newer" && [ "$(readlink "$W/far/.outpost/bin/outpost")" != "$old" ] && near run -e far -- true; then say upgrade ok
else say upgrade "FAILED: $(last)"; fi
"$OUTPOST" run -- "$OUTPOST" run -- true >/dev/null 2>"$W/err" </dev/null && say "inside itself" ok || say "inside itself" "FAILED: $(last)"
"$OUTPOST" demo >/dev/null 2>"$W/err" </dev/null && say demo ok || say demo "FAILED: $(last)"
# Everyday work, as far as the host has the programs for it: `cargo xtask everyday` says what each task is.
EVERYDAY=${OUTPOST%/*}/everyday
if [ -d "$EVERYDAY" ]; then
    TESTS=1 PREP=/nonexistent sh "$EVERYDAY/run.sh" "$EVERYDAY"/tasks/*.sh 2>/dev/null </dev/null | awk -F '\t' '
        $3 == "not at hand" { next }
        { all++ }
        $3 == "pass" || $3 == "forbidden" { good++; next }
        { bad = bad (bad ? ", " : ": not ") tolower($2) }
        END { printf "everyday work\t%d of %d%s\n", good, all, bad }'
fi
