//! Resident memory: of an idle server, per session, per process, and after all of it has gone.

use std::thread::sleep;
use std::time::Duration;

use super::starts::start_true;
use super::{Figures, SLEEP, printer};
use crate::contender::Server;
use crate::wire::{Message, Start};

/// Until a server has done what it does after the last message: ours gives memory back after a second without clients.
const SETTLE: Duration = Duration::from_millis(1_500);

/// Sessions that have run one command each; then they leave, and so does a large output.
pub(super) fn sessions(server: &Server) -> anyhow::Result<Figures> {
    const COUNT: usize = 100;
    sleep(SETTLE);
    let idle = server.memory()?;
    // The first session is not counted: it brings in parts of the program that all of them use.
    let mut first = server.connect()?;
    start_true(&mut first)?;
    sleep(SETTLE);
    let before = server.memory()?;
    let mut wires = vec![first];
    for _ in 0..COUNT {
        let mut wire = server.connect()?;
        start_true(&mut wire)?;
        wires.push(wire);
    }
    sleep(SETTLE);
    let full = server.memory()?;
    drop(wires);
    let mut wire = server.connect()?;
    let process = wire.start(Start::plain(&printer(64 << 20)?.each_ref().map(String::as_str)))?;
    wire.closed(&process)?;
    drop(wire);
    sleep(SETTLE);
    let after = server.memory()? / 1024.0;
    Ok(vec![("idle", idle / 1024.0), ("per-session", (full - before) / COUNT as f64), ("after-load", after)])
}

/// Processes that do nothing, all of one session.
pub(super) fn processes(server: &Server) -> anyhow::Result<Figures> {
    const COUNT: usize = 200;
    let mut wire = server.connect()?;
    start_true(&mut wire)?;
    sleep(SETTLE);
    let before = server.memory()?;
    let names = (0..COUNT).map(|_| wire.start(Start::plain(SLEEP))).collect::<Result<Vec<_>, _>>()?;
    let mut answers = 0;
    while answers < COUNT {
        answers += usize::from(matches!(wire.receive()?, Message::Answer { refused: false, .. }));
    }
    sleep(SETTLE);
    let per_process = (server.memory()? - before) / COUNT as f64;
    for name in &names {
        wire.request("process/terminate", &format!("{{\"processId\":\"{name}\"}}"))?;
    }
    let mut closed = 0;
    while closed < COUNT {
        closed += usize::from(matches!(wire.receive()?, Message::Closed { .. }));
    }
    Ok(vec![("per-process", per_process)])
}
