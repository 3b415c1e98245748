//! Names that come out of a sandbox: of refs, and of files in an index. Only what git itself would make is believed.

/// Whether this is the name of an object, of either kind.
pub(super) fn is_oid(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Whether git would let a ref have this name.
pub(super) fn is_ref(name: &str) -> bool {
    let is_component = |part: &str| {
        !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.') && !part.to_ascii_lowercase().ends_with(".lock")
    };
    let has_mark = |part: &str| part.chars().any(|mark| mark.is_control() || " ~^:?*[\\".contains(mark));
    name.len() <= 1024
        && name.starts_with("refs/")
        && name.split('/').count() >= 3
        && !name.contains("..")
        && !name.contains("@{")
        && name.split('/').all(|part| is_component(part) && !has_mark(part) && part != "@")
}

/// Whether a ref is one that crosses out of a sandbox.
pub(super) fn crosses(name: &str) -> bool {
    (name.starts_with("refs/heads/") || name.starts_with("refs/tags/")) && is_ref(name)
}

/// Whether a ref belongs to one working tree, or to us, and is not compared at all.
pub(super) fn stays(name: &str) -> bool {
    const OURS: [&str; 5] = ["refs/bisect/", "refs/worktree/", "refs/rewritten/", "refs/outpost/", "refs/replace/"];
    name == "refs/stash" || OURS.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a path may stand in an index: it stays in the tree, and no part of it is a gitdir by any spelling that a file system
/// takes for `.git`.
pub(super) fn is_path(path: &[u8]) -> bool {
    !path.is_empty() && path.len() < 4096 && path.split(|byte| *byte == b'/').all(is_part)
}

fn is_part(part: &[u8]) -> bool {
    if part.is_empty() || part == b"." || part == b".." || part.contains(&0) {
        return false;
    }
    let text = String::from_utf8_lossy(part);
    // What HFS+ passes over.
    let seen: String =
        text.chars().filter(|mark| !matches!(*mark as u32, 0x200c..=0x200f | 0x202a..=0x202e | 0x206a..=0x206f | 0xfeff)).collect();
    // What NTFS passes over.
    let seen = seen.split([':', '\\']).next().unwrap_or_default().trim_end_matches([' ', '.']).to_lowercase();
    seen != ".git" && seen != "git~1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_git_makes_are_believed() {
        for name in ["refs/heads/main", "refs/heads/a/b", "refs/tags/v1.0", "refs/heads/$(x)", "refs/heads/ü"] {
            assert!(is_ref(name) && crosses(name), "{name}");
        }
        for name in [
            "refs/heads/../../x",
            "refs/../x/y",
            "refs/heads/.x",
            "refs/heads/x.lock",
            "refs/heads/a b",
            "refs/heads/a\nb",
            "refs/heads/",
            "refs/heads",
            "heads/x",
            "refs/heads/@{1}",
            "refs/heads/-x",
            "refs/heads/a//b",
            "refs/heads/x:y",
        ] {
            assert!(!is_ref(name), "{name}");
        }
        assert!(!crosses("refs/replace/aa") && stays("refs/replace/aa") && stays("refs/stash") && !stays("refs/heads/x"));
    }

    #[test]
    fn no_path_of_an_index_leads_out_or_into_a_gitdir() {
        for path in ["a", "a/b", ".gitignore", "x.git/y", ".github/x"] {
            assert!(is_path(path.as_bytes()), "{path}");
        }
        for path in
            [".git/hooks/x", "a/.git/x", "../x", "/abs", "a//b", "a/", "./a", ".GIT/x", "git~1/x", ".git./x", ".git\u{200c}/x", ".git:x/y"]
        {
            assert!(!is_path(path.as_bytes()), "{path}");
        }
        assert!(is_oid(&"a".repeat(40)) && !is_oid(&"A".repeat(40)) && !is_oid("abc"));
    }
}
