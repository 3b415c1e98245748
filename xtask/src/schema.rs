//! The schemas of both protocols, made from their shapes.

use crate::{cargo, sh};

pub(crate) fn run() -> anyhow::Result<()> {
    sh(cargo().args(["run", "--quiet", "-p", "outpost-wire", "--features", "schema", "--example", "schema"]))
}
