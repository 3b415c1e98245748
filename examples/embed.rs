//! Outpost as a library: a thread in a program of your own, with its hands in an executor.
//!
//! `cargo run --example embed -- PATH/TO/outpost` runs it. The executor is a process behind standard input and output here; one that
//! listens, or a machine behind ssh, is only another [`Definition`]. The offline provider runs what it is told; with another
//! `model_provider` a model decides.

use std::path::Path;
use std::sync::Arc;

use outpost_environment::{CommandLine, Definition, Registry, RegistryOptions};
use outpost_runtime::feed::Read;
use outpost_runtime::{NewInput, Runtime, RuntimeConfig, RuntimeParts, StartThread, ThreadEvent};
use outpost_store::{MemoryStore, Store};
use outpost_thread::{CallOutcome, Fact, said};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs one turn in a directory, with an executor that has its state in `home`. Returns the output of its command and
/// the answer.
pub(crate) async fn one_turn(outpost: &str, home: &Path, directory: &Path) -> Result<(String, String), Failure> {
    // Environments: where commands run and files live. Nothing is connected before it is used.
    let registry = Registry::new(RegistryOptions::default());
    let id = EnvironmentId::parse("hands")?;
    let line = CommandLine {
        program: outpost.to_owned(),
        args: ["executor", "--listen", "stdio"].map(str::to_owned).to_vec(),
        env: [("OUTPOST_HOME".to_owned(), home.display().to_string())].into(),
        ..CommandLine::default()
    };
    registry.add(id.clone(), Definition::program(line)?)?;

    // A runtime: threads are kept in memory here; `LocalStore` keeps them as files, `PostgresStore` in a database.
    let clock: outpost_store::Clock = Arc::new(now);
    let store = Store::Memory(MemoryStore::new(clock.clone(), None));
    let variables = Arc::new(|name: &str| std::env::var(name).ok());
    let runtime = Runtime::new(RuntimeParts::new(RuntimeConfig::default(), store, registry, clock, variables));

    // A thread chooses its environments once; the first one is the primary.
    let mut start = StartThread::new();
    start.created.selection = Some(Selection::new(vec![Attachment::new(id, PathUri::from_native(directory)?)])?);
    let thread = runtime.start(start).await?;

    // Whatever happens is told to everybody who listens; what is an entry is stored by then.
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("$ echo made by a library > made.txt; cat made.txt\n> Done.")).await?;
    let (mut output, mut answer, mut problem) = (String::new(), String::new(), None);
    loop {
        match feed.next().await {
            Read::Event(ThreadEvent::Output { bytes, .. }) => output.push_str(&String::from_utf8_lossy(&bytes)),
            Read::Event(ThreadEvent::Entry(entry)) => match &entry.fact {
                Fact::ModelAnswered(answered) => answer = answered.items.iter().rev().find_map(said).unwrap_or(answer),
                // What could not be started says why.
                Fact::CallFinished(call) if call.outcome != CallOutcome::Completed => {
                    problem = call.report().error_text().map(str::to_owned)
                }
                Fact::TurnFinished(_) => break,
                _ => {}
            },
            Read::End => return Err("the thread ended".into()),
            _ => {}
        }
    }
    runtime.shutdown(std::time::Duration::from_secs(5)).await;
    match problem {
        Some(problem) => Err(format!("the command did not run: {}", problem).into()),
        None => Ok((output, answer)),
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[tokio::main]
#[allow(dead_code, clippy::print_stdout, reason = "an example prints what it found; the test has its own main")]
async fn main() -> Result<(), Failure> {
    let outpost = std::env::args().nth(1).unwrap_or_else(|| "outpost".to_owned());
    let home = std::env::temp_dir().join("outpost-embed");
    let (output, answer) = one_turn(&outpost, &home, &std::env::current_dir()?).await?;
    println!("the command printed: {}\nthe agent said: {answer}", output.trim_end());
    Ok(())
}
