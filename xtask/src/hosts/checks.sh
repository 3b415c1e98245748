# Twenty checks of one host, each a line "name<TAB>result": ok, told (it does not hold, and the executor says so), or what went wrong.
# Run as the user that the executor runs as, with OUTPOST naming the program. Needs a shell, perl and coreutils.
set -u
W=$(mktemp -d /var/tmp/outpost-hosts.XXXXXX); cd "$W" || exit 1
export OUTPOST_HOME="$W/home" HOME="${HOME:-$W}"
mkdir "$W/work" && cd "$W/work" || exit 1
trap 'cd /; rm -rf "$W"' EXIT
say() { printf '%s\t%s\n' "$1" "$2"; }
agent() { "$OUTPOST" exec "\$ $1" >"$W/out" 2>"$W/err"; }
last() { tail -n 1 "$W/err" | cut -c 1-160 | tr '\t|' '  '; }
"$OUTPOST" doctor >"$W/doctor" 2>&1
held() { grep -E "^ +(ok|weak) +$1" "$W/doctor" >/dev/null; }
# A promise that is told as held must hold, and one that is not must be told.
promise() { if [ "$3" = yes ]; then say "$1" ok; elif held "$2"; then say "$1" "TOLD TO HOLD, AND DOES NOT"; else say "$1" told; fi; }

say level "$(sed -n 's/.* a level of the sandbox: \([a-z]*\).*/\1/p' "$W/doctor")"
say "processes limited by" "$(sed -n 's/.* a number of processes per session: \([a-z0-9 ]*\).*/\1/p' "$W/doctor")"
say "memory limited by" "$(sed -n 's/.* an amount of memory per session: \([a-z0-9 ]*\).*/\1/p' "$W/doctor")"
"$OUTPOST" run -- true >/dev/null 2>"$W/err" && say run ok || say run "$(last)"
"$OUTPOST" run -- sh -c 'exit 7' >/dev/null 2>&1; [ $? = 7 ] && say "exit codes" ok || say "exit codes" wrong
"$OUTPOST" env check local >/dev/null 2>"$W/err" && say "env check" ok || say "env check" "$(last)"
agent "echo made > made"; [ "$(cat made 2>/dev/null)" = made ] && say "sandboxed exec" ok || say "sandboxed exec" "$(last)"
mkdir "$W/else"; agent "touch $W/else/x /usr/outpost-x /etc/outpost-x"
[ ! -e "$W/else/x" ] && [ ! -e /usr/outpost-x ] && [ ! -e /etc/outpost-x ] && say "no writes elsewhere" ok || say "no writes elsewhere" ESCAPED
agent "cat $OUTPOST_HOME/executor/identity > leaked"; [ -s leaked ] && say "own files are closed" ESCAPED || say "own files are closed" ok
agent "mkdir -p .git/hooks && touch .git/hooks/x"; [ -e .git/hooks/x ] && yes=no || yes=yes; rm -rf .git
promise "protected names" "protected paths" "$yes"
agent 'id -u > who'; [ "$(cat who 2>/dev/null || echo 0)" != 0 ] && yes=yes || yes=no; promise "never root" "sandboxed code never runs as root" "$yes"
perl -MIO::Socket::INET -e '$|=1; $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or exit 1; print $s->sockport, "\n"; $SIG{ALRM} = sub { exit }; alarm 60; while ($s->accept) {}' >"$W/port" &
listener=$!
i=0; while [ ! -s "$W/port" ] && [ $i -lt 100 ]; do i=$((i + 1)); sleep 0.1; done
agent "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(PeerAddr => q(127.0.0.1:$(cat "$W/port"))) and print q(in)' > net"
[ "$(cat net 2>/dev/null)" = in ] && say "no network" ESCAPED || say "no network" ok
kill $listener 2>/dev/null
agent "perl -MIO::Socket::INET -e 'my \$s = IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1)) or exit; IO::Socket::INET->new(PeerAddr => q(127.0.0.1), PeerPort => \$s->sockport) and print q(up)' > lo"
[ "$(cat lo 2>/dev/null)" = up ] && say loopback ok || { grep 'no loopback' "$W/doctor" >/dev/null && say loopback told || say loopback "DOWN"; }
sleep 300 & bystander=$!
agent "kill $bystander; cat /proc/$bystander/environ > environ"
if kill -0 $bystander 2>/dev/null && [ ! -s environ ]; then yes=yes; else yes=no; fi; kill $bystander 2>/dev/null
promise "other processes" "other processes are out of reach" "$yes"
"$OUTPOST" -c limits.processes=40 run -- perl -e 'for (1..120) { my $p = fork; exit 9 unless defined $p; if (!$p) { sleep 5; exit } } exit 0' >/dev/null 2>&1
[ $? != 0 ] && say "a limit of processes" ok || { grep 'FAIL  a number of processes\|rlimit' "$W/doctor" >/dev/null && say "a limit of processes" told || say "a limit of processes" "NOT HELD"; }
"$OUTPOST" -c limits.memory=100M run -- perl -e '$x = "a" x (400 << 20); exit 0' >/dev/null 2>&1; [ $? != 0 ] && say "a limit of memory" ok || say "a limit of memory" "NOT HELD"
"$OUTPOST" run -- sh -c 'setsid sleep 7654 >/dev/null 2>&1 & exit 0' >/dev/null 2>&1; sleep 1
grep -l 'sleep.765[4]' /proc/[0-9]*/cmdline 2>/dev/null | grep . >/dev/null && say "nothing outlives" LEFT || say "nothing outlives" ok
"$OUTPOST" exec resume --last '$ cat made' >"$W/out" 2>"$W/err"; grep -s made "$W/out" "$W/err" >/dev/null && say resume ok || say resume "$(last)"
echo copied >"$W/a"; "$OUTPOST" cp "$W/a" "local:$W/b" >/dev/null 2>"$W/err"; [ "$(cat "$W/b" 2>/dev/null)" = copied ] && say cp ok || say cp "$(last)"
"$OUTPOST" run -- "$OUTPOST" run -- true >/dev/null 2>"$W/err" && say "inside itself" ok || say "inside itself" "$(last)"
"$OUTPOST" demo >/dev/null 2>"$W/err" </dev/null && say demo ok || say demo "$(last)"
# Everyday work, as far as the host has the programs for it: `cargo xtask everyday` says what each task is.
if [ -n "${EVERYDAY:-}" ]; then
    TESTS=1 PREP=/nonexistent sh "$EVERYDAY/run.sh" "$EVERYDAY"/tasks/*.sh 2>/dev/null | awk -F '\t' '
        $3 == "not at hand" { next }
        { all++ }
        $3 == "pass" || $3 == "forbidden" { good++; next }
        { bad = bad (bad ? ", " : ": not ") tolower($2) }
        END { printf "everyday work\t%d of %d%s\n", good, all, bad }'
fi
