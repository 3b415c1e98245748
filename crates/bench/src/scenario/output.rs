//! What processes say: echoes, bulk pushes and bulk reads.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use super::{Figures, Repeat, megabytes, micros, printer};
use crate::contender::Server;
use crate::wire::{Message, Start, Wire, member, number, pieces};

pub(super) fn echo(server: &Server) -> anyhow::Result<Figures> {
    let argv: &[&str] = &["/usr/bin/cat"];
    let pipe = round_trip(server, Start { argv, terminal: false, input: true }, "hello\n")?;
    // The terminal itself answers; `cat` sees nothing without the end of a line.
    let terminal = round_trip(server, Start { argv, terminal: true, input: false }, "x")?;
    Ok(vec![("pipe-echo", pipe), ("pty-echo", terminal)])
}

fn round_trip(server: &Server, start: Start<'_>, line: &str) -> anyhow::Result<f64> {
    let mut wire = server.connect()?;
    let process = wire.start(start)?;
    std::thread::sleep(Duration::from_millis(50));
    let chunk = base64_simd::STANDARD.encode_to_string(line);
    let mut count = 0;
    let times = Repeat::new(800).time(|| {
        count += 1;
        wire.request("process/write", &format!("{{\"processId\":\"{process}\",\"chunk\":\"{chunk}\",\"writeId\":\"{count}\"}}"))?;
        let mut missing = line.len();
        while missing > 0 {
            match wire.receive()? {
                Message::Output { length, .. } => missing = missing.saturating_sub(length),
                Message::Answer { refused: true, text, .. } => bail!("refused: {}", String::from_utf8_lossy(text)),
                _ => {}
            }
        }
        Ok(())
    })?;
    wire.call("process/terminate", &format!("{{\"processId\":\"{process}\"}}"))?;
    Ok(micros(times))
}

pub(super) fn push(server: &Server) -> anyhow::Result<Figures> {
    const BYTES: usize = 256 << 20;
    let mut wire = server.connect()?;
    let (before, begin) = (server.cpu()?, Instant::now());
    let process = wire.start(Start::plain(&printer(BYTES)?.each_ref().map(String::as_str)))?;
    let got = wire.closed(&process)?;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(got == BYTES, "{got} of {BYTES} bytes came");
    let cpu = (server.cpu()? - before) * 1e3 * 4.0;
    Ok(vec![("push", megabytes(got) / seconds), ("push-cpu", cpu)])
}

pub(super) fn read(server: &Server) -> anyhow::Result<Figures> {
    const BYTES: usize = 128 << 20;
    let mut wire = server.connect()?;
    let begin = Instant::now();
    let process = wire.start(Start::plain(&printer(BYTES)?.each_ref().map(String::as_str)))?;
    let got = collect(&mut wire, Reading { process: &process, after: 0, piece: 1 << 20 })?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(vec![("read", megabytes(got) / seconds), ("read-lost", BYTES as f64 - got as f64)])
}

pub(super) struct Reading<'a> {
    pub process: &'a str,
    /// The last piece that is known already.
    pub after: u64,
    /// How much is asked for at a time.
    pub piece: usize,
}

/// Reads the log of a process until it is closed; returns how many bytes were in it.
pub(super) fn collect(wire: &mut Wire, mut reading: Reading<'_>) -> anyhow::Result<usize> {
    let mut bytes = 0;
    loop {
        let params = format!(
            "{{\"processId\":\"{}\",\"afterSeq\":{},\"maxBytes\":{},\"waitMs\":1000}}",
            reading.process, reading.after, reading.piece
        );
        let answer = wire.call("process/read", &params)?;
        let mut count = 0;
        for piece in pieces(answer) {
            bytes += piece.length;
            reading.after = piece.seq;
            count += 1;
        }
        let tail = &answer[answer.len().saturating_sub(256)..];
        if count == 0 {
            if member(tail, "closed").is_some_and(|text| text.starts_with(b"true")) {
                return Ok(bytes);
            }
            reading.after = reading.after.max(member(tail, "nextSeq").map(number).unwrap_or_default().saturating_sub(1));
        }
    }
}
