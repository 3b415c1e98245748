//! Ways to make a link to an executor.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use outpost_rpc::link::{stdio, unix, ws};
use outpost_rpc::{Close, Link, LinkError};
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// How long a command may take to end once its input has.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes a link whenever one is needed.
#[derive(Clone)]
pub struct Connector {
    name: String,
    make: Arc<dyn Fn() -> Connecting + Send + Sync>,
}

/// How a bridge says that another connection resumed the session: byte streams have no other way to tell.
pub const TAKEN_OVER_EXIT: u8 = 41;

type Connecting = Pin<Box<dyn Future<Output = Result<Link, LinkError>> + Send>>;

/// Where an executor listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    WebSocket(String),
    Unix(PathBuf),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("`{0}` is no executor's address; use ws://HOST:PORT or unix:///PATH")]
    Scheme(String),
    #[error("`{0}` names no host and port")]
    Host(String),
    #[error("`{0}` names no absolute path")]
    Path(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Some(rest) = text.strip_prefix("ws://") {
            let authority = rest.split('/').next().unwrap_or_default();
            let has_host = !authority.is_empty() && !authority.starts_with(':') && !authority.contains(char::is_whitespace);
            return if has_host { Ok(Self::WebSocket(text.to_owned())) } else { Err(TargetError::Host(text.to_owned())) };
        }
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(TargetError::Path(text.to_owned())) };
        }
        Err(TargetError::Scheme(text.to_owned()))
    }
}

impl Connector {
    /// Any other way; the closure is called for every attempt.
    pub fn new<F, Fut>(name: impl Into<String>, make: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Link, LinkError>> + Send + 'static,
    {
        Self { name: name.into(), make: Arc::new(move || Box::pin(make())) }
    }

    /// An executor that listens. The token is only ever sent to websockets.
    pub fn target(target: Target, token: Option<String>) -> Self {
        let options = ws::ClientOptions { bearer: token, ..ws::ClientOptions::default() };
        match target {
            Target::WebSocket(url) => Self::new(url.clone(), move || {
                let (url, options) = (url.clone(), options.clone());
                async move { ws::connect(&url, &options).await }
            }),
            Target::Unix(path) => Self::new(format!("unix://{}", path.display()), move || {
                let path = path.clone();
                async move { unix::connect(&path, &ws::ClientOptions::default()).await }
            }),
        }
    }

    /// A shell command whose standard input and output are an executor. It lives as long as the link.
    pub fn command(command: impl Into<String>) -> Self {
        let command = command.into();
        Self::new(command.clone(), move || {
            let command = command.clone();
            async move { start(&command) }
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub async fn connect(&self) -> Result<Link, LinkError> {
        (self.make)().await
    }
}

fn start(command: &str) -> Result<Link, LinkError> {
    // In a group of its own: an interrupt typed here is for the command that runs there, not for the way to it.
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LinkError::Protocol("the command has no standard input or output".into()));
    };
    let mut link = stdio::link(output, input, format!("command `{command}`"));
    let sink = link.tx.clone();
    // Ends the command with the link; its own end shows as the end of its output.
    let ended = tokio::spawn(async move {
        tokio::select! {
            () = sink.closed() => {
                // It gets the chance to leave by itself now that its input has ended.
                let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
                if ended.is_err() {
                    end_group(&child);
                }
                ended.ok()?.ok()
            }
            status = child.wait() => status.ok(),
        }
    });
    // Only the command itself knows why it ended.
    let frames = link.rx;
    link.rx = Box::pin(frames.chain(stream::once(ended_with(ended)).filter_map(std::future::ready)));
    Ok(link)
}

/// The shell may have started others.
fn end_group(child: &Child) {
    if let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// What the end of the command means for the link, beyond that it is over.
async fn ended_with(ended: JoinHandle<Option<ExitStatus>>) -> Option<Result<Bytes, LinkError>> {
    let status = tokio::time::timeout(PATIENCE, ended).await.ok()?.ok()??;
    if status.code() == Some(i32::from(TAKEN_OVER_EXIT)) {
        return Some(Err(LinkError::Closed(Close::new(Close::TAKEN_OVER, "session has been resumed by another connection"))));
    }
    (!status.success()).then(|| Err(LinkError::Io(io::Error::other(format!("the command ended: {status}")))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        assert!(matches!("ws://box:7000".parse(), Ok(Target::WebSocket(_))));
        assert!(matches!("unix:///run/x".parse(), Ok(Target::Unix(_))));
        assert!(matches!("http://box".parse::<Target>(), Err(TargetError::Scheme(_))));
        assert!(matches!("ws://".parse::<Target>(), Err(TargetError::Host(_))));
        assert!(matches!("ws://:80".parse::<Target>(), Err(TargetError::Host(_))));
        assert!(matches!("unix://x".parse::<Target>(), Err(TargetError::Path(_))));
    }
}
