//! What the patches of a turn have changed, file by file, as one unified diff.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outpost_runtime::patch::Diff;
use outpost_thread::{ChangeKind, WrittenFile};

/// A diff that is longer names the rest of the files without their lines: it is told anew with every patch.
const LONGEST: usize = 1 << 20;

/// All files that the patches of one turn have changed so far.
#[derive(Debug, Default)]
pub(super) struct TurnDiff(BTreeMap<(String, String), File>);

#[derive(Debug)]
struct File {
    /// Whether it was there before the turn, and whether it is now.
    was_there: bool,
    is_there: bool,
    /// One after the other; more than one only if another program changed the file in between. Nothing where lines cannot be shown.
    parts: Vec<Option<Diff>>,
}

impl TurnDiff {
    /// Takes up what one patch has done in an environment. Paths below `root` are shown relative to it.
    pub(super) fn take(&mut self, environment: &str, root: &str, written: &[WrittenFile]) {
        for file in written {
            let shown = file.path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&file.path).to_owned();
            let (was_there, is_there) = (file.kind != ChangeKind::Add, file.kind != ChangeKind::Delete);
            let known = self.0.entry((shown, environment.to_owned())).or_insert_with(|| File { was_there, is_there, parts: Vec::new() });
            known.is_there = is_there;
            known.follow(file.diff.as_deref().and_then(Diff::parse));
        }
    }
}

impl File {
    fn follow(&mut self, next: Option<Diff>) {
        let both = match (self.parts.last(), &next) {
            (Some(Some(before)), Some(next)) => before.clone().then(next.clone()).ok(),
            _ => None,
        };
        match both {
            Some(both) => {
                self.parts.pop();
                self.parts.push(Some(both));
            }
            None => self.parts.push(next),
        }
    }

    /// As it was before the turn.
    fn is_unchanged(&self) -> bool {
        self.was_there == self.is_there && self.parts.iter().all(|part| part.as_ref().is_some_and(Diff::is_empty))
    }

    fn write(&self, path: &str, to: &mut String) {
        let (old, new) = (quoted(&format!("a/{path}")), quoted(&format!("b/{path}")));
        let _ = writeln!(to, "diff --git {old} {new}");
        let (mut before, mut after) = (old.as_str(), new.as_str());
        if !self.was_there {
            to.push_str("new file mode 100644\n");
            before = "/dev/null";
        } else if !self.is_there {
            to.push_str("deleted file mode 100644\n");
            after = "/dev/null";
        }
        for part in &self.parts {
            match part {
                Some(diff) if diff.is_empty() => {}
                Some(diff) if to.len() < LONGEST => {
                    let _ = write!(to, "--- {before}\n+++ {after}\n{diff}");
                }
                _ => {
                    let _ = writeln!(to, "Binary files {before} and {after} differ");
                }
            }
        }
    }
}

/// A name as git writes it: in quotes if it holds what would be taken for something else.
fn quoted(name: &str) -> String {
    if !name.chars().any(|c| c.is_control() || matches!(c, '"' | '\\')) {
        return name.to_owned();
    }
    let escaped = name.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".into(),
        '\t' => "\\t".into(),
        c if c.is_control() => format!("\\{:03o}", u32::from(c)),
        c => c.into(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

impl std::fmt::Display for TurnDiff {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        for ((path, _), file) in self.0.iter().filter(|(_, file)| !file.is_unchanged()) {
            // One that came and went within the turn was never there.
            if file.was_there || file.is_there {
                file.write(path, &mut text);
            }
        }
        to.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(path: &str, kind: &str, before: &str, after: &str) -> Vec<WrittenFile> {
        let diff = Diff::between(before, after).map(|diff| diff.to_string());
        serde_json::from_value(json!([{"path": path, "kind": {"type": kind}, "diff": diff}])).unwrap()
    }

    #[test]
    fn files_are_added_up_over_a_turn() {
        let mut turn = TurnDiff::default();
        turn.take("local", "/w", &written("/w/a.txt", "add", "", "one\n"));
        turn.take("local", "/w", &written("/w/a.txt", "update", "one\n", "one\ntwo\n"));
        turn.take("local", "/w", &written("/other/b", "delete", "x\n", ""));
        let expected = "diff --git a//other/b b//other/b\ndeleted file mode 100644\n--- a//other/b\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n\
            diff --git a/a.txt b/a.txt\nnew file mode 100644\n--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n";
        assert_eq!(turn.to_string(), expected);
        turn.take("local", "/w", &written("/w/a.txt", "delete", "one\ntwo\n", ""));
        turn.take("local", "/w", &written("/other/b", "add", "", "x\n"));
        assert_eq!(turn.to_string(), "", "everything is as it was");
    }

    #[test]
    fn odd_names_are_quoted() {
        let mut turn = TurnDiff::default();
        turn.take("local", "/w", &written("/w/a \"b\nc", "add", "", "x\n"));
        assert!(turn.to_string().starts_with("diff --git \"a/a \\\"b\\nc\" \"b/a \\\"b\\nc\"\n"), "{turn}");
    }

    #[test]
    fn what_cannot_be_shown_is_named() {
        let mut turn = TurnDiff::default();
        let image: Vec<WrittenFile> =
            serde_json::from_value(json!([{"path": "/w/i.png", "kind": {"type": "update"}, "diff": null}])).unwrap();
        turn.take("local", "/w", &image);
        assert_eq!(turn.to_string(), "diff --git a/i.png b/i.png\nBinary files a/i.png and b/i.png differ\n");
    }

    #[test]
    fn changes_of_others_in_between_are_not_made_ours() {
        let mut turn = TurnDiff::default();
        turn.take("local", "/w", &written("/w/a", "update", "1\n2\n", "1\n3\n"));
        turn.take("local", "/w", &written("/w/a", "update", "1\nx\n", "1\ny\n"));
        assert_eq!(turn.to_string().matches("@@ ").count(), 2);
    }
}
