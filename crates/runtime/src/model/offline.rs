//! A model without any intelligence: it runs the commands that the user writes.
//!
//! `$ make test` runs a command, `@worker $ uname -a` runs it in the environment `worker`, `> text` answers with that text.
//! Lines without an empty line between them are done at once, an empty line waits for what is above it. A command that
//! ends in `<<WORD` goes on until a line with that word. Anything else is answered with an explanation. A command runs to its
//! end, however long that takes. What has been done already is read off the history, so that the same history always gives the
//! same answer.

use outpost_thread::CALL_STOPPED;
use serde_json::{Value, json};

use super::{HistoryItem, ModelProgress, ModelResponse, ModelUsage, OnProgress, Prompt, StopReason};
use crate::live::TURN_RESUMED;
use crate::tools::command_report::{EXIT_CODE, TIME};

/// The tool that runs commands.
const TOOL: &str = "exec_command";

const EXPLANATION: &str = "\
I am the offline model: I do not understand text, I only do what I am told line by line.
  $ COMMAND            runs a command in the primary environment
  @NAME $ COMMAND      runs it in the environment NAME
  > TEXT               answers with TEXT
Lines without an empty line between them are done at once. To talk to a real model: set OPENAI_API_KEY, say --provider ollama, or \
choose a `model_provider` in config.toml.";

#[derive(Debug, PartialEq)]
enum Line {
    Run { environment: Option<String>, command: String },
    Say(String),
    Other,
}

pub(super) fn answer(prompt: &Prompt, ids: &(dyn Fn() -> String + Send + Sync), progress: OnProgress<'_>) -> ModelResponse {
    let (script, called) = read(prompt.history.items());
    let items = respond(&script, &called, ids);
    for item in &items {
        progress(ModelProgress::ItemStarted { item: item.clone() });
        progress(ModelProgress::ItemFinished { item: item.clone() });
    }
    let bytes = |items: &[HistoryItem]| items.iter().map(|item| item.get().len() as u64).sum::<u64>() / 4;
    let items: Vec<HistoryItem> = items.into_iter().map(HistoryItem::from).collect();
    let (input, output) = (bytes(prompt.history.items()), bytes(&items));
    let usage = ModelUsage { input_tokens: input, output_tokens: output, total_tokens: input + output, ..ModelUsage::default() };
    ModelResponse { items, usage, stop: StopReason::Complete }
}

/// A command that was called for already.
#[derive(Debug, Clone, PartialEq)]
struct Called {
    id: String,
    environment: Option<String>,
    command: String,
    /// What the model was told of it.
    output: Value,
}

/// What the user wrote last, and the commands that were called for since.
fn read(items: &[HistoryItem]) -> (String, Vec<Called>) {
    let items: Vec<Value> = items.iter().filter_map(|item| serde_json::from_str(item.get()).ok()).collect();
    let written = items.iter().enumerate().rev().find_map(|(at, item)| Some((at, text_of(item)?)).filter(|(_, text)| !is_ours(text)));
    let Some((at, script)) = written else { return (String::new(), Vec::new()) };
    let mut called: Vec<Called> = Vec::new();
    for item in &items[at + 1..] {
        match item["type"].as_str() {
            Some("function_call") => called.extend(called_for(item)),
            Some("function_call_output") => {
                if let Some(call) = called.iter_mut().find(|call| item["call_id"] == call.id.as_str()) {
                    call.output = item["output"].clone();
                }
            }
            // What was stopped with its turn is done once more; what has ended, or may have, is not.
            Some("message") if text_of(item).is_some_and(|text| text.trim_start().starts_with(&format!("<{TURN_RESUMED}>"))) => {
                called.retain(|call| !was_stopped(&call.output));
            }
            _ => {}
        }
    }
    (script, called)
}

/// What a message of the user says.
fn text_of(item: &Value) -> Option<String> {
    if item["type"] != "message" || item["role"] != "user" {
        return None;
    }
    let texts: Vec<&str> = item["content"].as_array()?.iter().filter_map(|part| part["text"].as_str()).collect();
    Some(texts.join("\n"))
}

/// Messages that begin with `<` were put there by the runtime, not by the user.
fn is_ours(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

fn called_for(item: &Value) -> Option<Called> {
    let arguments: Value = serde_json::from_str(item["arguments"].as_str().filter(|_| item["name"] == TOOL)?).ok()?;
    Some(Called {
        id: item["call_id"].as_str()?.to_owned(),
        environment: arguments["environment_id"].as_str().map(str::to_owned),
        command: arguments["cmd"].as_str()?.to_owned(),
        output: Value::Null,
    })
}

fn was_stopped(output: &Value) -> bool {
    output.is_null() || output_text(output) == Some(CALL_STOPPED)
}

fn respond(script: &str, called: &[Called], ids: &(dyn Fn() -> String + Send + Sync)) -> Vec<Value> {
    let steps = parse(script);
    let mut done: Vec<&Called> = called.iter().collect();
    let (mut said, mut commands) = (Vec::new(), 0);
    for step in &steps {
        let mut open = Vec::new();
        for line in step {
            match line {
                Line::Say(text) => said.push(text.as_str()),
                Line::Run { environment, command } => {
                    commands += 1;
                    match done.iter().position(|called| called.environment == *environment && called.command == *command) {
                        Some(at) => drop(done.remove(at)),
                        None => open.push(line),
                    }
                }
                Line::Other => {}
            }
        }
        if !open.is_empty() {
            return open.into_iter().filter_map(|line| call(line, ids)).collect();
        }
    }
    let text = if !said.is_empty() {
        said.join("\n")
    } else if commands == 0 || steps.iter().flatten().any(|line| *line == Line::Other) {
        EXPLANATION.to_owned()
    } else {
        summary(called)
    };
    vec![json!({"type": "message", "id": ids(), "role": "assistant", "content": [{"type": "output_text", "text": text}]})]
}

fn call(line: &Line, ids: &(dyn Fn() -> String + Send + Sync)) -> Option<Value> {
    let Line::Run { environment, command } = line else { return None };
    let mut arguments = json!({"cmd": command});
    if let Some(id) = environment {
        arguments["environment_id"] = id.as_str().into();
    }
    Some(json!({"type": "function_call", "call_id": format!("call_{}", ids()), "name": TOOL, "arguments": arguments.to_string()}))
}

fn summary(called: &[Called]) -> String {
    let commands = |count: usize| if count == 1 { "1 command".to_owned() } else { format!("{count} commands") };
    let (count, ran) = (called.len(), called.iter().filter(|call| has_run(&call.output)).count());
    let failed = called.iter().filter(|call| has_failed(&call.output)).count();
    match ran {
        0 => format!("{} did not run; the reason is above.", commands(count)),
        _ if ran < count => format!("{ran} of {} ran; the output, and why the rest did not, is above.", commands(count)),
        1 if failed == 1 => "1 command ran and failed; the output is above.".to_owned(),
        _ if failed > 0 => format!("{} ran and {failed} of them failed; the output is above.", commands(count)),
        _ => format!("Done: {} ran; the output is above.", commands(count)),
    }
}

fn output_text(output: &Value) -> Option<&str> {
    output.as_str().or_else(|| output[0]["text"].as_str())
}

/// What a command that was started tells begins with the time it took; a refusal does not.
fn has_run(output: &Value) -> bool {
    output_text(output).is_some_and(|text| text.starts_with(TIME))
}

/// Its second line is how it ended.
fn has_failed(output: &Value) -> bool {
    let ended = output_text(output).and_then(|text| text.lines().nth(1)?.strip_prefix(EXIT_CODE));
    has_run(output) && ended != Some("0")
}

/// The steps of a script, each a list of lines that are done at once.
fn parse(script: &str) -> Vec<Vec<Line>> {
    let mut steps = vec![Vec::new()];
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if trimmed.is_empty() {
            steps.push(Vec::new());
        } else if let Some(text) = trimmed.strip_prefix('>') {
            push(&mut steps, Line::Say(text.trim().to_owned()));
        } else if let Some((environment, command)) = command(trimmed) {
            let mut command = command.to_owned();
            if let Some(word) = here_document(&command).map(str::to_owned) {
                for line in lines.by_ref() {
                    command = format!("{command}\n{line}");
                    if line.trim_end() == word {
                        break;
                    }
                }
            }
            push(&mut steps, Line::Run { environment, command });
        } else {
            push(&mut steps, Line::Other);
        }
    }
    steps.retain(|step| !step.is_empty());
    steps
}

fn push(steps: &mut [Vec<Line>], line: Line) {
    if let Some(step) = steps.last_mut() {
        step.push(line);
    }
}

fn command(line: &str) -> Option<(Option<String>, &str)> {
    if let Some(command) = line.strip_prefix('$') {
        return Some((None, command.trim()));
    }
    let (environment, command) = line.strip_prefix('@')?.split_once(char::is_whitespace)?;
    Some((Some(environment.to_owned()), command.trim_start().strip_prefix('$')?.trim()))
}

/// The word that ends the here-document which a command's first line begins.
fn here_document(command: &str) -> Option<&str> {
    let word = command.rsplit_once("<<")?.1.trim().trim_matches(['\'', '"']);
    (!word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> String {
        "n".into()
    }

    fn call_of(command: &str, environment: Option<&str>) -> Value {
        call(&Line::Run { environment: environment.map(str::to_owned), command: command.into() }, &ids).unwrap()
    }

    fn called(command: &str, environment: Option<&str>, output: &str) -> Called {
        let (environment, command) = (environment.map(str::to_owned), command.to_owned());
        Called { id: "n".into(), environment, command, output: output.into() }
    }

    #[test]
    fn paragraphs_are_steps() {
        let script = "$ one\n@worker $ two\n\n$ three\n\n> all done";
        assert_eq!(respond(script, &[], &ids), [call_of("one", None), call_of("two", Some("worker"))]);
        let mut done = vec![called("one", None, "1"), called("two", Some("worker"), "2")];
        assert_eq!(respond(script, &done, &ids), [call_of("three", None)]);
        done.push(called("three", None, "3"));
        assert_eq!(respond(script, &done, &ids)[0]["content"][0]["text"], "all done");
        // The same command twice is two commands, and what is left of a step is done without the rest of it.
        assert_eq!(respond("$ one\n\n$ one", &done[..1], &ids), [call_of("one", None)]);
        assert_eq!(respond(script, &done[..1], &ids), [call_of("two", Some("worker"))]);
    }

    #[test]
    fn a_here_document_is_one_command() {
        let script = "$ cat <<'EOF'\na\n\nb\nEOF\n$ next";
        assert_eq!(respond(script, &[], &ids), [call_of("cat <<'EOF'\na\n\nb\nEOF", None), call_of("next", None)]);
    }

    #[test]
    fn what_did_not_run_or_failed_is_not_said_to_be_done() {
        let (ran, failed) = (called("a", None, "Time: 0.1 s\nExit code: 0\n"), called("b", None, "Time: 0.1 s\nExit code: 2\n"));
        let refused = called("c", None, "environment `box` is not ready");
        assert_eq!(summary(std::slice::from_ref(&ran)), "Done: 1 command ran; the output is above.");
        assert_eq!(summary(std::slice::from_ref(&refused)), "1 command did not run; the reason is above.");
        assert_eq!(summary(std::slice::from_ref(&failed)), "1 command ran and failed; the output is above.");
        assert_eq!(summary(&[ran.clone(), failed]), "2 commands ran and 1 of them failed; the output is above.");
        assert!(summary(&[ran, refused]).starts_with("1 of 2 commands ran; "));
    }

    #[test]
    fn text_is_answered_with_an_explanation() {
        assert!(respond("please fix the bug", &[], &ids)[0]["content"][0]["text"].as_str().unwrap().contains("offline model"));
        assert!(respond("", &[], &ids)[0]["content"][0]["text"].as_str().unwrap().contains("offline model"));
    }

    fn message(text: &str) -> Value {
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
    }

    fn asked(id: &str, command: &str) -> Value {
        json!({"type": "function_call", "call_id": id, "name": TOOL, "arguments": json!({"cmd": command}).to_string()})
    }

    fn ended(id: &str, output: &str) -> Value {
        json!({"type": "function_call_output", "call_id": id, "output": output})
    }

    fn history(items: &[Value]) -> Vec<HistoryItem> {
        items.iter().cloned().map(HistoryItem::from).collect()
    }

    #[test]
    fn the_script_is_the_users_last_message_and_not_one_of_ours() {
        let items = [
            message("$ old"),
            asked("0", "old"),
            ended("0", "x"),
            message("$ new"),
            message("<environment_context>…"),
            asked("1", "new"),
            ended("1", "y"),
        ];
        let (script, done) = read(&history(&items));
        assert_eq!(script, "$ new");
        assert_eq!(done, [Called { id: "1".into(), ..called("new", None, "y") }]);
    }

    #[test]
    fn a_turn_that_is_finished_later_does_once_more_what_was_stopped_and_nothing_else() {
        let mut items = vec![
            message("$ ended\n$ stopped\n$ lost"),
            asked("0", "ended"),
            asked("1", "stopped"),
            asked("2", "lost"),
            ended("0", "Time: 0.1 s\nExit code: 0\n"),
            ended("1", CALL_STOPPED),
            ended("2", "This call was running when the program or its connection ended"),
            message("<turn_aborted>…"),
        ];
        let (_, before) = read(&history(&items));
        assert_eq!(before.len(), 3);
        items.push(message("<turn_resumed>…"));
        let (script, done) = read(&history(&items));
        assert_eq!(respond(&script, &done, &ids), [call_of("stopped", None)]);
    }
}
