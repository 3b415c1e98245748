//! Whether a path has all letters of a query, in order, and how well they fit.

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzyMatch {
    /// Higher is better.
    pub score: u32,
    /// Which characters of the path.
    pub indices: Vec<u32>,
}

/// Capitals in the query must be capitals in the path. The end of the path is looked at first, because names matter more
/// than the directories that they are in.
pub(crate) fn find(path: &str, query: &str) -> Option<FuzzyMatch> {
    let is_cased = query.chars().any(char::is_uppercase);
    let same = |one: char, other: char| one == other || (!is_cased && one.to_lowercase().eq(other.to_lowercase()));
    let path: Vec<char> = path.chars().collect();
    let mut indices = Vec::new();
    let mut at = path.len();
    for wanted in query.chars().filter(|letter| !letter.is_whitespace()).collect::<Vec<_>>().into_iter().rev() {
        at = path[..at].iter().rposition(|letter| same(*letter, wanted))?;
        indices.push(at);
    }
    indices.reverse();
    let name = path.iter().rposition(|letter| *letter == '/').map_or(0, |slash| slash + 1);
    let mut score = 0u32;
    for (number, at) in indices.iter().enumerate() {
        score += 16;
        if number > 0 && indices[number - 1] + 1 == *at {
            score += 24;
        }
        if *at == 0 || !path[*at - 1].is_alphanumeric() {
            score += 16;
        }
        if *at >= name {
            score += 8;
        }
    }
    // Of two that fit equally well, the shorter one is meant.
    let length = u32::try_from(path.len()).unwrap_or(u32::MAX);
    let score = (score * 8).saturating_sub(length.min(score * 4));
    Some(FuzzyMatch { score, indices: indices.into_iter().filter_map(|at| u32::try_from(at).ok()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_must_be_there_in_order() {
        assert_eq!(find("src/main.rs", "mrs").unwrap().indices, [4, 9, 10]);
        assert!(find("src/main.rs", "zz").is_none() && find("src/main.rs", "niam").is_none());
        assert!(find("README.md", "readme").is_some() && find("readme.md", "README").is_none());
    }

    #[test]
    fn names_and_runs_count_more() {
        let score = |path| find(path, "main").unwrap().score;
        assert!(score("src/main.rs") > score("main/src/lib.rs"));
        assert!(score("src/main.rs") > score("my/animals/in.rs"));
        assert!(score("main.rs") > score("a/very/long/way/to/main.rs"));
    }
}
