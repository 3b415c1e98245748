//! `outpost executor --join`: dialling in to servers, and staying with them.
//!
//! There is always one link more than is in use: when a server begins to talk on one, the next is dialled. So a lost
//! connection is replaced without a question, and sessions are resumed on whichever link comes next.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::{StreamExt, stream};
use outpost_environment::{Backoff, Connector, ExecutorAddress, Token, Waits};
use outpost_executor::{Executor, Lifetime};
use outpost_rpc::{Link, LinkError};
use outpost_server::site::JOIN;
use outpost_wire::EnvironmentId;
use tokio::time::Instant;

use crate::ProcessContext;
use crate::executor_args::ExecutorArguments;
use crate::out::say;

/// A link that lasted so long was a good one; the next need not wait.
const STEADY: Duration = Duration::from_secs(5);
const WAITS: Waits = Waits { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// A server, and how to get in there.
pub(super) struct JoinTarget {
    url: String,
    id: EnvironmentId,
    token: Token,
}

/// The servers that the command line names.
pub(super) fn servers(arguments: &ExecutorArguments, own: &ProcessContext) -> anyhow::Result<Vec<JoinTarget>> {
    let Some(id) = &arguments.id else { return Ok(Vec::new()) };
    let id = EnvironmentId::parse_own(id).context("--id")?;
    let mut servers = Vec::new();
    for (index, target) in arguments.join.iter().enumerate() {
        let ExecutorAddress::WebSocket(url) = target else { bail!("--join {target}: an executor dials in to ws:// or wss://") };
        let token = token(&arguments.token_file, index, arguments.join.len(), own)?;
        target.check_token(&token)?;
        let base = url.split('?').next().unwrap_or_default().trim_end_matches('/').trim_end_matches(JOIN);
        servers.push(JoinTarget { url: format!("{base}{JOIN}"), id: id.clone(), token });
    }
    Ok(servers)
}

fn token(files: &[PathBuf], index: usize, servers: usize, own: &ProcessContext) -> anyhow::Result<Token> {
    ensure!(
        files.len() <= 1 || files.len() == servers,
        "there are {} token files for {servers} servers; give one for all, or one for each in the same order",
        files.len()
    );
    if let Some(file) = files.get(index).or_else(|| files.first()) {
        // It is read for every connection; what it holds now must not be written down either.
        std::fs::read(file).iter().for_each(|secret| own.secrets.register(secret));
        return Ok(Token::File(file.clone()));
    }
    match own.variables.get("OUTPOST_TOKEN").filter(|token| !token.is_empty()) {
        Some(token) => Ok(Token::Bearer(token.to_str().context("OUTPOST_TOKEN is not UTF-8")?.to_owned())),
        None => bail!(
            "joining needs a token: `outpost token create --executor ID` on the server prints one; pass it in OUTPOST_TOKEN or with --token-file"
        ),
    }
}

/// The links of one executor to one server, by number.
#[derive(Default)]
struct Links(Mutex<(BTreeSet<u64>, u64)>);

impl Links {
    fn lock(&self) -> MutexGuard<'_, (BTreeSet<u64>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said when the next link is dialled.
    fn next(&self) -> (u64, String) {
        let (live, last) = &mut *self.lock();
        *last += 1;
        let live: Vec<String> = live.iter().map(u64::to_string).collect();
        (*last, live.join(","))
    }

    fn add(&self, number: u64) {
        self.lock().0.insert(number);
    }

    fn remove(&self, number: u64) {
        self.lock().0.remove(&number);
    }
}

/// Dials in, with retries, and serves each link that is used.
pub(super) async fn stay(executor: Executor, install: String, server: JoinTarget) -> Infallible {
    let JoinTarget { url, id, token } = server;
    let (links, dialled) = (Arc::new(Links::default()), Arc::new(Mutex::new(0)));
    let mut backoff = Backoff::new(WAITS, u64::from(std::process::id()));
    let mut herald = Herald { url: url.clone(), id: id.clone(), was_in: false, trouble: None };
    let connector = {
        let (info, links, dialled) = (executor.info(), links.clone(), dialled.clone());
        let about = format!("{url}?id={id}&executor={install}&instance={}", info.instance_id.as_deref().unwrap_or_default());
        Connector::dialling(url, token, move || {
            let (number, live) = links.next();
            *dialled.lock().unwrap_or_else(PoisonError::into_inner) = number;
            ExecutorAddress::WebSocket(format!("{about}&link={number}&live={live}"))
        })
    };
    // Told by links that a server took and dropped at once.
    let (short, mut was_short) = tokio::sync::mpsc::unbounded_channel();
    loop {
        if was_short.try_recv().is_ok() {
            while was_short.try_recv().is_ok() {}
            tokio::time::sleep(backoff.wait()).await;
        }
        let (end, since) = match connector.link().await {
            Err(error) => (error, Instant::now()),
            Ok(link) => {
                let (number, since) = (*dialled.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
                links.add(number);
                herald.joined();
                match spoken_to(link).await {
                    Ok(link) => {
                        let (executor, links, short) = (executor.clone(), links.clone(), short.clone());
                        tokio::spawn(async move {
                            let since = Instant::now();
                            executor.serve(link, Lifetime::Grace).await;
                            links.remove(number);
                            if since.elapsed() < STEADY {
                                let _ = short.send(());
                            }
                        });
                        continue;
                    }
                    Err(error) => {
                        links.remove(number);
                        (error, since)
                    }
                }
            }
        };
        if since.elapsed() >= STEADY {
            backoff.reset();
        }
        herald.lost(&end);
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// Waits until the other side says something; the link still has to say it again.
async fn spoken_to(mut link: Link) -> Result<Link, LinkError> {
    match link.rx.next().await {
        Some(Ok(frame)) => {
            link.rx = Box::pin(stream::once(std::future::ready(Ok(frame))).chain(link.rx));
            Ok(link)
        }
        Some(Err(error)) => Err(error),
        None => Err(LinkError::Io(std::io::ErrorKind::ConnectionAborted.into())),
    }
}

/// Tells people how it stands, each thing once.
struct Herald {
    url: String,
    id: EnvironmentId,
    /// Whether it has ever been let in.
    was_in: bool,
    /// The trouble that was told last, until it is over.
    trouble: Option<String>,
}

impl Herald {
    fn joined(&mut self) {
        let line = format!("joined {} as {}", self.url.trim_end_matches(JOIN), self.id);
        let was_trouble = self.trouble.take().is_some();
        if !self.was_in {
            // Launchers read this line to know that it works.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            self.was_in = true;
        } else if was_trouble {
            say(&line);
        }
    }

    fn lost(&mut self, error: &LinkError) {
        let reason = error.to_string();
        if self.trouble.as_ref() != Some(&reason) {
            say(&format!("{}: {reason}; trying again", self.url.trim_end_matches(JOIN)));
        }
        self.trouble = Some(reason);
    }
}
