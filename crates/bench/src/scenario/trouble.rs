//! Clients that stop reading, get lost, wait, or ask too much at once.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use super::output::{Reading, collect};
use super::starts::start_true;
use super::{Figures, Repeat, SLEEP, micros, millis, printer};
use crate::contender::Server;
use crate::wire::{Message, Start, request, text_frame};

/// A client does not read while its child prints; another client works meanwhile.
pub(super) fn stalled(server: &Server) -> anyhow::Result<Figures> {
    const BYTES: usize = 1 << 30;
    let (mut wire, mut other) = (server.connect()?, server.connect()?);
    start_true(&mut other)?;
    let before = server.memory()?;
    let process = wire.start(Start::plain(&printer(BYTES)?.each_ref().map(String::as_str)))?;
    let (begin, mut peak) = (Instant::now(), before);
    while begin.elapsed() < Duration::from_millis(1500) {
        peak = peak.max(server.memory()?);
        thread::sleep(Duration::from_millis(10));
    }
    let meanwhile = Repeat { times: 100, at_most: Duration::from_secs(2) }.time(|| start_true(&mut other))?;
    peak = peak.max(server.memory()?);
    let got = wire.closed(&process)?;
    Ok(vec![
        ("stalled-growth", (peak - before) / 1024.0),
        ("stalled-lost", BYTES as f64 - got as f64),
        ("stalled-other", micros(meanwhile)),
    ])
}

/// The connection is lost while a child prints, and comes back a second later.
pub(super) fn resume(server: &Server) -> anyhow::Result<Figures> {
    const BYTES: usize = 32 << 20;
    let mut wire = server.connect()?;
    let session = wire.session.clone();
    let process = wire.start(Start::plain(&printer(BYTES)?.each_ref().map(String::as_str)))?;
    let (mut got, mut after) = (0, 0);
    while got < 1 << 20 {
        if let Message::Output { seq, length, .. } = wire.receive()? {
            got += length;
            after = seq;
        }
    }
    drop(wire);
    thread::sleep(Duration::from_secs(1));
    let mut wire = server.resume(&session)?;
    got += collect(&mut wire, Reading { process: &process, after, piece: 4 << 20 })?;
    Ok(vec![("resume-lost", 100.0 * (BYTES as f64 - got as f64) / BYTES as f64)])
}

/// A poll that waits for output, and a call behind it on the same connection.
pub(super) fn poll(server: &Server) -> anyhow::Result<Figures> {
    let mut wire = server.connect()?;
    let process = wire.start(Start::plain(SLEEP))?;
    let (mut polls, mut stats) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let begin = Instant::now();
        let poll = wire.request("process/read", &format!("{{\"processId\":\"{process}\",\"afterSeq\":0,\"waitMs\":300}}"))?;
        let stat = wire.request("fs/getMetadata", "{\"path\":\"file:///tmp\"}")?;
        for _ in 0..2 {
            let id = loop {
                if let Message::Answer { id, .. } = wire.receive()? {
                    // The answer to the start may still be on its way the first time.
                    if id == poll || id == stat {
                        break id;
                    }
                }
            };
            let times = if id == poll { &mut polls } else { &mut stats };
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    wire.call("process/terminate", &format!("{{\"processId\":\"{process}\"}}"))?;
    Ok(vec![("poll", millis(polls)), ("poll-stat", millis(stats))])
}

/// Whether many requests that are sent at once are all answered in time.
pub(super) fn terminates(server: &Server) -> anyhow::Result<Figures> {
    const COUNT: u64 = 10_000;
    let mut wire = server.connect()?;
    let process = wire.start(Start::plain(SLEEP))?;
    let params = format!("{{\"processId\":\"{process}\"}}");
    let mut sender = wire.sender()?;
    let writer = thread::spawn(move || {
        let all = (1..=COUNT).flat_map(|id| text_frame(request(1_000_000 + id, "process/terminate", &params).as_bytes()));
        sender.write_all(&all.collect::<Vec<_>>())
    });
    let (begin, mut answers) = (Instant::now(), 0);
    while answers < COUNT && begin.elapsed() < Duration::from_secs(20) {
        match wire.receive() {
            Ok(Message::Answer { id, .. }) => answers += u64::from(id > 1_000_000),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    let in_time = answers == COUNT && begin.elapsed() < Duration::from_secs(20);
    drop(wire);
    // A server that takes nothing any more must not hold the writer: its socket is the last one of this connection.
    drop(writer);
    Ok(vec![("terminates", f64::from(u8::from(in_time)))])
}
