//! What a login shell is like after it has read its profiles: functions, options, aliases and variables, taken once and given to
//! every later command of the same kind, so that slow profiles are run once and not for each command.
//!
//! A snapshot belongs to a session. It is taken by the same shell, in the same place and inside the same sandbox as the command that
//! asked for it. Of the variables that a request sets, it is taken with those that make the login what it is; the others are for one
//! command and must not reach the next one. If none can be taken, the command runs as it was asked for.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Child, Exit, Launch, LaunchError, LaunchIo, Output};
use outpost_wire::exec::environment::Shell;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{EnvPolicy, ShellSnapshot, StartParams};
use outpost_wire::{Fault, PathUri};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::fault;

/// How long a shell may take to get through its profiles.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that it may say.
const MAX_BYTES: usize = 1 << 20;
/// What goes before a command has to fit one argument.
const MAX_STATE: usize = 96 << 10;
/// So many are kept in a session.
const REMEMBERED: usize = 32;
const LONGEST_SCOPE: usize = 256;
/// Between the parts of what a shell tells; profiles may have said anything before.
const MARK: &[u8] = b"\0outpost\0";
/// So much of what profiles print is kept for the log.
const MAX_NOISE: usize = 4 << 10;
/// They belong to the moment at which they were taken.
const PASSING: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

/// A shell's state.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShellState {
    /// What brings it back, in the shell's own language.
    state: String,
    pub variables: Vec<(OsString, OsString)>,
}

/// The snapshots of one session.
#[derive(Default)]
pub(crate) struct Snapshots(Mutex<HashMap<Key, Arc<OnceCell<Arc<ShellState>>>>>);

#[derive(PartialEq, Eq, Hash)]
struct Key {
    scope: String,
    shell: Shell,
    cwd: PathUri,
    env_policy: Option<EnvPolicy>,
    login: BTreeMap<String, String>,
    sandbox: Option<SandboxContext>,
}

/// What a shell is started with to be looked at.
pub(crate) struct Setting {
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub policy: Policy,
}

#[derive(Clone, Copy)]
enum Kind {
    Bash,
    Zsh,
    Sh,
}

/// The kind of shell that a request names; refused if there is none like it here.
fn kind(snapshot: &ShellSnapshot) -> Result<Kind, Fault> {
    if snapshot.scope_id.is_empty() || snapshot.scope_id.len() > LONGEST_SCOPE {
        return Err(fault::snapshot_scope(LONGEST_SCOPE));
    }
    match snapshot.shell.name.as_str() {
        "bash" => Ok(Kind::Bash),
        "zsh" => Ok(Kind::Zsh),
        "sh" => Ok(Kind::Sh),
        other => Err(fault::snapshot_shell(other)),
    }
}

/// Whether a start is one that a snapshot can serve: the named shell, as a login shell, with a command.
fn fits(params: &StartParams, shell: &Shell) -> bool {
    matches!(&params.argv[..], [program, flags, _, ..] if *program == shell.path && flags == "-lc")
}

impl Snapshots {
    /// The snapshot for a start, taken now if there is none. `login` is what of its variables the shell gets for that; `setting` and `launch` are asked for only then.
    pub(crate) async fn for_start<L: Future<Output = Result<Child, LaunchError>>>(
        &self,
        params: &StartParams,
        login: &BTreeMap<String, String>,
        setting: impl FnOnce() -> Result<Setting, Fault>,
        launch: impl FnOnce(Launch) -> L,
    ) -> Result<Option<Arc<ShellState>>, Fault> {
        let Some(asked) = &params.shell_snapshot else { return Ok(None) };
        let kind = kind(asked)?;
        if !fits(params, &asked.shell) {
            return Ok(None);
        }
        let key = Key {
            scope: asked.scope_id.clone(),
            shell: asked.shell.clone(),
            cwd: params.cwd.clone(),
            env_policy: params.env_policy.clone(),
            login: login.clone(),
            sandbox: params.sandbox.clone(),
        };
        let place = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= REMEMBERED && !all.contains_key(&key) {
                all.clear();
            }
            all.entry(key).or_default().clone()
        };
        let setting = setting()?;
        // A failure is not kept: the next command tries again.
        let taken = place.get_or_try_init(|| async { take(launch, &asked.shell, kind, setting).await.map(Arc::new).ok_or(()) }).await;
        Ok(taken.ok().cloned())
    }
}

impl ShellState {
    /// The arguments of a start, with the state before its command instead of the profiles.
    pub(crate) fn arguments(&self, argv: &[String]) -> Vec<OsString> {
        let [_, _, script, rest @ ..] = argv else { return argv.iter().skip(1).map(Into::into).collect() };
        let script = format!("{}\n{script}", self.state);
        [OsString::from("-c"), script.into()].into_iter().chain(rest.iter().map(Into::into)).collect()
    }
}

/// Starts the shell, lets it read its profiles, and asks it what came of them.
async fn take<L: Future<Output = Result<Child, LaunchError>>>(
    launch: impl FnOnce(Launch) -> L,
    shell: &Shell,
    kind: Kind,
    setting: Setting,
) -> Option<ShellState> {
    let shell = Launch {
        connect: None,
        program: shell.path.clone().into(),
        arg0: None,
        args: vec!["-lc".into(), question(kind).into()],
        env: setting.env,
        cwd: setting.cwd,
        io: LaunchIo::Pipes { stdin: false },
        policy: setting.policy,
    };
    let mut child = match launch(shell).await {
        Ok(child) => child,
        Err(error) => {
            tracing::debug!(%error, "no snapshot of a shell can be taken");
            return None;
        }
    };
    let mut noise: Vec<u8> = Vec::new();
    let told = timeout(PATIENCE, async {
        let complaints = async {
            // Read all the same: a shell whose error output is not read waits for ever.
            while let Some(more) = next(child.errors.as_ref()).await {
                let room = MAX_NOISE.saturating_sub(noise.len());
                noise.extend(more.into_iter().take(room));
            }
            std::future::pending::<()>().await
        };
        let answer = async {
            let mut bytes = Vec::new();
            while let Some(more) = child.output.read().await {
                bytes.extend(more);
                if bytes.len() > MAX_BYTES {
                    return None;
                }
            }
            Some(bytes)
        };
        let bytes = tokio::select! {
            bytes = answer => bytes?,
            () = complaints => return None,
        };
        (child.end.wait().await == Exit::Code(0)).then_some(bytes)
    })
    .await;
    // Also what a profile left running.
    child.kin.kill();
    let told = told.ok().flatten()?;
    let before = memchr::memmem::find(&told, MARK).unwrap_or(0).min(MAX_NOISE);
    if !noise.is_empty() || before > 0 {
        let (printed, complaints) = (String::from_utf8_lossy(&told[..before]), String::from_utf8_lossy(&noise));
        tracing::debug!(?printed, ?complaints, "the profiles of a shell printed something; no command shows it");
    }
    read(&told, kind)
}

async fn next(output: Option<&Output>) -> Option<Vec<u8>> {
    output?.read().await
}

/// What the shell is asked after its profiles. Functions of the user's own cannot get in the way.
fn question(kind: Kind) -> String {
    let mark = r"printf '\0outpost\0'";
    match kind {
        Kind::Bash => format!(
            "command {mark}; command declare -f || :; command {mark}; command shopt -p || :; command set +o || :; command {mark}; \
             command alias -p || :; command {mark}; command env -0"
        ),
        Kind::Zsh => format!(
            "builtin {mark}; builtin typeset -f || :; builtin {mark}; builtin set +o || :; builtin {mark}; builtin alias -L || :; \
             builtin {mark}; command env -0"
        ),
        // It cannot say what functions it has.
        Kind::Sh => format!(
            "command {mark}; command {mark}; command set +o || :; command {mark}; command alias || :; command {mark}; command env -0"
        ),
    }
}

/// Reads the answer, whatever profiles printed before it.
fn read(told: &[u8], kind: Kind) -> Option<ShellState> {
    let places: Vec<usize> = memchr::memmem::find_iter(told, MARK).collect();
    let [.., a, b, c, d] = places[..] else { return None };
    let text = |from: usize, to: usize| std::str::from_utf8(&told[from + MARK.len()..to]).ok();
    let (functions, options, aliases) = (text(a, b)?, text(b, c)?, text(c, d)?);
    // A shell's own nature cannot be set, and a profile that traces itself does not mean every command.
    let left_out = ["login_shell", "restricted_shell", "interactive", "xtrace", "verbose"];
    let options: Vec<&str> = options.lines().filter(|line| !left_out.iter().any(|word| line.contains(word))).collect();
    let aliases = match kind {
        Kind::Sh => aliases.lines().map(|line| format!("alias {line}\n")).collect(),
        Kind::Bash | Kind::Zsh => aliases.to_owned(),
    };
    // Options come last: some of them would make what comes before them fail.
    let whole = format!("{functions}\n{aliases}\n{}\n", options.join("\n"));
    let state = match kind {
        Kind::Bash | Kind::Zsh => format!("eval {} 2>/dev/null", quoted(&whole)),
        Kind::Sh => format!("{{ {whole}:; }} 2>/dev/null"),
    };
    if state.len() > MAX_STATE {
        return None;
    }
    let variables = told[d + MARK.len()..].split(|byte| *byte == 0).filter_map(|entry| {
        let at = memchr::memchr(b'=', entry)?;
        let (name, value) = (OsString::from_vec(entry[..at].to_vec()), OsString::from_vec(entry[at + 1..].to_vec()));
        (!PASSING.iter().any(|passing| name == *passing)).then_some((name, value))
    });
    Some(ShellState { state, variables: variables.collect() })
}

/// One line, so that the lines of the command that follows are counted almost as they were.
fn quoted(text: &str) -> String {
    let mut out = String::from("$'");
    for c in text.chars() {
        match c {
            '\\' => out.push_str(r"\\"),
            '\'' => out.push_str(r"\'"),
            '\n' => out.push_str(r"\n"),
            '\r' => out.push_str(r"\r"),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_before_the_answer_does_not_matter() {
        let told = b"hello\0outpost\0noise\n\0outpost\0f () { :; }\n\0outpost\0shopt -u login_shell\nset -o noclobber\n\0outpost\0alias a='b'\n\0outpost\0A=1\0PWD=/x\0B=two=2\0";
        let read = read(told, Kind::Bash).unwrap();
        assert_eq!(read.state, r"eval $'f () { :; }\n\nalias a=\'b\'\n\nset -o noclobber\n' 2>/dev/null");
        assert_eq!(read.variables, [("A".into(), "1".into()), ("B".into(), "two=2".into())]);
    }

    #[test]
    fn an_answer_that_breaks_off_is_none() {
        assert_eq!(read(b"\0outpost\0x\0outpost\0", Kind::Bash), None);
        assert_eq!(read(b"exit", Kind::Sh), None);
    }

    #[test]
    fn the_command_keeps_its_arguments() {
        let snapshot = ShellState { state: "S".into(), variables: vec![] };
        let argv = ["/bin/bash", "-lc", "echo $0", "zero"].map(str::to_owned);
        assert_eq!(snapshot.arguments(&argv), ["-c", "S\necho $0", "zero"].map(OsString::from));
    }
}
