//! Markdown as far as these tests need it: headings and links.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// A page of the project.
pub(crate) struct Page {
    /// Relative to the project.
    pub path: PathBuf,
    pub headings: Vec<String>,
    /// Targets inside the project: a file, and the heading in it.
    pub links: Vec<(PathBuf, Option<String>)>,
}

pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every page: those at the top, and everything below `docs`.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![project().join("docs")];
    for file in std::fs::read_dir(project()).unwrap() {
        pages.push(file.unwrap().path());
    }
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() { folders.push(path) } else { pages.push(path) }
        }
    }
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages.iter().map(|path| path.strip_prefix(project()).unwrap().to_owned()).collect()
}

impl Page {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut page = Self { path: path.to_owned(), headings: Vec::new(), links: Vec::new() };
        let mut in_code = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if !in_code {
                if line.starts_with('#') {
                    page.headings.push(line.trim_start_matches('#').trim().to_owned());
                }
                let links: Vec<_> = targets(line).filter_map(|target| page.inside(target)).collect();
                page.links.extend(links);
            }
        }
        page
    }

    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        self.headings.iter().map(|heading| anchor(heading)).collect()
    }

    fn inside(&self, target: &str) -> Option<(PathBuf, Option<String>)> {
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading.to_owned())));
        let file = if file.is_empty() { self.path.clone() } else { tidy(&self.path.parent().unwrap_or(Path::new("")).join(file)) };
        Some((file, heading))
    }
}

/// What `](…)` points to, outside of code.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let prose = line.split('`').step_by(2);
    prose
        .flat_map(|piece| piece.split("](").skip(1).filter_map(|rest| rest.split(')').next()))
        .chain(line.split("`](").skip(1).filter_map(|rest| rest.split(')').next()))
}

/// Without `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(tidy.pop()),
            Component::CurDir => {}
            part => tidy.push(part),
        }
    }
    tidy
}

/// The name by which a heading is linked to.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect::<String>();
    kept.replace(' ', "-")
}
