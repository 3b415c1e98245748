//! A text in a longer one, whatever its case, with a few words around it.

/// So many characters are shown on either side.
const AROUND: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Excerpt {
    pub text: String,
    /// Where it is in the excerpt, in UTF-16 units.
    pub start: u32,
    pub end: u32,
}

pub(crate) fn first(text: &str, term: &str) -> Option<Excerpt> {
    places(text, term).next().map(|place| around(text, place))
}

pub(crate) fn all(text: &str, term: &str) -> Vec<Excerpt> {
    places(text, term).map(|place| around(text, place)).collect()
}

/// Places that do not overlap, as bytes.
fn places<'a>(text: &'a str, term: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        let (start, end) =
            text[from..].char_indices().find_map(|(at, _)| Some((from + at, from + at + starts_with(&text[from + at..], term)?)))?;
        from = end;
        Some((start, end))
    })
}

/// How many bytes of the text are the term.
fn starts_with(text: &str, term: &str) -> Option<usize> {
    let mut rest = text.chars();
    for wanted in term.chars() {
        let found = rest.next()?;
        if found != wanted && !found.to_lowercase().eq(wanted.to_lowercase()) {
            return None;
        }
    }
    (!term.is_empty()).then(|| text.len() - rest.as_str().len())
}

fn around(text: &str, (start, end): (usize, usize)) -> Excerpt {
    let before = text[..start].char_indices().rev().nth(AROUND - 1).map_or(0, |(at, _)| at);
    let after = text[end..].char_indices().nth(AROUND).map_or(text.len(), |(at, _)| end + at);
    let units = |part: &str| u32::try_from(part.encode_utf16().count()).unwrap_or(u32::MAX);
    let begin = units(&text[before..start]);
    // Same length, so that places in it stay what they are.
    let shown = text[before..after].replace(['\n', '\r', '\t'], " ");
    Excerpt { text: shown, start: begin, end: begin + units(&text[start..end]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_shows_what_was_searched_for() {
        let text = format!("{}\nÄpfel und ÄPFEL {}", "x".repeat(100), "y".repeat(100));
        let found = all(&text, "äpfel");
        assert_eq!(found.len(), 2);
        let Excerpt { text: shown, start, end } = &found[0];
        let units: Vec<u16> = shown.encode_utf16().collect();
        assert_eq!(String::from_utf16(&units[*start as usize..*end as usize]).unwrap(), "Äpfel");
        assert!(!shown.contains('\n') && shown.chars().count() == 40 + 5 + 40);
        assert_eq!(first(&text, ""), None);
        assert_eq!(first(&text, "pears"), None);
    }

    #[test]
    fn places_do_not_overlap() {
        assert_eq!(all("aaaa", "aa").len(), 2);
    }
}
