//! Commands that outlive their calls, after a restart: found in the journal by their session id.

use outpost_thread::{Call, CallId, CommandDetail, Entry, Fact, Raw};
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;

/// The tool that writes to a command. Its writes go under the name of its call, so that one that is taken up again is the
/// same write.
pub(crate) const WRITE_STDIN: &str = "write_stdin";

/// Items of one answer that can be told apart.
const ITEMS: u64 = 1000;

/// What a command that outlives its call is called: where the journal asks for it. So it can be found after any restart.
pub(crate) fn session_of(call: &Call) -> u64 {
    call.asked_ordinal * ITEMS + (call.item as u64).min(ITEMS - 1)
}

/// The entry that asked for the command behind a session id, and which of its items it is.
pub(crate) fn asked_at(session: u64) -> (u64, usize) {
    (session / ITEMS, usize::try_from(session % ITEMS).unwrap_or(usize::MAX))
}

/// The session id that a call to write to a command names.
pub(crate) fn session_in(item: &Raw) -> Option<u64> {
    #[derive(Deserialize)]
    struct Item {
        #[serde(default)]
        name: String,
        #[serde(default)]
        arguments: String,
    }
    #[derive(Deserialize)]
    struct Arguments {
        session_id: u64,
    }
    let item: Item = item.read().ok().filter(|item: &Item| item.name == WRITE_STDIN)?;
    serde_json::from_str::<Arguments>(&item.arguments).ok().map(|arguments| arguments.session_id)
}

/// A command of a previous run of a thread, as it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EarlierCommand {
    pub call: CallId,
    pub environment: EnvironmentId,
    pub process: String,
    /// The key that it was to be claimed with.
    pub key: Option<String>,
    /// Who had it, if that is known.
    pub executor: Option<String>,
    /// So many bytes of its output has the model been shown, or told that they were left out.
    pub shown: u64,
    pub detail: CommandDetail,
}

/// Goes through the journal from the answer that asked for a command.
#[derive(Debug)]
pub(crate) struct EarlierSearch {
    session: u64,
    ordinal: u64,
    index: usize,
    call: Option<CallId>,
    found: Option<EarlierCommand>,
    has_ended: bool,
}

impl EarlierSearch {
    pub(crate) fn new(session: u64) -> Self {
        let (ordinal, index) = asked_at(session);
        Self { session, ordinal, index, call: None, found: None, has_ended: false }
    }

    pub(crate) fn see(&mut self, entry: &Entry) {
        match &entry.fact {
            Fact::ModelAnswered(answered) if entry.ordinal == self.ordinal => {
                self.call = answered.calls.iter().find(|call| call.item == self.index).map(|asked| asked.call.clone());
            }
            Fact::CallStarted(started) if self.found.is_none() && Some(&started.call) == self.call.as_ref() => {
                self.found = started.environment.clone().zip(started.process.clone()).map(|(environment, process)| EarlierCommand {
                    call: started.call.clone(),
                    environment,
                    process,
                    key: started.adoption_key.clone(),
                    executor: started.executor.clone(),
                    shown: 0,
                    detail: started.command().unwrap_or_default(),
                });
            }
            Fact::CallFinished(finished) => {
                let report = finished.report();
                if let Some(found) = self.found.as_mut().filter(|_| report.session == Some(self.session)) {
                    found.shown = report.output_bytes.unwrap_or_default();
                    self.has_ended |= report.session_id.is_none();
                }
            }
            _ => {}
        }
    }

    /// The command, unless its end was told.
    pub(crate) fn found(self) -> Option<EarlierCommand> {
        self.found.filter(|_| !self.has_ended)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The entries from 6 on.
    fn entries(last: serde_json::Value) -> Vec<Entry> {
        let read = |kind: &str, data: serde_json::Value| Fact::read(1, kind, Raw::from(data));
        let facts = vec![
            read(
                "modelAnswered",
                json!({"turn": "t", "step": 0, "complete": true, "calls": [{"call": "c", "tool": "exec_command", "item": 1}]}),
            ),
            read("callStarted", json!({"turn": "t", "call": "c", "tool": "exec_command", "environment": "box", "process": "p"})),
            read("callFinished", json!({"turn": "t", "call": "c", "outcome": "completed", "detail": last})),
        ];
        (6..).zip(facts).map(|(ordinal, fact)| Entry { ordinal, at: 0, fact }).collect()
    }

    fn search(session: u64, last: serde_json::Value) -> Option<EarlierCommand> {
        let mut search = EarlierSearch::new(session);
        entries(last).iter().for_each(|entry| search.see(entry));
        search.found()
    }

    #[test]
    fn a_command_is_found_until_its_end_was_told() {
        let runs = json!({"session": 6001, "sessionId": 6001, "outputBytes": 12});
        let found = search(6001, runs.clone()).unwrap();
        assert_eq!((found.call.as_str(), found.environment.as_str(), found.process.as_str(), found.shown), ("c", "box", "p", 12));
        assert_eq!(search(6000, runs.clone()), None, "another item of the answer");
        assert_eq!(search(5001, runs), None, "another entry");
        assert_eq!(search(6001, json!({"session": 6001, "sessionId": null, "outputBytes": 12})), None, "it has ended");
    }

    #[test]
    fn session_ids_are_read_from_calls() {
        let item = |name: &str, arguments: &str| Raw::from(json!({"type": "function_call", "name": name, "arguments": arguments}));
        assert_eq!(session_in(&item("write_stdin", r#"{"session_id":7}"#)), Some(7));
        assert_eq!(session_in(&item("write_stdin", "{")), None);
        assert_eq!(session_in(&item("exec_command", r#"{"session_id":7}"#)), None);
        assert_eq!(asked_at(6003), (6, 3));
    }
}
