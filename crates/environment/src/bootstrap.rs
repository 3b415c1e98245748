//! Bringing an executor to a machine behind ssh, into a container or into a job.
//!
//! All that is asked of the far side is a POSIX shell and a home: no root, no network, nothing installed. Login shells of
//! any kind are fine, because all that one of them gets to see is `exec sh -c '…'` with nothing in the quotes that it could
//! take for itself; whatever its start-up files print is told apart by marks. Who the far side is, is ssh's business: not a
//! single option of that kind is passed.

mod elf;
mod probe;

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::connector::{marker, withhold_secrets};
use crate::definition::{Setup, Ssh};
use crate::route::{Errand, Manner, Route, quoted};

pub use elf::{Binary, BinaryError};
pub use probe::{Far, Libc, Misfit};

/// Marks around what we asked for.
const BEGIN: &str = "outpost-answer-begins";
const END: &str = "outpost-answer-ends";
/// The most that a far shell may say.
const MAX_ANSWER: u64 = 1 << 20;
/// How much longer than its time a set-up may take to be ended there.
const GRACE: Duration = Duration::from_secs(10);
/// Pieces in which a program is sent.
const PIECE: usize = 64 << 10;

/// A machine behind ssh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshHost {
    /// As ssh takes it.
    pub destination: String,
    /// More arguments for ssh.
    pub args: Vec<String>,
}

#[derive(Debug, Error)]
pub enum BootstrapError {
    #[error("ssh cannot be started")]
    NoSsh(#[source] io::Error),
    #[error("ssh to {destination} failed ({status}); does `ssh {destination} true` work?")]
    Ssh { destination: String, status: ExitStatus },
    #[error(
        "the shell of {destination} sent an unexpected answer; is it a POSIX shell, or does a menu or a forced command answer? Output: {said}"
    )]
    NoAnswer { destination: String, said: String },
    #[error("cannot enter {destination} ({status}): {said}")]
    NoWay { destination: String, status: ExitStatus, said: String },
    #[error("setting up {destination} took longer than {seconds} s; `setup_timeout_sec` allows more")]
    SlowSetup { destination: String, seconds: u64 },
    #[error("setting up {destination} failed with code {code} in `{command}`")]
    Setup { destination: String, command: String, code: String },
    #[error("{destination} runs {os}; outpost runs on Linux")]
    System { destination: String, os: String },
    #[error("the copy on {destination} failed: {why}")]
    Copy { destination: String, why: String },
    #[error("the copied program does not run on {destination}: {why}")]
    DoesNotRun { destination: String, why: String },
}

/// A program that was put there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Below the far home.
    pub path: String,
    /// What it says of itself.
    pub version: String,
}

/// A place that scripts can be run in, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptTransport {
    pub route: Route,
    pub manner: Manner,
}

impl SshHost {
    /// The same as a place; the user may be asked for a password.
    pub fn transport(&self) -> ScriptTransport {
        let ssh = Ssh { destination: self.destination.clone(), args: self.args.clone() };
        ScriptTransport { route: ssh.into(), manner: Manner { attended: true, ..Manner::default() } }
    }

    /// Asks what is there.
    pub async fn probe(&self) -> Result<Far, BootstrapError> {
        self.transport().probe().await
    }

    /// Puts a program into the far home; see [`Transport::install`].
    pub async fn install(&self, binary: &Binary, version: &str, sent: impl Fn(usize)) -> Result<Installed, BootstrapError> {
        self.transport().install(binary, version, sent).await
    }
}

impl ScriptTransport {
    /// What people call the place.
    pub fn name(&self) -> String {
        match &self.route {
            Route { ssh: Some(ssh), slurm: None, container: None } => ssh.destination.clone(),
            route => route.to_string(),
        }
    }

    /// Asks what is there.
    pub async fn probe(&self) -> Result<Far, BootstrapError> {
        let answer = self.ask(probe::SCRIPT, None, |_| {}).await?;
        let far = Far::parse(&answer);
        match far.os.as_str() {
            "Linux" => Ok(far),
            os => Err(BootstrapError::System { destination: self.name(), os: os.to_owned() }),
        }
    }

    /// Puts a program into the far home and makes it the one that is used. It is written aside, checked against its digest
    /// and run once before anything points to it. `sent` is told about every piece.
    pub async fn install(&self, binary: &Binary, version: &str, sent: impl Fn(usize)) -> Result<Installed, BootstrapError> {
        let digest = digest(&binary.bytes);
        let name = file_name(version, &digest);
        let script = INSTALL.replace("NAME", &name).replace("DIGEST", &digest);
        let answer = self.ask(&script, Some(binary.bytes.clone()), sent).await?;
        if let Some(why) = value(&answer, "failed=") {
            return Err(BootstrapError::Copy { destination: self.name(), why });
        }
        match value(&answer, "runs=") {
            Some(version) if !version.is_empty() => Ok(Installed { path: format!("~/.outpost/bin/{name}"), version }),
            _ => {
                let why = value(&answer, "why=").unwrap_or_else(|| "it said nothing".into());
                Err(BootstrapError::DoesNotRun { destination: self.name(), why })
            }
        }
    }

    /// Prepares a new place, and leaves a note there that this was done. What the commands say goes to standard error where
    /// a user sits before it, and to the log otherwise.
    pub async fn set_up(&self, setup: &Setup) -> Result<(), BootstrapError> {
        let seconds = setup.timeout.as_secs().max(1);
        let mut script = format!(
            "(umask 077; mkdir -p \"$HOME/.outpost\"); t=; if command -v timeout > /dev/null 2>&1; then t=\"timeout {seconds}\"; fi; s=0; "
        );
        for command in &setup.commands {
            let (shown, run) = (quoted(&format!("+ {command}")), quoted(command));
            script.push_str(&format!(
                "if [ $s = 0 ]; then echo {shown} >&2; $t sh -c {run} < /dev/null >&2; s=$?; if [ $s != 0 ]; then echo failed={}; fi; fi; ",
                quoted(command)
            ));
        }
        script.push_str(&format!("if [ $s = 0 ]; then : > \"$HOME/.outpost/{}\" || s=1; fi; echo \"code=$s\"", marker(setup)));
        let done = tokio::time::timeout(setup.timeout + GRACE, self.ask(&script, None, |_| {})).await;
        let answer = match done {
            Ok(answer) => answer?,
            Err(_) => return Err(BootstrapError::SlowSetup { destination: self.name(), seconds }),
        };
        match value(&answer, "code=").as_deref() {
            Some("0") => Ok(()),
            Some("124") => Err(BootstrapError::SlowSetup { destination: self.name(), seconds }),
            code => Err(BootstrapError::Setup {
                destination: self.name(),
                command: value(&answer, "failed=").unwrap_or_else(|| "writing that it was done".into()),
                code: code.unwrap_or("unknown").to_owned(),
            }),
        }
    }

    /// Runs a command of the program there, such as `__end-keeper`; says what it answered and whether it succeeded.
    pub async fn run_program(&self, arguments: &str) -> Result<(bool, String), BootstrapError> {
        let script = format!(
            "p=$HOME/.outpost/bin/outpost; [ -x \"$p\" ] || p=outpost; a=$(\"$p\" {arguments} 2>&1 < /dev/null); echo \"code=$?\"; echo \"said=$a\""
        );
        let answer = self.ask(&script, None, |_| {}).await?;
        Ok((value(&answer, "code=").as_deref() == Some("0"), value(&answer, "said=").unwrap_or_default()))
    }

    /// Runs a script there and returns what it said between the marks. ssh may ask a person for a password or about a
    /// key; its complaints go where ours go.
    async fn ask(&self, script: &str, input: Option<Bytes>, sent: impl Fn(usize)) -> Result<String, BootstrapError> {
        let far = format!("echo; echo {BEGIN}; {script}; echo; echo {END}");
        // A program shrinks to less than half.
        let manner = Manner { compress: input.is_some(), ..self.manner.clone() };
        let line = self.route.command_line(Errand { script: &far, companion: None }, &manner);
        let mut command = Command::new(&line.program);
        withhold_secrets(&mut command);
        let mut child = command
            .args(&line.args)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(if self.manner.attended { Stdio::inherit() } else { Stdio::piped() })
            .kill_on_drop(true)
            .spawn()
            .map_err(BootstrapError::NoSsh)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let sending = async {
            let (Some(mut stdin), Some(input)) = (stdin, input) else { return };
            for piece in input.chunks(PIECE) {
                // If it is not taken, the answer says why.
                if stdin.write_all(piece).await.is_err() {
                    return;
                }
                sent(piece.len());
            }
            let _ = stdin.shutdown().await;
        };
        let mut said = Vec::new();
        let reading = async {
            if let Some(stdout) = stdout {
                let _ = stdout.take(MAX_ANSWER).read_to_end(&mut said).await;
            }
        };
        let mut complaint = String::new();
        let listening = async {
            let Some(stderr) = stderr else { return };
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                tracing::info!(route = %self.route, line, "said there");
                complaint = line;
            }
        };
        tokio::join!(sending, reading, listening);
        let status = child.wait().await.map_err(BootstrapError::NoSsh)?;
        let said = String::from_utf8_lossy(&said);
        if let Some(answer) = between(&said) {
            return Ok(answer.to_owned());
        }
        let destination = self.name();
        // What ssh itself says when it fails.
        if let Some(ssh) = self.route.ssh.as_ref().filter(|_| status.code() == Some(255)) {
            return Err(BootstrapError::Ssh { destination: ssh.destination.clone(), status });
        }
        if self.route.is_inside() && said.trim().is_empty() {
            return Err(BootstrapError::NoWay { destination, status, said: complaint });
        }
        let said = said.chars().take(200).collect::<String>().trim().to_owned();
        Err(BootstrapError::NoAnswer { destination, said: if said.is_empty() { format!("nothing ({status})") } else { said } })
    }
}

fn value(answer: &str, key: &str) -> Option<String> {
    answer.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned())
}

/// The name under which a program lies in the far home; two that differ never have the same one.
pub fn file_name(version: &str, digest: &str) -> String {
    let version: String = version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    format!("outpost-{version}-{}", &digest[..16.min(digest.len())])
}

pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn between(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once(&format!("\n{BEGIN}\n"))?;
    rest.split_once(&format!("\n{END}\n")).map(|(answer, _)| answer)
}

/// Without single quotes, backslashes, exclamation marks and newlines: these mean something to one login shell or another.
const INSTALL: &str = concat!(
    "umask 077; d=$HOME/.outpost/bin; t=$d/.upload-$$; fail() { rm -f \"$t\"; echo \"failed=$1\"; cat > /dev/null; }; ",
    "if mkdir -p \"$d\" && chmod 700 \"$HOME/.outpost\" \"$d\"; then ",
    "find \"$d\" -name \".upload-*\" -mtime +0 -exec rm -f {} + 2> /dev/null; ",
    "if cat > \"$t\"; then ",
    "s=$( { sha256sum \"$t\" || shasum -a 256 \"$t\" || openssl dgst -r -sha256 \"$t\"; } 2> /dev/null ); s=${s%% *}; ",
    "if [ -z \"$s\" ]; then fail \"there is neither sha256sum nor shasum nor openssl to check it with\"; ",
    "elif [ \"$s\" = DIGEST ] && chmod 700 \"$t\"; then ",
    "if v=$(\"$t\" --version 2>&1); then ",
    // Whatever else it is, other environments of this machine would be served by it.
    "case $v in \"outpost \"*) ",
    "mv -f \"$t\" \"$d/NAME\" && rm -f \"$d/.link-$$\" && ln -s NAME \"$d/.link-$$\" && mv -f \"$d/.link-$$\" \"$d/outpost\" ",
    "&& echo \"runs=$v\" || fail \"it cannot be put in place\";; ",
    "*) fail \"it is not outpost but $v\";; esac; ",
    "else echo \"why=$v\"; rm -f \"$t\"; fi; ",
    "else fail \"what came is not what was sent; is the disk full?\"; fi; ",
    "else fail \"it cannot be written; is the disk full?\"; fi; ",
    "else fail \"$d cannot be made\"; fi"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_hold_nothing_that_a_login_shell_would_take_for_itself() {
        for script in [INSTALL, probe::SCRIPT] {
            assert!(!script.contains(['\'', '\\', '!', '\n', '`']), "{script}");
        }
    }

    #[test]
    fn answers_are_found_in_noise() {
        let said = format!("Welcome!\nno newline\n{BEGIN}\nos=Linux\narch=x\n\n{END}\nbye");
        assert_eq!(between(&said), Some("os=Linux\narch=x\n"));
        assert_eq!(between("Welcome!"), None);
        assert_eq!(between(&format!("\n{BEGIN}\nos=Linux\n")), None, "it was cut short");
    }

    #[test]
    fn names_tell_programs_apart() {
        let digest = digest(b"x");
        assert_eq!(digest.len(), 64);
        assert_eq!(file_name("1.0+a b", &digest), format!("outpost-1.0-a-b-{}", &digest[..16]));
    }
}
