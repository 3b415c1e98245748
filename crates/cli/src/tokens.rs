//! The tokens of this home: made on the first start of a listener, and found again by its clients.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, ensure};

use outpost_executor::seat::write_once;

use crate::ProcessContext;
use crate::home::{APP, EXECUTOR, Home};
use crate::variables::VisibleVariables;

/// 256 bits.
const RANDOM: usize = 32;
/// Fewer characters than this do not hold 128 bits, however they are chosen.
const SHORTEST: usize = 22;
/// Only the owner may read a token, not even the same group.
const OTHERS: u32 = 0o077;

/// The token in a file, which is made if it is not there.
pub(crate) fn obtain(path: &Path) -> anyhow::Result<String> {
    if let Some(token) = read(path)? {
        return Ok(token);
    }
    write_once(path, &random()?).with_context(|| format!("cannot write {}", path.display()))?;
    read(path)?.with_context(|| format!("{} vanished", path.display()))
}

/// A new secret.
pub(crate) fn random() -> anyhow::Result<String> {
    let mut random = [0; RANDOM];
    getrandom::fill(&mut random).context("this machine gives no random numbers")?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The token in a file, if there is one that only its owner can read.
pub(crate) fn read(path: &Path) -> anyhow::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let metadata = file.metadata().with_context(|| format!("cannot read {}", path.display()))?;
    let ours = rustix::process::geteuid().as_raw();
    ensure!(
        metadata.mode() & OTHERS == 0 && (metadata.uid() == ours || ours == 0),
        "others may have read {} (its mode is {:03o}); remove it to get a new token",
        path.display(),
        metadata.mode() & 0o777
    );
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    let token = text.trim();
    ensure!(token.len() >= SHORTEST, "{} holds no token; remove it to get a new one", path.display());
    Ok(Some(token.to_owned()))
}

/// What to show to the websocket at `url`: what the environment says, or for a listener on this machine the token of
/// this home.
pub(crate) fn for_url(url: &str, variables: &VisibleVariables) -> anyhow::Result<Option<String>> {
    if let Some(token) = variables.get("OUTPOST_TOKEN").filter(|token| !token.is_empty()) {
        return Ok(Some(token.to_str().context("OUTPOST_TOKEN is not UTF-8")?.to_owned()));
    }
    match Home::from_environment() {
        Some(home) if is_on_this_machine(url) => read(&home.token(EXECUTOR)),
        _ => Ok(None),
    }
}

/// What to show to a server of threads: what the environment says, the file that the configuration names, or for a server on this
/// machine the token of this home.
pub(crate) fn of_server(url: &str, file: Option<&Path>, own: &ProcessContext) -> anyhow::Result<Option<String>> {
    if let Some(token) = own.variables.get("OUTPOST_TOKEN").filter(|token| !token.is_empty()) {
        return Ok(Some(token.to_str().context("OUTPOST_TOKEN is not UTF-8")?.to_owned()));
    }
    if let Some(file) = file {
        return read(file)?.map(Some).with_context(|| format!("`token_file` of [client]: there is no {}", file.display()));
    }
    match Home::from_environment() {
        Some(home) if is_on_this_machine(url) => read(&home.token(APP)),
        _ => Ok(None),
    }
}

fn is_on_this_machine(url: &str) -> bool {
    let authority = url.strip_prefix("ws://").unwrap_or_default().split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    };
    let host = host.unwrap_or_default();
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
