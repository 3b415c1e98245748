//! Processes of a previous run: nothing of them is left but their fate.

use outpost_wire::exec::process::{ProcessSummary, ReadResponse};

use crate::journal::{Fate, RecordedExit};

/// What the wire says when a status is lost.
const LOST: i32 = -1;

fn exit_code(fate: &Fate) -> i32 {
    match fate.end {
        Some(RecordedExit::Exited(code)) => code,
        Some(RecordedExit::Lost) | None => LOST,
    }
}

/// The numbers go on as if the process had been closed; a client sees by them how much it has missed.
pub(crate) fn read(fate: &Fate) -> ReadResponse {
    let failure = match fate.end {
        Some(RecordedExit::Exited(_)) => None,
        Some(RecordedExit::Lost) | None => Some("the executor was restarted while the process ran: it is lost".to_owned()),
    };
    ReadResponse {
        chunks: Vec::new(),
        next_seq: fate.next_seq + 1,
        exited: true,
        exit_code: Some(exit_code(fate)),
        closed: true,
        failure,
        sandbox_denied: false,
        notices: Vec::new(),
        limit: None,
    }
}

pub(crate) fn summary(process_id: String, fate: &Fate) -> ProcessSummary {
    ProcessSummary {
        process_id,
        argv: Vec::new(),
        metadata: None,
        pid: None,
        tty: false,
        next_seq: fate.next_seq + 1,
        exited: true,
        exit_code: Some(exit_code(fate)),
        closed: true,
    }
}
