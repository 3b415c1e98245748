//! A model without any intelligence: it runs the commands that the user writes.
//!
//! `$ make test` runs a command, `@worker $ uname -a` runs it in the environment `worker`, `> text` answers with that text.
//! Lines without an empty line between them are done at once, an empty line waits for what is above it. A command that
//! ends in `<<WORD` goes on until a line with that word. Anything else is answered with an explanation. What has been done
//! already is read off the history, so that the same history always gives the same answer.

use serde_json::{Value, json};

use super::{Answer, Item, OnProgress, Progress, Prompt, Usage};

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

pub fn answer(prompt: &Prompt, ids: &(dyn Fn() -> String + Send + Sync), progress: OnProgress<'_>) -> Answer {
    let (script, outputs) = read(prompt.history.items());
    let items = respond(&script, &outputs, ids);
    for item in &items {
        progress(Progress::ItemStarted { item: item.clone() });
        progress(Progress::ItemFinished { item: item.clone() });
    }
    let bytes = |items: &[Item]| items.iter().map(|item| item.get().len() as u64).sum::<u64>() / 4;
    let items: Vec<Item> = items.into_iter().map(Item::from).collect();
    let (input, output) = (bytes(prompt.history.items()), bytes(&items));
    let usage = Usage { input_tokens: input, output_tokens: output, total_tokens: input + output, ..Usage::default() };
    Answer { items, usage }
}

/// What the user wrote last, and the outputs of the calls since.
fn read(items: &[Item]) -> (String, Vec<Value>) {
    let (mut script, mut outputs) = (String::new(), Vec::new());
    for item in items.iter().rev() {
        let Ok(item) = serde_json::from_str::<Value>(item.get()) else { continue };
        match item["type"].as_str() {
            Some("function_call_output") => outputs.push(item["output"].clone()),
            Some("message") if item["role"] == "user" => {
                let parts = item["content"].as_array().into_iter().flatten();
                let text: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).collect();
                // Messages that begin with `<` were put there by the runtime, not by the user.
                if !text.first().is_some_and(|text| text.trim_start().starts_with('<')) {
                    script = text.join("\n");
                    break;
                }
            }
            _ => {}
        }
    }
    outputs.reverse();
    (script, outputs)
}

fn respond(script: &str, outputs: &[Value], ids: &(dyn Fn() -> String + Send + Sync)) -> Vec<Value> {
    let steps = parse(script);
    let mut done = 0;
    let mut said = Vec::new();
    for step in &steps {
        let commands = step.iter().filter(|line| matches!(line, Line::Run { .. })).count();
        said.extend(step.iter().filter_map(|line| if let Line::Say(text) = line { Some(text.as_str()) } else { None }));
        if commands > 0 && done >= outputs.len() {
            return step.iter().filter_map(|line| call(line, ids)).collect();
        }
        done += commands;
    }
    let text = if !said.is_empty() {
        said.join("\n")
    } else if done == 0 || steps.iter().flatten().any(|line| *line == Line::Other) {
        EXPLANATION.to_owned()
    } else {
        summary(outputs)
    };
    vec![json!({"type": "message", "id": ids(), "role": "assistant", "content": [{"type": "output_text", "text": text}]})]
}

fn call(line: &Line, ids: &(dyn Fn() -> String + Send + Sync)) -> Option<Value> {
    let Line::Run { environment, command } = line else { return None };
    let mut arguments = json!({"cmd": command});
    if let Some(id) = environment {
        arguments["environment_id"] = id.as_str().into();
    }
    Some(json!({"type": "function_call", "call_id": format!("call_{}", ids()), "name": "exec_command", "arguments": arguments.to_string()}))
}

fn summary(outputs: &[Value]) -> String {
    let commands = |count: usize| if count == 1 { "1 command".to_owned() } else { format!("{count} commands") };
    let (count, ran) = (outputs.len(), outputs.iter().filter(|output| has_run(output)).count());
    match ran {
        0 => format!("{} did not run; the reason is above.", commands(count)),
        _ if ran < count => format!("{ran} of {} ran; the output, and why the rest did not, is above.", commands(count)),
        _ => format!("Done: {} ran; the output is above.", commands(count)),
    }
}

/// What a command that was started tells begins with the time it took; a refusal does not.
fn has_run(output: &Value) -> bool {
    let text = output.as_str().or_else(|| output[0]["text"].as_str());
    text.is_some_and(|text| text.starts_with("Time: "))
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

    #[test]
    fn paragraphs_are_steps() {
        let script = "$ one\n@worker $ two\n\n$ three\n\n> all done";
        assert_eq!(respond(script, &[], &ids), [call_of("one", None), call_of("two", Some("worker"))]);
        assert_eq!(respond(script, &[json!("1"), json!("2")], &ids), [call_of("three", None)]);
        let last = respond(script, &[json!("1"), json!("2"), json!("3")], &ids);
        assert_eq!(last[0]["content"][0]["text"], "all done");
    }

    #[test]
    fn a_here_document_is_one_command() {
        let script = "$ cat <<'EOF'\na\n\nb\nEOF\n$ next";
        assert_eq!(respond(script, &[], &ids), [call_of("cat <<'EOF'\na\n\nb\nEOF", None), call_of("next", None)]);
    }

    #[test]
    fn what_did_not_run_is_not_said_to_have_run() {
        let (ran, refused) = (json!("Time: 0.1 s\nExit code: 0\n"), json!("environment `box` is not ready"));
        assert_eq!(summary(std::slice::from_ref(&ran)), "Done: 1 command ran; the output is above.");
        assert_eq!(summary(std::slice::from_ref(&refused)), "1 command did not run; the reason is above.");
        assert!(summary(&[ran, refused]).starts_with("1 of 2 commands ran; "));
    }

    #[test]
    fn text_is_answered_with_an_explanation() {
        assert!(respond("please fix the bug", &[], &ids)[0]["content"][0]["text"].as_str().unwrap().contains("offline model"));
        assert!(respond("", &[], &ids)[0]["content"][0]["text"].as_str().unwrap().contains("offline model"));
    }

    #[test]
    fn the_script_is_the_users_last_message_and_not_one_of_ours() {
        let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
        let items = [
            message("user", "$ old"),
            json!({"type": "function_call_output", "call_id": "0", "output": "x"}),
            message("user", "$ new"),
            message("user", "<environment_context>…"),
            json!({"type": "function_call_output", "call_id": "1", "output": "y"}),
        ];
        let items: Vec<Item> = items.iter().cloned().map(Item::from).collect();
        assert_eq!(read(&items), ("$ new".to_owned(), vec![json!("y")]));
    }
}
