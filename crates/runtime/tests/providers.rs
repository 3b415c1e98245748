//! Answers and errors of providers that cannot be had here, in the shapes that their documentation and public issues show. There are some for
//! every provider of docs/models.md.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use outpost_runtime::model::{
    ModelError, ModelHistory, ModelProvider, Prompt, Provider, ProviderKey, Quirks, ToolInput, ToolSpec, WireApi, built_in, http_client,
};
use outpost_testkit::model::{Reply, ScriptedModel};
use outpost_thread::Raw;
use serde_json::{Value, json};

/// What a provider sends, and what that is taken for.
struct Case {
    provider: &'static str,
    wire: WireApi,
    reply: Reply,
    expected: Expected,
}

enum Expected {
    /// The kinds of the items, each with its text, its arguments or its picture.
    Items(Vec<(&'static str, &'static str)>),
    Refused(u16, &'static str),
    Busy(u16, &'static str),
    TooLong,
}

/// A stream as it is on the wire: lines of it as they are, objects as events.
fn stream(lines: &[&str]) -> Reply {
    let body: String =
        lines.iter().map(|line| if line.starts_with('{') { format!("data: {line}\n\n") } else { format!("{line}\n\n") }).collect();
    Reply::Body { headers: vec![("content-type", "text/event-stream".to_owned())], body: body.into_bytes() }
}

/// The same with a name before each event.
fn named(events: &[&str]) -> Reply {
    let name = |event: &str| serde_json::from_str::<Value>(event).unwrap()["type"].as_str().unwrap().to_owned();
    let lines: Vec<String> = events.iter().map(|event| format!("event: {}\ndata: {event}", name(event))).collect();
    stream(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

fn openai() -> Vec<Case> {
    let case = |reply, expected| Case { provider: "OpenAI", wire: WireApi::Responses, reply, expected };
    vec![
        case(
            named(&[
                r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[]}}"#,
                r#"{"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1"}}"#,
                r#"{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}"#,
                r#"{"type":"response.content_part.added","sequence_number":3,"item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}}"#,
                r#"{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"hello","logprobs":[],"obfuscation":"x7Qa"}"#,
                r#"{"type":"response.output_item.done","sequence_number":5,"output_index":0,"item":{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"hello","annotations":[],"logprobs":[]}]}}"#,
                r#"{"type":"response.completed","sequence_number":6,"response":{"id":"resp_1","status":"completed","service_tier":"default","usage":{"input_tokens":3,"output_tokens":2,"total_tokens":5}}}"#,
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(
            Reply::status(
                401,
                r#"{"error":{"message":"Incorrect API key provided: sk-x.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
            ),
            Expected::Refused(401, "Incorrect API key provided: sk-x."),
        ),
    ]
}

fn anthropic() -> Vec<Case> {
    let case = |reply, expected| Case { provider: "Anthropic", wire: WireApi::Anthropic, reply, expected };
    vec![
        case(
            named(&[
                r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1,"service_tier":"standard"}}}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                r#"{"type":"ping"}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"exec_command","input":{}}}"#,
                r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"cmd\":\"ls\"}"}}"#,
                r#"{"type":"content_block_stop","index":1}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":9}}"#,
                r#"{"type":"message_stop"}"#,
            ]),
            Expected::Items(vec![("message", "hello"), ("function_call", "{\"cmd\":\"ls\"}")]),
        ),
        case(
            Reply::status(529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}"#),
            Expected::Busy(529, "Overloaded"),
        ),
    ]
}

fn ollama() -> Vec<Case> {
    let case = |reply, expected| Case { provider: "Ollama", wire: WireApi::Chat, reply, expected };
    vec![
        // Calls come whole, and all of them at the first place (ollama/ollama#15457).
        case(
            stream(&[
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"qwen3","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"hm"},"finish_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_a","index":0,"type":"function","function":{"name":"exec_command","arguments":"{\"cmd\":\"ls\"}"}}]},"finish_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_b","index":0,"type":"function","function":{"name":"exec_command","arguments":"{\"cmd\":\"pwd\"}"}}]},"finish_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"tool_calls"}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"qwen3","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("reasoning", "hm"), ("function_call", "{\"cmd\":\"ls\"}"), ("function_call", "{\"cmd\":\"pwd\"}")]),
        ),
        case(
            Reply::status(
                404,
                r#"{"error":{"message":"model \"qwen9\" not found, try pulling it first","type":"api_error","param":null,"code":null}}"#,
            ),
            Expected::Refused(404, "model \"qwen9\" not found, try pulling it first"),
        ),
        case(
            Reply::status(
                400,
                r#"{"error":{"message":"registry.ollama.ai/library/gemma:2b does not support tools","type":"api_error","param":null,"code":null}}"#,
            ),
            Expected::Refused(400, "registry.ollama.ai/library/gemma:2b does not support tools"),
        ),
    ]
}

fn llama_cpp() -> Vec<Case> {
    let case = |reply, expected| Case { provider: "llama.cpp", wire: WireApi::Chat, reply, expected };
    vec![
        case(
            stream(&[
                r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"chatcmpl-1","model":"m","system_fingerprint":"b6150","object":"chat.completion.chunk"}"#,
                r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"hello"}}],"created":1,"id":"chatcmpl-1","model":"m","object":"chat.completion.chunk"}"#,
                r#"{"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1,"id":"chatcmpl-1","model":"m","object":"chat.completion.chunk"}"#,
                r#"{"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":3,"total_tokens":5},"timings":{"prompt_n":3,"predicted_n":2}}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(
            Reply::status(
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":8192}}"#,
            ),
            Expected::TooLong,
        ),
        case(
            Reply::status(503, r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#),
            Expected::Busy(503, "Loading model"),
        ),
    ]
}

fn vllm() -> Vec<Case> {
    let case = |reply, expected| Case { provider: "vLLM", wire: WireApi::Chat, reply, expected };
    vec![
        case(
            stream(&[
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"exec_command"}}]},"logprobs":null,"finish_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"cmd\": "}}]},"logprobs":null,"finish_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"ls\"}"}}]},"logprobs":null,"finish_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("reasoning", "hm"), ("function_call", "{\"cmd\": \"ls\"}")]),
        ),
        // Errors have had their members at the top, and have an `error` since.
        case(
            Reply::status(
                400,
                r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.","type":"BadRequestError","param":null,"code":400}"#,
            ),
            Expected::TooLong,
        ),
        case(
            Reply::status(
                400,
                r#"{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","type":"BadRequestError","param":null,"code":400}}"#,
            ),
            Expected::Refused(400, "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set"),
        ),
        case(
            stream(&[
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"he"},"finish_reason":null}]}"#,
                r#"{"error":{"message":"unexpected token in the middle of a call","type":"BadRequestError","param":null,"code":400}}"#,
                "data: [DONE]",
            ]),
            Expected::Refused(400, "unexpected token in the middle of a call"),
        ),
    ]
}

fn litellm() -> Vec<Case> {
    let case = |wire, reply, expected| Case { provider: "LiteLLM", wire, reply, expected };
    vec![
        case(
            WireApi::Chat,
            Reply::status(
                429,
                r#"{"error":{"message":"litellm.RateLimitError: RateLimitError: OpenAIException - slow down. Received Model Group=m","type":"throttling_error","param":null,"code":"429"}}"#,
            ),
            Expected::Busy(429, "litellm.RateLimitError: RateLimitError: OpenAIException - slow down. Received Model Group=m"),
        ),
        case(
            WireApi::Chat,
            Reply::status(
                400,
                r#"{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: This model's maximum context length is 8192 tokens.","type":null,"param":null,"code":"400"}}"#,
            ),
            Expected::TooLong,
        ),
        // In the middle of a stream only the text in `code` says whether it makes sense to ask again.
        case(
            WireApi::Chat,
            stream(&[
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"he"}}]}"#,
                r#"{"error":{"message":"litellm.BadRequestError: no such tool","type":"invalid_request_error","param":null,"code":"400"}}"#,
            ]),
            Expected::Refused(400, "litellm.BadRequestError: no such tool"),
        ),
        case(
            WireApi::Anthropic,
            named(&[
                r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":3,"output_tokens":2}}"#,
                r#"{"type":"message_stop"}"#,
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(
            WireApi::Anthropic,
            Reply::status(
                401,
                r#"{"error":{"message":"Authentication Error, Invalid proxy server token passed.","type":"auth_error","param":"None","code":"401"}}"#,
            ),
            Expected::Refused(401, "Authentication Error, Invalid proxy server token passed."),
        ),
    ]
}

fn azure() -> Vec<Case> {
    let case = |wire, reply, expected| Case { provider: "Azure OpenAI", wire, reply, expected };
    const FILTERED: &str = r#"{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation","content_filter_result":{"jailbreak":{"filtered":true,"detected":true}}}}}"#;
    const TOLD: &str = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.";
    vec![
        // The first chunk is about filters and has no choice, and so has one at the end that has no delta (microsoft/autogen#6465).
        case(
            WireApi::Chat,
            stream(&[
                r#"{"id":"","choices":[],"created":0,"model":"","object":"","prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":{"role":"assistant","content":"hello"},"finish_reason":null,"content_filter_results":{}}]}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":{},"finish_reason":"stop","content_filter_results":{}}]}"#,
                r#"{"id":"","choices":[{"finish_reason":null,"index":0,"content_filter_offsets":{"check_offset":9,"start_offset":9,"end_offset":9},"content_filter_results":{}}],"created":0,"model":"","object":""}"#,
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(WireApi::Chat, Reply::status(400, FILTERED), Expected::Refused(400, TOLD)),
        case(WireApi::Responses, Reply::status(400, FILTERED), Expected::Refused(400, TOLD)),
        case(
            WireApi::Responses,
            named(&[
                r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","content_filters":null}}"#,
                r#"{"type":"response.output_item.done","sequence_number":1,"output_index":0,"item":{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"hello","annotations":[]}]}}"#,
                r#"{"type":"response.completed","sequence_number":2,"response":{"id":"resp_1","status":"completed","content_filters":[{"blocked":false,"source_type":"completion"}],"usage":{"input_tokens":3,"output_tokens":2,"total_tokens":5}}}"#,
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(
            WireApi::Responses,
            Reply::status(
                404,
                r#"{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist."}}"#,
            ),
            Expected::Refused(404, "The API deployment for this resource does not exist."),
        ),
    ]
}

fn bedrock() -> Vec<Case> {
    let case = |wire, reply, expected| Case { provider: "Bedrock through a gateway", wire, reply, expected };
    vec![
        // Gateways that are made with FastAPI have a `detail` in the place of an error.
        case(
            WireApi::Chat,
            Reply::status(
                400,
                r#"{"detail":"An error occurred (ValidationException) when calling the ConverseStream operation: Input is too long for requested model."}"#,
            ),
            Expected::TooLong,
        ),
        case(
            WireApi::Chat,
            Reply::status(
                429,
                r#"{"detail":"An error occurred (ThrottlingException) when calling the ConverseStream operation: Too many requests"}"#,
            ),
            Expected::Busy(429, "An error occurred (ThrottlingException) when calling the ConverseStream operation: Too many requests"),
        ),
        case(
            WireApi::Chat,
            stream(&[
                r#"{"id":"chatcmpl-1","created":1,"model":"anthropic.claude-sonnet-4","system_fingerprint":"fp","choices":[{"index":0,"finish_reason":null,"logprobs":null,"delta":{"role":"assistant","content":""}}],"object":"chat.completion.chunk"}"#,
                r#"{"id":"chatcmpl-1","created":1,"model":"anthropic.claude-sonnet-4","choices":[{"index":0,"finish_reason":null,"delta":{"tool_calls":[{"index":0,"type":"function","id":"tooluse_1","function":{"name":"exec_command","arguments":""}}]}}],"object":"chat.completion.chunk"}"#,
                r#"{"id":"chatcmpl-1","created":1,"model":"anthropic.claude-sonnet-4","choices":[{"index":0,"finish_reason":null,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"cmd\":\"ls\"}"}}]}}],"object":"chat.completion.chunk"}"#,
                r#"{"id":"chatcmpl-1","created":1,"model":"anthropic.claude-sonnet-4","choices":[{"index":0,"finish_reason":"tool_calls","delta":{}}],"object":"chat.completion.chunk"}"#,
                r#"{"id":"chatcmpl-1","created":1,"model":"anthropic.claude-sonnet-4","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"object":"chat.completion.chunk"}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("function_call", "{\"cmd\":\"ls\"}")]),
        ),
        case(
            WireApi::Anthropic,
            named(&[
                r#"{"type":"message_start","message":{"id":"msg_bdrk_1","type":"message","role":"assistant","model":"claude-sonnet-4","content":[],"stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}"#,
                r#"{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":3,"outputTokenCount":2,"invocationLatency":9}}"#,
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(
            WireApi::Anthropic,
            Reply::status(400, r#"{"message":"The provided model identifier is invalid."}"#),
            Expected::Refused(400, "The provided model identifier is invalid."),
        ),
    ]
}

fn openrouter() -> Vec<Case> {
    let case = |reply, expected| Case { provider: "OpenRouter and the like", wire: WireApi::Chat, reply, expected };
    let begun = r#"{"id":"gen-1","provider":"Novita","model":"m","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":"he"},"finish_reason":null,"native_finish_reason":null,"logprobs":null}]}"#;
    vec![
        case(
            stream(&[
                ": OPENROUTER PROCESSING",
                ": OPENROUTER PROCESSING",
                begun,
                ": OPENROUTER PROCESSING",
                r#"{"id":"gen-1","provider":"Novita","model":"m","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":"llo"},"finish_reason":"stop","native_finish_reason":"end_turn","logprobs":null}]}"#,
                r#"{"id":"gen-1","provider":"Novita","model":"m","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"cost":0.0001}}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("message", "hello")]),
        ),
        case(
            stream(&[
                begun,
                r#"{"id":"gen-1","object":"chat.completion.chunk","created":1,"model":"m","provider":"Novita","error":{"code":"server_error","message":"Provider disconnected unexpectedly"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#,
            ]),
            Expected::Busy(500, "Provider disconnected unexpectedly"),
        ),
        // An image of the model is an address that holds it; some gateways repeat it in the last chunk.
        case(
            stream(&[
                begun,
                r#"{"id":"gen-1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","images":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="},"index":0}]},"finish_reason":null}]}"#,
                r#"{"id":"gen-1","model":"m","choices":[{"index":0,"delta":{"content":"re","images":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="},"index":0}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#,
                "data: [DONE]",
            ]),
            Expected::Items(vec![("message", "here"), ("image_generation_call", "iVBORw0KGgo=")]),
        ),
        // No credits are left: asking again would be in vain.
        case(
            stream(&[begun, r#"{"error":{"code":402,"message":"Insufficient credits"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#]),
            Expected::Refused(402, "Insufficient credits"),
        ),
        case(
            Reply::Body {
                headers: vec![("content-type", "application/json".to_owned())],
                body: br#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"error code: 1015","provider_name":"Kluster"}}}"#.to_vec(),
            },
            Expected::Busy(429, "Provider returned error"),
        ),
    ]
}

fn cases() -> Vec<Case> {
    [openai(), anthropic(), ollama(), llama_cpp(), vllm(), litellm(), azure(), bedrock(), openrouter()].into_iter().flatten().collect()
}

fn prompt() -> Prompt {
    let question = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]});
    let tool = ToolSpec { name: "exec_command".into(), description: "runs".into(), input: ToolInput::Object(json!({"type": "object"})) };
    Prompt { tools: [tool].into(), ..Prompt::plain("test", "be brief", ModelHistory::new(vec![Raw::from(question)])) }
}

/// The kind of an item, and its text or its arguments.
fn said(item: &Raw) -> (String, String) {
    let item: Value = item.read().unwrap();
    let text = [&item["arguments"], &item["content"][0]["text"], &item["result"]].into_iter().find_map(Value::as_str).unwrap_or_default();
    (item["type"].as_str().unwrap().to_owned(), text.to_owned())
}

#[tokio::test]
async fn what_providers_send_is_taken_for_what_it_is() {
    for (at, Case { provider: name, wire, reply, expected }) in cases().into_iter().enumerate() {
        let server = ScriptedModel::with([reply]).await;
        let provider = Provider {
            name: name.into(),
            base_url: server.base_url(),
            wire_api: wire,
            request_max_retries: 0,
            stream_max_retries: 0,
            quirks: Quirks::default(),
            ..built_in()["ollama"].clone()
        };
        let model = ModelProvider::new(provider, Some(ProviderKey::new("k")), http_client().unwrap(), Arc::new(|| "id".to_owned()));
        let answer = model.ask(&prompt(), &|_| {}).await;
        match (&answer, expected) {
            (Ok(answer), Expected::Items(items)) => {
                let items: Vec<_> = items.into_iter().map(|(kind, text)| (kind.to_owned(), text.to_owned())).collect();
                assert_eq!(answer.items.iter().map(said).collect::<Vec<_>>(), items, "{name}, case {at}");
                assert!(answer.usage.total_tokens > 0, "{name}, case {at}: {:?}", answer.usage);
            }
            (Err(ModelError::Refused { status, message, .. }), Expected::Refused(expected, told)) => {
                assert_eq!((*status, message.as_str()), (expected, told), "{name}, case {at}");
            }
            (Err(ModelError::Busy { status, message, .. }), Expected::Busy(expected, told)) => {
                assert_eq!((*status, message.as_str()), (expected, told), "{name}, case {at}");
            }
            (Err(ModelError::ContextExceeded { .. }), Expected::TooLong) => {}
            _ => panic!("{name}, case {at}: {answer:?}"),
        }
    }
}

/// The page claims for every provider only what stands here.
#[test]
fn every_provider_of_the_page_has_its_shapes() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .skip_while(|line| *line != "## Providers")
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 9, "{rows:?}");
    for row in rows {
        let mut wires: Vec<&str> = cases().iter().filter(|case| row[0].starts_with(case.provider)).map(|case| name(case.wire)).collect();
        wires.sort_unstable();
        wires.dedup();
        let claimed = row[1].replace('`', "");
        let mut claimed: Vec<&str> = claimed.split(", ").collect();
        claimed.sort_unstable();
        // The real server was tried on each of its wires.
        assert!(claimed == wires || row[4].starts_with("real server") && !wires.is_empty(), "{row:?}: {wires:?}");
    }
}

fn name(wire: WireApi) -> &'static str {
    match wire {
        WireApi::Responses => "responses",
        WireApi::Chat => "chat",
        WireApi::Anthropic => "anthropic",
        WireApi::Offline => "offline",
    }
}
