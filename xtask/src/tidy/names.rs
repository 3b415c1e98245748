//! One public type name, one type: a reader who searches for a name finds the thing it names.

use std::collections::BTreeMap;

use super::{Finding, Source};

/// Names that several types share on purpose, and why.
const SHARED: &[(&str, &str)] = &[
    ("InitializeParams", "both protocols spell it so"),
    ("InitializeResponse", "both protocols spell it so"),
    ("Thread", "the folded state, and its shape in the app protocol"),
    ("Turn", "the folded state, and its shape in the app protocol"),
    ("TurnStatus", "the folded state, and its shape in the app protocol"),
    ("StepEnvironment", "the recorded fact, and its shape in the app protocol"),
    ("DynamicTool", "the declaration in the app protocol, and the tool made from it"),
    ("Signal", "the sandbox does not know the wire"),
    ("TerminalSize", "the sandbox does not know the wire"),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut seen: BTreeMap<&str, Vec<(&Source, usize)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.crate_name().is_some_and(|name| !["bench", "testkit"].contains(&name))) {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(name) = public_type(line) {
                seen.entry(name).or_default().push((source, number + 1));
            }
        }
    }
    let mut findings = Vec::new();
    for (name, places) in seen {
        let is_shared = SHARED.iter().any(|(shared, _)| *shared == name);
        if let ([(first, _), others @ ..], false) = (places.as_slice(), is_shared) {
            findings.extend(
                others
                    .iter()
                    .filter(|(source, _)| source.path != first.path)
                    .map(|(source, line)| source.finding(*line, format!("`{name}` is a type of {} too: qualify one of them", first.path))),
            );
        }
    }
    findings
}

/// The name of the type that a line declares for other modules. Items in blocks (associated types, tests) are not public types.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
    let rest = ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::super::tests::source;
    use super::*;

    #[test]
    fn a_name_of_two_crates_is_found() {
        let sources = [source("crates/a/src/one.rs", "pub struct Gate;\n"), source("crates/b/src/two.rs", "\npub enum Gate {}\n")];
        let findings = check(&sources);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("crates/b/src/two.rs", 2));
    }

    #[test]
    fn a_name_of_two_modules_is_found() {
        let sources = [source("crates/a/src/one.rs", "pub struct Gate;"), source("crates/a/src/two.rs", "pub(crate) struct Gate<T>(T);")];
        assert_eq!(check(&sources).len(), 1);
    }

    #[test]
    fn private_types_and_shared_names_are_not() {
        let sources = [
            source("crates/a/src/one.rs", "pub struct Turn;\nstruct Gate;\n    pub type Item = ();"),
            source("crates/b/src/two.rs", "pub struct Turn;\npub struct Gate;\npub type Item = ();"),
        ];
        assert_eq!(check(&sources), []);
    }
}
