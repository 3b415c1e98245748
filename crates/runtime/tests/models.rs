//! Models over HTTP, with every fault that a provider can have.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outpost_runtime::model::{
    ModelError, ModelHistory, ModelProgress, ModelProvider, ModelResponse, Prompt, Provider, ProviderKey, ToolInput, ToolSpec, WireApi,
    built_in, http_client,
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
        for wire in [WireApi::Responses, WireApi::Chat] {
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
