//! Logs: to standard error, without secrets, and without anything that a terminal would obey. A server writes log lines, a verb for people plain sentences.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use crate::args::Verbosity;
use outpost_runtime::TOLD;
use outpost_runtime::secrets::Secrets;
use outpost_wire::shown::{Form, Untrusted};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// What goes wrong with an MCP server is reported to its users in our own words.
const WARNINGS: &str = "warn,rmcp=off";

pub(crate) fn start(secrets: Secrets, is_server: bool, verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Quiet => "error,rmcp=off",
        Verbosity::Usual => WARNINGS,
        Verbosity::Info => "info,rmcp=off",
        Verbosity::Debug => "debug,rmcp=off",
    };
    let asked = EnvFilter::try_from_env("OUTPOST_LOG").ok();
    let writer = move || Redacting { secrets: secrets.clone(), out: io::stderr() };
    let log = tracing_subscriber::fmt().with_writer(writer).with_ansi(false);
    match asked {
        Some(filter) => log.with_env_filter(filter).init(),
        None if is_server => log.with_env_filter(EnvFilter::new(level)).init(),
        None => log.event_format(Sentences).with_env_filter(EnvFilter::new(format!("{level},{TOLD}=off"))).init(),
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

/// Every event arrives here in one piece, so that no secret is torn in two. Without a receiver it is lost: a log that cannot
/// be written must not end the work that it tells of.
struct Redacting<W> {
    secrets: Secrets,
    out: W,
}

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let redacted = self.secrets.redact_bytes(text);
        // One event is one line, whatever it tells of.
        let event = redacted.strip_suffix(b"\n").unwrap_or(&redacted);
        let line = format!("{}\n", Untrusted::from(event).show(Form::Line));
        let _ = self.out.write_all(line.as_bytes());
        Ok(text.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        let _ = self.out.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_is_one_line_that_no_terminal_obeys() {
        let secrets = Secrets::default();
        secrets.register("a-very-secret-word");
        let mut log = Redacting { secrets, out: Vec::new() };
        log.write_all("WARN a-very-secret-word \u{1b}[2J\nWARN another\u{202e} line \u{258c}\n".as_bytes()).unwrap();
        let line = String::from_utf8(log.out).unwrap();
        assert_eq!(line, "WARN [redacted] <U+001B>[2J<U+000A>WARN another<U+202E> line <U+258C>\n");
    }
}
