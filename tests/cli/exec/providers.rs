//! Which model is asked, how, and what comes back of it.

use super::*;

/// As the clients of Codex pass it.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_codex_clients_is_used_and_kept_secret() {
    const KEY: &str = "sk-do-not-tell-anybody";
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &json!({"cmd": "env; cat /proc/$PPID/environ"}))]).await;
    let mut command = scene.command(&["exec", "--json", "-c", "model_provider=openai", "go"]);
    let output = command.env("CODEX_API_KEY", KEY).env("OPENAI_BASE_URL", scene.model.base_url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let head = &scene.model.requests()[0].head;
    assert!(head.contains(&format!("Bearer {KEY}")), "{head}");
    assert!(!text(&output.stdout).contains(KEY) && !text(&output.stderr).contains(KEY), "{output:?}");
    let found = Command::new("grep").args(["-r", KEY]).arg(scene.home.path()).output().unwrap();
    assert_eq!(text(&found.stdout), "");
}

/// The same prompt with the offline provider and with a server that speaks Chat Completions.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_prompt_offline_and_through_chat_completions() {
    let delta = |delta: Value, end: &str| json!({"choices": [{"delta": delta, "finish_reason": end}]});
    let called =
        json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "exec_command", "arguments": "{\"cmd\":\"echo same\"}"}}]});
    let counted = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}});
    let scene = Scene::speaking(
        "chat",
        vec![Reply::Chunks(vec![delta(called, "tool_calls"), counted]), Reply::Chunks(vec![delta(json!({"content": "all done"}), "stop")])],
    )
    .await;
    let prompt = "$ echo same\n> all done";
    let story = |lines: Vec<Value>| -> Vec<Value> {
        lines.into_iter().filter(|line| line["type"] == "item.completed" || line["type"] == "item.started").collect()
    };
    let chat = story(scene.lines(&["exec", "--json", prompt]));
    let offline = story(scene.lines(&["exec", "--json", "--provider", "offline", prompt]));
    assert_eq!(chat, offline);
    assert_eq!(chat[1]["item"]["aggregated_output"], "same\n");
    assert_eq!(chat[2]["item"]["text"], "all done");
    let requests = scene.model.requests();
    assert_eq!(requests[0].path, "/v1/chat/completions");
    let last = requests[1].body["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["role"], &last["tool_call_id"]), (&json!("tool"), &json!("c")));
    assert!(last["content"].as_str().unwrap().contains("same"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effort_that_was_said_stays_with_the_thread_and_one_of_the_file_does_not() {
    let scene = Scene::new(vec![]).await;
    let file = scene.home.path().join("config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let effort = || scene.model.requests().pop().unwrap().body["reasoning"]["effort"].clone();
    let write = |word: &str| std::fs::write(&file, format!("model_reasoning_effort = \"{word}\"\n{config}")).unwrap();
    write("high");
    scene.lines(&["exec", "--json", "-c", "model_reasoning_effort=low", "one"]);
    assert_eq!(effort(), "low");
    scene.lines(&["exec", "--json", "resume", "--last", "two"]);
    assert_eq!(effort(), "low", "it was said for this thread");
    scene.lines(&["exec", "--json", "three"]);
    assert_eq!(effort(), "high");
    write("medium");
    scene.lines(&["exec", "--json", "resume", "--last", "four"]);
    assert_eq!(effort(), "medium", "nobody said anything for this one");
}

/// The real program on the Anthropic wire: a call, its result, an answer; a key from the variable, and the address without a version.
#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_provider_of_anthropic() {
    const KEY: &str = "sk-ant-do-not-tell-anybody";
    let run = call("toolu_1", "exec_command", &json!({"cmd": "echo one > made", "login": false}));
    let scene = Scene::new(vec![Reply::Items(vec![message("I write it."), run]), Reply::message("Written.")]).await;
    let address = scene.model.base_url();
    let mut command = scene.command(&["exec", "--provider", "anthropic", "write it"]);
    command.env("ANTHROPIC_API_KEY", KEY).env("ANTHROPIC_BASE_URL", address.trim_end_matches("/v1"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout).trim(), "Written.");
    assert_eq!(std::fs::read_to_string(scene.work.path().join("made")).unwrap(), "one\n");
    let requests = scene.model.requests();
    assert_eq!((requests.len(), requests[0].path.as_str()), (2, "/v1/messages"));
    assert!(requests[0].head.to_lowercase().contains(&format!("x-api-key: {}", KEY.to_lowercase())), "{}", requests[0].head);
    let result = &requests[1].body["messages"][2]["content"][0];
    assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("toolu_1")));
    let found = Command::new("grep").args(["-r", KEY]).arg(scene.home.path()).output().unwrap();
    assert!(found.stdout.is_empty(), "{found:?}");
}

/// Gateways give out a token in the place of a key: it alone is enough, and goes into the header that is for tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_anthropic_goes_into_the_header_for_tokens() {
    const TOKEN: &str = "tok-do-not-tell-anybody";
    let scene = Scene::new(vec![Reply::message("Hello.")]).await;
    let mut command = scene.command(&["exec", "--provider", "anthropic", "hello"]);
    command.env("ANTHROPIC_AUTH_TOKEN", TOKEN).env("ANTHROPIC_BASE_URL", scene.model.base_url());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let head = scene.model.requests().remove(0).head.to_lowercase();
    assert!(head.contains(&format!("authorization: bearer {TOKEN}\r\n")), "{head}");
    assert!(!head.contains("x-api-key"), "{head}");
    // A key counts before it.
    scene.model.push(Reply::message("Hello."));
    let mut command = scene.command(&["exec", "--provider", "anthropic", "hello"]);
    command.env("ANTHROPIC_AUTH_TOKEN", TOKEN).env("ANTHROPIC_API_KEY", "sk-ant-x").env("ANTHROPIC_BASE_URL", scene.model.base_url());
    assert!(command.output().unwrap().status.success());
    let head = scene.model.requests().remove(1).head.to_lowercase();
    assert!(head.contains("x-api-key: sk-ant-x") && !head.contains("authorization"), "{head}");
}

/// A picture of the model is a file that people are told of, on every way to read a thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_of_the_model_is_saved_and_shown_as_a_line() {
    use outpost_testkit::model::{image, message};
    let scene = Scene::new(vec![Reply::Items(vec![image("ig_1"), message("drawn")]), Reply::Items(vec![image("ig_2")])]).await;
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let config = config.replace("models.scripted = {}", "models.scripted = { image_generation = true }");
    std::fs::write(scene.home.path().join("config.toml"), config).unwrap();
    let output = scene.run(&["exec", "draw"]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let saved = told.lines().find_map(|line| line.split_once("image saved as ")).expect(&told).1.to_owned();
    assert!(saved.ends_with("image-1.png") && std::path::Path::new(&saved).starts_with(scene.home.path()), "{saved}");
    assert_eq!(std::fs::read(&saved).unwrap()[..4], *b"\x89PNG");
    assert_eq!(scene.model.requests()[0].body["tools"].as_array().unwrap().last().unwrap(), &json!({"type": "image_generation"}));
    let id = told.lines().find_map(|line| line.split_once("thread ")).unwrap().1.trim().to_owned();
    let lines = scene.lines(&["exec", "--json", "resume", &id, "another"]);
    let item = &lines.iter().find(|line| line["item"]["type"] == "image_generation").unwrap()["item"];
    assert_eq!(item["saved_path"], saved.replace("image-1", "image-2"), "{item}");
    assert_eq!(item["revised_prompt"], "a single pixel");
    let shown = String::from_utf8(scene.run(&["thread", "show", &id]).stdout).unwrap();
    assert!(shown.contains(&format!("image saved as {saved}")), "{shown}");
    assert!(scene.run(&["thread", "rm", "--yes", &id]).status.success());
    assert!(!std::path::Path::new(&saved).exists(), "its pictures go with a thread");
}

/// A proxy of the usual variables is asked for a model that is not on this machine, unless another one says not to.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_asked_through_the_proxy_of_the_usual_variables() {
    let scene = Scene::new(vec![Reply::message("through it")]).await;
    let proxy = scene.model.base_url().trim_end_matches("/v1").to_owned();
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let config = config.replace(&scene.model.base_url(), "http://model.invalid/v1");
    std::fs::write(scene.home.path().join("config.toml"), config).unwrap();
    let output = scene.command(&["exec", "go"]).env("HTTP_PROXY", &proxy).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "through it\n");
    assert_eq!(scene.model.requests()[0].path, "http://model.invalid/v1/responses");
    let output = scene.command(&["exec", "go"]).env("HTTP_PROXY", &proxy).env("NO_PROXY", "model.invalid").output().unwrap();
    assert!(!output.status.success() && scene.model.requests().len() == 1, "{output:?}");
}
