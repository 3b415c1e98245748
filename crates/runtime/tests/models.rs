//! Models over HTTP, with every fault that a provider can have.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outpost_runtime::model::{
    ModelError, ModelFacts, ModelHistory, ModelProgress, ModelProvider, ModelResponse, Prompt, Provider, ProviderKey, Quirk, Quirks,
    StopReason, ToolInput, ToolSpec, WireApi, built_in, http_client,
};
use outpost_testkit::model::{Reply, ScriptedModel, call, message, response_events};
use outpost_thread::Raw;
use serde_json::{Value, json};

fn provider(model: &ScriptedModel, wire_api: WireApi) -> Provider {
    let mut provider = built_in()["ollama"].clone();
    provider.base_url = model.base_url();
    provider.wire_api = wire_api;
    provider.stream_idle_timeout_ms = 300;
    provider
}

fn ask_as(provider: Provider) -> ModelProvider {
    let counter = AtomicU64::new(0);
    let ids = Arc::new(move || format!("id-{}", counter.fetch_add(1, Ordering::Relaxed)));
    ModelProvider::new(provider, Some(ProviderKey::new("secret")), http_client().unwrap(), ids)
}

fn prompt() -> Prompt {
    Prompt {
        model: "test".into(),
        instructions: "be brief".into(),
        history: ModelHistory::new(vec![Raw::from(
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
        )]),
        tools: [
            ToolSpec { name: "exec_command".into(), description: "runs".into(), input: ToolInput::Object(json!({"type": "object"})) },
            ToolSpec {
                name: "apply_patch".into(),
                description: "patches".into(),
                input: ToolInput::Text { grammar: "start: /.*/".into() },
            },
        ]
        .into(),
        output_schema: None,
        effort: None,
        service_tier: None,
        facts: Arc::default(),
        cache_key: "thread".into(),
        trace: None,
    }
}

async fn ask(model: &ModelProvider) -> (Result<ModelResponse, ModelError>, Vec<ModelProgress>) {
    let seen = Mutex::new(Vec::new());
    let answer = model.ask(&prompt(), &|progress| seen.lock().unwrap().push(progress)).await;
    (answer, seen.into_inner().unwrap())
}

fn items(answer: &ModelResponse) -> Vec<Value> {
    answer.items.iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect()
}

#[tokio::test]
async fn the_responses_api() {
    let unknown = json!({"type": "hologram", "id": "h", "depth": 3});
    let server =
        ScriptedModel::with([Reply::Items(vec![message("hello"), call("c1", "exec_command", &json!({"cmd": "ls"})), unknown.clone()])])
            .await;
    let (answer, progress) = ask(&ask_as(provider(&server, WireApi::Responses))).await;
    let answer = answer.unwrap();
    assert_eq!(items(&answer), [message("hello"), call("c1", "exec_command", &json!({"cmd": "ls"})), unknown]);
    assert_eq!((answer.usage.input_tokens, answer.usage.total_tokens), (1, 2));
    assert_eq!(progress.len(), 3);
    let request = server.requests().remove(0);
    assert!(request.head.to_lowercase().contains("authorization: bearer secret"));
    assert_eq!(request.body["input"][0]["content"][0]["text"], "hi");
    assert_eq!(request.body["instructions"], "be brief");
    assert_eq!((&request.body["store"], &request.body["stream"]), (&json!(false), &json!(true)));
    assert_eq!(request.body["tools"][1]["format"]["syntax"], "lark");
}

#[tokio::test]
async fn chat_completions() {
    let server = ScriptedModel::with([Reply::Chunks(vec![
        json!({"choices": [{"delta": {"content": "he"}}]}),
        json!({"choices": [{"delta": {"content": "llo"}}]}),
        json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "exec_command", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}),
    ])])
    .await;
    let (answer, progress) = ask(&ask_as(provider(&server, WireApi::Chat))).await;
    let answer = answer.unwrap();
    assert_eq!(items(&answer)[0]["content"][0]["text"], "hello");
    assert_eq!(items(&answer)[1], call("c1", "exec_command", &json!({})));
    assert_eq!(answer.usage.total_tokens, 7);
    let deltas: String =
        progress.iter().filter_map(|p| if let ModelProgress::TextDelta { delta, .. } = p { Some(delta.as_str()) } else { None }).collect();
    assert_eq!(deltas, "hello");
    let body = server.requests().remove(0).body;
    assert_eq!(body["messages"], json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]));
    assert_eq!(body["tools"][1]["function"]["parameters"]["required"], json!(["input"]));
}

fn signed(text: &str) -> Value {
    json!({"type": "reasoning", "id": "id-1", "format": "anthropic", "summary": [], "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": "sig"})
}

#[tokio::test]
async fn the_anthropic_api() {
    let calls = [call("toolu_1", "exec_command", &json!({"cmd": "ls"})), call("toolu_2", "exec_command", &json!({}))];
    let items_said = [&[signed("hm"), message("hello there")], &calls[..]].concat();
    let server = ScriptedModel::with([Reply::Items(items_said.clone())]).await;
    let (answer, progress) = ask(&ask_as(provider(&server, WireApi::Anthropic))).await;
    let answer = answer.unwrap();
    let kept = items(&answer);
    assert_eq!(kept[0], signed("hm"));
    assert_eq!((&kept[1]["content"], &kept[2..]), (&items_said[1]["content"], &calls[..]));
    assert_eq!(answer.usage.total_tokens, 2);
    let deltas: String =
        progress.iter().filter_map(|p| if let ModelProgress::TextDelta { delta, .. } = p { Some(delta.as_str()) } else { None }).collect();
    assert_eq!(deltas, "hello there");
    assert!(progress.iter().any(|p| matches!(p, ModelProgress::ReasoningDelta { delta, .. } if delta == "hm")));
    let request = server.requests().remove(0);
    assert_eq!(request.path, "/v1/messages");
    let head = request.head.to_lowercase();
    assert!(head.contains("x-api-key: secret") && head.contains("anthropic-version: 2023-06-01"), "{head}");
    assert!(!head.contains("authorization"), "{head}");
    let body = request.body;
    let cached = |text: &str| json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    assert_eq!((&body["system"], &body["messages"][0]["content"]), (&cached("be brief"), &cached("hi")));
    assert_eq!(body["tools"][1]["input_schema"]["required"], json!(["input"]));
    assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(32_000), &json!(true)));
}

/// The provider's own words for trouble: before the stream and in the middle of it.
#[tokio::test]
async fn faults_of_the_anthropic_api() {
    let fault = |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}});
    let overloaded = fault("overloaded_error", "Overloaded");
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 1}}});
    for passes in [
        Reply::Status { status: 529, headers: vec![], body: overloaded.to_string() },
        Reply::Status { status: 429, headers: vec![("retry-after", "0".into())], body: fault("rate_limit_error", "slow").to_string() },
        Reply::Events(vec![start.clone(), overloaded]),
        Reply::Events(vec![start.clone(), json!({"type": "ping"})]),
    ] {
        let server = ScriptedModel::with([passes.clone(), Reply::message("whole")]).await;
        let (answer, progress) = ask(&ask_as(provider(&server, WireApi::Anthropic))).await;
        assert_eq!(items(&answer.unwrap_or_else(|error| panic!("{passes:?}: {error}")))[0]["content"][0]["text"], "whole");
        assert_eq!(progress.iter().filter(|p| matches!(p, ModelProgress::Retrying { attempt: 1, .. })).count(), 1, "{passes:?}");
    }
    let long = fault("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum");
    let delta = |stop: &str| json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {}});
    for full in [Reply::status(400, &long.to_string()), Reply::Events(vec![start.clone(), delta("model_context_window_exceeded")])] {
        let server = ScriptedModel::with([full]).await;
        let error = ask(&ask_as(provider(&server, WireApi::Anthropic))).await.0.unwrap_err();
        assert!(matches!(error, ModelError::ContextExceeded { .. }), "{error:?}");
    }
    for (stop, reason) in [("refusal", StopReason::Refused), ("max_tokens", StopReason::Truncated), ("end_turn", StopReason::Complete)] {
        let server = ScriptedModel::with([Reply::Events(vec![start.clone(), delta(stop), json!({"type": "message_stop"})])]).await;
        assert_eq!(ask(&ask_as(provider(&server, WireApi::Anthropic))).await.0.unwrap().stop, reason);
    }
}

/// A thought is bound to what stood before it on newer models: the provider is told to leave void ones out, and where it refuses them all the same
/// (an older account, a gateway) the thread goes on without them.
#[tokio::test]
async fn thoughts_that_a_provider_no_longer_takes_do_not_end_a_thread() {
    let refusals = [
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
        "thinking.block_binding: Extra inputs are not permitted",
    ];
    let said = [signed("hm"), call("toolu_1", "exec_command", &json!({"cmd": "ls"}))];
    let result = json!({"type": "function_call_output", "call_id": "toolu_1", "output": "files"});
    let question = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]});
    let history = [question].into_iter().chain(said.clone()).chain([result]).map(Raw::from).collect::<Vec<_>>();
    for refusal in refusals {
        let error = json!({"type": "error", "error": {"type": "invalid_request_error", "message": refusal}}).to_string();
        let replies = [Reply::Items(said.to_vec()), Reply::status(400, &error), Reply::message("whole")];
        let server = ScriptedModel::with(replies).await;
        ask(&ask_as(provider(&server, WireApi::Anthropic))).await.0.unwrap();
        let facts = ModelFacts::of("claude-opus-5-5", &Default::default());
        let prompt = Prompt { history: ModelHistory::new(history.clone()), facts: facts.into(), effort: Some("none".into()), ..prompt() };
        let answer = ask_as(provider(&server, WireApi::Anthropic)).ask(&prompt, &|_| {}).await.unwrap();
        assert_eq!(items(&answer)[0]["content"][0]["text"], "whole");
        let requests = server.requests();
        let [_, first, second] = &requests[..] else { panic!("{} requests", requests.len()) };
        let thinking = json!({"type": "adaptive", "display": "summarized", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
        assert_eq!((&first.body["thinking"], &first.body["output_config"]["effort"]), (&thinking, &json!("low")));
        assert_eq!(first.body["messages"][1]["content"][0]["type"], "thinking");
        assert!(first.head.to_lowercase().contains("anthropic-beta: thinking-binding-controls-2026-08-01"), "{}", first.head);
        assert_eq!((second.body.get("thinking"), &second.body["messages"][1]["content"][0]["type"]), (None, &json!("tool_use")));
        assert!(!second.head.to_lowercase().contains("anthropic-beta"), "{}", second.head);
    }
}

/// OpenAI seals thoughts for one organisation, and its keys change: a thread that holds one which can no longer be opened goes on.
#[tokio::test]
async fn sealed_thoughts_that_can_no_longer_be_opened_do_not_end_a_thread() {
    let sealed = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"});
    let error = json!({"message": "The encrypted content gAAA could not be verified.", "code": "invalid_encrypted_content"});
    let question = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]});
    let failed = json!({"type": "response.failed", "response": {"error": error}});
    for refusal in [Reply::status(400, &json!({"error": error}).to_string()), Reply::Events(vec![failed])] {
        let server = ScriptedModel::with([Reply::Items(vec![sealed.clone(), message("hm")]), refusal, Reply::message("whole")]).await;
        let model = ask_as(provider(&server, WireApi::Responses));
        let kept = ask(&model).await.0.unwrap().items;
        let history = [Raw::from(question.clone())].into_iter().chain(kept).chain([Raw::from(question.clone())]).collect();
        let retries = Mutex::new(0);
        let count = |progress| *retries.lock().unwrap() += u32::from(matches!(progress, ModelProgress::Retrying { .. }));
        let answer = model.ask(&Prompt { history: ModelHistory::new(history), ..prompt() }, &count).await.unwrap();
        assert_eq!((items(&answer)[0]["content"][0]["text"].as_str(), *retries.lock().unwrap()), (Some("whole"), 1));
        let kinds = |at: usize| -> Vec<Value> {
            server.requests()[at].body["input"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect()
        };
        assert_eq!(
            (kinds(1), kinds(2)),
            (vec!["message".into(), "reasoning".into(), "message".into(), "message".into()], vec!["message".into(); 3])
        );
    }
    // Without a thought there is nothing to leave out: the refusal stands.
    let server = ScriptedModel::with([Reply::status(400, &json!({"error": error}).to_string())]).await;
    let error = ask(&ask_as(provider(&server, WireApi::Responses))).await.0.unwrap_err();
    assert!(matches!(error, ModelError::ThoughtsRefused { .. }), "{error:?}");
}

/// What a provider tells besides answers: which models there are.
#[tokio::test]
async fn models_are_listed() {
    let server = ScriptedModel::with([]).await;
    server.page("/v1/models", json!({"data": [{"id": "claude-a", "type": "model"}, {"id": "qwen3:latest"}]}));
    let model = ask_as(provider(&server, WireApi::Anthropic));
    let listing = model.reach().await.unwrap().unwrap();
    assert_eq!((listing.status, listing.models.len()), (200, 2));
    assert!(listing.may_have("claude-a") && listing.may_have("qwen3") && !listing.may_have("gpt-5"));
    let none = ScriptedModel::with([]).await;
    assert!(ask_as(provider(&none, WireApi::Chat)).reach().await.unwrap().unwrap().may_have("anything"));
}

/// A good status with something else than events behind it is named at once, and not asked for again.
#[tokio::test]
async fn what_is_no_stream_is_named_at_once() {
    let page = "<!DOCTYPE html><html><head><title>Sign in to Example</title></head></html>";
    let html = vec![("content-type", "text/html".to_owned())];
    let gzip = vec![("content-type", "text/event-stream".to_owned()), ("content-encoding", "gzip".to_owned())];
    for (headers, body, told) in [
        (html, page.as_bytes().to_vec(), "a web page with the title `Sign in to Example`"),
        (gzip, b"\x1f\x8b\x08\x00".to_vec(), "compressed with gzip"),
        (vec![], b"\x1f\x8b\x08\x00".to_vec(), "compressed with gzip"),
        (vec![], b"{\"id\":\"x\",\"choices\":[]}".to_vec(), "a JSON document"),
        (vec![], b"Please log in first.\n".to_vec(), "the text `Please log in first.`"),
    ] {
        for wire in [WireApi::Responses, WireApi::Chat, WireApi::Anthropic] {
            let server = ScriptedModel::with([Reply::Body { headers: headers.clone(), body: body.clone() }]).await;
            let error = ask(&ask_as(provider(&server, wire))).await.0.unwrap_err();
            assert!(matches!(&error, ModelError::NotAStream { .. }) && error.to_string().contains(told), "{error}");
            assert!(error.to_string().contains("base_url"), "{error}");
            assert_eq!(server.requests().len(), 1, "{told}");
        }
    }
    // An error of a gateway under a good status is what it says.
    let busy = Reply::Body { headers: vec![], body: br#"{"error":{"code":429,"message":"slow down"}}"#.to_vec() };
    let server = ScriptedModel::with([busy, Reply::message("whole")]).await;
    assert!(ask(&ask_as(provider(&server, WireApi::Responses))).await.0.is_ok());
    let away =
        Reply::Status { status: 302, headers: vec![("location", "https://login.example/?token=secret".into())], body: String::new() };
    let server = ScriptedModel::with([away]).await;
    let error = ask(&ask_as(provider(&server, WireApi::Responses))).await.0.unwrap_err().to_string();
    assert!(error.contains("redirected to https://login.example/:") && !error.contains("secret"), "{error}");
}

/// Calls that a model writes into its text are calls where the provider has that quirk, and the user is told.
#[tokio::test]
async fn calls_in_text_are_taken_by_quirk() {
    let text = "I look.\n<tool_call>\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\"}}\n</tool_call>";
    for (quirks, count) in [(Quirks::default(), 1), (Quirks::from([Quirk::TextCalls]), 2)] {
        for wire in [WireApi::Responses, WireApi::Chat, WireApi::Anthropic] {
            let server = ScriptedModel::with([Reply::message(text)]).await;
            let (answer, progress) = ask(&ask_as(Provider { quirks: quirks.clone(), ..provider(&server, wire) })).await;
            let answer = answer.unwrap();
            let kept = items(&answer);
            assert_eq!(kept.len(), count, "{kept:?}");
            let about = |p: &&ModelProgress| matches!(p, ModelProgress::Notice { text } if text.contains("text_calls"));
            assert_eq!(progress.iter().filter(about).count(), 1);
            assert_eq!(answer.stop, if count == 1 { StopReason::TextCall } else { StopReason::Complete });
            if count == 2 {
                assert_eq!((&kept[0]["content"][0]["text"], &kept[1]["name"]), (&json!("I look."), &json!("exec_command")));
                assert_eq!(kept[1]["arguments"], "{\"cmd\":\"ls\"}");
            }
        }
    }
}

/// A fault that passes is asked again, and the user is told; the second answer is whole.
#[tokio::test]
async fn faults_that_pass() {
    let late =
        Reply::Status { status: 429, headers: vec![("retry-after-ms", "20".into())], body: r#"{"error":{"message":"slow down"}}"#.into() };
    let half = response_events(&[message("half")]);
    let half = half[..half.len() / 2].to_owned();
    for fault in [
        late,
        Reply::status(500, ""),
        Reply::status(503, "busy"),
        Reply::Cut(half.clone()),
        Reply::Cut(String::new()),
        Reply::Silent(half),
        Reply::Endless,
    ] {
        let server = ScriptedModel::with([fault.clone(), Reply::message("whole")]).await;
        let (answer, progress) = ask(&ask_as(provider(&server, WireApi::Responses))).await;
        assert_eq!(items(&answer.unwrap_or_else(|error| panic!("{fault:?}: {error}"))), [message("whole")], "{fault:?}");
        assert_eq!(progress.iter().filter(|p| matches!(p, ModelProgress::Retrying { attempt: 1, .. })).count(), 1, "{fault:?}");
        assert_eq!(server.requests().len(), 2, "{fault:?}");
    }
}

/// A fault that stays is told at once, in the provider's words.
#[tokio::test]
async fn faults_that_stay() {
    let too_long = r#"{"error":{"message":"too many tokens","code":"context_length_exceeded"}}"#;
    type Check = fn(&ModelError) -> bool;
    let cases: [(Reply, Check); 5] = [
        (
            Reply::status(400, r#"{"error":{"message":"bad tool"}}"#),
            |e| matches!(e, ModelError::Refused { status: 400, message, .. } if message == "bad tool"),
        ),
        (Reply::status(401, r#"{"error":{"message":"wrong key"}}"#), |e| matches!(e, ModelError::Refused { status: 401, .. })),
        (Reply::status(400, too_long), |e| matches!(e, ModelError::ContextExceeded { .. })),
        (Reply::status(429, r#"{"error":{"message":"no money","code":"insufficient_quota"}}"#), |e| {
            matches!(e, ModelError::Refused { status: 429, .. })
        }),
        (Reply::Cut("data: {garbage\n\n".into()), |e| matches!(e, ModelError::Nonsense { .. })),
    ];
    for (fault, is_it) in cases {
        for wire in [WireApi::Responses, WireApi::Chat, WireApi::Anthropic] {
            let server = ScriptedModel::with([fault.clone()]).await;
            let error = ask(&ask_as(provider(&server, wire))).await.0.unwrap_err();
            assert!(is_it(&error), "{fault:?}: {error:?}");
            assert!(!error.to_string().contains("secret"));
            assert_eq!(server.requests().len(), 1, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn patience_ends() {
    let server = ScriptedModel::with((0..3).map(|_| Reply::status(500, "down")).collect::<Vec<_>>()).await;
    let mut provider = provider(&server, WireApi::Responses);
    provider.request_max_retries = 2;
    let error = ask(&ask_as(provider)).await.0.unwrap_err();
    assert!(matches!(error, ModelError::Busy { status: 500, .. }), "{error:?}");
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn nobody_is_there() {
    let mut provider = built_in()["ollama"].clone();
    provider.base_url = "http://127.0.0.1:9/v1".into();
    provider.request_max_retries = 1;
    let (answer, progress) = ask(&ask_as(provider)).await;
    assert!(matches!(answer, Err(ModelError::Unreachable { .. })), "{answer:?}");
    assert_eq!(progress.len(), 1);
    // What the network said is behind our words.
    let error = answer.unwrap_err();
    let causes = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    let kinds: Vec<_> = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind).collect();
    assert!(kinds.contains(&std::io::ErrorKind::ConnectionRefused), "{error:?}");
}

/// A failure in the middle of a stream is an error of the same kinds as one instead of it.
#[tokio::test]
async fn a_failure_in_the_middle_of_an_answer() {
    let failed = |code: &str| {
        let event = json!({"type": "response.failed", "response": {"error": {"code": code, "message": "it failed"}}});
        Reply::Cut(format!("data: {event}\n\n"))
    };
    let server = ScriptedModel::with([failed("context_length_exceeded")]).await;
    let error = ask(&ask_as(provider(&server, WireApi::Responses))).await.0.unwrap_err();
    assert!(matches!(error, ModelError::ContextExceeded { .. }));
    let server = ScriptedModel::with([failed("rate_limit_exceeded")]).await;
    let (answer, _) = ask(&ask_as(provider(&server, WireApi::Responses))).await;
    assert_eq!(items(&answer.unwrap()), [message("done")]);
}

/// What each wire says that is sent with quirks and without: whether a key is in its own header, and the body.
async fn sent(wire: WireApi, quirks: Quirks, prompt: &Prompt) -> (bool, Value) {
    // What it thought is something that it said.
    let server = ScriptedModel::with([Reply::Items(vec![thought()]), Reply::message("hello")]).await;
    let model = ask_as(Provider { quirks, ..provider(&server, wire) });
    ask(&model).await.0.unwrap();
    model.ask(prompt, &|_| {}).await.unwrap();
    let request = server.requests().remove(1);
    let head = request.head.to_lowercase();
    assert_ne!(head.contains("x-api-key: secret"), head.contains("authorization: bearer secret"), "{head}");
    (head.contains("x-api-key"), request.body)
}

fn thought() -> Value {
    json!({"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]})
}

/// Every quirk has its effect on the wires that it is about, and none on the others.
#[tokio::test]
async fn quirks_change_what_is_sent() {
    let said = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    let history = [said("user", "input_text", "hi"), thought(), said("assistant", "output_text", "ok"), said("user", "input_text", "go")];
    let prompt = Prompt { history: ModelHistory::new(history.map(Raw::from).into()), ..prompt() };
    for wire in [WireApi::Responses, WireApi::Chat, WireApi::Anthropic] {
        let (own_header, plain) = sent(wire, Quirks::default(), &prompt).await;
        assert_eq!(own_header, wire == WireApi::Anthropic);
        for quirk in [
            Quirk::BearerKey,
            Quirk::NoParallelCalls,
            Quirk::NoStreamOptions,
            Quirk::NoCacheControl,
            Quirk::EchoReasoning,
            Quirk::TextCalls,
        ] {
            let (header, body) = sent(wire, Quirks::from([quirk]), &prompt).await;
            let mut expected = plain.clone();
            match (quirk, wire) {
                (Quirk::NoParallelCalls, WireApi::Anthropic) => {
                    expected["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
                }
                (Quirk::NoParallelCalls, _) => expected["parallel_tool_calls"] = false.into(),
                (Quirk::NoStreamOptions, WireApi::Chat) => {
                    assert_eq!(expected.as_object_mut().unwrap().remove("stream_options"), Some(json!({"include_usage": true})));
                }
                (Quirk::NoCacheControl, WireApi::Anthropic) => {
                    assert!(plain.to_string().contains("cache_control") && !body.to_string().contains("cache_control"), "{body:#}");
                    continue;
                }
                (Quirk::EchoReasoning, WireApi::Chat) => expected["messages"][2]["reasoning_content"] = "hm".into(),
                _ => {}
            }
            assert_eq!(body, expected, "{quirk:?} on {wire:?}");
            assert_eq!(header, own_header && quirk != Quirk::BearerKey, "{quirk:?} on {wire:?}");
        }
    }
}

/// A schema for the answer and a service tier, in the words of each wire.
#[tokio::test]
async fn schemas_and_service_tiers_are_sent_in_the_words_of_each_wire() {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let facts = ModelFacts::of("claude-sonnet-4-5", &Default::default());
    let asked = || Prompt {
        output_schema: Some(Arc::new(schema.clone())),
        service_tier: Some("flex".into()),
        facts: facts.clone().into(),
        ..prompt()
    };
    let named = json!({"name": "answer", "strict": true, "schema": schema});
    let mut format = named.clone();
    format["type"] = "json_schema".into();
    for (wire, place, expected) in [
        (WireApi::Responses, "/text/format", format),
        (WireApi::Chat, "/response_format", json!({"type": "json_schema", "json_schema": named})),
        (WireApi::Anthropic, "/output_config/format", json!({"type": "json_schema", "schema": schema})),
    ] {
        let (_, body) = sent(wire, Quirks::default(), &asked()).await;
        assert_eq!(body.pointer(place), Some(&expected), "{wire:?}: {body:#}");
        assert_eq!(body["service_tier"], "flex", "{wire:?}");
        let (_, without) = sent(wire, Quirks::default(), &prompt()).await;
        assert_eq!((without.pointer(place), without.get("service_tier")), (None, None), "{wire:?}");
    }
    // A model whose provider cannot hold an answer to a schema is asked for it in words alone.
    let plain = Prompt { facts: Arc::default(), ..asked() };
    let (_, body) = sent(WireApi::Anthropic, Quirks::default(), &plain).await;
    assert_eq!(body.get("output_config"), None);
    assert!(body["system"][0]["text"].as_str().unwrap().contains("\"additionalProperties\""), "{body:#}");
}
