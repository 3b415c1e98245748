//! What people see of a bug of ours.
//!
//! A panic in one task of a server is told and costs that task. One in the middle of a verb ends it with exit code 70.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::process::ExitCode;

use outpost_runtime::secrets::Secrets;

use crate::commands::{BUG, FAILED};
use crate::out::say;

/// Panics are told as people read them from here on.
pub(crate) fn watch(secrets: Secrets) -> Bugs {
    set_hook(Box::new(move |info| {
        let what = message(info);
        // The only place where the standard library panics about the world outside: the reader of our output went away.
        if what.starts_with("failed printing to") {
            say(&what);
            std::process::exit(i32::from(FAILED));
        }
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        say(&secrets.redact(&report(&what, &place)));
    }));
    Bugs(())
}

/// Proof that panics are watched.
pub(crate) struct Bugs(());

impl Bugs {
    pub(crate) fn run(&self, work: impl FnOnce() -> ExitCode) -> ExitCode {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| ExitCode::from(BUG))
    }
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

fn report(what: &str, place: &str) -> String {
    format!(
        "this is a bug in outpost {}, not a mistake of yours: {what} ({place})\n\
         Nothing that was stored is lost. Please report it with this line, the command that you ran, and the output of `outpost doctor`.",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_told_in_words_and_ends_with_70() {
        let text = report("index out of bounds", "src/x.rs:7");
        assert!(text.contains("bug in outpost") && text.contains("index out of bounds (src/x.rs:7)") && !text.contains("panicked"));
        let code = Bugs(()).run(|| [ExitCode::SUCCESS][std::hint::black_box(3)]);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(BUG)));
    }
}
