//! Looking at a capability root: a bounded walk that finds a plugin's files and skills and reads them. It blocks, and does what
//! the process that it runs in may do. What the files mean is the client's business, except where they name one another.

mod scan;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use outpost_wire::exec::discovery::{CapabilityFile, DiscoveredRoot, PluginFiles, SkillFiles};
use outpost_wire::{Fault, PathUri};
use rustix::io::Errno;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::fault;
use crate::files::{LinkPolicy, open_regular};
use scan::Scan;

/// The most roots of one request.
pub(crate) const MAX_ROOTS: usize = 128;
/// A file may have so many bytes, and all files of a root together.
const MAX_FILE: u64 = 1 << 20;
const MAX_BUNDLE: u64 = 16 << 20;

const SKILL: &str = "SKILL.md";
/// Where a plugin describes itself; the first that is there counts.
const MANIFESTS: [&str; 4] =
    [".codex-plugin/plugin.json", ".claude-plugin/plugin.json", ".cursor-plugin/plugin.json", ".plugin/plugin.json"];
/// The open name counts at the root itself only: elsewhere other programs use it for something else.
const OPEN_MANIFEST: &str = "plugin.json";
/// How far above a root a manifest is looked for that gives its skills their namespace.
const MAX_ABOVE: usize = 32;

/// What a look needs to know.
pub(crate) struct DiscoveryQuery<'a> {
    /// Also what only our own clients ask for.
    pub extended: bool,
    /// Refuses a file that was opened but must not be read.
    pub may_read: &'a dyn Fn(&File) -> Result<(), Fault>,
}

/// Looks at a root. What is wrong with it is part of the answer.
pub(crate) fn discover(root: &Path, look: &DiscoveryQuery<'_>) -> Result<DiscoveredRoot, Fault> {
    let uri = PathUri::from_native(root).map_err(fault::path)?;
    let failed = |error: String| Ok(DiscoveredRoot { error: Some(error), ..DiscoveredRoot::empty("", uri.clone()) });
    match std::fs::metadata(root) {
        Err(error) => return failed(inspection_failed(&uri, &error)),
        Ok(metadata) if !metadata.is_dir() => return failed(format!("capability root {uri} is not a directory")),
        Ok(_) => {}
    }
    let mut finder = Finder { root, look, left: MAX_BUNDLE, warnings: Vec::new() };
    let plugin = finder.plugin();
    let scan = match Scan::of(root, SKILL) {
        Ok(scan) => scan,
        Err(error) => return failed(inspection_failed(&uri, &error)),
    };
    finder.warnings.extend(scan.warnings);
    let mut skills: Vec<(PathBuf, SkillFiles)> = Vec::new();
    for path in scan.found {
        let Some(instructions) = finder.file(&path) else { continue };
        let metadata = path.parent().and_then(|directory| finder.file(&directory.join("agents/openai.yaml")));
        skills.push((path, SkillFiles { instructions, metadata }));
    }
    let namespace_manifests = finder.namespaces(plugin.as_ref(), &skills);
    let skills = skills.into_iter().map(|(_, skill)| skill).collect();
    Ok(DiscoveredRoot { plugin, skills, namespace_manifests, warnings: finder.warnings, ..DiscoveredRoot::empty("", uri) })
}

/// The folders that a look at a root goes into.
pub(crate) fn folders_of(root: &Path) -> Vec<PathBuf> {
    Scan::of(root, SKILL).map(|scan| scan.folders).unwrap_or_default()
}

/// Where manifests above a root may be that give its skills their namespace.
pub(crate) fn manifests_above(root: &Path) -> impl Iterator<Item = PathBuf> {
    let above = root.ancestors().skip(1).take(MAX_ABOVE);
    above.flat_map(|directory| MANIFESTS.into_iter().map(move |name| directory.join(name)))
}

/// The text of a root that could not be looked at.
pub(crate) fn inspection_failed(uri: &PathUri, error: &dyn std::fmt::Display) -> String {
    format!("failed to inspect capability root {uri}: {error}")
}

/// Of everything that was found, so that a client need not be told it twice.
pub(crate) fn digest(root: &DiscoveredRoot) -> String {
    let text = serde_json::to_vec(&(&root.plugin, &root.skills, &root.namespace_manifests, &root.warnings, &root.error));
    hex(&text.unwrap_or_default())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// About how many bytes it takes in an answer.
pub(crate) fn weight(root: &DiscoveredRoot) -> usize {
    let file = |file: &CapabilityFile| file.contents.len() + 256;
    let plugin = root.plugin.iter().flat_map(|plugin| {
        [Some(&plugin.manifest), plugin.mcp_config.as_ref(), plugin.apps_config.as_ref(), plugin.hooks_config.as_ref()]
            .into_iter()
            .flatten()
    });
    let skills = root.skills.iter().flat_map(|skill| std::iter::once(&skill.instructions).chain(&skill.metadata));
    plugin.chain(skills).chain(&root.namespace_manifests).map(file).sum::<usize>()
        + root.warnings.iter().map(|warning| warning.len() + 16).sum::<usize>()
}

/// Reads the files of one root.
struct Finder<'a> {
    root: &'a Path,
    look: &'a DiscoveryQuery<'a>,
    /// How many bytes may still be read.
    left: u64,
    warnings: Vec<String>,
}

/// What a manifest says about another file.
enum Named {
    /// It holds the thing itself.
    Inline,
    File(PathBuf),
    /// Nothing that counts.
    Nothing,
}

impl Finder<'_> {
    /// A file as it is; nothing if it is not there, or cannot be used, which is then told.
    fn file(&mut self, path: &Path) -> Option<CapabilityFile> {
        let uri = PathUri::from_native(path).ok()?;
        let opened = open_regular(path, LinkPolicy::Links).and_then(|(file, size)| (self.look.may_read)(&file).map(|()| (file, size)));
        let (file, size) = match opened {
            Ok(opened) => opened,
            Err(fault) if fault.code == outpost_wire::fault::NOT_FOUND || fault.os_error() == Some(Errno::NOTDIR.raw_os_error()) => {
                return None;
            }
            Err(fault) => {
                self.warnings.push(format!("capability file {uri} cannot be read: {}", fault.message));
                return None;
            }
        };
        if size > MAX_FILE {
            self.warnings.push(format!("capability file {uri} exceeds the {MAX_FILE}-byte limit"));
            return None;
        }
        if size > self.left {
            self.warnings.push(format!("capability file {uri} does not fit: all files of a root may have {MAX_BUNDLE} bytes"));
            return None;
        }
        match read(file) {
            Ok(contents) => {
                self.left -= contents.len() as u64;
                Some(CapabilityFile { path: uri, contents })
            }
            Err(why) => {
                self.warnings.push(format!("capability file {uri} {why}"));
                None
            }
        }
    }

    fn plugin(&mut self) -> Option<PluginFiles> {
        let manifest = self.manifest_of(self.root, true)?;
        let declared: Value = serde_json::from_str(&manifest.contents).unwrap_or(Value::Null);
        let mcp_config = self.named(&declared, "mcpServers", ".mcp.json", &manifest);
        let apps_config = self.named(&declared, "apps", ".app.json", &manifest);
        let hooks_config = if self.look.extended { self.named(&declared, "hooks", "hooks/hooks.json", &manifest) } else { None };
        Some(PluginFiles { manifest, mcp_config, apps_config, hooks_config })
    }

    fn manifest_of(&mut self, directory: &Path, is_root: bool) -> Option<CapabilityFile> {
        let open = is_root.then_some(OPEN_MANIFEST);
        MANIFESTS.into_iter().chain(open).find_map(|name| self.file(&directory.join(name)))
    }

    /// The file that a manifest names, or the usual one.
    fn named(&mut self, manifest: &Value, member: &str, usual: &str, at: &CapabilityFile) -> Option<CapabilityFile> {
        let named = match manifest.get(member) {
            Some(Value::Object(_)) => Named::Inline,
            Some(Value::String(text)) => match below(self.root, text) {
                Ok(path) => Named::File(path),
                Err(why) => {
                    self.warnings.push(format!("ignoring {member} in {}: {why}", at.path));
                    Named::Nothing
                }
            },
            _ => Named::Nothing,
        };
        match named {
            Named::Inline => None,
            Named::File(path) => self.file(&path),
            Named::Nothing => self.file(&self.root.join(usual)),
        }
    }

    /// The nearest manifest above each skill, from the skill's own folder upwards, also beyond the root.
    fn namespaces(&mut self, plugin: Option<&PluginFiles>, skills: &[(PathBuf, SkillFiles)]) -> Vec<CapabilityFile> {
        let root = self.root;
        let mut known: Vec<(PathBuf, Option<CapabilityFile>)> = vec![(self.root.to_owned(), plugin.map(|plugin| plugin.manifest.clone()))];
        let beyond = match plugin {
            Some(_) => None,
            None => self.root.ancestors().skip(1).take(MAX_ABOVE).find_map(|directory| self.manifest_of(directory, false)),
        };
        let mut manifests: Vec<CapabilityFile> = plugin.map(|plugin| plugin.manifest.clone()).or(beyond).into_iter().collect();
        for (skill, _) in skills {
            for directory in skill.ancestors().skip(1).take_while(|directory| directory.starts_with(root)) {
                let at = match known.iter().position(|(path, _)| path == directory) {
                    Some(at) => at,
                    None => {
                        let manifest = self.manifest_of(directory, false);
                        known.push((directory.to_owned(), manifest));
                        known.len() - 1
                    }
                };
                if let Some(manifest) = &known[at].1 {
                    if !manifests.contains(manifest) {
                        manifests.push(manifest.clone());
                    }
                    break;
                }
            }
        }
        manifests.sort_by_cached_key(|manifest| manifest.path.to_string());
        manifests
    }
}

/// A text that was looked at while it was read: a file that grows is not followed for ever.
fn read(file: File) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error: io::Error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("exceeds the {MAX_FILE}-byte limit"));
    }
    String::from_utf8(bytes).map_err(|error| format!("is not UTF-8: {}", error.utf8_error()))
}

/// A path that a manifest names.
fn below(root: &Path, text: &str) -> Result<PathBuf, &'static str> {
    if !text.starts_with("./") {
        return Err("path must start with `./`");
    }
    let mut parts = Vec::new();
    for component in Path::new(text).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => parts.push(name),
            Component::ParentDir => drop(parts.pop().ok_or("path must remain below the capability root")?),
            Component::RootDir | Component::Prefix(_) => return Err("path must remain below the capability root"),
        }
    }
    Ok(parts.into_iter().fold(root.to_owned(), |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, name: &str, contents: impl AsRef<[u8]>) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    fn look(root: &Path) -> DiscoveredRoot {
        discover(root, &DiscoveryQuery { extended: true, may_read: &|_| Ok(()) }).unwrap()
    }

    fn names(root: &Path, found: &DiscoveredRoot) -> Vec<String> {
        let name = |skill: &SkillFiles| {
            skill.instructions.path.to_native().unwrap().strip_prefix(root).unwrap().parent().unwrap().display().to_string()
        };
        found.skills.iter().map(name).collect()
    }

    #[test]
    fn skills_are_found_as_deep_as_six_folders_and_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let (root, outside) = (directory.path().join("r"), directory.path().join("out"));
        for name in ["SKILL.md", ".hidden/SKILL.md", "a/b/SKILL.md", "1/2/3/4/5/6/SKILL.md", "1/2/3/4/5/6/7/SKILL.md"] {
            put(&root, name, "x");
        }
        put(&outside, "SKILL.md", "y");
        symlink(&outside, root.join("linked")).unwrap();
        symlink("..", root.join("a/up")).unwrap();
        fs::create_dir(root.join("file")).unwrap();
        symlink(outside.join("SKILL.md"), root.join("file/SKILL.md")).unwrap();
        let found = look(&root);
        assert_eq!(names(&root, &found), [".hidden", "1/2/3/4/5/6", "", "a/b", "linked"]);
        assert!(found.warnings.is_empty() && found.error.is_none(), "{found:?}");
    }

    #[test]
    fn what_cannot_be_read_is_told_and_spoils_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        put(root, "good/SKILL.md", "fine");
        put(root, "bytes/SKILL.md", [0xff, 0xfe]);
        put(root, "large/SKILL.md", vec![b'x'; (1 << 20) + 1]);
        let found = look(root);
        assert_eq!(names(root, &found), ["good"]);
        assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
        assert!(found.warnings[0].ends_with("bytes/SKILL.md is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0"));
        assert!(found.warnings[1].ends_with("large/SKILL.md exceeds the 1048576-byte limit"));
    }

    #[test]
    fn a_root_that_is_none_says_why() {
        let directory = tempfile::tempdir().unwrap();
        put(directory.path(), "file", "");
        symlink("loop", directory.path().join("loop")).unwrap();
        let error = |name: &str| look(&directory.path().join(name)).error.unwrap();
        assert!(error("none").contains("No such file or directory (os error 2)"));
        assert!(error("file").ends_with("file is not a directory"));
        assert!(error("loop").contains("(os error 40)"));
    }

    #[test]
    fn the_first_manifest_counts_and_names_files_inside_its_root_only() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        put(root, "plugin.json", r#"{"name":"open"}"#);
        put(root, ".mcp.json", "usual");
        assert_eq!(look(root).plugin.unwrap().mcp_config.unwrap().contents, "usual");
        put(root, ".claude-plugin/plugin.json", r#"{"mcpServers":{"x":{}},"apps":"../out.json","hooks":"./h/../h/x.json"}"#);
        put(root, "h/x.json", "hooks");
        let found = look(root);
        let plugin = found.plugin.unwrap();
        assert!(plugin.manifest.path.to_string().ends_with("/.claude-plugin/plugin.json"));
        assert_eq!((plugin.mcp_config, plugin.apps_config), (None, None));
        assert_eq!(plugin.hooks_config.unwrap().contents, "hooks");
        assert!(found.warnings[0].ends_with("/.claude-plugin/plugin.json: path must start with `./`"), "{:?}", found.warnings);
        put(root, ".codex-plugin/plugin.json", r#"{"mcpServers":"./a/../../x"}"#);
        let found = look(root);
        assert_eq!(found.plugin.unwrap().mcp_config.unwrap().contents, "usual");
        assert!(found.warnings[0].ends_with("path must remain below the capability root"), "{:?}", found.warnings);
        put(root, ".codex-plugin/plugin.json", "{oops");
        assert_eq!(look(root).plugin.unwrap().manifest.contents, "{oops");
    }

    #[test]
    fn namespaces_come_from_the_nearest_manifest_also_above_the_root() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path();
        put(above, ".codex-plugin/plugin.json", "above");
        put(above, "r/skills/a/SKILL.md", "a");
        put(above, "r/nested/.claude-plugin/plugin.json", "nested");
        put(above, "r/nested/skills/b/SKILL.md", "b");
        let found = look(&above.join("r"));
        let contents: Vec<_> = found.namespace_manifests.iter().map(|file| file.contents.as_str()).collect();
        assert_eq!(contents, ["above", "nested"]);
        assert!(found.plugin.is_none());
    }

    #[test]
    fn a_digest_changes_with_what_is_found_and_only_then() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        put(root, "s/SKILL.md", "one");
        let before = digest(&look(root));
        put(root, "s/other.txt", "not looked at");
        assert_eq!(digest(&look(root)), before);
        put(root, "s/SKILL.md", "two");
        assert_ne!(digest(&look(root)), before);
    }
}
