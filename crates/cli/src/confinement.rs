//! What the operator says about sandboxes, on the command line and in config.toml.

use std::ffi::OsString;

use anyhow::{Context, ensure};
use outpost_executor::{HttpTarget, ceiling};
use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Level, Limits};

use crate::args::ConfinementArguments;
use crate::config::Config;
use crate::config::limits::{Limit, LimitTable};
use crate::home::Home;
use crate::local::Confinement;

impl ConfinementArguments {
    pub fn read(&self, settings: &[String]) -> anyhow::Result<Confinement> {
        let ceiling = match &self.ceiling {
            None => Policy::Open,
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the ceiling {}", file.display()))?;
                ceiling::parse(&text).with_context(|| format!("in {}", file.display()))?
            }
        };
        let sandbox_user = self.sandbox_user.as_deref().map(user).transpose()?;
        Ok(Confinement { ceiling, sandbox_user, limits: self.limits(settings)?, minimum: configured_minimum(settings)? })
    }

    /// Those of the command line, over those of the configuration.
    fn limits(&self, settings: &[String]) -> anyhow::Result<Limits> {
        let mut given = LimitTable::default();
        for (name, limit) in &self.limits {
            *match name.as_str() {
                "processes" => &mut given.processes,
                "memory" => &mut given.memory,
                "open-files" => &mut given.open_files,
                "file-size" => &mut given.file_size,
                "free-space" => &mut given.free_space,
                _ => &mut given.cpu_seconds,
            } = Some(*limit);
        }
        Ok(given.over(configured_limits(settings)?))
    }

    /// The same again, for a program that is started in our place.
    pub fn arguments(&self) -> anyhow::Result<Vec<OsString>> {
        let mut arguments = Vec::new();
        if let Some(file) = &self.ceiling {
            let file = std::path::absolute(file).with_context(|| format!("where is {}?", file.display()))?;
            arguments.extend(["--ceiling".into(), file.into_os_string()]);
        }
        if let Some(user) = &self.sandbox_user {
            arguments.extend(["--sandbox-user".into(), user.into()]);
        }
        for (name, Limit(value)) in &self.limits {
            let value = value.map_or("none".into(), |value| value.to_string());
            arguments.extend(["--limit".into(), format!("{name}={value}").into()]);
        }
        Ok(arguments)
    }
}

/// What a session of this machine may use, as config.toml has it.
pub fn configured_limits(settings: &[String]) -> anyhow::Result<Limits> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(Config::load(file.as_deref(), settings)?.limits.over(Limits::default()))
}

/// The lowest level of a sandbox that counts on this machine, as config.toml has it.
pub fn configured_minimum(settings: &[String]) -> anyhow::Result<Level> {
    let file = Home::from_environment().map(|home| home.config());
    Ok(Config::read(file.as_deref(), settings)?.sandbox_minimum)
}

/// What HTTP requests may reach besides public addresses: what the command line says, or else what config.toml has.
pub fn http_allow(given: Vec<HttpTarget>, settings: &[String]) -> anyhow::Result<Vec<HttpTarget>> {
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
