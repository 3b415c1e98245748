//! `[serve]` of config.toml: how `outpost serve` listens. The flags of the same names count before it.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use outpost_listener::access::{HostName, WebOrigin};
use outpost_listener::listen::ListenAddr;
use serde::Deserialize;
use serde::de::{Deserializer, Error};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServeTable {
    #[serde(deserialize_with = "one")]
    pub listen: Option<ListenAddr>,
    /// Relative to the home.
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub behind_proxy: bool,
    pub advertise: Option<String>,
    pub node: Option<String>,
    #[serde(deserialize_with = "several")]
    pub allow_host: Vec<HostName>,
    #[serde(deserialize_with = "several")]
    pub allow_origin: Vec<WebOrigin>,
}

fn one<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

fn several<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    Vec::<String>::deserialize(deserializer)?.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}
