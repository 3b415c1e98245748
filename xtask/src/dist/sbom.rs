//! The list of everything that is linked into the program, as CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::{Release, output};
use crate::cargo;

/// Writes `outpost-VERSION.cdx.json`.
pub(super) fn write(release: &Release) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(cargo().get_program());
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-musl"]);
    let metadata: Value = serde_json::from_str(&output(&mut command)?)?;
    let components = components(&metadata).context("`cargo metadata` has an unexpected shape")?;
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "outpost", "version": release.version } },
        "components": components,
    });
    let path = release.directory.join(format!("outpost-{}.cdx.json", release.version));
    std::fs::write(&path, serde_json::to_string_pretty(&document)? + "\n")?;
    Ok(path)
}

/// Every package that the program reaches through dependencies that are linked into it, by name and version.
fn components(metadata: &Value) -> Option<Vec<Value>> {
    let packages: BTreeMap<&str, &Value> =
        metadata["packages"].as_array()?.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes: BTreeMap<&str, &Value> =
        metadata["resolve"]["nodes"].as_array()?.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let program = packages.iter().find(|(_, package)| package["name"] == "outpost").map(|(id, _)| *id)?;
    let (mut reached, mut next) = (BTreeSet::from([program]), vec![program]);
    while let Some(id) = next.pop() {
        for dependency in nodes.get(id)?["deps"].as_array()? {
            let is_linked = dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null());
            let name = dependency["pkg"].as_str()?;
            if is_linked && reached.insert(name) {
                next.push(name);
            }
        }
    }
    reached.remove(program);
    let mut listed: Vec<&Value> = reached.iter().filter_map(|id| packages.get(id)).copied().collect();
    listed.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    listed.into_iter().map(component).collect()
}

fn component(package: &Value) -> Option<Value> {
    let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
    let mut component = json!({ "type": "library", "name": name, "version": version, "purl": format!("pkg:cargo/{name}@{version}") });
    if let Some(license) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": license }]);
    }
    Some(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Value {
        json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT" })
    }

    #[test]
    fn only_what_is_linked_is_listed() {
        let dependency = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("outpost"), package("serde"), package("itoa"), package("cc"), package("tempfile")],
            "resolve": { "nodes": [
                { "id": "outpost", "deps": [dependency("serde", Value::Null), dependency("tempfile", json!("dev"))] },
                { "id": "serde", "deps": [dependency("itoa", Value::Null), dependency("cc", json!("build"))] },
                { "id": "itoa", "deps": [] }, { "id": "cc", "deps": [] }, { "id": "tempfile", "deps": [] },
            ] },
        });
        let listed = components(&metadata).unwrap_or_default();
        let names: Vec<&str> = listed.iter().filter_map(|component| component["name"].as_str()).collect();
        assert_eq!(names, ["itoa", "serde"]);
        assert_eq!(listed[0]["purl"], "pkg:cargo/itoa@1.0.0");
    }
}
