//! Links lead somewhere, and what people look for first is at most two of them away from the front page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::pages::{Page, all, project};

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for path in all() {
        for (file, heading) in Page::read(&path).links {
            let target = project().join(&file);
            if !target.exists() {
                dead.push(format!("{}: {} is not there", path.display(), file.display()));
            } else if let Some(heading) = heading
                && !Page::read(&file).anchors().contains(&heading)
            {
                dead.push(format!("{}: {} has no heading #{heading}", path.display(), file.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn every_page_below_docs_is_linked_from_another() {
    let linked: BTreeSet<PathBuf> = all().iter().flat_map(|path| Page::read(path).links).map(|(file, _)| file).collect();
    let decisions = Path::new("docs/decisions");
    let lonely: Vec<PathBuf> =
        all().into_iter().filter(|path| path.starts_with("docs") && !path.starts_with(decisions) && !linked.contains(path)).collect();
    assert!(lonely.is_empty(), "no page links to {lonely:?}");
}

/// Follows the links of the front page, twice, and looks for a heading.
fn two_links_away(heading: &str) -> bool {
    let mut pages = BTreeSet::from([PathBuf::from("README.md")]);
    for _ in 0..2 {
        let next: Vec<PathBuf> = pages.iter().flat_map(|path| Page::read(path).links).map(|(file, _)| file).collect();
        pages.extend(next.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "md")));
    }
    pages.iter().any(|path| Page::read(path).headings.iter().any(|found| found == heading))
}

#[test]
fn what_a_newcomer_looks_for_is_two_links_away() {
    for heading in ["Add a host", "Where a thread lies", "Take a thread over", "What the sandbox does not protect"] {
        assert!(two_links_away(heading), "nothing within two links of README.md is headed `{heading}`");
    }
    assert!(!two_links_away("A heading that is nowhere"));
}
