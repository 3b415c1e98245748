//! `notify` of `config.toml`: a command of the user's, or a webhook, that hears when a turn ends, fails or asks something.

pub(crate) mod turns;

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use hmac::{Hmac, KeyInit, Mac};
use outpost_config::NotifySetting;
use outpost_runtime::live::ThreadEvent;
use outpost_runtime::model::http_client;
use outpost_thread::{ApprovalAsked, Fact, ThreadId, TurnStatus, said};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ProcessContext;
use crate::out::with_causes;
use crate::render::why;
use crate::variables::VisibleVariables;

/// So much of a message is passed on; arguments have a limit.
const LONGEST: usize = 16 << 10;
/// How long one request to a webhook may take.
const REQUEST: Duration = Duration::from_secs(10);
/// A request that fails in passing is made so often, with growing waits.
const ATTEMPTS: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// How long the end of this program waits for requests that are under way.
const SETTLE: Duration = Duration::from_secs(15);

/// Starts the command with one JSON object as its last argument, or posts it to the webhook. The turn waits for neither, and a failure is
/// only said.
pub(crate) struct Notifier {
    target: NotifyTarget,
    variables: VisibleVariables,
    thread: Option<ThreadId>,
    /// What was said last.
    said: Option<String>,
    /// Requests that are under way.
    posts: JoinSet<()>,
}

#[derive(Clone)]
enum NotifyTarget {
    Nothing,
    Command(Vec<String>),
    Webhook(Webhook),
}

#[derive(Clone)]
struct Webhook {
    url: String,
    secret: String,
}

impl Clone for Notifier {
    fn clone(&self) -> Self {
        let (target, variables, said) = (self.target.clone(), self.variables.clone(), self.said.clone());
        Self { target, variables, thread: self.thread, said, posts: JoinSet::new() }
    }
}

impl Notifier {
    pub(crate) fn new(setting: &NotifySetting, own: &ProcessContext) -> anyhow::Result<Self> {
        let target = match setting {
            NotifySetting::Command(command) if command.is_empty() => NotifyTarget::Nothing,
            NotifySetting::Command(command) => NotifyTarget::Command(command.clone()),
            NotifySetting::Webhook(table) => {
                let is_http = table.url.starts_with("https://") || table.url.starts_with("http://");
                ensure!(is_http, "notify: `{}` is not a webhook address; write https://…", table.url);
                let secret = match (&table.secret_env, &table.secret_file) {
                    (Some(name), None) => own.variables.get(name).and_then(|value| value.to_str()).map(str::to_owned),
                    (None, Some(file)) => {
                        Some(std::fs::read_to_string(file).with_context(|| format!("notify: {} cannot be read", file.display()))?)
                    }
                    (Some(_), Some(_)) => anyhow::bail!("notify: name the secret with `secret_env` or with `secret_file`, not with both"),
                    (None, None) => None,
                };
                let secret = secret.map(|secret| secret.trim().to_owned()).filter(|secret| !secret.is_empty());
                let secret = secret.context("notify: a webhook is signed: set the variable of `secret_env`, or write `secret_file`")?;
                own.secrets.register(&secret);
                NotifyTarget::Webhook(Webhook { url: table.url.clone(), secret })
            }
        };
        Ok(Self { target, variables: own.variables.clone(), thread: None, said: None, posts: JoinSet::new() })
    }

    /// For a program that is attached to one that drives the thread, and notifies.
    pub(crate) fn silent(own: &ProcessContext) -> Self {
        Self { target: NotifyTarget::Nothing, variables: own.variables.clone(), thread: None, said: None, posts: JoinSet::new() }
    }

    /// Whether it never says anything.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.target, NotifyTarget::Nothing)
    }

    pub(crate) fn of_thread(mut self, thread: ThreadId) -> Self {
        self.thread = Some(thread);
        self
    }

    /// Everything but questions, which only a program that can be answered asks.
    pub(crate) fn event(&mut self, event: &ThreadEvent) {
        let ThreadEvent::Entry(entry) = event else { return };
        match &entry.fact {
            Fact::ModelAnswered(answered) => self.said = answered.items.iter().rev().find_map(said).or_else(|| self.said.take()),
            Fact::TurnFinished(finished) => {
                let kind = match finished.status {
                    TurnStatus::Completed => "turn_completed",
                    TurnStatus::Interrupted => "turn_interrupted",
                    _ => "turn_failed",
                };
                let message = why(finished).or_else(|| self.said.take()).unwrap_or_default();
                self.start(json!({"type": kind, "message": cut(&message)}));
            }
            _ => {}
        }
    }

    pub(crate) fn question(&mut self, asked: &ApprovalAsked) {
        let question = asked.question();
        let message = question.command.or(question.reason).unwrap_or_default();
        let environment = asked.environment.as_ref().map(ToString::to_string);
        self.start(json!({"type": "question", "kind": asked.kind.as_str(), "message": cut(&message), "environment_id": environment}));
    }

    /// Waits until webhooks have heard, for a while.
    pub(crate) async fn settle(&mut self) {
        let all = async { while self.posts.join_next().await.is_some() {} };
        if timeout(SETTLE, all).await.is_err() {
            crate::out::say("notify: the webhook does not answer");
        }
    }

    fn start(&mut self, mut news: Value) {
        news["thread_id"] = self.thread.map(|id| id.to_string()).into();
        match &self.target {
            NotifyTarget::Nothing => {}
            NotifyTarget::Command(line) => self.run(line, &news),
            NotifyTarget::Webhook(webhook) => {
                self.posts.spawn(webhook.clone().post(news.to_string()));
            }
        }
    }

    fn run(&self, line: &[String], news: &Value) {
        let Some((program, arguments)) = line.split_first() else { return };
        let mut command = Command::new(program);
        command.args(arguments).arg(news.to_string()).env_clear().envs(self.variables.for_commands());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The runtime reaps it; it may outlive this program.
        match command.spawn() {
            Ok(child) => drop(child),
            Err(error) => crate::out::say(&format!("notify: `{program}` cannot be started: {error}")),
        }
    }
}

impl Webhook {
    async fn post(self, body: String) {
        let mut wait = FIRST_WAIT;
        for attempt in 1..=ATTEMPTS {
            match self.try_post(&body).await {
                Ok(()) => return,
                Err(error) if attempt == ATTEMPTS => {
                    crate::out::say(&format!("notify: {} was not told: {}", self.url, with_causes(&error)))
                }
                Err(_) => {
                    sleep(wait).await;
                    wait *= 2;
                }
            }
        }
    }

    async fn try_post(&self, body: &str) -> anyhow::Result<()> {
        let time = (crate::store::now() / 1000).to_string();
        let request = http_client()?
            .post(&self.url)
            .timeout(REQUEST)
            .header("content-type", "application/json")
            .header("x-outpost-timestamp", &time)
            .header("x-outpost-signature", format!("sha256={}", signature(&self.secret, &time, body)?))
            .body(body.to_owned());
        let status = request.send().await?.status();
        ensure!(status.is_success(), "HTTP {}", status.as_u16());
        Ok(())
    }
}

/// HMAC-SHA256 of the time, a dot and the body: an old message cannot be sent again with a new time.
fn signature(secret: &str, time: &str, body: &str) -> anyhow::Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).context("the secret cannot be used")?;
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body.as_bytes());
    Ok(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}
