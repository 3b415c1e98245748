//! An error keeps what caused it: where a library turns one into a text, what is behind it is lost.
//!
//! At an edge (a fault of a network, a sentence for the model, a line of a report) a text is right. How many such places a crate has is
//! written down here, so that one more is a decision and one less is not lost again.

use super::{Finding, Source};

/// Errors that become texts, and results whose error is a text, by crate.
const TEXTS: &[(&str, usize)] = &[
    ("wire", 0),
    ("rpc", 3),
    ("listener", 1),
    ("skill", 0),
    ("sandbox", 24),
    ("executor", 6),
    ("thread", 0),
    ("store", 4),
    ("environment", 20),
    ("mcp", 4),
    ("runtime", 42),
    ("server", 5),
    ("config", 2),
    ("terminal", 0),
];

/// How these look.
fn is_text(line: &str) -> bool {
    let is_result = line.contains("Result<") && line.contains(", String>");
    !line.trim_start().starts_with("//") && (line.contains("error.to_string()") || is_result)
}

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    check_against(sources, TEXTS)
}

fn check_against(sources: &[Source], ceilings: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, ceiling) in ceilings {
        let of_crate: Vec<&Source> = sources.iter().filter(|source| source.crate_name() == Some(name) && !is_test(source)).collect();
        let places: Vec<(&Source, usize)> =
            of_crate.iter().flat_map(|source| places(&source.text).into_iter().map(|line| (*source, line))).collect();
        let count = places.len();
        if count < *ceiling
            && let Some(first) = of_crate.first()
        {
            findings
                .push(first.finding(1, format!("`{name}` turns errors into texts in {count} places: lower its ceiling in tidy/errors.rs")));
        } else if count > *ceiling
            && let Some((source, line)) = places.last()
        {
            let what = format!(
                "`{name}` turns errors into texts in {count} places, and {ceiling} are allowed (tidy/errors.rs): keep the error as `#[source]`, or as a `SharedError`"
            );
            findings.push(source.finding(*line, what));
        }
    }
    findings
}

fn is_test(source: &Source) -> bool {
    source.path.ends_with("/tests.rs") || source.path.contains("/tests/") || !source.path.ends_with(".rs")
}

/// The lines before the tests of a file, which are a module at its end.
fn places(text: &str) -> Vec<usize> {
    let code = text.split("\nmod tests {").next().unwrap_or(text);
    code.lines().enumerate().filter(|(_, line)| is_text(line)).map(|(number, _)| number + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::source;
    use super::*;

    #[test]
    fn one_more_error_that_becomes_a_text_is_found_and_one_less_is_written_down() {
        let kept = source("crates/store/src/a.rs", "fn a() -> Result<(), IndexError> {\n    Ok(read().map_err(IndexError::Io)?)\n}\n");
        let lost = source(
            "crates/store/src/b.rs",
            "// error.to_string()\nfn b() -> Result<u64, String> {\n    read().map_err(|error| error.to_string())\n}\n\nmod tests {\n    error.to_string()\n}\n",
        );
        let elsewhere = source("crates/store/tests/c.rs", "error.to_string()\n");
        let all = [kept, lost, elsewhere];
        assert_eq!(check_against(&all, &[("store", 2)]), []);
        let [found] = &check_against(&all, &[("store", 1)])[..] else { panic!("one crate, one finding") };
        assert_eq!((found.path.as_str(), found.line), ("crates/store/src/b.rs", 3));
        let [found] = &check_against(&all, &[("store", 3)])[..] else { panic!("one crate, one finding") };
        assert!(found.what.contains("lower its ceiling"), "{found:?}");
    }

    #[test]
    fn every_library_has_a_ceiling() {
        let libraries = [
            "wire",
            "rpc",
            "listener",
            "skill",
            "sandbox",
            "executor",
            "thread",
            "store",
            "environment",
            "mcp",
            "runtime",
            "server",
            "config",
            "terminal",
        ];
        let known: Vec<&str> = TEXTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(known, libraries);
    }
}
