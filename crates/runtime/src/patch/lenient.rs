//! Patches as models really write them. What can mean only one thing is taken as that; for the rest there is the accepted form of
//! exactly this patch, to be shown with the error.

use std::borrow::Cow;

use super::parse::{ADD, BEGIN, DELETE, END, END_OF_FILE, ENVIRONMENT, MOVE, UPDATE};

/// So many lines of an accepted form are shown.
const SHOWN: usize = 60;

/// The patch within a text: without a fence or a command around it, with its first and last line, and a unified diff as a patch.
pub(super) fn prepared(text: &str) -> Cow<'_, str> {
    let inner = without_fence(text);
    let inner = inner.trim_start().strip_prefix("apply_patch").filter(|rest| rest.trim_start().starts_with("<<")).unwrap_or(inner);
    if let Some(patch) = from_unified(inner) {
        return patch.into();
    }
    let first = inner.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let is_begun = first == BEGIN || first.starts_with("<<");
    let is_section = [ADD, DELETE, UPDATE, ENVIRONMENT].iter().any(|header| first.starts_with(header));
    if !is_begun && !is_section {
        return inner.into();
    }
    // Between a first line and a last one nothing is missing; the text came as a whole.
    let is_ended = inner.lines().any(|line| line.trim() == END) || first.starts_with("<<");
    if is_begun && is_ended {
        return inner.into();
    }
    let (begin, end) = (if is_begun { "" } else { BEGIN }, if is_ended { "" } else { END });
    format!("{begin}\n{}\n{end}\n", inner.trim_end()).into()
}

fn without_fence(text: &str) -> &str {
    let Some((fence, rest)) = text.trim().split_once('\n') else { return text };
    if !fence.starts_with("```") {
        return text;
    }
    rest.trim_end().strip_suffix("```").unwrap_or(text)
}

/// The heading of a chunk, without the numbers that a unified diff has there.
pub(super) fn heading(text: &str) -> &str {
    let numbers = |part: &str, mark: char| {
        part.strip_prefix(mark).is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == ','))
    };
    let mut words = text.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some(old), Some(new), rest) if numbers(old, '-') && numbers(new, '+') => {
            rest.unwrap_or_default().trim_start().strip_prefix("@@").unwrap_or_default().trim_start()
        }
        _ => text.strip_suffix(" @@").unwrap_or(text),
    }
}

/// A unified diff as a patch, if the text is one.
fn from_unified(text: &str) -> Option<String> {
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    if !first.starts_with("--- ") && !first.starts_with("diff --git ") {
        return None;
    }
    let path = |line: &str| {
        let path = line.split('\t').next().unwrap_or(line).trim();
        path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path).to_owned()
    };
    let mut patch = format!("{BEGIN}\n");
    let mut lines = text.lines().peekable();
    let mut in_file = false;
    while let Some(line) = lines.next() {
        if let Some(old) = line.strip_prefix("--- ")
            && let Some(new) = lines.peek().and_then(|next| next.strip_prefix("+++ "))
        {
            let (old, new) = (path(old), path(new));
            lines.next();
            in_file = true;
            match (old.as_str(), new.as_str()) {
                ("/dev/null", _) => patch.push_str(&format!("{ADD} {new}\n")),
                (_, "/dev/null") => {
                    patch.push_str(&format!("{DELETE} {old}\n"));
                    in_file = false;
                }
                _ if old == new => patch.push_str(&format!("{UPDATE} {new}\n")),
                _ => patch.push_str(&format!("{UPDATE} {old}\n{MOVE} {new}\n")),
            }
            // The lines of a file that goes, and the numbers of one that comes, say nothing.
            if old == "/dev/null" {
                while lines.next_if(|next| next.starts_with("@@")).is_some() {}
            }
            continue;
        }
        let is_line = line.is_empty() || line.starts_with([' ', '+', '-']) || line.starts_with("@@");
        if in_file && is_line {
            patch.push_str(line);
            patch.push('\n');
        } else if line.starts_with("diff --git ") {
            in_file = false;
        }
    }
    patch.push_str(END);
    patch.push('\n');
    Some(patch)
}

/// How this patch would have to be written, as near to it as possible.
pub fn accepted_form(text: &str) -> String {
    let mut form = vec![BEGIN.to_owned()];
    let mut section = "";
    for line in prepared(text).lines() {
        let word = line.trim();
        if word == BEGIN || word == END || word == END_OF_FILE || word.starts_with("```") {
            continue;
        }
        let header = [ADD, DELETE, UPDATE, ENVIRONMENT, MOVE].into_iter().find(|header| word.starts_with(header));
        if let Some(header) = header {
            section = header;
            form.push(word.to_owned());
            continue;
        }
        match section {
            ADD => form.push(if line.starts_with('+') { line.to_owned() } else { format!("+{line}") }),
            UPDATE | MOVE if line.starts_with([' ', '+', '-']) || line.starts_with("@@") => form.push(line.to_owned()),
            UPDATE | MOVE => form.push(format!(" {line}")),
            _ => {}
        }
    }
    if form.len() == 1 {
        form.extend(["*** Update File: PATH", "@@", " kept line", "-old line", "+new line"].map(str::to_owned));
    }
    if form.len() > SHOWN {
        form.truncate(SHOWN);
        form.push("… and so on …".into());
    }
    form.push(END.to_owned());
    form.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::super::{Chunk, FileChange, PatchLine};
    use super::*;

    fn only(text: &str) -> FileChange {
        let mut patch = parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(patch.changes.len(), 1, "{text}");
        patch.changes.remove(0)
    }

    #[test]
    fn what_can_mean_one_thing_only_is_taken() {
        let added = FileChange::Add { path: "a.txt".into(), content: "hi\nyou\n".into() };
        for text in [
            "*** Begin Patch\n*** Add File: a.txt\n+hi\n+you\n*** End of File\n*** End Patch",
            "*** Begin Patch\n*** Add File: a.txt\n+hi\n+you\n*** End of File",
            "*** Begin Patch\n*** Add File: a.txt\n+hi\n+you\n",
            "*** Add File: a.txt\n+hi\n+you\n*** End Patch",
            "*** Add File: a.txt\n+hi\n+you",
            "*** Begin Patch\n*** Add File: a.txt\nhi\nyou\n*** End Patch",
            "```diff\n*** Begin Patch\n*** Add File: a.txt\n+hi\n+you\n*** End Patch\n```",
            "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a.txt\n+hi\n+you\n*** End Patch\nEOF\n",
            "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1,2 @@\n+hi\n+you\n",
        ] {
            assert_eq!(only(text), added, "{text}");
        }
    }

    #[test]
    fn a_unified_diff_is_a_patch() {
        let lines = vec![PatchLine::Kept("one".into()), PatchLine::Removed("two".into()), PatchLine::Added("zwei".into())];
        let changed = |heading: Option<&str>| FileChange::Update {
            path: "src/a".into(),
            move_to: None,
            chunks: vec![Chunk { heading: heading.map(str::to_owned), lines: lines.clone(), at_end: false }],
        };
        let diff =
            "diff --git a/src/a b/src/a\nindex 1..2 100644\n--- a/src/a\n+++ b/src/a\n@@ -1,2 +1,2 @@ fn main()\n one\n-two\n+zwei\n";
        assert_eq!(only(diff), changed(Some("fn main()")));
        let numbered = "*** Begin Patch\n*** Update File: src/a\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n*** End Patch";
        assert_eq!(only(numbered), changed(None));
        assert_eq!(only("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"), FileChange::Delete { path: "x".into() });
        assert_eq!(heading("def f(a):"), "def f(a):");
    }

    #[test]
    fn the_accepted_form_of_exactly_this_patch_is_one() {
        for text in [
            "*** Begin Patch\n*** Add File: a\n+one\ntwo\n*** End Patch",
            "*** Begin Patch\n*** Update File: a\nkept\n-old\n+new\n*** End Patch",
            "*** Begin Patch\n*** Update File: a\n*** Move to: b\n*kept\n-old\n*** End Patch",
            "write it please",
        ] {
            assert!(parse(text).is_err(), "{text}");
            let form = accepted_form(text);
            assert!(parse(&form).is_ok(), "{form}");
        }
        assert!(accepted_form("*** Begin Patch\n*** Add File: a\n+one\ntwo\n*** End Patch").contains("\n+two\n"));
    }
}
