//! What a sandbox costs: the same call with and without one, in turn, on one connection. `cargo xtask bench sandbox`.
//!
//! A new row is one line in [`ROWS`].

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::contender::Contender;
use crate::scenario::median;
use crate::wire::Wire;

const TIMES: usize = 300;

struct Row {
    title: &'static str,
    /// What is done, under this policy.
    run: fn(&mut Wire, &Path, &Value) -> anyhow::Result<()>,
    target: Target,
}

#[derive(Clone, Copy)]
enum Target {
    /// So many milliseconds more than without.
    More(f64),
    /// So many times as much.
    Times(f64),
}

const ROWS: &[Row] = &[
    Row { title: "`true`, start to closed", run: start, target: Target::More(3.0) },
    Row { title: "`true` on a terminal", run: terminal, target: Target::More(3.0) },
    Row { title: "stat", run: |wire, work, policy| file(wire, work, policy, "fs/getMetadata"), target: Target::Times(3.0) },
    Row { title: "read a file of 1 KiB", run: |wire, work, policy| file(wire, work, policy, "fs/readFile"), target: Target::Times(3.0) },
    Row { title: "write a file of 1 KiB", run: |wire, work, policy| file(wire, work, policy, "fs/writeFile"), target: Target::Times(3.0) },
];

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
pub(crate) fn run(outpost: Contender) -> anyhow::Result<()> {
    let server = outpost.start()?;
    // Neither in the home of the executor nor in `/tmp`: a sandbox reaches the one not at all, and has its own of the other.
    let work = tempfile::Builder::new().prefix("outpost-bench-").tempdir_in("/var/tmp")?;
    let work = work.path();
    std::fs::write(work.join("file"), [b'x'; 1024])?;
    let mut wire = server.connect()?;
    println!("raw posix_spawn of `true`: {:.3} ms", raw()?);
    for (name, policy) in policies(work) {
        let since = Instant::now();
        start(&mut wire, work, &policy)?;
        println!("first start under {name}: {:.2} ms", since.elapsed().as_secs_f64() * 1e3);
    }
    println!("\n{:<26} {:<16} {:>10} {:>10} {:>10} {:>7}  target", "call", "policy", "without ms", "with ms", "more ms", "times");
    for row in ROWS {
        for (name, policy) in policies(work).into_iter().skip(1) {
            match compare(row, &mut wire, work, &policy) {
                Ok((without, with)) => {
                    let (more, times) = (with - without, with / without);
                    let (target, met) = match row.target {
                        Target::More(most) => (format!("at most {most} ms more"), more <= most),
                        Target::Times(most) => (format!("at most {most} times"), times <= most),
                    };
                    let met = if met { "met" } else { "NOT met" };
                    println!("{:<26} {name:<16} {without:>10.3} {with:>10.3} {more:>10.3} {times:>7.2}  {target}: {met}", row.title);
                }
                Err(error) => println!("{:<26} {name:<16} no figure: {error:#}", row.title),
            }
        }
    }
    Ok(())
}

/// Medians in milliseconds, without and with the policy.
fn compare(row: &Row, wire: &mut Wire, work: &Path, policy: &Value) -> anyhow::Result<(f64, f64)> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        for (policy, times) in [(&Value::Null, &mut without), (policy, &mut with)] {
            let since = Instant::now();
            (row.run)(wire, work, policy)?;
            times.push(since.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok((median(without).unwrap_or(f64::NAN), median(with).unwrap_or(f64::NAN)))
}

fn policies(work: &Path) -> Vec<(&'static str, Value)> {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let writable = json!({"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": "write"});
    let uri = format!("file://{}", work.display());
    let policy = |entries: Value| {
        json!({
            "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": entries}, "network": "restricted"},
            "cwd": uri, "workspaceRoots": [uri], "windowsSandboxLevel": "disabled",
        })
    };
    vec![("none", Value::Null), ("read-only", policy(json!([root]))), ("workspace-write", policy(json!([root, writable])))]
}

fn start(wire: &mut Wire, _: &Path, policy: &Value) -> anyhow::Result<()> {
    process(wire, policy, false)
}

fn terminal(wire: &mut Wire, _: &Path, policy: &Value) -> anyhow::Result<()> {
    process(wire, policy, true)
}

fn process(wire: &mut Wire, policy: &Value, tty: bool) -> anyhow::Result<()> {
    let id = wire.name();
    let params = json!({
        "processId": id, "argv": ["/usr/bin/true"], "cwd": "file:///", "env": {"PATH": "/usr/bin:/bin"}, "tty": tty, "sandbox": policy,
    });
    wire.request("process/start", &params.to_string())?;
    wire.closed(&id)?;
    Ok(())
}

fn file(wire: &mut Wire, work: &Path, policy: &Value, method: &str) -> anyhow::Result<()> {
    let mut params = json!({"path": format!("file://{}/file", work.display()), "sandbox": policy});
    if method == "fs/writeFile" {
        params["dataBase64"] = json!("eHh4".repeat(341));
    }
    wire.call(method, &params.to_string())?;
    Ok(())
}

/// The floor of all floors, in milliseconds.
fn raw() -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let since = Instant::now();
        Command::new("/usr/bin/true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?.wait()?;
        times.push(since.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times).unwrap_or(f64::NAN))
}
