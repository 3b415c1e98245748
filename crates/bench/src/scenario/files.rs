//! File calls, small and large.

use anyhow::ensure;

use super::{Figures, Repeat, megabytes, micros, millis, uri};
use crate::contender::Server;

pub(super) fn small(server: &Server) -> anyhow::Result<Figures> {
    let mut wire = server.connect()?;
    let path = uri(&server.path("small"));
    let (at, with) = (format!("{{\"path\":\"{path}\"}}"), content(&path, 1 << 10));
    let mut time = |method, params: &str| Repeat::new(800).time(|| wire.call(method, params).map(drop)).map(micros);
    let write = time("fs/writeFile", &with)?;
    let read = time("fs/readFile", &at)?;
    let stat = time("fs/getMetadata", &at)?;
    Ok(vec![("stat", stat), ("read-1k", read), ("write-1k", write)])
}

/// Parameters that write so many bytes.
fn content(path: &str, bytes: usize) -> String {
    let data = base64_simd::STANDARD.encode_to_string(vec![b'x'; bytes]);
    format!("{{\"path\":\"{path}\",\"dataBase64\":\"{data}\"}}")
}

pub(super) fn large(server: &Server) -> anyhow::Result<Figures> {
    const BYTES: usize = 8 << 20;
    let mut wire = server.connect()?;
    let path = uri(&server.path("large"));
    let (at, with) = (format!("{{\"path\":\"{path}\"}}"), content(&path, BYTES));
    let mut rate = |method, params: &str| {
        Repeat::new(6).time(|| wire.call(method, params).map(drop)).map(|times| megabytes(BYTES) / (millis(times) / 1e3))
    };
    let write = rate("fs/writeFile", &with)?;
    let read = rate("fs/readFile", &at)?;
    Ok(vec![("read-8m", read), ("write-8m", write)])
}

/// Whether a message of 60 MiB passes in one frame.
pub(super) fn frame(server: &Server) -> anyhow::Result<Figures> {
    const BYTES: usize = 45 << 20;
    let path = server.path("huge");
    let mut wire = server.connect()?;
    let passes = wire.call("fs/writeFile", &content(&uri(&path), BYTES)).is_ok();
    let whole = std::fs::metadata(&path).is_ok_and(|data| data.len() == BYTES as u64);
    Ok(vec![("frame-60m", f64::from(u8::from(passes && whole)))])
}

pub(super) fn directory(server: &Server) -> anyhow::Result<Figures> {
    let path = server.path("many");
    std::fs::create_dir(&path)?;
    for index in 0..10_000 {
        std::fs::write(path.join(format!("file-{index:05}.txt")), b"")?;
    }
    let mut wire = server.connect()?;
    let params = format!("{{\"path\":\"{}\"}}", uri(&path));
    let names = memchr::memmem::find_iter(wire.call("fs/readDirectory", &params)?, "\"fileName\"").count();
    ensure!(names == 10_000, "{names} entries came");
    let times = Repeat::new(8).time(|| wire.call("fs/readDirectory", &params).map(drop))?;
    Ok(vec![("directory", millis(times))])
}
