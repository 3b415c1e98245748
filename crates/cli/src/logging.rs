//! Logs: to standard error, without secrets. A server writes log lines, a verb for people plain sentences.

use std::fmt::{self, Write as _};
use std::io::{self, Stderr, Write};

use outpost_runtime::TOLD;
use outpost_wire::secrets::Secrets;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// What goes wrong with an MCP server is told to whoever uses it, in our own words.
const WARNINGS: &str = "warn,rmcp=off";

pub fn start(secrets: Secrets, is_server: bool) {
    let asked = EnvFilter::try_from_env("OUTPOST_LOG").ok();
    let writer = move || Redacting { secrets: secrets.clone(), out: io::stderr() };
    let log = tracing_subscriber::fmt().with_writer(writer).with_ansi(false);
    match asked {
        Some(filter) => log.with_env_filter(filter).init(),
        None if is_server => log.with_env_filter(EnvFilter::new(WARNINGS)).init(),
        None => log.event_format(Sentences).with_env_filter(EnvFilter::new(format!("{WARNINGS},{TOLD}=off"))).init(),
    }
}

/// A line as the program's other complaints: what is the matter, what it is about, and why.
struct Sentences;

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        let Sentence { message, about, why } = sentence;
        let about = if about.is_empty() { about } else { format!(" ({about})") };
        writeln!(writer, "outpost: {message}{about}{why}")
    }
}

#[derive(Default)]
struct Sentence {
    message: String,
    about: String,
    why: String,
}

impl Visit for Sentence {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" | "reason" | "problem" | "why" => write!(self.why, ": {value:?}"),
            name => write!(self.about, "{}{name} {value:?}", if self.about.is_empty() { "" } else { ", " }),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
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
