//! What ARCHITECTURE.md says of crates and of single places holds. These of its tables are read here:
//! "crate | may use" names all dependencies among our crates, "only here | stands in" where a text may stand at all. The tables
//! "file | function" are flows through the code; each file that "question | file" names is there. A crate that, by the table
//! "crate | knows | must not know", must not know tokio does not depend on it.

use std::collections::BTreeSet;

use super::{Finding, Source};

const PAGE: &str = "ARCHITECTURE.md";

/// The most files that each flow may pass, in the order of the page. They may only fall.
const FLOW_FILES: [usize; 3] = [24, 17, 14];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return Vec::new() };
    let mut findings = dependencies(page, sources);
    findings.extend(single_places(page, sources));
    findings.extend(without_tokio(page, sources));
    findings.extend(flows(page, sources));
    findings.extend(long_flows(page, &FLOW_FILES));
    findings.extend(answers(page, sources));
    findings
}

/// Each row of a flow names a file, and a function in it.
fn flows(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in tables(page, "| file | function |") {
        let (Some(file), Some(function)) = (quoted(&row.left).next(), quoted(&row.right).next()) else { continue };
        let path = format!("crates/{file}");
        match sources.iter().find(|source| source.path == path) {
            None => findings.push(page.finding(row.line, format!("there is no file `{file}`"))),
            Some(source) if !source.text.contains(&format!("fn {function}(")) && !source.text.contains(&format!("fn {function}<")) => {
                findings.push(page.finding(row.line, format!("there is no function `{function}` in {file}")));
            }
            Some(_) => {}
        }
    }
    findings
}

/// No flow passes more distinct files than its ceiling.
fn long_flows(page: &Source, ceilings: &[usize]) -> Vec<Finding> {
    let rows = tables(page, "| file | function |");
    let flows = rows.chunk_by(|row, next| row.line + 1 == next.line);
    flows
        .zip(ceilings)
        .filter_map(|(flow, ceiling)| {
            let count = flow.iter().filter_map(|row| quoted(&row.left).next()).collect::<BTreeSet<_>>().len();
            let what = || format!("this flow passes {count} files, and {ceiling} are allowed (tidy/architecture.rs)");
            (count > *ceiling).then(|| page.finding(flow[0].line, what()))
        })
        .collect()
}

/// Each file and folder that answers a question is there. Names may be shortened at their beginning.
fn answers(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in tables(page, "| question | file |") {
        for name in quoted(&row.right).filter(|name| is_file(name)).flat_map(spelled_out) {
            let is_there = sources.iter().any(|source| {
                let whole = format!("/{}", source.path);
                match name.rsplit_once('*') {
                    Some((folder, end)) => whole.contains(&format!("/{folder}")) && whole.ends_with(end),
                    None if name.ends_with('/') => whole.contains(&format!("/{name}")),
                    None => whole.ends_with(&format!("/{name}")),
                }
            });
            if !is_there {
                findings.push(page.finding(row.line, format!("there is no file `{name}`")));
            }
        }
    }
    findings
}

fn is_file(name: &str) -> bool {
    !name.contains(' ') && (name.ends_with(".rs") || name.ends_with(".js") || name.ends_with('/'))
}

/// `a/{b,c}.rs` is two files.
fn spelled_out(name: &str) -> Vec<String> {
    let parts = name.split_once('{').and_then(|(begin, rest)| rest.split_once('}').map(|(choices, end)| (begin, choices, end)));
    match parts {
        Some((begin, choices, end)) => choices.split(',').map(|choice| format!("{begin}{choice}{end}")).collect(),
        None => vec![name.to_owned()],
    }
}

/// Every crate has a row, and uses exactly the crates that its row names.
fn dependencies(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let rows = tables(page, "| crate | may use |");
    let mut findings = Vec::new();
    for manifest in sources.iter().filter(|source| source.path.starts_with("crates/") && source.path.ends_with("/Cargo.toml")) {
        let Some(name) = manifest.path.split('/').nth(1) else { continue };
        let Some(row) = rows.iter().find(|row| quoted(&row.left).any(|quoted| quoted == name)) else {
            findings.push(page.finding(1, format!("crate `{name}` has no row in the table of dependencies")));
            continue;
        };
        let allowed: Vec<&str> = quoted(&row.right).collect();
        let used: Vec<&str> = used(manifest);
        for other in used.iter().filter(|other| !allowed.contains(other)) {
            findings.push(manifest.finding(1, format!("`{name}` may not use `{other}`: see {PAGE}")));
        }
        for other in allowed.iter().filter(|other| !used.contains(other)) {
            findings.push(page.finding(row.line, format!("`{name}` does not use `{other}`")));
        }
    }
    findings
}

/// A crate whose row says that it must not know tokio does not depend on it.
fn without_tokio(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let rows = tables(page, "| crate | knows | must not know |");
    let names = rows.iter().filter(|row| row.right.contains("tokio")).flat_map(|row| quoted(&row.left));
    let manifests = names.filter_map(|name| sources.iter().find(|source| source.path == format!("crates/{name}/Cargo.toml")));
    manifests
        .filter(|manifest| dependency_lines(manifest).any(|line| line.starts_with("tokio")))
        .map(|manifest| manifest.finding(1, format!("this crate must not know tokio: see {PAGE}")))
        .collect()
}

/// Crates of ours among the `[dependencies]` of a manifest.
fn used(manifest: &Source) -> Vec<&str> {
    dependency_lines(manifest)
        .filter_map(|line| line.strip_prefix("outpost-"))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '-').next())
        .collect()
}

fn dependency_lines(manifest: &Source) -> impl Iterator<Item = &str> {
    let after = manifest.text.lines().skip_while(|line| line.trim() != "[dependencies]").skip(1);
    after.take_while(|line| !line.starts_with('['))
}

/// A text of the second table stands only in the files or directories of its row, and stands there.
fn single_places(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in tables(page, "| only here | stands in |") {
        let Some(text) = quoted(&row.left).next() else { continue };
        let places: Vec<&str> = quoted(&row.right).collect();
        let mut stands = false;
        for source in sources.iter().filter(|source| source.crate_name().is_some_and(is_shipped) && source.path.ends_with(".rs")) {
            let inside = source.path.strip_prefix("crates/").unwrap_or(&source.path);
            let is_allowed = places.iter().any(|place| inside == *place || (place.ends_with('/') && inside.starts_with(place)));
            for (number, _) in
                source.text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//") && line.contains(text))
            {
                stands = true;
                if !is_allowed {
                    findings.push(source.finding(number + 1, format!("`{text}` may stand only in {}: see {PAGE}", row.right.trim())));
                }
            }
        }
        if !stands {
            findings.push(page.finding(row.line, format!("`{text}` stands nowhere: the row is out of date")));
        }
    }
    findings
}

/// Benchmarks and test stand-ins listen, exit and start runtimes of their own.
fn is_shipped(name: &str) -> bool {
    !["bench", "testkit"].contains(&name)
}

/// The first and the last cell of a row.
struct Row {
    line: usize,
    left: String,
    right: String,
}

/// The rows of all tables with this heading line.
fn tables(page: &Source, heading: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for (number, line) in page.text.lines().enumerate() {
        let is_heading = line.starts_with(heading);
        is_inside = is_heading || is_inside && line.starts_with('|');
        let mut cells = line.trim_matches('|').split(" | ");
        if let (true, false, Some(left), Some(right)) = (is_inside, is_heading, cells.next(), cells.last()) {
            rows.push(Row { line: number + 1, left: left.to_owned(), right: right.to_owned() });
        }
    }
    rows
}

/// What stands in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::super::tests::source;
    use super::*;

    const RULES: &str = "| crate | may use |\n|---|---|\n| `a` | `b` |\n| `b` | |\n\n| only here | stands in |\n|---|---|\n| `unsafe {` | `b/src/sys.rs` |\n";

    fn repository(a_uses: &str, in_a: &str) -> Vec<Finding> {
        check(&[
            source(PAGE, RULES),
            source("crates/a/Cargo.toml", &format!("[dependencies]\noutpost-{a_uses}.workspace = true\n")),
            source("crates/b/Cargo.toml", "[dependencies]\n"),
            source("crates/a/src/lib.rs", in_a),
            source("crates/b/src/sys.rs", "unsafe { x() }"),
        ])
    }

    #[test]
    fn what_holds_is_not_found() {
        assert_eq!(repository("b", "// unsafe { is in b }"), []);
    }

    #[test]
    fn a_dependency_without_a_row_is_found_from_both_sides() {
        assert_eq!(repository("c", "").len(), 2);
    }

    #[test]
    fn a_text_in_another_place_is_found() {
        let findings = repository("b", "\nfn f() { unsafe { x() } }");
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("crates/a/src/lib.rs", 2));
    }

    #[test]
    fn a_row_about_a_text_that_stands_nowhere_is_found() {
        let sources = [source(PAGE, RULES), source("crates/b/src/sys.rs", "// unsafe { is in a comment }")];
        let found: Vec<_> = check(&sources).into_iter().map(|finding| (finding.path, finding.line, finding.what)).collect();
        assert_eq!(found, [(PAGE.to_owned(), 8, "`unsafe {` stands nowhere: the row is out of date".to_owned())]);
    }

    #[test]
    fn an_answer_that_names_a_file_that_is_not_there_is_found() {
        let rows = "| question | file |\n|---|---|\n| who? | `b/src/sys.rs`, `sys.rs` (`run`), `b/src/`, `b/src/*.rs`, `config.toml` |\n\
                    | what? | `b/src/{sys,gone}.rs`, `ys.rs`, `c/src/`, `b/src/*.js` |\n";
        let sources = [source(PAGE, &format!("{RULES}\n{rows}")), source("crates/b/src/sys.rs", "unsafe { x() }")];
        let found: Vec<(usize, String)> = check(&sources).into_iter().map(|finding| (finding.line, finding.what)).collect();
        let gone = ["b/src/gone.rs", "ys.rs", "c/src/", "b/src/*.js"];
        assert_eq!(found, gone.map(|name| (13, format!("there is no file `{name}`"))));
    }

    #[test]
    fn a_step_of_a_flow_that_is_not_there_is_found() {
        let flow = "| file | function |\n|---|---|\n| `b/src/sys.rs` | `run` |\n| `b/src/gone.rs` | `run` |\n| `b/src/sys.rs` | `gone` |\n";
        let sources = [source(PAGE, &format!("{RULES}\n{flow}")), source("crates/b/src/sys.rs", "pub fn run(x: X) { unsafe { x() } }")];
        let found: Vec<String> = check(&sources).into_iter().map(|finding| finding.what).collect();
        assert_eq!(found, ["there is no file `b/src/gone.rs`", "there is no function `gone` in b/src/sys.rs"]);
    }

    #[test]
    fn a_flow_that_passes_more_files_than_its_ceiling_is_found() {
        let flow = "| file | function |\n|---|---|\n| `a.rs` | `run` |\n| `b.rs` | `run` |\n| `a.rs` | `end` |\n";
        let page = source(PAGE, &format!("{flow}\n{flow}"));
        assert_eq!(long_flows(&page, &[2, 2]), []);
        let [found] = &long_flows(&page, &[2, 1])[..] else { panic!("one flow, one finding") };
        assert_eq!((found.line, found.what.starts_with("this flow passes 2 files, and 1")), (9, true), "{found:?}");
    }

    #[test]
    fn tokio_in_a_crate_that_must_not_know_it_is_found() {
        let rows = "| crate | knows | must not know |\n|---|---|---|\n| `a` | shapes | tokio, files |\n| `b` | tokio | files |\n";
        let dependencies = "[dependencies]\nserde.workspace = true\ntokio-util.workspace = true\n";
        let of = |name: &str, text: &str| source(&format!("crates/{name}/Cargo.toml"), text);
        let manifests = [of("a", dependencies), of("b", dependencies)];
        let [found] = &without_tokio(&source(PAGE, rows), &manifests)[..] else { panic!("one crate, one finding") };
        assert_eq!(found.path, "crates/a/Cargo.toml");
        let in_tests = of("a", "[dependencies]\nserde.workspace = true\n\n[dev-dependencies]\ntokio.workspace = true\n");
        assert_eq!(without_tokio(&source(PAGE, rows), &[in_tests]), []);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let mut sources = vec![source(PAGE, RULES), source("crates/z/Cargo.toml", "")];
        sources.push(source("crates/b/src/sys.rs", "unsafe { x() }"));
        assert!(check(&sources).iter().any(|finding| finding.what.contains("`z` has no row")));
    }
}
