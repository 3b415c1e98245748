//! Which versions of this program work together.

/// How many minor releases may lie between the two ends.
const APART: u64 = 2;

/// Says why two versions do not work together, and what to type; nothing if they do, or if one of them is not understood.
pub(crate) fn refusal(here: &str, there: &str, name: &str) -> Option<String> {
    let (ours, theirs) = (parse(here)?, parse(there)?);
    if ours.0 == theirs.0 && ours.1.abs_diff(theirs.1) <= APART {
        return None;
    }
    let what = format!("outpost {there} runs there, and this is {here}: they are more than {APART} minor releases apart");
    Some(if theirs < ours {
        format!("{what}; type `outpost env upgrade {name}`")
    } else {
        format!("{what}; this one is the older: install {there} here")
    })
}

fn parse(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minor_releases_are_not_too_far() {
        for fine in ["0.1.0", "0.2.9", "0.3.0-rc.1", "nightly"] {
            assert_eq!(refusal("0.1.0", fine, "box"), None, "{fine}");
        }
        assert!(refusal("0.5.0", "0.2.0", "box").unwrap().ends_with("type `outpost env upgrade box`"));
        assert!(refusal("0.1.0", "0.4.0", "box").unwrap().ends_with("install 0.4.0 here"));
        assert!(refusal("1.0.0", "0.9.0", "box").is_some());
    }
}
