//! `outpost exec --detach`: the turn is left to a server, and this program ends.

use anyhow::{Context, bail};
use outpost_runtime::live::NewInput;
use serde_json::json;

use crate::ProcessContext;
use crate::agent_args::{ExecOptions, Which};
use crate::agents::{Agents, Audience, ThreadOrigin};
use crate::out;
use crate::owner;
use crate::remote::RemoteServer;

pub(super) async fn run(options: &ExecOptions, which: &Which, input: Option<NewInput>, own: &ProcessContext) -> anyhow::Result<u8> {
    let only = [
        (options.wait, "--wait"),
        (options.stop, "--stop"),
        (options.ephemeral, "--ephemeral"),
        (options.output_last_message.is_some(), "--output-last-message"),
    ];
    if let Some((_, flag)) = only.iter().find(|(is_given, _)| *is_given) {
        bail!("{flag} has no meaning with --detach: nothing waits for the turn");
    }
    if !own.settings.is_empty() {
        bail!(
            "-c is for turns of this program; with --detach write the setting into config.toml, or use --model, --provider and --sandbox"
        );
    }
    let server = match RemoteServer::named(own).await? {
        Some(server) => server,
        None => owner::of_home(own).await?,
    };
    let agents = Agents::of_server(server, &options.agent, Audience::Unattended, own)?;
    let birth = ThreadOrigin { source: "exec", thread_source: options.thread_source.clone(), ..ThreadOrigin::default() };
    let open = agents.open(which, birth).await?;
    let id = open.thread.id();
    let input = match input {
        None if agents.was_cut_short(&open.before).await? => Some(NewInput::go_on()),
        None if open.before.turn.is_none() => bail!("there is nothing to finish: the last turn came to its end; give a prompt to go on"),
        input => input,
    };
    if let Some(input) = input {
        open.thread.input(input).await.context("the turn was not begun")?;
    }
    if options.json {
        out::print(&format!("{}\n", json!({"type": "thread.started", "thread_id": id.to_string()})))?;
        return Ok(0);
    }
    out::print(&format!("{id}\n"))?;
    let (mark, flag) = (out::error_mark(), agents.server_flag());
    for words in [
        "the turn goes on in the background".to_owned(),
        format!("`outpost chat resume{flag} {id}` shows and steers it, `outpost exec resume{flag} {id}` waits for its end"),
        format!("`outpost thread show{flag} {id}` prints what it did so far; Ctrl-C in `exec resume` stops it"),
    ] {
        out::aside(&format!("{mark}{words}\n"));
    }
    Ok(0)
}
