//! A client of a node that expects the node to fail: whatever happens is an answer, and nothing is waited for without an end.

use std::time::Duration;

use futures_util::StreamExt;
use outpost_rpc::link::ws::{self, ClientOptions};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

const DIAL: Duration = Duration::from_secs(5);

pub(super) struct Line {
    link: outpost_rpc::Link,
    next: i64,
}

#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is over, or nothing came in time.
    Lost,
    Refused(String),
}

/// What comes on a line.
pub(super) enum Heard {
    Message(Value),
    Silence,
    End,
}

impl Line {
    pub(super) async fn open(url: &str) -> Option<Self> {
        let link = timeout(DIAL, ws::connect(url, &ClientOptions::default())).await.ok()?.ok()?;
        let mut line = Self { link, next: 1 };
        let client = json!({"clientInfo": {"name": "soak", "version": "1"}, "capabilities": {"experimentalApi": true}});
        line.call("initialize", client, DIAL, &mut |_| {}).await.ok()?;
        line.link.tx.send(json!({"method": "initialized"}).to_string());
        Some(line)
    }

    /// What comes before the answer is heard, too.
    pub(super) async fn call(
        &mut self,
        method: &str,
        params: Value,
        patience: Duration,
        hear: &mut (dyn FnMut(&Value) + Send),
    ) -> Result<Value, Trouble> {
        let id = self.next;
        self.next += 1;
        self.link.tx.send(json!({"id": id, "method": method, "params": params}).to_string());
        let until = Instant::now() + patience;
        loop {
            let Ok(Some(Ok(frame))) = timeout_at(until, self.link.rx.next()).await else { return Err(Trouble::Lost) };
            let mut message: Value = serde_json::from_slice(&frame).unwrap();
            if message["id"] != id || message.get("method").is_some() {
                hear(&message);
                continue;
            }
            return match message["error"]["message"].as_str() {
                Some(why) => Err(Trouble::Refused(why.to_owned())),
                None => Ok(message["result"].take()),
            };
        }
    }

    pub(super) async fn hear(&mut self, patience: Duration) -> Heard {
        match timeout(patience, self.link.rx.next()).await {
            Ok(Some(Ok(frame))) => Heard::Message(serde_json::from_slice(&frame).unwrap()),
            Ok(_) => Heard::End,
            Err(_) => Heard::Silence,
        }
    }
}
