//! Answers that look good and are no stream of events: a page of a proxy, a compressed body, a JSON document. Asking again brings
//! the same, so they are named at once.

/// What the first bytes of a body are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Too little was read.
    Unknown,
    Events,
    Page,
    Json,
    Compressed(&'static str),
    Binary,
    Text,
}

/// The names of fields with which lines of a stream begin.
const FIELDS: [&[u8]; 5] = [b"data", b"event", b"id", b"retry", b":"];

impl Beginning {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
        match bytes {
            [] => Self::Unknown,
            [0x1f, 0x8b, ..] => Self::Compressed("gzip"),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Compressed("zstd"),
            [b'<', ..] => Self::Page,
            [b'{' | b'[', ..] => Self::Json,
            [first, ..] if !first.is_ascii_graphic() => Self::Binary,
            _ if FIELDS.iter().any(|field| bytes.starts_with(field)) => Self::Events,
            // A field may be read in part.
            _ if bytes.len() < 5 && FIELDS.iter().any(|field| field.starts_with(bytes)) => Self::Unknown,
            _ => Self::Text,
        }
    }
}

/// A web page in a few words: its title, if it has one.
pub(super) fn page(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let lower = text.to_ascii_lowercase();
    let title = lower.find("<title").and_then(|at| {
        let from = at + text[at..].find('>')? + 1;
        let to = from + lower[from..].find("</title")?;
        let title: Vec<&str> = text[from..to].split_whitespace().collect();
        Some(title.join(" ").chars().take(80).collect::<String>()).filter(|title| !title.is_empty())
    });
    title.map_or_else(|| "a web page".to_owned(), |title| format!("a web page with the title `{title}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_told_apart() {
        for (bytes, kind) in [
            (&b""[..], Beginning::Unknown),
            (b"\r\n ", Beginning::Unknown),
            (b"da", Beginning::Unknown),
            (b"data: {}", Beginning::Events),
            (b": comment", Beginning::Events),
            (b"\n\nevent: x", Beginning::Events),
            (b"\xef\xbb\xbf<!doctype html>", Beginning::Page),
            (b"{\"error\":1}", Beginning::Json),
            (b"\x1f\x8b\x08", Beginning::Compressed("gzip")),
            (b"\x81\x02", Beginning::Binary),
            (b"Please sign in", Beginning::Text),
        ] {
            assert_eq!(Beginning::of(bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn a_page_is_known_by_its_title() {
        assert_eq!(page(b"<html><TITLE lang=en>\n Sign  in </TITLE>"), "a web page with the title `Sign in`");
        assert_eq!(page(b"<html>"), "a web page");
    }
}
