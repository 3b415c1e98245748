//! Logs: to standard error, without secrets.

use std::io::{self, Stderr, Write};

use outpost_wire::secrets::Secrets;
use tracing_subscriber::EnvFilter;

pub fn start(secrets: Secrets) {
    // What goes wrong with an MCP server is told to whoever uses it, in our own words.
    let filter = EnvFilter::try_from_env("OUTPOST_LOG").unwrap_or_else(|_| EnvFilter::new("warn,rmcp=off"));
    let writer = move || Redacting { secrets: secrets.clone(), out: io::stderr() };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).init();
}

/// Every event arrives here in one piece, so that no secret is torn in two. Where nobody takes it, it is lost: a log that cannot
/// be written must not end the work that it tells of.
struct Redacting {
    secrets: Secrets,
    out: Stderr,
}

impl Write for Redacting {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let _ = self.out.write_all(&self.secrets.redact_bytes(text));
        Ok(text.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        let _ = self.out.flush();
        Ok(())
    }
}
