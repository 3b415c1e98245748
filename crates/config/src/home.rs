//! `[sandbox_home]` of config.toml: what is special in the home of the executor's user.

use std::path::PathBuf;

use outpost_sandbox::home::{HomeSettings, name};
use serde::{Deserialize, Deserializer, de};

/// Names below the home, besides those that are special anyway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HomeTable {
    #[serde(deserialize_with = "names")]
    pub directories: Vec<PathBuf>,
    #[serde(deserialize_with = "names")]
    pub read_only: Vec<PathBuf>,
    #[serde(deserialize_with = "names")]
    pub hide: Vec<PathBuf>,
    #[serde(deserialize_with = "names")]
    pub show: Vec<PathBuf>,
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    Vec::<String>::deserialize(deserializer)?.iter().map(|text| name(text).map_err(de::Error::custom)).collect()
}

impl HomeTable {
    /// Puts what was written down over these.
    pub fn over(&self, mut settings: HomeSettings) -> HomeSettings {
        settings.directories.retain(|directory| !self.read_only.iter().any(|path| directory.starts_with(path)));
        self.show.iter().for_each(|path| settings.show(path));
        settings.directories.extend(self.directories.iter().cloned());
        settings.hidden.extend(self.hide.iter().cloned());
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_added_and_taken_out() {
        let table: HomeTable =
            toml::from_str("directories = ['~/.tool']\nread_only = ['.cargo']\nhide = ['.config/tool']\nshow = ['.kube', '.aws']").unwrap();
        let settings = table.over(HomeSettings::default());
        assert!(settings.directories.contains(&".tool".into()) && !settings.directories.contains(&".cargo".into()));
        assert!(settings.hidden.contains(&".config/tool".into()) && !settings.hidden.contains(&".aws".into()));
        assert!(!settings.mixed.contains(&".kube/config".into()));
        let refused = toml::from_str::<HomeTable>("hide = ['/etc/shadow']").unwrap_err().to_string();
        assert!(refused.contains("not a path below the home"), "{refused}");
    }
}
