# Runs everyday tasks bare and in the default sandbox: one line each, "ecosystem, name, result, reason, promise, setting", apart by tabs.
#
#   sh run.sh TASKS...        runs the tasks of these files (tasks/*.sh); the present user is the executor's user
#   sh run.sh prepare TASKS... only downloads what they need, into $PREP
#
# OUTPOST names the program. ONLY is a pattern (grep -E) for "ecosystem: name". TESTS=1 takes only tasks marked `# test`. PREP names a
# directory of what was prepared; without it everything is prepared first. RUN names an empty directory to work in, which is left. KEEP=1 leaves the directory of the run behind.
#
# Results: pass; forbidden (fails as its row says, and passes with its setting); not at hand (fails bare, or a program is missing); FAIL (in the
# sandbox only); OPEN (its row says forbidden, and it passes); STUCK (fails also with its setting).
set -u
[ "${1:-}" = prepare ] && { only_prepare=1; shift; }
W=${RUN:-$(mktemp -d /var/tmp/outpost-everyday.XXXXXX)} || exit 1
chmod 755 "$W"
trap 'cd /; [ -n "${KEEP:-}${RUN:-}" ] || rm -rf "$W" 2>/dev/null || { chmod -R u+w "$W"; rm -rf "$W"; }' EXIT
export OUTPOST_HOME="$W/outpost" LC_ALL=C.UTF-8 TZ=UTC
unset TMPDIR XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_RUNTIME_DIR CARGO_HOME GOPATH GIT_DIR RUSTC_WRAPPER

# Each task becomes a directory: name, needs, forbidden, allow, timeout, test, and the parts before, inside, after (or prepare).
mkdir "$W/tasks"
for file; do
    ecosystem=$(basename "$file" .sh)
    awk -v top="$W/tasks" -v ecosystem="$ecosystem" '
        /^## / { n++; dir = sprintf("%s/%s-%03d", top, ecosystem, n); system("mkdir " dir); part = "prepare"
                 print ecosystem >(dir "/ecosystem"); print substr($0, 4) >(dir "/name"); next }
        !n { next }
        /^### / { part = substr($0, 5); next }
        part == "prepare" && /^# [a-z]+/ { key = $2; sub(":", "", key); sub(/^# [a-z]+:? ?/, ""); print >(dir "/" key); next }
        { print >(dir "/" part) }' "$file"
done

prelude='until_ok() { tries=0; until "$@" >/dev/null 2>&1; do tries=$((tries + 1)); [ $tries -lt 100 ] || { echo "never: $*" >&2; return 1; }; sleep 0.2; done; }'
has() { for program in $(cat "$1/needs" 2>/dev/null); do command -v "$program" >/dev/null || { echo "no $program"; return 1; }; done; }
last() { cat "$W/out" "$W/err" 2>/dev/null | grep . | tail -n 1 | sed "s|$W/scene/||g; s|$W/||g" | cut -c 1-160 | tr '\t|' '  '; }

# What is there before a task: an empty workspace, a home of a developer, a directory elsewhere.
scene() {
    rm -rf "$W/scene" 2>/dev/null || { chmod -R u+w "$W/scene"; rm -rf "$W/scene"; }
    mkdir -p "$W/scene/work" "$W/scene/elsewhere" && mkdir -m 700 "$W/scene/home" && cd "$W/scene/work" || exit 1
    export HOME="$W/scene/home" ELSEWHERE="$W/scene/elsewhere" SAID="$W/said"
    printf '[user]\n\tname = Dev\n\temail = dev@example.test\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n' >"$HOME/.gitconfig"
    printf '//registry.example.test/:_authToken=everyday-secret\nfund=false\naudit=false\nupdate-notifier=false\n' >"$HOME/.npmrc"
    printf 'machine example.test login dev password everyday-secret\n' >"$HOME/.netrc" && chmod 600 "$HOME/.netrc"
    mkdir "$HOME/.cache" "$HOME/.config" "$HOME/.docker" && printf '{"auths":{"example.test":{"auth":"ZGV2OmV2ZXJ5ZGF5LXNlY3JldA=="}}}\n' >"$HOME/.docker/config.json"
}
part() { # TASK PART: one part, bare
    [ -s "$1/$2" ] || return 0
    { echo "$prelude"; cat "$1/$2"; } >"$W/part.sh"
    bounded "$(cat "$1/timeout" 2>/dev/null || echo 300)" sh -e "$W/part.sh"
}
# Ends with everything that the command left in its process group.
bounded() {
    seconds=$1; shift
    timeout -k 5 "$seconds" "$@" >"$W/out" 2>"$W/err" </dev/null & leader=$!
    wait $leader; code=$?
    [ $code != 124 ] || echo "took longer than $seconds s" >>"$W/err"
    kill -KILL "-$leader" 2>/dev/null
    return $code
}
bare() { scene && part "$1" before && part "$1" inside && BARE=1 part "$1" after; }
sandboxed() { # TASK OPTIONS...
    task=$1; shift
    scene && part "$task" before || return 1
    { echo "$prelude"; cat "$task/inside"; } >"$W/inside.sh"
    bounded "$(cat "$task/timeout" 2>/dev/null || echo 300)" "$OUTPOST" "$@" -- sh -e "$W/inside.sh" || return 1
    cat "$W/out" "$W/err" >"$W/said"
    part "$task" after
}

: "${PREP:=}"
[ -n "$PREP" ] || { PREP="$W/prep"; mkdir "$PREP"; fresh=1; }
export PREP
if [ -n "${fresh:-}${only_prepare:-}" ]; then
    for task in "$W"/tasks/*; do
        [ "$(cat "$task/name")" = prepare ] && [ -z "${TESTS:-}" ] || continue
        has "$task" >/dev/null || continue
        scene
        sed '/^# needs/d' "$task/prepare" >"$W/part.sh"
        bounded 600 sh -e "$W/part.sh" || echo "everyday: preparing $(cat "$task/ecosystem") failed: $(last)" >&2
    done
fi
[ -z "${only_prepare:-}" ] || exit 0

bad=0
for task in "$W"/tasks/*; do
    name=$(cat "$task/name") ecosystem=$(cat "$task/ecosystem")
    [ "$name" != prepare ] || continue
    [ -z "${ONLY:-}" ] || echo "$ecosystem: $name" | grep -q -E -e "$ONLY" || continue
    [ -z "${TESTS:-}" ] || [ -e "$task/test" ] || continue
    promise=$(cat "$task/forbidden" 2>/dev/null) setting=$(cat "$task/allow" 2>/dev/null) reason=
    if ! reason=$(has "$task"); then
        result='not at hand'
    elif ! bare "$task"; then
        result='not at hand' reason="fails bare: $(last)"
    elif sandboxed "$task" run --sandbox workspace-write; then
        result=pass
        [ -z "$promise" ] || { result=OPEN; bad=1; }
    else
        reason=$(last)
        result=FAIL
        if [ -n "$promise" ]; then
            options=$(printf '%s' "$setting" | sed "s|\$ELSEWHERE|$ELSEWHERE|g; s|\$HOME|$HOME|g")
            # Words, and no patterns.
            set -f
            case $options in
            --sandbox*) set -- run $options ;;
            *) set -- $options run --sandbox workspace-write ;;
            esac
            set +f
            sandboxed "$task" "$@" && result=forbidden || result=STUCK
            [ $result = forbidden ] || reason=$(last)
        fi
        [ $result = forbidden ] || bad=1
    fi
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$ecosystem" "$name" "$result" "$reason" "$promise" "$setting"
done
exit $bad
