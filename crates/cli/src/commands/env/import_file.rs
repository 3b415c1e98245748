//! `outpost env import file`: brings `environments.toml` of this home into the store that nodes share.

use anyhow::{Context, bail, ensure};
use outpost_environment::config::{MergeMode, MergedDefinitions, merge};
use outpost_wire::EnvironmentId;

use super::{print, say};
use crate::ProcessContext;
use crate::commands::FAILED;
use crate::definitions::DefinitionSource;
use crate::env_args::EnvImportArguments;
use crate::home::Home;

pub(super) async fn run(arguments: &EnvImportArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    ensure!(
        !arguments.offline && !arguments.all && arguments.ssh_config.is_none(),
        "--all, --offline and --ssh-config are for `env import ssh`"
    );
    let home = Home::from_environment().context("there is neither OUTPOST_HOME nor HOME")?;
    let source = DefinitionSource::of(home, own).await?;
    let DefinitionSource::Store(shared) = &source else {
        bail!("environments are defined in {} itself; there is no shared store to bring it into", source.path().display());
    };
    let file = shared.file();
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let only = arguments.hosts.iter().map(|name| EnvironmentId::parse_own(name)).collect::<Result<Vec<_>, _>>()?;
    let known = source.text().await?;
    // Merging does not know every form of a file; there is nothing to merge here.
    if known == text && only.is_empty() {
        say(&format!("the store says what {} says, word for word", file.display()));
        return Ok(0);
    }
    let mode = if arguments.replace { MergeMode::Replace } else { MergeMode::Keep };
    let merged = merge(&known, &text, &file, &only, mode).with_context(|| format!("nothing of {} is used", file.display()))?;
    show(&merged, mode)?;
    if merged.is_nothing() {
        say(&format!("the store says all that {} says", file.display()));
        return Ok(0);
    }
    if !merged.differing.is_empty() && mode == MergeMode::Keep {
        let names = merged.differing.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        say(&format!(
            "nothing is changed, because the store defines {names} differently; --replace takes the file's, or name what to import"
        ));
        return Ok(FAILED);
    }
    if arguments.dry_run {
        say("nothing is changed, because of --dry-run");
        return Ok(0);
    }
    source.change(own, |before| merge(before, &text, &file, &only, mode).map(|merged| merged.text)).await?;
    say(&format!("brought {} into the store", file.display()));
    Ok(0)
}

fn show(merged: &MergedDefinitions, mode: MergeMode) -> anyhow::Result<()> {
    let differing = if mode == MergeMode::Replace { "replaced" } else { "differs" };
    for (mark, names, what) in [("+", &merged.added, "added"), ("~", &merged.differing, differing), ("=", &merged.same, "the same")] {
        for name in names {
            print(&format!("{mark} {name}  {what}"))?;
        }
    }
    Ok(())
}
