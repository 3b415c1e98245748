//! `docs/hosts.md`: one row per host, with every promise that does not hold there by name.

use std::fmt::Write as _;

use super::HOSTS;
use super::results::{Column, Results};

const HEAD: &str = "# Hosts

The same checks, run on every kind of host that one machine can bring up:

<!-- not typed: runs these tests -->
```sh
cargo xtask hosts podman-root     # one host; without a name, all of them
```

`cargo xtask hosts` wrote these tables. `outpost doctor` tries the
same on yours. [Levels](sandbox.md#levels).

| host | kernel | level | processes and memory limited by | checks | does not hold there, and is told | `tests/security` |
|---|---|---|---|---|---|---|
";

const CHECKS: &str = "
## The checks

";

const AFTER: &str = "
A check is *ok* if it works, or if the attack failed. What does not hold is *told* if `outpost doctor`, `environment/info` (`sandbox`) and the first line of `outpost exec` say
so; anything else fails the command. `tests/security` is the test binary of this project, linked statically and run on the host: each test asserts its promise, or that the
verdict card of the host denies it. Of ssh, *upgrade* uses a stand-in that runs its command on the same host. *Everyday work* counts
the tasks of `cargo xtask everyday` whose programs are on the host; it is left out on virtual machines, where each instruction is emulated.
";

const FAULTS: &str = "
## Faults

What happens when something of the host is broken, or breaks. *ok*: a clear refusal, a weaker mechanism that is told, or no loss, whichever the third column says.

| host | fault | expected | |
|---|---|---|---|
";

/// Names of lines that tell something about a host instead of checking it.
const FACTS: [&str; 5] = ["kernel", "level", "processes limited by", "memory limited by", "everyday work"];

pub(super) fn page(all: &Results) -> String {
    let mut page = HEAD.to_owned();
    for host in &HOSTS {
        let checks = all.get(host.name, "checks");
        let _ = writeln!(page, "| {} |{} {} |", host.title, facts_and_checks(checks), security(all.get(host.name, "security")));
    }
    page.push_str(CHECKS);
    page.push_str(&checks(all).join(" · "));
    page.push_str(".\n");
    page.push_str(AFTER);
    let mut faults = String::new();
    for host in &HOSTS {
        for (what, how) in all.get(host.name, "faults").map(|column| column.lines.as_slice()).unwrap_or_default() {
            let (fault, expected) = what.split_once(": ").unwrap_or((what, ""));
            let _ = writeln!(faults, "| {} | {fault} | {expected} | {how} |", host.title);
        }
    }
    if !faults.is_empty() {
        page.push_str(FAULTS);
        page.push_str(&faults);
    }
    page
}

/// The names of all checks, from the host on which most of them were run.
fn checks(all: &Results) -> Vec<String> {
    let columns = HOSTS.iter().filter_map(|host| all.get(host.name, "checks"));
    let most = columns.max_by_key(|column| column.lines.len());
    let names = most.map(|column| column.lines.iter().map(|(what, _)| what.clone()).filter(|what| !FACTS.contains(&what.as_str())));
    names.into_iter().flatten().collect()
}

fn facts_and_checks(column: Option<&Column>) -> String {
    let Some(column) = column else { return " – | – | – | not tried | |".to_owned() };
    if let Some(why) = column.why_untried() {
        return format!(" – | – | – | not tried: {why} | |");
    }
    let fact = |name: &str| column.get(name).filter(|text| !text.is_empty()).unwrap_or("none").to_owned();
    let checked: Vec<_> = column.lines.iter().filter(|(what, _)| !FACTS.contains(&what.as_str())).collect();
    let good = checked.iter().filter(|(_, how)| how == "ok").count();
    let told: Vec<&str> = checked.iter().filter(|(_, how)| how == "told").map(|(what, _)| what.as_str()).collect();
    let wrong = column.broken();
    let wrong = if wrong.is_empty() { String::new() } else { format!("; **{}**", wrong.join("; ")) };
    let everyday = column.get("everyday work").map(|text| format!("; everyday work: {text}")).unwrap_or_default();
    let (processes, memory) = (fact("processes limited by"), fact("memory limited by"));
    let limits = if processes == memory { processes } else { format!("{processes}, {memory}") };
    format!(
        " {} | {} | {limits} | {good} of {} ok{everyday}{wrong} | {} |",
        fact("kernel"),
        fact("level"),
        checked.len(),
        if told.is_empty() { "–".to_owned() } else { told.join(", ") }
    )
}

fn security(column: Option<&Column>) -> String {
    let Some(column) = column else { return "not tried".to_owned() };
    if let Some(why) = column.why_untried() {
        return format!("not tried: {why}");
    }
    let number = |what: &str| column.get(what).unwrap_or("0").to_owned();
    let mut text = format!("{} hold", number("held"));
    for (name, words) in [("denied", "denied by the card"), ("impossible", "cannot be tried there")] {
        if number(name) != "0" {
            let _ = write!(text, ", {} {words}", number(name));
        }
    }
    let failed: Vec<&str> = column.lines.iter().filter(|(_, how)| how == "FAILED").map(|(what, _)| what.as_str()).collect();
    if !failed.is_empty() {
        let _ = write!(text, ", **failed: {}**", failed.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_what_does_not_hold() {
        let column = Column::parse(
            "kernel\t6.1\nlevel\tlandlock\nprocesses limited by\tnone\nmemory limited by\trlimit\nrun\tok\nloopback\ttold\nno network\tESCAPED\n",
        );
        let row = facts_and_checks(Some(&column));
        assert_eq!(row, " 6.1 | landlock | none, rlimit | 1 of 3 ok; **no network: ESCAPED** | loopback |");
    }

    #[test]
    fn failed_tests_are_named() {
        let column = Column::parse("held\t90\ndenied\t7\nfiles::x\tFAILED\n");
        assert_eq!(security(Some(&column)), "90 hold, 7 denied by the card, **failed: files::x**");
    }
}
