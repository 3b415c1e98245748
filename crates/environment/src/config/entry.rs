//! One `[[environments]]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outpost_wire::PathUri;
use toml::de::{DeTable, DeValue};

use super::text::{Text, Value};
use crate::connector::{CommandLine, Token};
use crate::definition::{Definition, Setup};
use crate::environment::ConnectPolicy;
use crate::narrowing::{Fence, NarrowedApproval, Narrowing};
use crate::route::{Container, DevContainer, Engine, EngineContainer, Pod, Route, Slurm};

/// What is wrong, and in which line.
type Wrong = (usize, String);

const KEYS: &str = "id, url, token_file, program, args, env, cwd, ssh, slurm, docker, podman, devcontainer, kubectl, user, run_args, \
                    engine, container, namespace, setup, setup_timeout_sec, idle_stop, labels, connect, connect_timeout_sec, \
                    initialize_timeout_sec, ceiling, sandbox, network, writable_roots, approval_policy, devices";

/// Ways that lead into each other, from the outside to the inside.
const STEPS: [&str; 6] = ["ssh", "slurm", "docker", "podman", "devcontainer", "kubectl"];

/// A year; beyond it a wait is not meant.
const LONGEST: f64 = 365.0 * 86_400.0;

/// The members of an entry, taken out one by one.
struct Members<'a, 'b> {
    text: &'a Text<'b>,
    line: usize,
    table: &'a DeTable<'b>,
}

impl<'a, 'b> Members<'a, 'b> {
    fn get(&self, name: &str) -> Option<&'a Value<'b>> {
        self.table.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(_, value)| value)
    }

    fn wrong<T>(&self, value: &Value<'_>, what: impl Into<String>) -> Result<T, Wrong> {
        Err((self.text.line(value.span().start), what.into()))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.get_ref().as_str() {
                Some(text) => Ok(Some(text)),
                None => self.wrong(value, format!("`{name}` is a text")),
            },
        }
    }

    fn texts(&self, name: &str) -> Result<Option<Vec<String>>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let DeValue::Array(items) = value.get_ref() else { return self.wrong(value, format!("`{name}` is a list of texts")) };
        let texts: Option<Vec<String>> = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
        texts.map_or_else(|| self.wrong(value, format!("`{name}` is a list of texts")), |texts| Ok(Some(texts)))
    }

    fn map(&self, name: &str) -> Result<Option<BTreeMap<String, String>>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let DeValue::Table(table) = value.get_ref() else { return self.wrong(value, format!("`{name}` is a table of texts")) };
        let pairs = table.iter().map(|(key, value)| Some((key.get_ref().as_ref().to_owned(), value.get_ref().as_str()?.to_owned())));
        pairs.collect::<Option<_>>().map_or_else(|| self.wrong(value, format!("`{name}` is a table of texts")), |map| Ok(Some(map)))
    }

    fn seconds(&self, name: &str) -> Result<Option<Duration>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Integer(number) => number.to_string().parse::<f64>().ok(),
            DeValue::Float(number) => number.to_string().parse::<f64>().ok(),
            _ => None,
        };
        match number {
            Some(seconds) if (0.0..=LONGEST).contains(&seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
            _ => self.wrong(value, format!("`{name}` is a number of seconds, from 0 to a year")),
        }
    }

    /// A number of seconds, or a text such as `"30m"`.
    fn span(&self, name: &str) -> Result<Option<Duration>, Wrong> {
        let Some(text) = self.get(name).and_then(|value| value.get_ref().as_str()) else { return self.seconds(name) };
        match (span(text), self.get(name)) {
            (Some(span), _) => Ok(Some(span)),
            (None, Some(value)) => self.wrong(value, format!("`{name}` is a number of seconds, or such as \"30m\" and \"2h\"")),
            (None, None) => Ok(None),
        }
    }

    /// One of a few texts.
    fn one_of(&self, name: &str, known: &[&str]) -> Result<Option<&'a str>, Wrong> {
        match (self.text(name)?, self.get(name)) {
            (Some(text), Some(value)) if !known.contains(&text) => {
                let known = known.iter().map(|known| format!("\"{known}\"")).collect::<Vec<_>>().join(" or ");
                self.wrong(value, format!("`{name}` is {known}, not \"{text}\""))
            }
            (text, _) => Ok(text),
        }
    }

    /// Keys that make sense only beside another one.
    fn only_with(&self, other: &str, names: &[&str]) -> Result<(), Wrong> {
        match names.iter().find_map(|name| Some((name, self.get(name)?))) {
            Some((name, value)) => self.wrong(value, format!("`{name}` needs `{other}`")),
            None => Ok(()),
        }
    }

    /// A path of this machine; a relative one begins where the file is.
    fn path(&self, name: &str) -> Result<Option<PathBuf>, Wrong> {
        let (Some(text), Some(value)) = (self.text(name)?, self.get(name)) else { return Ok(None) };
        if text.trim().is_empty() {
            return self.wrong(value, format!("`{name}` is empty"));
        }
        let path = Path::new(text);
        if path.is_absolute() {
            return Ok(Some(path.to_owned()));
        }
        match self.text.path.parent().filter(|base| base.is_absolute()) {
            Some(base) => Ok(Some(base.join(path))),
            None => self.wrong(value, format!("`{name}` is relative, and there is no directory that it could begin in")),
        }
    }
}

pub(super) fn define(text: &Text<'_>, table: &DeTable<'_>, line: usize) -> Result<Definition, Wrong> {
    let members = Members { text, line, table };
    if let Some((key, _)) = table.iter().find(|(key, _)| !KEYS.split(", ").any(|known| known == key.get_ref().as_ref())) {
        return Err((text.line(key.span().start), format!("unknown key `{}`; there are {KEYS}", key.get_ref())));
    }
    let ways: Vec<&str> = ["url", "program"].into_iter().chain(STEPS).filter(|name| members.get(name).is_some()).collect();
    let containers = ways.iter().filter(|way| STEPS[2..].contains(way)).count();
    let mut definition = match ways.as_slice() {
        ["url"] => url(&members)?,
        ["program"] => program(&members)?,
        ["ssh"] => ssh(&members)?,
        [] => {
            return Err((
                line,
                "one of `url`, `program`, `ssh`, `slurm`, `docker`, `podman`, `devcontainer` and `kubectl` is needed".into(),
            ));
        }
        steps if containers <= 1 && steps.iter().all(|step| STEPS.contains(step)) => inside(&members)?,
        several => return Err((line, format!("only one of `{}` may be given", several.join("` and `")))),
    };
    let commands = members.texts("setup")?.unwrap_or_default();
    let timeout = members.seconds("setup_timeout_sec")?.unwrap_or(Setup::default().timeout);
    if let Some(value) = members.get("setup") {
        definition = definition.with_setup(Setup { commands, timeout }).or_else(|error| members.wrong(value, error.to_string()))?;
    } else {
        members.only_with("setup", &["setup_timeout_sec"])?;
    }
    if let (Some(idle), Some(value)) = (members.span("idle_stop")?, members.get("idle_stop")) {
        definition = definition.stopping_after(idle).or_else(|error| members.wrong(value, error.to_string()))?;
    }
    definition.labels = members.texts("labels")?.unwrap_or_default();
    if let Some(value) = members.get("labels").filter(|_| definition.labels.iter().any(|label| label.trim().is_empty())) {
        return members.wrong(value, "a label is empty");
    }
    if let Some(timeout) = members.seconds("connect_timeout_sec")? {
        definition.connect_timeout = timeout;
    }
    if let Some(timeout) = members.seconds("initialize_timeout_sec")? {
        definition.initialize_timeout = timeout;
    }
    if let (Some(text), Some(value)) = (members.text("connect")?, members.get("connect")) {
        definition.connect = match text {
            "eager" => ConnectPolicy::Eager,
            "lazy" => ConnectPolicy::Lazy,
            "manual" => ConnectPolicy::Manual,
            other => return members.wrong(value, format!("`connect` is \"eager\", \"lazy\" or \"manual\", not \"{other}\"")),
        };
    }
    if let (Some(text), Some(value)) = (members.text("ceiling")?, members.get("ceiling")) {
        definition = definition.with_ceiling(text).or_else(|error| members.wrong(value, format!("`ceiling`: {error}")))?;
    }
    definition.narrowing = narrowing(&members)?;
    Ok(definition)
}

/// What is left of a thread's policy there. A value that narrows nothing may be written all the same.
fn narrowing(members: &Members<'_, '_>) -> Result<Narrowing, Wrong> {
    let sandbox = match members.one_of("sandbox", &["read-only", "workspace-write", "danger-full-access"])? {
        Some("read-only") => Some(Fence::ReadOnly),
        Some("workspace-write") => Some(Fence::WorkspaceWrite),
        _ => None,
    };
    let approval_policy = match members.one_of("approval_policy", &["untrusted", "on-request", "never"])? {
        Some("untrusted") => Some(NarrowedApproval::Untrusted),
        Some("never") => Some(NarrowedApproval::Never),
        Some(_) => Some(NarrowedApproval::OnRequest),
        None => None,
    };
    let no_network = members.one_of("network", &["restricted", "enabled"])? == Some("restricted");
    let writable_roots = members.texts("writable_roots")?;
    let is_relative = |roots: &Vec<String>| roots.iter().any(|root| PathUri::from_syntax(root).is_err());
    if let (Some(value), true) = (members.get("writable_roots"), writable_roots.as_ref().is_some_and(is_relative)) {
        return members.wrong(value, "`writable_roots` are absolute paths of that machine");
    }
    let devices = members.texts("devices")?.unwrap_or_default();
    let is_device = |name: &String| ["nvidia", "dri"].contains(&name.as_str()) || name.starts_with("/dev/");
    if let (Some(value), Some(wrong)) = (members.get("devices"), devices.iter().find(|name| !is_device(name))) {
        return members.wrong(value, format!("`devices` are \"nvidia\", \"dri\" and paths below /dev, not \"{wrong}\""));
    }
    Ok(Narrowing { sandbox, no_network, writable_roots, approval_policy, devices, ..Narrowing::default() })
}

/// A time as people write it: `90`, `90s`, `30m`, `2h`, `1d`.
pub fn span(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds: u64 = match unit.trim() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    let whole = digits.parse::<u64>().ok()?.checked_mul(seconds)?;
    (whole as f64 <= LONGEST).then(|| Duration::from_secs(whole))
}

fn inside(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    members.only_with("url", &["token_file"])?;
    members.only_with("program", &["env", "cwd"])?;
    let text = |name: &str| Ok::<_, Wrong>(members.text(name)?.map(|text| text.trim().to_owned()));
    let has = |name: &str| members.get(name).is_some();
    if !has("ssh") {
        members.only_with("ssh", &["args"])?;
    }
    no_steps(members)?;
    let mut route = Route::default();
    if has("ssh") {
        route.ssh = ssh(members)?.route().and_then(|route| route.ssh);
    }
    // Written as a text or as a number.
    route.slurm = match members.get("slurm") {
        Some(value) => match value.get_ref() {
            DeValue::Integer(number) => Some(Slurm { job: number.to_string() }),
            _ => text("slurm")?.map(|job| Slurm { job }),
        },
        None => None,
    };
    let engine = |engine: Engine, target: String| -> Result<Container, Wrong> {
        Ok(Container::Engine(EngineContainer {
            engine,
            target,
            own_name: format!("outpost-{}", members.text("id")?.unwrap_or_default().trim()),
            user: text("user")?,
            run_args: members.texts("run_args")?.unwrap_or_default(),
        }))
    };
    if let Some(target) = text("docker")? {
        route.container = Some(engine(Engine::Docker, target)?);
    }
    if let Some(target) = text("podman")? {
        route.container = Some(engine(Engine::Podman, target)?);
    }
    if let Some(folder) = text("devcontainer")? {
        // Behind ssh it is a folder of that machine.
        let folder = match members.path("devcontainer")?.filter(|_| !has("ssh")) {
            Some(path) => path.to_string_lossy().into_owned(),
            None => folder,
        };
        let engine = match (members.text("engine")?, members.get("engine")) {
            (None | Some("docker"), _) | (_, None) => Engine::Docker,
            (Some("podman"), _) => Engine::Podman,
            (Some(other), Some(value)) => return members.wrong(value, format!("`engine` is \"docker\" or \"podman\", not \"{other}\"")),
        };
        route.container = Some(Container::Dev(DevContainer { folder, engine }));
    }
    if let Some(pod) = text("kubectl")? {
        route.container = Some(Container::Pod(Pod { pod, container: text("container")?, namespace: text("namespace")? }));
    }
    Definition::inside(route).map_err(|error| (members.line, error.to_string()))
}

fn url(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    no_steps(members)?;
    members.only_with("program", &["env", "cwd"])?;
    members.only_with("program` or `ssh", &["args"])?;
    let Some(url) = members.text("url")? else { return Err((members.line, "`url` is missing".into())) };
    let token = members.path("token_file")?.map_or(Token::None, Token::File);
    let line = members.get("url").map_or(members.line, |value| members.text.line(value.span().start));
    Definition::url(url, token).map_err(|error| (line, format!("`url`: {error}")))
}

/// Keys of steps that are not taken.
fn no_steps(members: &Members<'_, '_>) -> Result<(), Wrong> {
    let has = |name: &str| members.get(name).is_some();
    if !has("docker") && !has("podman") {
        members.only_with("docker` or `podman", &["user", "run_args"])?;
    }
    if !has("kubectl") {
        members.only_with("kubectl", &["container", "namespace"])?;
    }
    if !has("devcontainer") {
        members.only_with("devcontainer", &["engine"])?;
    }
    Ok(())
}

fn program(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    no_steps(members)?;
    members.only_with("url", &["token_file", "connect_timeout_sec"])?;
    let Some(program) = members.text("program")? else { return Err((members.line, "`program` is missing".into())) };
    let line = CommandLine {
        program: program.to_owned(),
        args: members.texts("args")?.unwrap_or_default(),
        env: members.map("env")?.unwrap_or_default(),
        cwd: members.path("cwd")?,
        ..CommandLine::default()
    };
    let at = members.get("program").map_or(members.line, |value| members.text.line(value.span().start));
    Definition::program(line).map_err(|error| (at, format!("`program`: {error}")))
}

fn ssh(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    members.only_with("url", &["token_file"])?;
    members.only_with("program", &["env", "cwd"])?;
    no_steps(members)?;
    let Some(destination) = members.text("ssh")? else { return Err((members.line, "`ssh` is missing".into())) };
    let at = members.get("ssh").map_or(members.line, |value| members.text.line(value.span().start));
    let args = members.texts("args")?.unwrap_or_default();
    Definition::ssh(destination, args).map_err(|error| (at, format!("`ssh`: {error}")))
}
