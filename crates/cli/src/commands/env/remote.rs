//! `outpost env list` of a server.

use serde_json::json;

use super::{print, table};
use crate::env_args::EnvListArguments;
use crate::out::on_line;
use crate::remote::RemoteServer;

/// Environments as the server knows them, joined executors among them, and how they stand now.
pub(super) async fn list(arguments: &EnvListArguments, server: &RemoteServer) -> anyhow::Result<u8> {
    if !arguments.labels.is_empty() {
        anyhow::bail!("a server does not tell labels; leave --label out");
    }
    let environments = server.environments().await?;
    if arguments.json {
        let rows: Vec<_> = environments
            .iter()
            .map(|row| {
                json!({"id": row.environment_id, "address": row.address, "state": row.state, "reason": row.reason, "default": row.is_default})
            })
            .collect();
        print(&json!({"environments": rows, "server": server.address()}).to_string())?;
        return Ok(0);
    }
    let mut lines = vec![["NAME", "STATE", "ADDRESS", ""].map(String::from).to_vec()];
    for row in &environments {
        let mark = if row.is_default { " (default)" } else { "" };
        let reason = row.reason.as_deref().map(on_line).unwrap_or_default();
        lines.push(vec![format!("{}{mark}", on_line(&row.environment_id)), on_line(&row.state), on_line(&row.address), reason]);
    }
    table(&lines)?;
    Ok(0)
}
