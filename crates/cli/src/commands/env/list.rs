//! `outpost env list`: what is written down. Nothing is connected for it.

use outpost_environment::{ConnectPolicy, Definition};
use serde_json::{Value, json};

use super::{print, say, table};
use crate::ProcessContext;
use crate::env_args::EnvListArguments;
use crate::environments::KnownEnvironments;

pub(super) async fn run(arguments: &EnvListArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let known = KnownEnvironments::load(own).await?;
    let snapshot = known.snapshot()?;
    let default = snapshot.default_id();
    let local = snapshot.include_local.then(|| Row {
        id: "local".into(),
        address: "this machine".into(),
        connect: "eager",
        labels: Vec::new(),
        wrong: None,
    });
    let entries = snapshot.entries.iter().map(|entry| Row::of(entry.id.as_str(), &entry.definition));
    let has_labels = |row: &Row| arguments.labels.iter().all(|label| row.labels.contains(label));
    let rows: Vec<Row> = local.into_iter().chain(entries).filter(has_labels).collect();
    let is_default = |row: &Row| default.as_ref().is_some_and(|id| id.as_str() == row.id);
    if arguments.json {
        let environments: Vec<Value> = rows
            .iter()
            .map(
                |row| json!({"id": row.id, "address": row.address, "connect": row.connect, "labels": row.labels, "default": is_default(row), "error": row.wrong}),
            )
            .collect();
        print(
            &json!({"environments": environments, "errors": snapshot.nameless.iter().map(|wrong| &wrong.reason).collect::<Vec<_>>()})
                .to_string(),
        )?;
        return Ok(0);
    }
    let mut lines = vec![["NAME", "CONNECT", "ADDRESS", ""].map(String::from).to_vec()];
    for row in &rows {
        let mark = if is_default(row) { " (default)" } else { "" };
        let address = row.wrong.as_ref().map_or_else(|| row.address.clone(), |what| format!("wrong: {what}"));
        lines.push(vec![format!("{}{mark}", row.id), row.connect.into(), address, row.labels.join(" ")]);
    }
    table(&lines)?;
    for wrong in &snapshot.nameless {
        say(&wrong.reason);
    }
    Ok(0)
}

struct Row {
    id: String,
    address: String,
    connect: &'static str,
    labels: Vec<String>,
    wrong: Option<String>,
}

impl Row {
    fn of(id: &str, definition: &Result<Definition, String>) -> Self {
        match definition {
            Ok(definition) => Self {
                id: id.into(),
                address: definition.to_string(),
                connect: policy(definition.connect),
                labels: definition.labels.clone(),
                wrong: None,
            },
            Err(what) => Self { id: id.into(), address: String::new(), connect: "never", labels: Vec::new(), wrong: Some(what.clone()) },
        }
    }
}

fn policy(connect: ConnectPolicy) -> &'static str {
    match connect {
        ConnectPolicy::Eager => "eager",
        ConnectPolicy::Lazy => "lazy",
        ConnectPolicy::Manual => "manual",
    }
}
