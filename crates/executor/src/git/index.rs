//! What an index lists, and the difference of two of them. Only entries are carried over, never times, flags or extensions: those could
//! hide a change from a review.

use std::collections::{BTreeMap, BTreeSet};

use super::names;
use super::run::GitError;

/// An entry at one stage: mode, object, stage.
type Entry = (String, String, u8);

/// By path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct IndexListing(BTreeMap<Vec<u8>, Vec<Entry>>);

const GITLINK: &str = "160000";

impl IndexListing {
    /// Reads what `git ls-files --stage -z` says. Refused as a whole if one entry is not as git would make it.
    pub(super) fn read(text: &[u8]) -> Result<Self, GitError> {
        let mut listing = Self::default();
        for record in text.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
            let refused =
                || format!("an entry of the index is refused: {:.200}", String::from_utf8_lossy(record).escape_debug().to_string());
            let tab = record.iter().position(|byte| *byte == b'\t').ok_or_else(refused)?;
            let (facts, path) = (std::str::from_utf8(&record[..tab]).map_err(|_| refused())?, &record[tab + 1..]);
            let [mode, oid, stage] = facts.split(' ').collect::<Vec<_>>()[..] else { return Err(refused().into()) };
            let stage = stage.parse().ok().filter(|stage| *stage <= 3u8).ok_or_else(refused)?;
            let is_usual = ["100644", "100755", "120000", GITLINK].contains(&mode) && names::is_oid(oid) && names::is_path(path);
            if !is_usual {
                return Err(refused().into());
            }
            listing.0.entry(path.to_vec()).or_default().push((mode.into(), oid.into(), stage));
        }
        Ok(listing)
    }

    /// What has to be told to `git update-index -z --index-info` to make another listing of this one.
    pub(super) fn changes_to(&self, other: &Self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |mode: &str, oid: &str, stage: u8, path: &[u8]| {
            out.extend_from_slice(format!("{mode} {oid} {stage}\t").as_bytes());
            out.extend_from_slice(path);
            out.push(0);
        };
        let length = self.0.values().chain(other.0.values()).flatten().map(|(_, oid, _)| oid.len()).next().unwrap_or(40);
        let nothing = "0".repeat(length);
        for path in self.0.iter().filter(|(path, entries)| other.0.get(*path) != Some(entries)).map(|(path, _)| path) {
            put("0", &nothing, 0, path);
        }
        for (path, entries) in other.0.iter().filter(|(path, entries)| self.0.get(*path) != Some(entries)) {
            entries.iter().for_each(|(mode, oid, stage)| put(mode, oid, *stage, path));
        }
        out
    }

    /// Objects that are listed here and not there.
    pub(super) fn objects_beyond<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a str> {
        let changed = self.0.iter().filter(|(path, entries)| other.0.get(*path) != Some(entries));
        changed.flat_map(|(_, entries)| entries).filter(|(mode, _, _)| mode != GITLINK).map(|(_, oid, _)| oid.as_str())
    }

    /// Brings together what two sides made of a common listing. Where both changed the same path, and for nested repositories that only
    /// the inner side has, each keeps its own.
    pub(super) fn merge(common: &Self, outside: &Self, inside: &Self) -> Merged {
        let mut merged = Merged::default();
        let paths: BTreeSet<&Vec<u8>> = common.0.keys().chain(outside.0.keys()).chain(inside.0.keys()).collect();
        for path in paths {
            let (old, theirs, ours) = (common.0.get(path), outside.0.get(path), inside.0.get(path));
            let shown = || String::from_utf8_lossy(path).escape_debug().to_string();
            let mut put = |theirs: Option<&Vec<Entry>>, ours: Option<&Vec<Entry>>, old: Option<&Vec<Entry>>| {
                for (listing, entries) in [(&mut merged.outside, theirs), (&mut merged.inside, ours), (&mut merged.common, old)] {
                    if let Some(entries) = entries {
                        listing.0.insert(path.clone(), entries.clone());
                    }
                }
            };
            if is_repository(ours) && !is_repository(theirs) && ours != old {
                put(theirs, ours, old);
                merged.repositories.push(shown());
            } else if ours == theirs || ours == old {
                put(theirs, theirs, theirs);
            } else if theirs == old {
                put(ours, ours, ours);
            } else {
                put(theirs, ours, old);
                merged.conflicts.push(shown());
            }
        }
        merged
    }

    /// As git lists it.
    pub(super) fn text(&self) -> Vec<u8> {
        Self::default().changes_to(self)
    }
}

fn is_repository(entries: Option<&Vec<Entry>>) -> bool {
    entries.is_some_and(|entries| entries.iter().any(|(mode, _, _)| mode == GITLINK))
}

/// What came of bringing two listings together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    pub outside: IndexListing,
    pub inside: IndexListing,
    /// What both have in common from now on.
    pub common: IndexListing,
    /// Paths that both changed.
    pub conflicts: Vec<String>,
    /// Nested repositories that only the inner side has.
    pub repositories: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(entries: &[(&str, &str, u8, &str)]) -> IndexListing {
        let text: Vec<u8> = entries
            .iter()
            .flat_map(|(mode, oid, stage, path)| format!("{mode} {} {stage}\t{path}\0", oid.repeat(40)).into_bytes())
            .collect();
        IndexListing::read(&text).unwrap()
    }

    #[test]
    fn only_differences_are_told() {
        let old = listing(&[("100644", "1", 0, "a"), ("100644", "1", 0, "b"), ("100644", "1", 0, "c")]);
        let new = listing(&[("100644", "1", 0, "a"), ("100755", "2", 0, "b"), ("100644", "3", 1, "d"), ("100644", "4", 2, "d")]);
        let told = String::from_utf8(old.changes_to(&new)).unwrap();
        let oid = |digit: &str| digit.repeat(40);
        let zero = oid("0");
        let expected = [
            format!("0 {zero} 0\tb"),
            format!("0 {zero} 0\tc"),
            format!("100755 {} 0\tb", oid("2")),
            format!("100644 {} 1\td", oid("3")),
            format!("100644 {} 2\td", oid("4")),
            String::new(),
        ];
        assert_eq!(told.split('\0').collect::<Vec<_>>(), expected);
        assert_eq!(new.objects_beyond(&old).collect::<Vec<_>>(), [oid("2"), oid("3"), oid("4")]);
        assert!(new.changes_to(&new).is_empty());
    }

    #[test]
    fn two_sides_are_brought_together_path_by_path() {
        let file = |digit: &'static str, path: &'static str| ("100644", digit, 0, path);
        let common = listing(&[file("1", "a"), file("1", "b"), file("1", "c"), file("1", "both")]);
        let outside = listing(&[file("2", "a"), file("1", "b"), file("1", "c"), file("2", "both"), file("5", "users")]);
        let inside = listing(&[file("1", "a"), file("3", "b"), file("4", "both"), ("160000", "6", 0, "sub")]);
        let merged = IndexListing::merge(&common, &outside, &inside);
        assert_eq!(merged.outside, listing(&[file("2", "a"), file("3", "b"), file("2", "both"), file("5", "users")]));
        let expected = [file("2", "a"), file("3", "b"), file("4", "both"), ("160000", "6", 0, "sub"), file("5", "users")];
        assert_eq!(merged.inside, listing(&expected));
        assert_eq!(merged.common, listing(&[file("2", "a"), file("3", "b"), file("1", "both"), file("5", "users")]));
        assert_eq!((merged.conflicts, merged.repositories), (vec!["both".to_owned()], vec!["sub".to_owned()]));
        assert_eq!(IndexListing::read(&outside.text()).unwrap(), outside);
        // One that the user has moves like any other entry.
        let (old, new) = (listing(&[("160000", "1", 0, "sub")]), listing(&[("160000", "2", 0, "sub")]));
        assert_eq!(IndexListing::merge(&old, &old, &new).outside, new);
    }

    #[test]
    fn entries_that_lead_out_are_refused() {
        for path in [".git/hooks/x", "../x", "/x", "a/../b", "a/.GIT/b"] {
            assert!(IndexListing::read(format!("100644 {} 0\t{path}\0", "1".repeat(40)).as_bytes()).is_err(), "{path}");
        }
        for record in ["040000 1 0\tx\0", "x\0", "100644 zz 0\tx\0"] {
            assert!(IndexListing::read(record.as_bytes()).is_err());
        }
        assert!(IndexListing::read(format!("100644 {} 4\tx\0", "1".repeat(40)).as_bytes()).is_err());
    }
}
