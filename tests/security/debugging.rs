//! Debuggers work on what the same sandbox runs, and on nothing else: not on our own processes, not on those of another session or
//! another policy, and not on what the user runs without a sandbox. As root and as an ordinary user, at each level.

use std::process::Command;

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::{FULL, denies};
use crate::levels::{MASKED, NO_NAMESPACES, in_a_world};
use crate::support::{Ground, Who, is_root, number};

/// Numbers of system calls: ptrace, process_vm_readv, process_vm_writev, kcmp, perf_event_open.
#[cfg(target_arch = "x86_64")]
const CALLS: [u32; 5] = [101, 310, 311, 312, 298];
#[cfg(target_arch = "aarch64")]
const CALLS: [u32; 5] = [117, 270, 271, 272, 241];

/// Every way into a process.
const WAYS: [&str; 8] = ["attach", "seize", "readv", "writev", "read-mem", "write-mem", "getfd", "kcmp"];

/// Tries every way into the processes with the numbers that it is given, or with a name of ours, and prints each that led in. That an
/// address means nothing there, or that a descriptor is not open, is only found by a process that was let in.
const ATTACK: &str = r#"
use Errno qw(EPERM EACCES ESRCH ENOENT EROFS);
my ($ptrace, $readv, $writev, $kcmp) = (PTRACE, READV, WRITEV, KCMP);
my @victims = map { $_ eq 'ours' ? (map { m{(\d+)} && $1 } grep { my $f; open($f, '<', $_) && (readline($f) // '') =~ /^outpost/ } glob '/proc/[0-9]*/comm') : $_ } @ARGV;
print scalar(@victims), " victims\n";
# A process table that is the machine's is read-only.
my $refused = sub { grep { $! == $_ } EPERM, EACCES, ESRCH, ENOENT, EROFS };
for my $pid (@victims) {
    my $in = sub { print "$pid $_[0]\n" };
    my $buffer = 'x' x 8;
    my $own = pack('QQ', unpack('Q', pack('p', $buffer)), 8);
    my $other = pack('QQ', 4096, 8);
    if (syscall($ptrace, 16, $pid + 0, 0, 0) == 0) { $in->('attach'); waitpid($pid, 0x40000000); syscall($ptrace, 17, $pid + 0, 0, 0) }
    if (syscall($ptrace, 0x4206, $pid + 0, 0, 0) == 0) {
        $in->('seize'); syscall($ptrace, 0x4207, $pid + 0, 0, 0); waitpid($pid, 0x40000000); syscall($ptrace, 17, $pid + 0, 0, 0)
    }
    $in->('readv') if syscall($readv, $pid + 0, $own, 1, $other, 1, 0) >= 0 || !$refused->();
    $in->('writev') if syscall($writev, $pid + 0, $own, 1, $other, 1, 0) >= 0 || !$refused->();
    $in->('read-mem') if open(my $f, '<', "/proc/$pid/mem") || !$refused->();
    $in->('write-mem') if open(my $g, '+<', "/proc/$pid/mem") || !$refused->();
    my $handle = syscall(434, $pid + 0, 0);
    $in->('getfd') if $handle >= 0 && (syscall(438, $handle, 0, 0) >= 0 || !$refused->());
    $in->('kcmp') if syscall($kcmp, $$ + 0, $pid + 0, 1, 0, 0) >= 0 || !$refused->();
}
"#;

fn numbered(script: &str) -> String {
    let names = ["PTRACE", "READV", "WRITEV", "KCMP", "PERF"];
    names.iter().zip(CALLS).fold(script.to_owned(), |script, (name, number)| script.replace(name, &number.to_string()))
}

/// The number on this machine of the process whose arguments hold this text.
fn find(text: &str) -> Option<u32> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is_sleep = arguments.starts_with(b"sleep\0");
        (is_sleep && String::from_utf8_lossy(&arguments).contains(text)).then_some(pid)
    })
}

/// Starts something that waits, in a sandbox or without; returns its number on this machine.
async fn victim(ground: &Ground, client: &mut Client, sandbox: Option<&Value>) -> u32 {
    let id = number();
    let seconds = format!("600.{}{}", std::process::id(), id.trim_start_matches('n'));
    let start = with(ground.shell(&id, &format!("echo ready; exec sleep {seconds}")), json!({"sandbox": sandbox}));
    client.start(start).await;
    client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == id.as_str()).await;
    loop {
        // It has said that it is ready; it is `sleep` a moment later.
        if let Some(pid) = find(&seconds) {
            return pid;
        }
        tokio::task::yield_now().await;
    }
}

/// Debugging inside works, and nothing else can be looked into.
async fn attacked(ground: &Ground) {
    let (mut client, mut other) = (ground.client().await, ground.client().await);
    let policy = ground.workspace_write();
    std::fs::write(ground.path("attack.pl"), numbered(ATTACK)).unwrap();
    // A child of its own, and another command of the same session. One that was attached to may be left stopped: only KILL ends it then.
    let (code, output) = ground.run(&mut client, &policy, "sleep 60 & perl attack.pl $!; code=$?; kill -KILL $!; exit $code").await;
    // The process table may be the machine's: it is read-only then. What the host itself forbids does not work inside either.
    let bare = with(ground.shell("bare", "sleep 60 & perl attack.pl $!; kill -KILL $!"), json!({}));
    client.start(bare).await;
    let bare = String::from_utf8_lossy(&client.outcome("bare").await.1).into_owned();
    let is_way = |way: &&&str| (**way != "write-mem" || output.contains("write-mem")) && bare.contains(**way);
    for way in WAYS.iter().filter(is_way) {
        assert!(code == 0 && output.contains(way), "{way}: {output}");
    }
    client.start(with(ground.shell("fellow", "echo $$ > fellow; echo ready; exec sleep 600"), json!({"sandbox": policy}))).await;
    client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == "fellow").await;
    let (_, output) = ground.run(&mut client, &policy, "perl attack.pl $(cat fellow)").await;
    assert!(["attach", "readv"].iter().filter(|way| bare.contains(**way)).all(|way| output.contains(way)), "{output}");
    // Our own processes, of which one makes file calls.
    client.result("fs/getMetadata", json!({"path": ground.uri(""), "sandbox": policy})).await;
    let read_only = ground.read_only();
    let mut victims = vec![ground.executor.pid()];
    victims.push(victim(ground, &mut client, None).await);
    victims.push(victim(ground, &mut client, Some(&read_only)).await);
    victims.push(victim(ground, &mut other, Some(&policy)).await);
    victims.push(victim(ground, &mut other, None).await);
    let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
    let (code, output) = ground.run(&mut client, &policy, &format!("perl attack.pl ours {}", victims.join(" "))).await;
    let (counted, got_in) = output.split_once('\n').unwrap();
    let count: usize = counted.trim_end_matches(" victims").parse().unwrap();
    // At least the first process of the sandbox, a reaper and the worker, besides those that were named.
    assert!(code == 0 && count >= victims.len() + 3, "{output}");
    assert_eq!(got_in, "", "{output}");
    // The worker still works.
    client.result("fs/getMetadata", json!({"path": ground.uri(""), "sandbox": policy})).await;
}

as_root_and_user! {
    async fn only_the_same_sandbox_can_be_looked_into(who: Who) {
        attacked(&Ground::new(who)).await;
    }

    async fn a_process_that_makes_us_its_tracer_goes_on(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let script = "exec perl -e '$| = 1; $SIG{USR1} = sub { print qq(handled\\n) }; syscall(PTRACE, 0, 0, 0, 0) == 0 or die $!; \
                      kill USR1 => $$; print qq(on\\n); syscall(PTRACE, 0, 0, 0, 0) == 0 or die $!; exec q(/bin/sh), q(-c), q(echo last; exit 3)'";
        let (code, output) = ground.run(&mut client, &ground.workspace_write(), &numbered(script)).await;
        assert_eq!((code, output.as_str()), (3, "handled\non\nlast\n"));
    }

    async fn debuggers_run(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        std::fs::write(ground.path("leak.c"), "#include <stdlib.h>\n__attribute__((noinline)) void lose(void) { volatile char *p = malloc(77); p[0] = 1; p = 0; }\nint main(void) { lose(); lose(); return 0; }\n").unwrap();
        let checks = [
            ("strace", "strace -f -o trace sh -c '/bin/true; exit 4'; test $? = 4 && grep -q execve trace"),
            ("gdb", "gcc -g -o crash leak.c && gdb -batch -ex 'break lose' -ex run -ex backtrace crash 2>&1 | grep -q '#1 .*main'"),
            ("gcc", "gcc -g -fsanitize=address -o leak leak.c && ./leak 2>&1 | grep -q 'LeakSanitizer: detected memory leaks'"),
            ("perf", "perf stat -x, -e task-clock -o counted /bin/true && grep -q task-clock counted"),
        ];
        for (tool, script) in checks {
            let is_here = |tool: &str| Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap().status.success();
            if !is_here(tool) || !is_here("gcc") {
                eprintln!("{tool} is not installed: not tried");
                continue;
            }
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_eq!(code, 0, "{tool}: {output}");
        }
    }

    async fn no_process_measures_the_whole_machine(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        // A software event that counts time; of itself, of all processes on one processor, and of a group.
        let script = "perl -e '$a = pack(q(LLQ), 1, 112, 0) . chr(0) x 96; \
                      for (@ARGV) { my ($pid, $cpu, $flags) = split /,/; my $r = syscall(PERF, $a, $pid + 0, $cpu + 0, -1, $flags + 0); \
                      print $r >= 0 ? q(in ) : $!{EPERM} ? q(refused ) : qq($! ) }' -- 0,-1,0 -1,0,0 0,0,4";
        let (code, output) = ground.run(&mut client, &ground.workspace_write(), &numbered(script)).await;
        assert!(code == 0 && output.ends_with(" refused refused "), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_masked_process_table_domains_keep_others_out() {
    if denies(Who::User, &[FULL]).await {
        return;
    }
    attacked(&Ground::after(Who::User, &in_a_world(MASKED))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_namespaces_domains_keep_others_out() {
    if denies(Who::User, &[FULL]).await {
        return;
    }
    attacked(&Ground::after(Who::User, &in_a_world(NO_NAMESPACES))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_without_namespaces_is_kept_out_of_others() {
    if is_root() && !denies(Who::Root, &[FULL]).await {
        let script = in_a_world(NO_NAMESPACES).replace("--map-user=54321 --map-group=54321", "--map-root-user");
        attacked(&Ground::after(Who::Root, &script)).await;
    }
}
