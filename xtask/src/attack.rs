//! Attacks for as long as asked: the families of `tests/security/attack`, with random interleavings. The tests run a small share of each.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};

use crate::{cargo, sh};

/// What may be said, and the variable by which the attack is told.
const OPTIONS: &[(&str, &str)] = &[
    ("--minutes", "OUTPOST_ATTACK_MINUTES"),
    ("--seed", "OUTPOST_ATTACK_SEED"),
    ("--as", "OUTPOST_ATTACK_AS"),
    ("--level", "OUTPOST_ATTACK_LEVEL"),
    ("--family", "OUTPOST_ATTACK_FAMILY"),
];

pub(crate) fn run(options: &[&str]) -> anyhow::Result<()> {
    let mut asked: Vec<(&str, String)> = Vec::new();
    let mut with_tests = false;
    let mut words = options.iter();
    while let Some(word) = words.next() {
        if *word == "--with-tests" {
            with_tests = true;
            continue;
        }
        let Some((_, variable)) = OPTIONS.iter().find(|(option, _)| option == word) else {
            let names: Vec<_> = OPTIONS.iter().map(|(option, _)| *option).collect();
            bail!("`{word}` is no option of attack; there are --with-tests, {}", names.join(", "))
        };
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        check(word, value)?;
        asked.push((variable, (*value).to_owned()));
    }
    // Said here, so that it stands before everything and a run can be repeated.
    if !asked.iter().any(|(variable, _)| *variable == "OUTPOST_ATTACK_SEED") {
        asked.push(("OUTPOST_ATTACK_SEED", SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().to_string()));
    }
    let security = || {
        let mut command = cargo();
        command.args(["test", "-p", "outpost", "--test", "security", "--"]);
        command
    };
    if with_tests {
        sh(&mut security())?;
    }
    // Each loss that is put back is worth a line of the executor's log; here it is what is meant to happen.
    let quiet = [("OUTPOST_LOG", "error"), ("RUST_BACKTRACE", "0")];
    sh(security().args(["--ignored", "--exact", "attack::for_as_long_as_asked", "--nocapture"]).envs(quiet).envs(asked))
}

fn check(option: &str, value: &str) -> anyhow::Result<()> {
    let one_of = |accepted: &[&str]| {
        ensure!(accepted.contains(&value), "{option} is one of {}, not `{value}`", accepted.join(", "));
        Ok(())
    };
    match option {
        "--minutes" => {
            let minutes: f64 = value.parse().with_context(|| format!("--minutes is a number, not `{value}`"))?;
            ensure!(minutes.is_finite() && minutes >= 0.0, "--minutes is not negative");
            Ok(())
        }
        "--seed" => value.parse::<u64>().map(drop).with_context(|| format!("--seed is a number, not `{value}`")),
        "--as" => one_of(&["root", "user"]),
        "--level" => one_of(&["full", "mounts", "landlock"]),
        _ => Ok(()),
    }
}
