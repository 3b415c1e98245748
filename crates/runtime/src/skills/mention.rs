//! Which skills a user names: `$name`, or `$` and an address, in what they wrote.

use super::Skill;

/// The skills that a text names, in the order of the text. A name that several skills have names all of them.
pub(crate) fn mentioned<'a>(text: &str, skills: &'a [Skill]) -> Vec<&'a Skill> {
    let mut found: Vec<&Skill> = Vec::new();
    for name in names(text) {
        for skill in skills.iter().filter(|skill| skill.name == name || skill.locator == name) {
            if !found.iter().any(|known| known.locator == skill.locator) {
                found.push(skill);
            }
        }
    }
    found
}

/// Every `$name`, without the punctuation that follows it.
fn names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices('$') {
        let rest = &text[at + 1..];
        if rest.starts_with("skill://") {
            names.push(rest.split_whitespace().next().unwrap_or(rest));
            continue;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | ':' | '.'))).unwrap_or(rest.len());
        let name = rest[..end].trim_end_matches(['.', ':', '-']);
        if !name.is_empty() {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_where_words_do() {
        assert_eq!(names("use $deploy, then $a-b:c_d. $ and $1 cost $5.50"), ["deploy", "a-b:c_d", "1", "5.50"]);
        assert_eq!(names("$skill://r/a b"), ["skill://r/a"]);
        assert_eq!(names("nothing"), [""; 0]);
    }
}
