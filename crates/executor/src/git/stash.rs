//! Stashes of a layer. They are commits like others, and are kept outside under refs of ours, where `git stash apply` finds them.

use std::path::Path;

use super::gitdir::Gitdir;
use super::names;

/// So many are kept.
const MAX: usize = 32;
/// So large may their log be.
const LOG: u64 = 1 << 20;

/// Those of a part of a layer, the newest first. Nothing but the names of objects is taken from its files.
pub(super) fn list(layer: &Gitdir) -> Vec<String> {
    let Some(newest) = layer.stash() else { return Vec::new() };
    let log = layer.read(Path::new("logs/refs/stash"), LOG).ok().flatten().unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let new = |line: &str| line.split(' ').nth(1).filter(|oid| names::is_oid(oid)).map(str::to_owned);
    let listed: Vec<String> = log.lines().rev().map_while(new).take(MAX).collect();
    // Without a log there is only the newest.
    if listed.first() == Some(&newest) { listed } else { vec![newest] }
}

/// The ref that one of them has outside.
pub(super) fn name(label: &str, number: usize) -> String {
    format!("refs/outpost/{label}/stashes/{number}")
}

/// What brings the refs outside from so many to these, for `git update-ref --stdin`.
pub(super) fn updates(label: &str, before: usize, now: &[String]) -> String {
    let kept = now.iter().enumerate().map(|(number, oid)| format!("update {} {oid}\n", name(label, number)));
    let gone = (now.len()..before).map(|number| format!("delete {}\n", name(label, number)));
    kept.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn stashes_are_listed_by_their_log() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let gitdir = Gitdir::open(&root).unwrap();
        assert!(list(&gitdir).is_empty());
        let oid = |digit: &str| digit.repeat(40);
        fs::create_dir_all(root.join("logs/refs")).unwrap();
        fs::create_dir_all(root.join("refs")).unwrap();
        fs::write(root.join("packed-refs"), format!("{} refs/stash\n", oid("1"))).unwrap();
        assert_eq!(list(&gitdir), [oid("1")]);
        fs::write(root.join("refs/stash"), format!("{}\n", oid("3"))).unwrap();
        let line = |old: &str, new: &str| format!("{} {} a <b> 1 +0000\tWIP\n", oid(old), oid(new));
        fs::write(root.join("logs/refs/stash"), [line("0", "2"), line("2", "3")].concat()).unwrap();
        assert_eq!(list(&gitdir), [oid("3"), oid("2")]);
        // A log that says something else is not believed.
        fs::write(root.join("logs/refs/stash"), line("0", "2")).unwrap();
        assert_eq!(list(&gitdir), [oid("3")]);
        let expected = format!("update refs/outpost/s/stashes/0 {}\ndelete refs/outpost/s/stashes/1\n", oid("3"));
        assert_eq!(updates("s", 2, &[oid("3")]), expected);
    }
}
