//! `outpost schema`: JSON Schema of both protocols, as `cargo xtask schema` made it.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::{FAILED, complain, printed};
use crate::args::SchemaArguments;

const APP: &str = include_str!("../../../../schema/app.json");
const EXEC: &str = include_str!("../../../../schema/exec.json");

pub(crate) fn run(arguments: &SchemaArguments) -> ExitCode {
    let Some(directory) = &arguments.out else {
        return printed(&format!("{{\"app\": {},\n\"exec\": {}}}\n", APP.trim_end(), EXEC.trim_end()));
    };
    match write(directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

fn write(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("{} cannot be made", directory.display()))?;
    for (name, text) in [("app.json", APP), ("exec.json", EXEC)] {
        let file = directory.join(name);
        std::fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}
