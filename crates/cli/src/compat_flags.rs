//! Words that programs of this ecosystem put on every command line. They are taken as the settings that they stand for, so
//! that a program which starts this one in the place of another need not be changed. Help does not show them: every one of
//! them has a plain spelling, `-c KEY=VALUE`.

use clap::Args;

#[derive(Args)]
pub(crate) struct Habits {
    /// Short for `-c features.NAME=true`
    #[arg(long, value_name = "NAME", hide = true, global = true)]
    pub enable: Vec<String>,
    /// Short for `-c features.NAME=false`
    #[arg(long, value_name = "NAME", hide = true, global = true)]
    pub disable: Vec<String>,
    /// Before the verb: short for `-c approval_policy=POLICY`
    #[arg(short = 'a', long, value_name = "POLICY", hide = true)]
    pub ask_for_approval: Option<String>,
    /// Before the verb: short for `-c model=NAME`
    #[arg(short, long, value_name = "NAME", hide = true)]
    pub model: Option<String>,
    /// Before the verb: short for `-c sandbox_mode=MODE`
    #[arg(short, long, value_name = "MODE", hide = true)]
    pub sandbox: Option<String>,
    /// Before the verb: short for `-c approval_policy=never -c sandbox_mode=danger-full-access`
    #[arg(long, alias = "yolo", hide = true, conflicts_with_all = ["sandbox", "ask_for_approval"])]
    pub dangerously_bypass_approvals_and_sandbox: bool,
    /// Before the verb: short for `-c web_search=live`
    #[arg(long, hide = true)]
    pub search: bool,
}

impl Habits {
    /// The same as settings. Whatever else is set counts more than these.
    pub(crate) fn settings(&self) -> Vec<String> {
        let text = |key: &str, value: &str| format!("{key}={}", toml::Value::String(value.to_owned()));
        let mut settings = Vec::new();
        settings.extend(self.ask_for_approval.iter().map(|policy| text("approval_policy", policy)));
        settings.extend(self.model.iter().map(|model| text("model", model)));
        settings.extend(self.sandbox.iter().map(|mode| text("sandbox_mode", mode)));
        if self.dangerously_bypass_approvals_and_sandbox {
            settings.extend([text("approval_policy", "never"), text("sandbox_mode", "danger-full-access")]);
        }
        settings.extend(self.search.then(|| text("web_search", "live")));
        settings
    }
}

/// A feature as a setting.
pub(crate) fn feature(name: &str, is_on: bool) -> Result<String, &'static str> {
    let is_key = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    match !name.is_empty() && name.chars().all(is_key) {
        true => Ok(format!("features.{name}={is_on}")),
        false => Err("a feature is named by letters, digits, `_` and `-`"),
    }
}
