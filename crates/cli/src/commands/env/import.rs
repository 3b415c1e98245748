//! `outpost env import ssh`: hosts of the ssh configuration, to choose from.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use outpost_wire::EnvironmentId;

use super::{add, say, table};
use crate::ProcessContext;
use crate::commands::FAILED;
use crate::env_args::{AddArguments, EnvImportArguments, WayArguments};
use crate::environments::KnownEnvironments;
use crate::out::{aside, with_causes};

/// Files that include each other are followed so far.
const DEPTH: usize = 16;

pub(super) async fn run(arguments: EnvImportArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    ensure!(!arguments.replace && !arguments.dry_run, "--replace and --dry-run are for `env import file`");
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set, so there is no ~/.ssh/config")?;
    let config = arguments.ssh_config.clone().unwrap_or_else(|| home.join(".ssh/config"));
    let text = std::fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    let hosts = Reader { home: &home }.hosts(&text, DEPTH);
    let known: BTreeSet<String> = KnownEnvironments::load(own).await?.snapshot()?.ids().iter().map(ToString::to_string).collect();
    let fresh: Vec<&String> = hosts.iter().filter(|host| !known.contains(&name_of(host))).collect();
    let chosen: Vec<String> = if arguments.all {
        fresh.into_iter().cloned().collect()
    } else if !arguments.hosts.is_empty() {
        if let Some(unknown) = arguments.hosts.iter().find(|host| !hosts.contains(host)) {
            bail!("{} knows no host `{unknown}`; it knows {}", config.display(), hosts.join(", "));
        }
        arguments.hosts.clone()
    } else {
        show(&hosts, &known, arguments.ssh_config.as_deref())?;
        choose(&hosts)?
    };
    if chosen.is_empty() {
        say("nothing was added; name hosts with `outpost env import ssh NAME`, or take all of them with --all");
        return Ok(0);
    }
    let mut worst = 0;
    for host in chosen {
        let done = add::run(addition(&host, &arguments), own).await;
        worst = worst.max(done.unwrap_or_else(|error| {
            say(&format!("`{host}` was not added: {}", with_causes(&error)));
            FAILED
        }));
    }
    Ok(worst)
}

/// The name that a host gets: what may not stand in one becomes a dash.
fn name_of(host: &str) -> String {
    host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' }).collect()
}

fn addition(host: &str, arguments: &EnvImportArguments) -> AddArguments {
    let ssh_args = arguments.ssh_config.iter().flat_map(|file| ["-F".to_owned(), file.display().to_string()]).collect();
    AddArguments {
        name: name_of(host),
        way: WayArguments { ssh: Some(host.to_owned()), ..WayArguments::default() },
        ssh_args,
        offline: arguments.offline,
        ..AddArguments::default()
    }
}

fn show(hosts: &[String], known: &BTreeSet<String>, config: Option<&Path>) -> anyhow::Result<()> {
    let mut rows = vec![["", "HOST", "ADDRESS", ""].map(String::from).to_vec()];
    for (index, host) in hosts.iter().enumerate() {
        let name = name_of(host);
        let note = if EnvironmentId::parse_own(&name).is_err() {
            "cannot be a name"
        } else if known.contains(&name) {
            "added already"
        } else {
            ""
        };
        rows.push(vec![(index + 1).to_string(), host.clone(), address(host, config), note.into()]);
    }
    table(&rows)
}

/// What ssh itself makes of a host, with everything that its configuration says.
fn address(host: &str, config: Option<&Path>) -> String {
    let mut command = Command::new("ssh");
    if let Some(config) = config {
        command.arg("-F").arg(config);
    }
    let output = command.args(["-G", "--", host]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).unwrap_or("?").to_owned();
    let jump = match value("proxyjump").as_str() {
        "?" | "none" => String::new(),
        jump => format!(" through {jump}"),
    };
    format!("{}@{}:{}{jump}", value("user"), value("hostname"), value("port"))
}

/// Asks on a terminal only.
fn choose(hosts: &[String]) -> anyhow::Result<Vec<String>> {
    let input = std::io::stdin();
    if !input.is_terminal() || hosts.is_empty() {
        return Ok(Vec::new());
    }
    aside("Which? Numbers or names, with blanks between them; nothing for none: ");
    let mut line = String::new();
    input.lock().read_line(&mut line).context("standard input cannot be read")?;
    let pick = |word: &str| match word.parse::<usize>() {
        Ok(number) => hosts.get(number.wrapping_sub(1)).cloned().with_context(|| format!("there is no number {number}")),
        Err(_) => hosts.iter().find(|host| *host == word).cloned().with_context(|| format!("there is no host `{word}`")),
    };
    line.split_whitespace().map(pick).collect()
}

/// Reads the names of hosts out of an ssh configuration; what they mean is asked of ssh.
struct Reader<'a> {
    home: &'a Path,
}

impl Reader<'_> {
    fn hosts(&self, text: &str, depth: usize) -> Vec<String> {
        let mut hosts: Vec<String> = Vec::new();
        for line in text.lines() {
            let line = line.trim();
            let (key, rest) = line.split_at(line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len()));
            let values = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '=');
            let words = values.split_whitespace().map(|word| word.trim_matches('"'));
            let found: Vec<String> = match key.to_ascii_lowercase().as_str() {
                "host" => words.filter(|word| !word.is_empty() && !word.contains(['*', '?', '!'])).map(str::to_owned).collect(),
                "include" if depth > 0 => words.flat_map(|word| self.included(word, depth - 1)).collect(),
                _ => Vec::new(),
            };
            for host in found {
                if !hosts.contains(&host) {
                    hosts.push(host);
                }
            }
        }
        hosts
    }

    fn included(&self, pattern: &str, depth: usize) -> Vec<String> {
        let path = match pattern.strip_prefix("~/") {
            Some(rest) => self.home.join(rest),
            // A relative one begins in the user's own directory.
            None => self.home.join(".ssh").join(pattern),
        };
        let files = match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            (Some(directory), Some(name)) if name.contains('*') => matching(directory, name),
            _ => vec![path],
        };
        files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).flat_map(|text| self.hosts(&text, depth)).collect()
    }
}

/// Files whose names match a pattern with stars.
fn matching(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| matches(name, pattern))).map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn matches(name: &str, pattern: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return name == pattern };
    let Some(rest) = name.strip_prefix(before) else { return false };
    (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches(&rest[at..], after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_and_patterns_are_not() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".ssh/conf.d")).unwrap();
        std::fs::write(home.path().join(".ssh/conf.d/work.conf"), "Host inner inner2\n").unwrap();
        let text = "Include conf.d/*.conf\n# Host no\nHost box *.example.org !x\n  User me\nhost=gpu box\nMatch host y\n";
        let hosts = Reader { home: home.path() }.hosts(text, DEPTH);
        assert_eq!(hosts, ["inner", "inner2", "box", "gpu"]);
        assert_eq!(name_of("me@gpu.example.org"), "me-gpu-example-org");
    }

    #[test]
    fn files_that_include_themselves_come_to_an_end() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".ssh")).unwrap();
        let text = "Include ~/.ssh/config\nHost a\n";
        std::fs::write(home.path().join(".ssh/config"), text).unwrap();
        assert_eq!(Reader { home: home.path() }.hosts(text, DEPTH), ["a"]);
    }
}
