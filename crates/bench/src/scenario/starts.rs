//! How fast a server is there, and how fast it starts others.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};

use super::{Figures, Repeat, TRUE, median, micros};
use crate::contender::Server;
use crate::wire::{Message, Start, Wire};

/// From the start of the program to the first answer.
pub(super) fn cold(server: &Server) -> anyhow::Result<Figures> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let fresh = server.contender.start()?;
        fresh.connect()?;
        times.push(fresh.started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times).map(|time| ("cold", time)).into_iter().collect())
}

/// From `process/start` to `process/closed`.
pub(super) fn one_by_one(server: &Server) -> anyhow::Result<Figures> {
    let mut wire = server.connect()?;
    start_true(&mut wire)?;
    let before = server.cpu()?;
    let times = Repeat::new(800).time(|| start_true(&mut wire))?;
    let cpu = (server.cpu()? - before) / times.len() as f64 * 1e6;
    Ok(vec![("true", micros(times)), ("true-cpu", cpu)])
}

pub(super) fn start_true(wire: &mut Wire) -> anyhow::Result<()> {
    let process = wire.start(Start::plain(TRUE))?;
    wire.closed(&process)?;
    Ok(())
}

pub(super) fn many(server: &Server) -> anyhow::Result<Figures> {
    let one = flood(&mut [server.connect()?], 64)?;
    let mut wires = (0..16).map(|_| server.connect()).collect::<Result<Vec<_>, _>>()?;
    Ok(vec![("starts-64", one), ("starts-16x4", flood(&mut wires, 4)?)])
}

/// Starts per second with so many in flight on every connection.
fn flood(wires: &mut [Wire], in_flight: usize) -> anyhow::Result<f64> {
    let (begin, each) = (Instant::now(), 1600 / wires.len());
    let done = thread::scope(|scope| {
        let workers: Vec<_> = wires.iter_mut().map(|wire| scope.spawn(move || keep_in_flight(wire, in_flight, each))).collect();
        workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("a worker died"))?).sum::<anyhow::Result<usize>>()
    })?;
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

fn keep_in_flight(wire: &mut Wire, in_flight: usize, total: usize) -> anyhow::Result<usize> {
    let begin = Instant::now();
    for _ in 0..in_flight {
        wire.start(Start::plain(TRUE))?;
    }
    let (mut started, mut closed) = (in_flight, 0);
    while closed < started {
        match wire.receive()? {
            Message::Closed { .. } => closed += 1,
            Message::Answer { refused: true, text, .. } => bail!("refused: {}", String::from_utf8_lossy(text)),
            _ => continue,
        }
        if started < total && begin.elapsed() < Duration::from_secs(3) {
            wire.start(Start::plain(TRUE))?;
            started += 1;
        }
    }
    Ok(closed)
}
