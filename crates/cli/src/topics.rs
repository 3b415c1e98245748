//! The pages of the documentation, inside the program, and which known name a mistyped one is most like.

/// Each page by its name.
const PAGES: [(&str, &str); 31] = [
    ("agent", include_str!("../../../docs/agent.md")),
    ("capability-roots", include_str!("../../../docs/capability-roots.md")),
    ("clients", include_str!("../../../docs/clients.md")),
    ("cluster", include_str!("../../../docs/cluster.md")),
    ("configuration", include_str!("../../../docs/configuration.md")),
    ("dependencies", include_str!("../../../docs/dependencies.md")),
    ("environments", include_str!("../../../docs/environments.md")),
    ("everyday", include_str!("../../../docs/everyday.md")),
    ("exec", include_str!("../../../docs/exec.md")),
    ("executor", include_str!("../../../docs/executor.md")),
    ("faq", include_str!("../../../docs/faq.md")),
    ("glossary", include_str!("../../../docs/glossary.md")),
    ("hosts", include_str!("../../../docs/hosts.md")),
    ("install", include_str!("../../../docs/install.md")),
    ("instructions", include_str!("../../../docs/instructions.md")),
    ("limits", include_str!("../../../docs/limits.md")),
    ("mcp", include_str!("../../../docs/mcp.md")),
    ("models", include_str!("../../../docs/models.md")),
    ("performance", include_str!("../../../docs/performance.md")),
    ("postgres", include_str!("../../../docs/postgres.md")),
    ("release", include_str!("../../../docs/release.md")),
    ("run", include_str!("../../../docs/run.md")),
    ("sandbox", include_str!("../../../docs/sandbox.md")),
    ("serve", include_str!("../../../docs/serve.md")),
    ("skills", include_str!("../../../docs/skills.md")),
    ("ssh", include_str!("../../../docs/ssh.md")),
    ("terminal", include_str!("../../../docs/terminal.md")),
    ("threads", include_str!("../../../docs/threads.md")),
    ("troubleshooting", include_str!("../../../docs/troubleshooting.md")),
    ("upgrade", include_str!("../../../docs/upgrade.md")),
    ("when-things-break", include_str!("../../../docs/when-things-break.md")),
];

/// The words of a page; of `topics`, the names of all of them.
pub(crate) fn page(name: &str) -> Option<String> {
    if name == "topics" {
        let mut text =
            String::from("`outpost help TOPIC` shows one of these pages; `outpost help page TOPIC` where a verb has the same name:\n");
        for (name, page) in PAGES {
            let title = page.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
            text.push_str(&format!("  {name:18} {title}\n"));
        }
        return Some(text);
    }
    PAGES.iter().find(|(known, _)| *known == name.trim_end_matches(".md")).map(|(_, page)| (*page).to_owned())
}

/// The names of all pages.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|(name, _)| *name)
}

/// The known name that was probably meant: no more than a third of its letters are others.
pub(crate) fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = |name: &str| distance(&typed.to_ascii_lowercase(), &name.to_ascii_lowercase());
    known
        .map(|name| (far(name), name))
        .filter(|(far, name)| *far * 3 <= name.chars().count().max(3))
        .min_by_key(|(far, _)| *far)
        .map(|(_, name)| name)
}

/// How many letters have to be put in, taken out, changed or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().take(64).collect(), other.chars().take(64).collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_another_word_is_not() {
        let known = ["local", "gpu-box", "worker"];
        let found = |typed| nearest(typed, known.into_iter());
        assert_eq!(
            (found("wokrer"), found("gpubox"), found("locl"), found("LOCAL")),
            (Some("worker"), Some("gpu-box"), Some("local"), Some("local"))
        );
        assert_eq!((found("x"), found("something"), found("")), (None, None, None));
    }
}
