//! Executors that answer with rubbish: a real one whose answers are dropped, doubled, cut, reordered, given other ids or another identity on
//! the way. `outpost run` and `env check` end with what is wrong, without a panic, and a terminal is not written to.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Episode, Random, Steps};
use crate::support::{OUTPOST, directory};

/// Reads lines of an executor and spoils some of them, as a seed says.
const SPOILER: &str = r#"
import random, sys
rng = random.Random(int(sys.argv[1]))
share = float(sys.argv[2])
held = []
def say(line):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
def spoil(line):
    kind = rng.randrange(13)
    if kind == 0: return []
    if kind == 1: return [line, line]
    if kind == 2: return [line[:rng.randrange(len(line))] + b"\n"]
    if kind == 3:
        held.append(line)
        return []
    if kind == 4: return [line.replace(b'"id":', b'"id":9')]
    if kind == 5: return [line.replace(b'"executorId":"', b'"executorId":"f')]
    if kind == 6: return [b'{"id":1,"result":{}}\n', line]
    if kind == 7: return [b'\x00\xff\xfe{"\x1b]0;owned\x07\n', line]
    if kind == 8: return [line.replace(b'"result"', b'"error"')]
    if kind == 9: return [b'{"method":"process/output","params":{"processId":"x","seq":-1,"chunk":"!"}}\n', line]
    if kind == 10:
        at = rng.randrange(len(line))
        return [line[:at] + bytes([line[at] ^ (1 << rng.randrange(8))]) + line[at + 1:]]
    if kind == 11: return [b'[' * 5000 + b'\n', line]
    return [b'{"id":null,"error":{"code":-32000,"message":"\\u001b]0;owned\\u0007\\u202e"}}\n', line]
for line in sys.stdin.buffer:
    for out in (spoil(line) if rng.random() < share else [line]):
        say(out)
    if held and rng.random() < 0.5:
        say(held.pop(0))
"#;

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    for _ in 0..4 {
        let (seed, share) = (random.next() % 1_000_000, random.pick(&[0.05, 0.2, 0.5, 1.0]));
        let (home, tools) = (directory(episode.who), directory(episode.who));
        let spoiler = tools.path().join("spoil.py");
        std::fs::write(&spoiler, SPOILER).unwrap();
        let via = format!("{OUTPOST} executor --listen stdio | python3 {} {seed} {share}", spoiler.display());
        let script = "printf 'one\\ntwo\\n'; cat; exit 7";
        steps.note(format!("run --via '{via}' -- sh -c \"{script}\""));
        let mut command = Command::new(OUTPOST);
        command.args(["run", "--patience", "2", "--via", &via, "--", "sh", "-c", script]).env("OUTPOST_HOME", home.path());
        command.env_remove("OUTPOST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command);
        let child = child.kill_on_drop(true).spawn().unwrap();
        let pid = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())).unwrap();
        let mut ending = std::pin::pin!(child.wait_with_output());
        let output = match tokio::time::timeout(Duration::from_secs(60), &mut ending).await {
            Ok(output) => output.unwrap(),
            // An executor may swallow an answer and live on. Its user gives up, as often as it takes: a signal that is answered while
            // the end of the command is not told makes the next one notice it.
            Err(_) => {
                let mut given_up = None;
                for _ in 0..3 {
                    steps.note("SIGTERM".to_owned());
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                    given_up = tokio::time::timeout(Duration::from_secs(45), &mut ending).await.ok();
                    if given_up.is_some() {
                        break;
                    }
                }
                given_up.unwrap_or_else(|| panic!("it does not end")).unwrap()
            }
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked") && output.status.code().is_some_and(|code| code != 101), "{}: {said}", output.status);
        // What a command printed may be lost with the executor, but then the exit code does not say that all is well.
        if output.status.success() {
            panic!("the command ends with 7, and `run` says that it was fine: {said}");
        }
        if output.status.code() == Some(7) && share < 0.1 {
            steps.note(format!("exit 7 with {:?}", String::from_utf8_lossy(&output.stdout)));
        }
    }
}
