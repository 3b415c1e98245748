//! Turns with a model that is weak: it answers with nothing, promises and does not act, writes its calls as text, is cut off or
//! refuses. Each turn ends by itself, and says truly how.

use outpost_runtime::feed::{FeedReader, Read};
use outpost_runtime::live::{NewInput, ThreadEvent};
use outpost_runtime::model::ModelOverrides;
use outpost_testkit::LinkKind;
use outpost_testkit::model::{Reply, call, message};
use outpost_thread::{Settings, TurnFinished, TurnStatus};
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, settled, turn};

const WIRES: [&str; 3] = ["scripted", "chat", "claude"];

async fn harness(wire: &str, replies: Vec<Reply>) -> Harness {
    let mut setup = Setup::new(&[LinkKind::Memory], replies);
    setup.config.model_provider = wire.into();
    Harness::new(setup).await
}

/// A provider of one's own is not asked for the model of the provider that runs here.
#[tokio::test]
async fn a_provider_without_a_model_is_named_and_not_asked() {
    for wire in WIRES {
        let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
        (setup.config.model_provider, setup.config.model) = (wire.into(), "offline".into());
        let harness = Harness::new(setup).await;
        let end = ended(&harness).await;
        assert_eq!((kind(&end).as_str(), end.status), ("noModel", TurnStatus::Failed));
        assert!(end.error.unwrap().get().contains(&format!("provider `{wire}` has no model of its own")));
        assert_eq!(harness.model.requests().len(), 0);
    }
}

/// The last turn of a thread in which the user said one thing.
async fn ended(harness: &Harness) -> TurnFinished {
    let thread = harness.start(&[0]).await;
    turn(&thread, "make the file").await;
    harness.turn_ends(thread.id()).await.pop().unwrap()
}

fn kind(end: &TurnFinished) -> String {
    let error: Value = end.error.as_ref().map(|error| error.read().unwrap()).unwrap_or_default();
    error["kind"].as_str().unwrap_or_default().to_owned()
}

fn requests_to_go_on(harness: &Harness) -> usize {
    harness.model.requests().last().unwrap().body.to_string().matches("<continue_request>").count()
}

/// What the user was warned of so far.
async fn warnings(feed: &mut FeedReader<ThreadEvent>) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let read = tokio::select! {
            biased;
            read = feed.next() => read,
            () = std::future::ready(()) => return told,
        };
        if let Read::Event(ThreadEvent::Warning { message }) = read {
            told.push(message);
        }
    }
}

fn touch(id: &str, file: &str) -> Value {
    call(id, "exec_command", &json!({"cmd": format!("touch {file}"), "login": false}))
}

#[tokio::test]
async fn an_empty_answer_is_asked_once_to_go_on() {
    for wire in WIRES {
        let harness = harness(wire, vec![Reply::Items(vec![]), Reply::Items(vec![touch("a", "made")]), Reply::message("Made.")]).await;
        assert_eq!(ended(&harness).await.status, TurnStatus::Completed, "{wire}");
        assert!(harness.work(0).join("made").exists());
        assert_eq!(requests_to_go_on(&harness), 1, "{wire}");
    }
}

#[tokio::test]
async fn a_turn_whose_answers_stay_empty_fails() {
    for wire in WIRES {
        let harness = harness(wire, vec![Reply::Items(vec![]), Reply::Items(vec![message(" ")])]).await;
        let end = ended(&harness).await;
        assert_eq!((end.status, kind(&end).as_str()), (TurnStatus::Failed, "emptyAnswer"), "{wire}");
        assert_eq!(harness.model.requests().len(), 2);
    }
}

#[tokio::test]
async fn a_promise_without_a_call_is_asked_once_to_be_kept() {
    let promise = || Reply::message("The directory is empty. I'll create the file now.");
    let kept = harness("scripted", vec![promise(), Reply::Items(vec![touch("a", "made")]), Reply::message("Made.")]).await;
    assert_eq!(ended(&kept).await.status, TurnStatus::Completed);
    assert!(kept.work(0).join("made").exists());
    let broken = harness("scripted", vec![promise(), promise()]).await;
    let end = ended(&broken).await;
    assert_eq!((end.status, kind(&end).as_str()), (TurnStatus::Failed, "brokenPromise"));
    assert_eq!((broken.model.requests().len(), requests_to_go_on(&broken)), (2, 1));
    // A promise that was kept is no reason to end the turn at the next one.
    let replies = vec![promise(), Reply::Items(vec![touch("a", "one")]), promise(), Reply::Items(vec![touch("b", "two")])];
    let twice = harness("scripted", replies).await;
    assert_eq!(ended(&twice).await.status, TurnStatus::Completed);
    assert!(twice.work(0).join("two").exists());
}

/// A provider without the quirk: a call in text is not run. The user hears of the quirk, and a turn that ends with one has failed.
#[tokio::test]
async fn calls_written_as_text_are_pointed_out_where_they_are_not_read() {
    let text = "<tool_call>\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"touch made\", \"login\": false}}\n</tool_call>";
    let example = format!("It is made so:\n{text}\nand that is all.");
    for wire in ["strict", "strict-chat", "strict-claude"] {
        for (replies, status, failed, requests) in [
            (vec![Reply::message(text), Reply::message(text)], TurnStatus::Failed, "textCall", 2),
            (vec![Reply::message(text), Reply::Items(vec![touch("a", "made")]), Reply::message("Made.")], TurnStatus::Completed, "", 3),
            (vec![Reply::message(&example)], TurnStatus::Completed, "", 1),
        ] {
            let harness = harness(wire, replies).await;
            let thread = harness.start(&[0]).await;
            let mut feed = thread.subscribe();
            turn(&thread, "make the file").await;
            let end = harness.turn_ends(thread.id()).await.pop().unwrap();
            assert_eq!((end.status, kind(&end).as_str()), (status, failed), "{wire}");
            assert_eq!((harness.model.requests().len(), harness.work(0).join("made").exists()), (requests, requests == 3), "{wire}");
            let told = warnings(&mut feed).await;
            assert!(told.len() == 1 && told[0].contains("quirks = [\"text_calls\"]"), "once in a turn: {told:?}");
        }
    }
}

/// A model that is not in the table is taken for one with defaults, and the user is told once in a thread.
#[tokio::test]
async fn an_unknown_model_is_told_once() {
    let told_of = async |model: &str| {
        let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
        setup.config.model = model.into();
        let harness = Harness::new(setup).await;
        let thread = harness.start(&[0]).await;
        let mut feed = thread.subscribe();
        turn(&thread, "one").await;
        turn(&thread, "two").await;
        warnings(&mut feed).await
    };
    let told = told_of("my-own").await;
    let expected = "`my-own` is not in the table of models: a window of 128000 tokens, images and parallel calls are assumed; \
                    `[models.\"my-own\"]` in config.toml says otherwise";
    assert_eq!(told, [expected]);
    // The table knows one, and the configuration of the tests the other.
    assert_eq!(told_of("qwen3:8b").await, Vec::<String>::new());
    assert_eq!(told_of("scripted").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_refusal_fails_the_turn_with_its_words() {
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 1}}});
    let stop = json!({"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 1}});
    let words = json!({"type": "message", "id": "msg", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot help."}]});
    for (wire, reply) in [
        ("scripted", Reply::Items(vec![words])),
        ("chat", Reply::Chunks(vec![json!({"choices": [{"delta": {}, "finish_reason": "content_filter"}]})])),
        ("claude", Reply::Events(vec![start, stop, json!({"type": "message_stop"})])),
    ] {
        let harness = harness(wire, vec![reply]).await;
        let end = ended(&harness).await;
        assert_eq!((end.status, kind(&end).as_str()), (TurnStatus::Failed, "modelRefused"), "{wire}");
        assert_eq!(harness.model.requests().len(), 1);
        assert_eq!(end.error.unwrap().get().contains("I cannot help."), wire == "scripted");
    }
}

/// A call that the limit of an answer cut off is not run; the model goes on where it was.
#[tokio::test]
async fn an_answer_that_was_cut_off_is_continued() {
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 1}}});
    let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "exec_command", "input": {}}});
    let input =
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{\"cmd\": \"touch half"}});
    let stop = json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 1}});
    let cut = Reply::Events(vec![start, block, input, stop, json!({"type": "message_stop"})]);
    let goes_on = harness("claude", vec![cut.clone(), Reply::Items(vec![touch("b", "made")]), Reply::message("Made.")]).await;
    assert_eq!(ended(&goes_on).await.status, TurnStatus::Completed);
    assert!(goes_on.work(0).join("made").exists() && !goes_on.work(0).join("half").exists());
    let stays = harness("claude", vec![cut.clone(), cut]).await;
    let end = ended(&stays).await;
    assert_eq!((end.status, kind(&end).as_str()), (TurnStatus::Failed, "truncatedAnswer"));
}

/// Calls that come as text run like all others, and stand in the history as calls.
#[tokio::test]
async fn calls_written_as_text_run() {
    for wire in WIRES {
        let text = "```json\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"touch made\", \"login\": false}}\n```";
        let harness = harness(wire, vec![Reply::message(text), Reply::message(text), Reply::message("Made.")]).await;
        let thread = harness.start(&[0]).await;
        let mut feed = thread.subscribe();
        turn(&thread, "make the file").await;
        assert_eq!(harness.turn_ends(thread.id()).await.pop().unwrap().status, TurnStatus::Completed);
        assert!(harness.work(0).join("made").exists(), "{wire}");
        let told = warnings(&mut feed).await;
        assert!(told.len() == 1 && told[0].contains("text_calls"), "once in a turn: {told:?}");
        assert!(!harness.model.requests()[1].body.to_string().contains("```json"), "{wire}");
    }
}

/// A tool that there is not, called in text: the model is told which there are, instead of the turn ending with nothing done.
#[tokio::test]
async fn a_call_in_text_of_no_tool_is_answered() {
    let text = "```json\n{\"name\": \"change_env\", \"arguments\": {\"cwd\": \"/\"}}\n```";
    let harness = harness("chat", vec![Reply::message(text), Reply::Items(vec![touch("a", "made")]), Reply::message("Made.")]).await;
    assert_eq!(ended(&harness).await.status, TurnStatus::Completed);
    assert!(harness.work(0).join("made").exists());
    assert!(harness.model.requests()[1].body.to_string().contains("there is no tool `change_env`; there are: exec_command"));
}

/// What a server at home really holds is read from it: a smaller window is told once, and the conversation is summed up in time.
#[tokio::test]
async fn a_window_that_is_smaller_than_assumed_is_told_and_kept() {
    let much = call("a", "exec_command", &json!({"cmd": "seq 1 6000", "login": false}));
    let harness = harness("chat", vec![Reply::Items(vec![much])]).await;
    harness.model.page("/props", json!({"default_generation_settings": {"n_ctx": 4096}}));
    harness.model.push_for("<compaction_request>", Reply::message("SUMMARY"));
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    turn(&thread, "count").await;
    turn(&thread, "and now?").await;
    let told = warnings(&mut feed).await;
    assert!(told.len() == 1 && told[0].contains("a context window of 4096 tokens"), "{told:?}");
    let requests = harness.model.requests();
    assert!(requests[1].body.to_string().contains("<compaction_request>"), "{:#}", requests[1].body);
    assert!(requests[2].body.to_string().contains("SUMMARY"));
    assert!(harness.turn_ends(thread.id()).await.iter().all(|end| end.status == TurnStatus::Completed));
}

/// The window of the model that is asked counts, and not that of the model with which the thread began.
#[tokio::test]
async fn a_thread_that_moves_to_a_model_with_a_smaller_window_is_summed_up_before_it_asks() {
    let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
    setup.config.models.insert("large".into(), ModelOverrides { context_window: Some(1_000_000), ..ModelOverrides::default() });
    setup.config.models.insert("small".into(), ModelOverrides { context_window: Some(8192), ..ModelOverrides::default() });
    setup.config.model = "large".into();
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    // The scripted model says that it used two tokens, so that only what is added after its last answer counts.
    let much = format!("remember the numbers {}", "1 2 3 4 5 6 7 8 9 ".repeat(2_000));
    turn(&thread, &much).await;
    turn(&thread, &much).await;
    assert_eq!(harness.model.requests().len(), 2, "a large window holds it");
    harness.model.push_for("<compaction_request>", Reply::message("SUMMARY"));
    let settings = Settings { model: Some("small".into()), ..Settings::default() };
    thread.input(NewInput { settings, ..NewInput::text(&much) }).await.unwrap();
    settled(&thread).await;
    let requests = harness.model.requests();
    assert_eq!(requests.len(), 4, "one request to sum up, and one for the answer");
    assert_eq!(requests[2].body["model"], "small");
    assert!(requests[2].body.to_string().contains("<compaction_request>"), "{:#}", requests[2].body);
    assert!(requests[3].body.to_string().contains("SUMMARY"));
    assert!(harness.turn_ends(thread.id()).await.iter().all(|end| end.status == TurnStatus::Completed));
}

/// What a provider says when a conversation does not fit its window.
fn too_long(wire: &str) -> Reply {
    let error = match wire {
        "claude" => {
            let message = "prompt is too long: 208310 tokens > 200000 maximum";
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
        }
        _ => json!({"error": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}}),
    };
    Reply::status(400, &error.to_string())
}

/// An estimate that was too low costs one request: the conversation is summed up, and the same turn goes on. It does so also where the
/// request for the summary does not fit: that is asked for again with the oldest part left out.
#[tokio::test]
async fn a_conversation_that_is_refused_as_too_long_is_summed_up_and_the_turn_goes_on() {
    for wire in WIRES {
        for is_summary_refused in [false, true] {
            let first = Reply::Items(vec![touch("a", "one")]);
            let harness = harness(wire, vec![first, too_long(wire), Reply::Items(vec![touch("b", "two")]), Reply::message("Made.")]).await;
            if is_summary_refused {
                harness.model.push_for("<compaction_request>", too_long(wire));
            }
            harness.model.push_for("<compaction_request>", Reply::message("SUMMARY"));
            assert_eq!(ended(&harness).await.status, TurnStatus::Completed, "{wire}");
            assert!(harness.work(0).join("one").exists() && harness.work(0).join("two").exists(), "{wire}");
            let sent: Vec<String> = harness.model.requests().iter().map(|request| request.body.to_string()).collect();
            let asks: Vec<bool> = sent.iter().map(|body| body.contains("<compaction_request>")).collect();
            let expected: &[bool] =
                if is_summary_refused { &[false, false, true, true, false, false] } else { &[false, false, true, false, false] };
            assert_eq!(asks, expected, "{wire}");
            let next = &sent[asks.iter().rposition(|asks| *asks).unwrap() + 1];
            assert!(next.contains("SUMMARY") && next.contains("make the file") && !next.contains("touch one"), "{wire}: {next}");
        }
    }
}

/// Nothing is gained by summing up again what was just summed up.
#[tokio::test]
async fn a_conversation_that_is_too_long_also_when_summed_up_fails_the_turn() {
    for wire in WIRES {
        let harness = harness(wire, vec![too_long(wire), too_long(wire)]).await;
        harness.model.push_for("<compaction_request>", Reply::message("SUMMARY"));
        assert_eq!(ended(&harness).await.status, TurnStatus::Failed, "{wire}");
        assert_eq!(harness.model.requests().len(), 3, "{wire}");
    }
}

/// A turn that never comes to an end is ended by its budget, also where none is configured.
#[tokio::test]
async fn a_turn_has_a_budget_of_steps() {
    let replies: Vec<Reply> = (0..9).map(|n| Reply::Items(vec![touch(&format!("c{n}"), &format!("f{n}"))])).collect();
    let mut setup = Setup::new(&[LinkKind::Memory], replies);
    assert_eq!(setup.config.budgets.turn_steps, Some(500));
    setup.config.budgets.turn_steps = Some(3);
    let harness = Harness::new(setup).await;
    let end = ended(&harness).await;
    assert_eq!((end.status, harness.model.requests().len()), (TurnStatus::Interrupted, 3));
    assert!(end.error.unwrap().get().contains("budgets.turn_steps"));
}

/// A patch that cannot be read is answered with how exactly this patch has to be written.
#[tokio::test]
async fn a_patch_that_cannot_be_read_is_answered_with_its_accepted_form() {
    let patch = |text: &str| call("a", "apply_patch", &json!({"input": text}));
    let forgiven = "*** Begin Patch\n*** Add File: hello.txt\n+hi\n*** End of File\n";
    let kind = harness("scripted", vec![Reply::Items(vec![patch(forgiven)])]).await;
    assert_eq!(ended(&kind).await.status, TurnStatus::Completed);
    assert_eq!(std::fs::read_to_string(kind.work(0).join("hello.txt")).unwrap(), "hi\n");
    let wrong = "*** Begin Patch\n*** Add File: hello.txt\n+hi\nyou\n*** End Patch";
    let strict = harness("scripted", vec![Reply::Items(vec![patch(wrong)])]).await;
    ended(&strict).await;
    let told = strict.model.requests().pop().unwrap().body.to_string();
    assert!(told.contains(r"*** Add File: hello.txt\n+hi\n+you\n*** End Patch"), "{told}");
    assert!(!strict.work(0).join("hello.txt").exists());
}
