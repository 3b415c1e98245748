//! How a page of `docs/` begins: its title, one sentence that says what it is about, one example. A reader who came to the wrong page sees
//! it at once, and one who came to the right page has something to type. Decisions are arguments and begin as they like.

use super::{Finding, Source};

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().filter(|source| is_page(&source.path)).filter_map(beginning).collect()
}

fn is_page(path: &str) -> bool {
    path.strip_prefix("docs/").is_some_and(|path| path.ends_with(".md") && !path.starts_with("decisions/"))
}

fn beginning(page: &Source) -> Option<Finding> {
    let mut blocks = blocks(&page.text).into_iter();
    let wrong = |line: usize, what: &str| Some(page.finding(line, what.to_owned()));
    match blocks.next() {
        Some((_, text)) if text.starts_with("# ") && !text.contains('\n') => {}
        _ => return wrong(1, "a page begins with its title"),
    }
    match blocks.next() {
        Some((_, text)) if is_one_sentence(&text) => {}
        Some((line, _)) => return wrong(line, "a page begins with one sentence, in a paragraph of its own"),
        None => return wrong(1, "a page begins with one sentence, in a paragraph of its own"),
    }
    match blocks.next() {
        Some((_, text)) if text.starts_with("```") => None,
        Some((line, _)) => wrong(line, "the first sentence of a page is followed by an example, in a block of its own"),
        None => wrong(1, "the first sentence of a page is followed by an example, in a block of its own"),
    }
}

/// The parts of a page between empty lines, with the numbers of their first lines. Comments say nothing to a reader.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut is_open, mut is_fenced) = (false, false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("<!--") && !is_fenced {
            continue;
        }
        let is_fence = line.starts_with("```");
        // An example may stand right below a line.
        if is_fence && !is_fenced {
            is_open = false;
        }
        if line.trim().is_empty() && !is_fenced {
            is_open = false;
            continue;
        }
        is_fenced ^= is_fence;
        match blocks.last_mut().filter(|_| is_open) {
            Some((_, block)) => {
                block.push('\n');
                block.push_str(line);
            }
            None => blocks.push((number + 1, line.to_owned())),
        }
        is_open = !is_fence || is_fenced;
    }
    blocks
}

/// Prose with one end, which is its last character.
fn is_one_sentence(text: &str) -> bool {
    let is_prose = text.chars().next().is_some_and(|first| first.is_alphabetic() || matches!(first, '`' | '"'));
    let text = text.replace('\n', " ");
    // What stands in backquotes or brackets of a link is no prose.
    let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let ends = prose.match_indices(". ").filter(|(at, _)| prose[at + 2..].starts_with(|next: char| !next.is_lowercase())).count();
    is_prose && ends == 0 && text.ends_with(['.', ':'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let page = Source { path: "docs/page.md".into(), text: text.into() };
        check(&[page]).into_iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn a_page_begins_with_a_sentence_and_an_example() {
        let fence = "```sh\noutpost run\n\noutpost chat\n```\n";
        assert!(
            found(&format!("# Title\n\nThis runs `a. B` on\nanother machine.\n\n<!-- not typed -->\n{fence}\nMore. And more.\n"))
                .is_empty()
        );
        assert!(found(&format!("# Title\n\nIn `config.toml`:\n{fence}")).is_empty());
        for (text, line, what) in [
            (format!("This runs.\n\n{fence}"), 1, "title"),
            (format!("# Title\n\nThis runs. That does not.\n\n{fence}"), 3, "one sentence"),
            (format!("# Title\n\n{fence}\nThis runs.\n"), 3, "one sentence"),
            (format!("# Title\n\n## Section\n\n{fence}"), 3, "one sentence"),
            (format!("# Title\n\n| a |\n|---|\n\n{fence}"), 3, "one sentence"),
            (format!("# Title\n\nThis runs.\n\nMore.\n\n{fence}"), 5, "example"),
            (format!("# Title\n\nThis runs.\n\n## Section\n\n{fence}"), 5, "example"),
            ("# Title\n\nThis runs.\n".to_owned(), 1, "example"),
        ] {
            let found = found(&text);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{line}: ")) && found[0].contains(what), "{text}: {found:?}");
        }
    }

    #[test]
    fn decisions_and_other_files_are_no_pages() {
        for path in ["docs/decisions/0001-a.md", "README.md", "docs/picture.svg"] {
            assert!(check(&[Source { path: path.into(), text: "no title".into() }]).is_empty(), "{path}");
        }
    }
}
