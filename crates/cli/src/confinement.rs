//! What the operator says about sandboxes, on the command line and in config.toml.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use outpost_config::Config;
use outpost_config::limits::{LimitSetting, LimitTable};
use outpost_executor::{GitMode, HttpTarget, ceiling};
use outpost_sandbox::home::HomeSettings;
use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Level, Limits};

use crate::executor_args::{ConfinementArguments, ExecutorArguments, Profile};
use crate::home::Home;
use crate::local::SandboxSettings;
use crate::lock::Lock;

impl ConfinementArguments {
    pub(crate) fn read(&self, settings: &[String]) -> anyhow::Result<SandboxSettings> {
        let place = self.ceiling.as_ref().map_or_else(|| "the ceiling of --profile".to_owned(), |file| format!("in {}", file.display()));
        let ceiling = self.ceiling_text()?.map_or(Ok(Policy::Open), |text| ceiling::parse(&text)).context(place)?;
        let sandbox_user = self.sandbox_user.as_deref().map(user).transpose()?;
        let file = Home::from_environment().map(|home| home.config());
        let config = crate::configuration::load(file.as_deref(), settings)?;
        let (minimum, minimum_from) = Lock::read()?.minimum(config.sandbox_minimum);
        let (limits, home) = (self.limits(config.limits), config.sandbox_home.over(HomeSettings::default()));
        Ok(SandboxSettings { ceiling, sandbox_user, limits, minimum, minimum_from, git: config.git, home })
    }

    /// The ceiling as a file would say it: the one that is named, or that of the profile.
    pub(crate) fn ceiling_text(&self) -> anyhow::Result<Option<String>> {
        match &self.ceiling {
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the ceiling {}", file.display()))?;
                Ok(Some(text))
            }
            None => match self.profile {
                Some(profile) => Ok(profile.ceiling(&self.directory()?)),
                None => Ok(None),
            },
        }
    }

    fn directory(&self) -> anyhow::Result<PathBuf> {
        match &self.profile_directory {
            Some(directory) => Ok(directory.clone()),
            None => std::env::current_dir().context("the current directory is gone"),
        }
    }

    /// Those of the command line, over those of the configuration.
    fn limits(&self, configured: LimitTable) -> Limits {
        let mut given = LimitTable::default();
        for (name, limit) in &self.limits {
            *match name.as_str() {
                "processes" => &mut given.processes,
                "memory" => &mut given.memory,
                "open-files" => &mut given.open_files,
                "file-size" => &mut given.file_size,
                "free-space" => &mut given.free_space,
                "home-layer" => &mut given.home_layer,
                _ => &mut given.cpu_seconds,
            } = Some(*limit);
        }
        given.over(configured.over(self.profile.map_or_else(Limits::default, Profile::limits)))
    }

    /// The same again, for a program that is started in our place.
    pub(crate) fn arguments(&self) -> anyhow::Result<Vec<OsString>> {
        let mut arguments = Vec::new();
        if let Some(name) = self.profile.and_then(|profile| profile.to_possible_value()) {
            arguments.extend(["--profile".into(), name.get_name().into()]);
            arguments.extend(["--profile-directory".into(), self.directory()?.into_os_string()]);
        }
        if let Some(file) = &self.ceiling {
            let file = std::path::absolute(file).with_context(|| format!("cannot resolve {}", file.display()))?;
            arguments.extend(["--ceiling".into(), file.into_os_string()]);
        }
        if let Some(user) = &self.sandbox_user {
            arguments.extend(["--sandbox-user".into(), user.into()]);
        }
        for (name, LimitSetting(value)) in &self.limits {
            let value = value.map_or("none".into(), |value| value.to_string());
            arguments.extend(["--limit".into(), format!("{name}={value}").into()]);
        }
        Ok(arguments)
    }
}

impl ExecutorArguments {
    /// How long a session is kept whose connection was lost.
    pub(crate) fn grace(&self) -> u64 {
        const USUAL: u64 = 600;
        self.grace.unwrap_or_else(|| self.confinement.profile.map_or(USUAL, Profile::grace))
    }

    /// How long one is kept in which a command runs, or has ended unheard.
    pub(crate) fn grace_running(&self) -> u64 {
        // Where only one time is given, it is meant for every session.
        let usual = || self.grace.unwrap_or_else(|| self.confinement.profile.map_or(GRACE_RUNNING, Profile::grace_running));
        self.grace_running.unwrap_or_else(usual).max(self.grace())
    }
}

/// What only their owner needs to read, below the home of the executor's user.
const PRIVATE: [&str; 9] = [".ssh", ".gnupg", ".aws", ".azure", ".config/gcloud", ".kube", ".docker", ".netrc", ".git-credentials"];

/// A session in which a command runs waits for a client so many seconds, on a machine of one's own.
pub(crate) const GRACE_RUNNING: u64 = 24 * 3600;

impl Profile {
    const fn grace_running(self) -> u64 {
        match self {
            Self::OwnMachine => GRACE_RUNNING,
            Self::SharedHost | Self::Container => 600,
        }
    }

    fn limits(self) -> Limits {
        match self {
            Self::OwnMachine => Limits::of_machine(4096, (3, 4)),
            Self::SharedHost => Limits { cpu_seconds: Some(4 * 3600), file_size: Some(8 << 30), ..Limits::of_machine(512, (1, 4)) },
            // The container is the limit; a little is left for the executor.
            Self::Container => Limits { free_space: Some(64 << 20), ..Limits::of_machine(16_384, (7, 8)) },
        }
    }

    const fn grace(self) -> u64 {
        match self {
            Self::OwnMachine => 600,
            Self::SharedHost => 120,
            Self::Container => 60,
        }
    }

    /// On a machine with others, work stays below the directory in which the executor was started and in the temporary one, and the
    /// keys of its user are out of reach.
    fn ceiling(self, directory: &Path) -> Option<String> {
        if self != Self::SharedHost {
            return None;
        }
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let deny = home.iter().flat_map(|home| PRIVATE.map(|name| home.join(name))).filter(|path| path.exists());
        let list = |paths: Vec<PathBuf>| {
            let quoted = paths.iter().map(|path| toml::Value::String(path.to_string_lossy().into_owned()).to_string());
            quoted.collect::<Vec<_>>().join(", ")
        };
        let write = list(vec![directory.to_owned(), std::env::temp_dir()]);
        Some(format!("network = \"enabled\"\nread = [\"/\"]\nwrite = [{write}]\ndeny = [{}]\n", list(deny.collect())))
    }
}

/// What a session of this machine may use, as config.toml has it.
pub(crate) fn configured_limits(settings: &[String]) -> anyhow::Result<Limits> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(crate::configuration::load(file.as_deref(), settings)?.limits.over(Limits::default()))
}

/// The lowest level of a sandbox that counts on this machine, as config.toml has it.
pub(crate) fn configured_minimum(settings: &[String]) -> anyhow::Result<(Level, Option<String>)> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(Lock::read()?.minimum(Config::read(file.as_deref(), settings)?.sandbox_minimum))
}

/// What sandboxed code may do with repositories, as config.toml has it.
pub(crate) fn configured_git(settings: &[String]) -> anyhow::Result<GitMode> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(Config::read(file.as_deref(), settings)?.git)
}

/// What is special in the home of this user, as config.toml has it.
pub(crate) fn configured_home(settings: &[String]) -> anyhow::Result<HomeSettings> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(Config::read(file.as_deref(), settings)?.sandbox_home.over(HomeSettings::default()))
}

/// What HTTP requests may reach besides public addresses: what the command line says, or else what config.toml has.
pub(crate) fn http_allow(given: Vec<HttpTarget>, settings: &[String]) -> anyhow::Result<Vec<HttpTarget>> {
    if !given.is_empty() {
        return Ok(given);
    }
    let file = Home::from_environment().map(|home| home.config());
    Ok(Config::read(file.as_deref(), settings)?.http_allow)
}

/// Numbers of a user and its group, by the machine's list of users.
fn user(name: &str) -> anyhow::Result<(u32, u32)> {
    let list = std::fs::read_to_string("/etc/passwd").context("cannot read the list of users")?;
    let line = list.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|parts| parts.first() == Some(&name));
    let line = line.with_context(|| format!("there is no user `{name}` (--sandbox-user)"))?;
    let number = |index: usize| line.get(index).and_then(|text| text.parse::<u32>().ok()).context("the list of users is damaged");
    let (uid, gid) = (number(2)?, number(3)?);
    ensure!(uid != 0, "--sandbox-user must not be root");
    Ok((uid, gid))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        executor: ExecutorArguments,
    }

    #[test]
    fn a_session_is_kept_as_long_as_its_profile_says_and_longer_while_something_runs() {
        let times = |arguments: &[&str]| {
            let line = Line::parse_from([&["executor"], arguments].concat());
            (line.executor.grace(), line.executor.grace_running())
        };
        const DAY: u64 = 24 * 3600;
        assert_eq!(times(&[]), (600, DAY));
        assert_eq!(times(&["--profile", "own-machine"]), (600, DAY));
        assert_eq!(times(&["--profile", "shared-host"]), (120, 600));
        assert_eq!(times(&["--profile", "container"]), (60, 600));
        // What is given counts before the profile, and one time that is given is meant for both.
        assert_eq!(times(&["--profile", "container", "--grace", "30"]), (30, 30));
        assert_eq!(times(&["--profile", "container", "--grace-running", "3600"]), (60, 3600));
        assert_eq!(times(&["--grace", "30", "--grace-running", "3600"]), (30, 3600));
        // A session in which something runs is never kept for a shorter time.
        assert_eq!(times(&["--grace", "900", "--grace-running", "5"]), (900, 900));
    }
}
