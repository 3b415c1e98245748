//! The histories that models are asked with. The scripted model refuses what the real APIs refuse, and then the test fails: so each
//! of these only has to bring a thread into the situation and ask once more, on every wire.

use std::time::Duration;

use outpost_runtime::ForkThread;
use outpost_runtime::feed::Read;
use outpost_runtime::live::{Accepted, LiveThread, NewInput, ThreadEvent};
use outpost_store::Need;
use outpost_testkit::LinkKind;
use outpost_testkit::model::{PIXEL, Reply, Request, call, image, message};
use outpost_thread::{CallFinished, CallOutcome, Entry, Fact, ForkPoint, InterruptReason, Marker, Settings, TurnFinished, TurnStatus};
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, is_completed, next_fact, settled, turn};

const WIRES: [&str; 3] = ["scripted", "chat", "claude"];

fn forever(id: &str) -> Value {
    call(id, "exec_command", &json!({"cmd": "echo ready > ready; sleep 1000", "yield_time_ms": 30000, "login": false}))
}

fn quick(id: &str) -> Value {
    call(id, "exec_command", &json!({"cmd": "echo quick > quick", "login": false}))
}

/// The outputs that a request holds, by the id of their call.
fn outputs(request: &Request) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let items = request.body["input"].as_array().into_iter().flatten();
    let items = items.filter(|item| item["type"] == "function_call_output").map(|item| (text(&item["call_id"]), text(&item["output"])));
    let messages = request.body["messages"].as_array().into_iter().flatten();
    let messages = messages.filter(|item| item["role"] == "tool").map(|item| (text(&item["tool_call_id"]), text(&item["content"])));
    let blocks = request.body["messages"].as_array().into_iter().flatten().flat_map(|message| message["content"].as_array()).flatten();
    let blocks = blocks.filter(|block| block["type"] == "tool_result");
    let blocks = blocks.map(|block| (text(&block["tool_use_id"]), text(&block["content"][0]["text"])));
    items.chain(messages).chain(blocks).collect()
}

fn on(provider: &str) -> NewInput {
    NewInput {
        settings: Settings { model_provider: Some(provider.into()), ..Settings::default() },
        ..NewInput::text(&format!("go on with {provider}"))
    }
}

/// Asks once more on every wire, and looks at what was sent.
async fn asked_again(harness: &Harness, thread: &LiveThread) -> Vec<Request> {
    let before = harness.model.requests().len();
    for wire in WIRES {
        thread.input(on(wire)).await.unwrap();
        settled(thread).await;
    }
    let ends = harness.turn_ends(thread.id()).await;
    assert!(ends[ends.len() - WIRES.len()..].iter().all(is_completed), "{ends:?}");
    harness.model.requests().split_off(before)
}

/// Begins a turn and returns when the command of its call runs.
async fn running(harness: &Harness, thread: &LiveThread) {
    let Accepted::Started(_) = thread.input(NewInput::text("begin")).await.unwrap() else { panic!() };
    while !harness.work(0).join("ready").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_interrupted_call_has_an_output() {
    let harness = Harness::local(vec![Reply::Items(vec![forever("a")])]).await;
    let thread = harness.start(&[0]).await;
    running(&harness, &thread).await;
    thread.interrupt(None, InterruptReason::User).await.unwrap();
    for request in asked_again(&harness, &thread).await {
        let outputs = outputs(&request);
        assert_eq!((outputs.len(), outputs[0].0.as_str()), (1, "a"));
        assert!(outputs[0].1.contains("stopped"), "{outputs:?}");
    }
}

/// Of several calls one has ended and the others are stopped: what ended keeps its own output.
#[tokio::test]
async fn calls_beside_an_interrupted_one_keep_their_outputs() {
    let harness = Harness::local(vec![Reply::Items(vec![message("three"), forever("a"), quick("b"), forever("c")])]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    running(&harness, &thread).await;
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallFinished(_)).then_some(())).await;
    thread.interrupt(None, InterruptReason::User).await.unwrap();
    for request in asked_again(&harness, &thread).await {
        let outputs = outputs(&request);
        let ids: Vec<&str> = outputs.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert!(outputs[0].1.contains("stopped") && outputs[1].1.contains("Exit code: 0"), "{outputs:?}");
    }
}

/// The program ends as for SIGTERM, and another one opens the thread.
#[tokio::test]
async fn a_call_that_a_shutdown_stopped_has_an_output() {
    let harness = Harness::local(vec![Reply::Items(vec![forever("a")])]).await;
    let thread = harness.start(&[0]).await;
    running(&harness, &thread).await;
    harness.runtime.shutdown(Duration::from_secs(10)).await;
    let again = harness.restarted().await;
    let thread = again.resume(thread.id()).await.unwrap();
    for request in asked_again(&harness, &thread).await {
        assert_eq!(outputs(&request).len(), 1);
    }
}

#[tokio::test]
async fn a_fork_through_a_running_call_has_its_output() {
    let harness = Harness::local(vec![Reply::Items(vec![forever("a")])]).await;
    let thread = harness.start(&[0]).await;
    running(&harness, &thread).await;
    let fork = harness.runtime.fork(ForkThread::new(thread.id(), ForkPoint::Interrupted(Marker::User))).await.unwrap();
    for request in asked_again(&harness, &fork).await {
        assert_eq!(outputs(&request).len(), 1);
    }
    thread.interrupt(None, InterruptReason::User).await.unwrap();
}

/// The model is cut off while it speaks; nothing of it is in the history.
#[tokio::test]
async fn an_interrupted_answer_leaves_nothing_half() {
    let begun = "event: x\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\",\"call_id\":\"x\"}}\n\n";
    let harness = Harness::local(vec![Reply::Silent(begun.into())]).await;
    let thread = harness.start(&[0]).await;
    thread.input(NewInput::text("begin")).await.unwrap();
    while harness.model.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    thread.interrupt(None, InterruptReason::User).await.unwrap();
    for request in asked_again(&harness, &thread).await {
        assert!(outputs(&request).is_empty());
    }
}

/// A turn whose context is full between two steps: whoever sums up is shown the last results, too.
#[tokio::test]
async fn a_compaction_in_the_middle_of_a_turn_sees_the_last_results() {
    for wire in WIRES {
        let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
        setup.config.model_provider = wire.into();
        let harness = Harness::new(setup).await;
        harness.model.push_for("begin it", two_calls());
        harness.model.push_for("<compaction_request>", Reply::message("SUMMARY"));
        let mut start = outpost_runtime::StartThread::new();
        start.created.selection = Some(harness.select(&[0]));
        start.created.settings.compact_at = Some(2_000);
        let thread = harness.runtime.start(start).await.unwrap();
        turn(&thread, "begin it").await;
        let requests = harness.model.requests();
        let compaction = requests.iter().find(|request| request.body.to_string().contains("<compaction_request>")).expect("it compacts");
        let told = outputs(compaction);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].1.contains("Exit code: 0") && told[1].1.contains("Exit code: 0"), "{told:?}");
        assert!(requests.last().unwrap().body.to_string().contains("SUMMARY"));
        for request in asked_again(&harness, &thread).await {
            assert!(outputs(&request).is_empty());
        }
        assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
    }
}

fn two_calls() -> Reply {
    let much = json!({"cmd": "seq 1 4000", "login": false});
    Reply::Items(vec![call("a", "exec_command", &much), call("b", "exec_command", &json!({"cmd": "true", "login": false}))])
}

/// Files, commands and the plan outlive a summary that forgets them, also a second one.
#[tokio::test]
async fn a_compaction_keeps_what_the_program_knows_of_the_work() {
    let plan = json!({"plan": [{"step": "look", "status": "completed"}, {"step": "build it", "status": "in_progress"}]});
    let patch = json!({"input": "*** Begin Patch\n*** Add File: made.txt\n+x\n*** End Patch"});
    let serve = json!({"cmd": "echo up; sleep 1000", "yield_time_ms": 250, "login": false});
    let calls = vec![call("a", "apply_patch", &patch), call("b", "update_plan", &plan), call("c", "exec_command", &serve)];
    let harness = Harness::local(vec![Reply::Items(calls), Reply::message("It runs.")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "begin").await;
    for _ in 0..2 {
        harness.model.push_for("<compaction_request>", Reply::message("I forget everything."));
        thread.compact().await.unwrap();
        settled(&thread).await;
        turn(&thread, "what is the state?").await;
        let body = harness.model.requests().pop().unwrap().body.to_string();
        let state = &body[body.find("<work_state>").expect(&body)..];
        assert!(
            state.contains("made.txt")
                && state.contains("build it")
                && state.contains("echo up; sleep 1000")
                && state.contains("session id"),
            "{state}"
        );
        assert!(body.contains("\"write_stdin\""), "it can be reached");
    }
    thread.input(on("claude")).await.unwrap();
    settled(&thread).await;
    assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
}

/// A journal that an earlier version left behind: the end of its call holds nothing.
#[tokio::test]
async fn a_journal_of_an_earlier_version_is_healed() {
    let harness = Harness::local(vec![Reply::Items(vec![quick("a")]), Reply::message("done")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "begin").await;
    let id = thread.id();
    harness.runtime.unload(id, InterruptReason::Shutdown).await;
    let mut entries = harness.entries(id).await;
    let at = entries.iter().position(|entry| matches!(entry.fact, Fact::CallFinished(_))).unwrap();
    entries.truncate(at);
    let Fact::ModelAnswered(answered) =
        entries.iter().rev().map(|entry| &entry.fact).find(|fact| matches!(fact, Fact::ModelAnswered(_))).unwrap()
    else {
        panic!()
    };
    let turn_id = answered.turn.clone();
    let ended = CallFinished { turn: turn_id.clone(), call: "a".into(), outcome: CallOutcome::Aborted, items: vec![], detail: None };
    let end = TurnFinished {
        turn: Some(turn_id),
        status: TurnStatus::Interrupted,
        reason: Some(InterruptReason::User),
        error: None,
        marker: Marker::User,
    };
    for (ordinal, fact) in (at as u64 + 1..).zip([Fact::from(ended), end.into()]) {
        entries.push(Entry { ordinal, at: 0, fact });
    }
    let store = crate::harness::memory();
    let lease = store.create(id).await.unwrap();
    store.append(&lease, entries, Need::Stored).await.unwrap();
    store.release(lease).await;
    let again = harness.restarted_on(store);
    let thread = again.resume(id).await.unwrap();
    for wire in WIRES {
        thread.input(on(wire)).await.unwrap();
        settled(&thread).await;
        let told = outputs(harness.model.requests().last().unwrap());
        assert!(told.len() == 1 && told[0].1.contains("stopped"), "{told:?}");
    }
}

/// A history that a client gives: calls without outputs, outputs without calls, words between a call and its output.
#[tokio::test]
async fn a_given_history_is_made_whole() {
    let harness = Harness::local(vec![]).await;
    let user = |text: &str| json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "x"});
    let mut start = outpost_runtime::StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    start.history = [output("z"), quick("a"), user("one"), quick("b"), user("two"), output("b"), quick("c")].map(Into::into).to_vec();
    let thread = harness.runtime.start(start).await.unwrap();
    for request in asked_again(&harness, &thread).await {
        let ids: Vec<String> = outputs(&request).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["a", "b", "c"]);
    }
}

/// What one provider thought is of no use to another, and would be refused there.
#[tokio::test]
async fn thoughts_stay_with_the_provider_that_had_them() {
    let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xq-sealed"});
    let harness = Harness::local(vec![Reply::Items(vec![thought, quick("a")]), Reply::message("done")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "begin").await;
    let has_thought = |request: &Request| request.body.to_string().contains("xq-sealed");
    let requests = harness.model.requests();
    assert!(has_thought(&requests[1]), "the provider itself gets it back");
    assert_eq!(requests[1].body["input"][2]["id"], Value::Null, "but not by its id");
    harness.model.push(Reply::Chunks(vec![
        json!({"choices": [{"delta": {"reasoning_content": "xq-plain", "content": "x"}, "finish_reason": "stop"}]}),
    ]));
    thread.input(on("chat")).await.unwrap();
    settled(&thread).await;
    thread.input(on("scripted")).await.unwrap();
    settled(&thread).await;
    let back = harness.model.requests().pop().unwrap();
    assert!(!has_thought(&back) && !back.body.to_string().contains("xq-plain"));
    assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
}

/// A thought as the Anthropic wire gives it.
fn signed(thought: &str) -> Value {
    json!({"type": "reasoning", "format": "anthropic", "summary": [], "content": [{"type": "reasoning_text", "text": thought}],
        "encrypted_content": format!("signature of {thought}")})
}

/// A signed thought goes back unchanged while its provider is asked, is left out for another, and that is told once.
#[tokio::test]
async fn signed_thoughts_go_back_to_their_provider_only() {
    let mut setup = Setup::new(&[LinkKind::Memory], vec![Reply::Items(vec![signed("hm"), quick("a")]), Reply::message("done")]);
    setup.config.model_provider = "claude".into();
    setup.config.reasoning_effort = Some("high".into());
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    turn(&thread, "begin").await;
    let requests = harness.model.requests();
    assert_eq!(requests[0].body["thinking"]["type"], "enabled");
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "signature of hm"});
    assert_eq!(requests[1].body["messages"][1]["content"][0], thought, "{:#}", requests[1].body);
    assert_eq!(requests[1].body["thinking"]["type"], "enabled");
    for provider in ["scripted", "chat", "claude"] {
        thread.input(on(provider)).await.unwrap();
        settled(&thread).await;
        assert!(!harness.model.requests().pop().unwrap().body.to_string().contains("signature of"), "{provider}");
    }
    assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
    let mut told = Vec::new();
    loop {
        let read = tokio::select! {
            biased;
            read = feed.next() => read,
            () = std::future::ready(()) => break,
        };
        if let Read::Event(ThreadEvent::Warning { message }) = read {
            told.push(message);
        }
    }
    assert!(told.len() == 1 && told[0].contains("changed to `scripted`"), "{told:?}");
}

/// A picture of several megabytes is a picture, and not a million tokens of text.
#[tokio::test]
async fn a_large_picture_reaches_the_model_and_fills_nothing() {
    let harness = Harness::local(vec![Reply::Items(vec![call("a", "view_image", &json!({"path": "large.png"}))])]).await;
    std::fs::write(harness.work(0).join("large.png"), noise(1400, 1300)).unwrap();
    let mut start = outpost_runtime::StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    start.created.settings.compact_at = Some(100_000);
    let thread = harness.runtime.start(start).await.unwrap();
    turn(&thread, "look").await;
    let requests = harness.model.requests();
    assert_eq!(requests.len(), 2, "nothing was compacted");
    let shown = requests[1].body["input"].as_array().unwrap().iter().find(|item| item["type"] == "function_call_output").unwrap();
    let address = shown["output"][0]["image_url"].as_str().unwrap();
    assert!(address.starts_with("data:image/") && address.len() < 5_000_000, "{} bytes", address.len());
    harness.model.push(Reply::Items(vec![call("b", "view_image", &json!({"path": "old.bmp"}))]));
    std::fs::write(harness.work(0).join("old.bmp"), b"BM\0\0").unwrap();
    turn(&thread, "and this").await;
    let told = outputs(harness.model.requests().last().unwrap());
    assert!(told[1].1.contains("a BMP, and models take PNG"), "{:?}", told[1]);
}

/// Providers refuse a request with too many pictures, or with a long one among many: a thread that has shown that many goes on.
#[tokio::test]
async fn a_thread_that_has_shown_many_pictures_goes_on() {
    let harness = Harness::local(vec![]).await;
    let thread = harness.start(&[0]).await;
    let shown = |address: &str| json!({"type": "input_image", "image_url": address});
    // As an earlier version kept it, which made pictures no smaller than this.
    let long = format!("data:image/png;base64,{}", outpost_wire::base64::encode(&noise(2048, 2)));
    let pixel = shown(&format!("data:image/png;base64,{PIXEL}"));
    for pictures in [vec![shown(&long)], vec![pixel.clone(); 25], vec![pixel.clone(); 40], vec![pixel; 40]] {
        let items = vec![json!({"type": "message", "role": "user", "content": pictures}).into()];
        thread.input(NewInput { items, ..NewInput::text("look") }).await.unwrap();
        settled(&thread).await;
        asked_again(&harness, &thread).await;
    }
    let request = harness.model.requests().pop().unwrap().body.to_string();
    assert!(request.contains("an earlier image, left out"));
}

/// A PNG that cannot be compressed.
fn noise(width: u32, height: u32) -> Vec<u8> {
    let mut seed = 7_u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let crc = |data: &[u8]| {
        !data.iter().fold(!0_u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
        })
    };
    let chunk = |kind: &[u8], data: &[u8]| {
        let body = [kind, data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &body, &crc(&body).to_be_bytes()].concat()
    };
    let rows: Vec<u8> = (0..height).flat_map(|_| std::iter::once(0).chain((0..width * 3).map(|_| byte()).collect::<Vec<_>>())).collect();
    // Stored blocks of zlib: nothing is compressed.
    let mut packed = vec![0x78, 0x01];
    let last = rows.len().div_ceil(0xffff) - 1;
    for (index, block) in rows.chunks(0xffff).enumerate() {
        packed.push(u8::from(index == last));
        packed.extend((block.len() as u16).to_le_bytes());
        packed.extend((!(block.len() as u16)).to_le_bytes());
        packed.extend(block);
    }
    let (a, b) = rows.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    packed.extend((b << 16 | a).to_be_bytes());
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &header), &chunk(b"IDAT", &packed), &chunk(b"IEND", b"")].concat()
}

/// A thread that all kinds of things happen to, one after the other, with a driver, real commands and all wires.
struct Story {
    harness: Harness,
    runtime: outpost_runtime::Runtime,
    thread: LiveThread,
    wire: &'static str,
    seed: u64,
    count: u32,
    told: Vec<String>,
}

impl Story {
    async fn begin(seed: u64) -> Self {
        let harness = Harness::local(vec![]).await;
        let runtime = harness.restarted().await;
        let mut start = outpost_runtime::StartThread::new();
        start.created.selection = Some(harness.select(&[0]));
        let thread = runtime.start(start).await.unwrap();
        Self { harness, runtime, thread, wire: WIRES[0], seed, count: 0, told: vec![] }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % sides
    }

    fn input(&self, text: &str) -> NewInput {
        NewInput { content: NewInput::text(text).content, ..on(self.wire) }
    }

    /// What the model answers next: these commands, on the wire that it is asked on.
    fn will_run(&mut self, commands: &[String]) {
        let commands = commands.iter().map(|cmd| json!({"cmd": cmd, "yield_time_ms": 30000, "login": false}));
        // Models use the same ids again and again.
        let thought = match self.wire {
            "claude" => signed("hm"),
            "chat" => json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
            _ => json!({"type": "reasoning", "id": format!("rs_{}", self.count), "summary": [], "encrypted_content": "x"}),
        };
        let calls = commands.enumerate().map(|(index, arguments)| call(&format!("call_{index}"), "exec_command", &arguments));
        let reply = Reply::Items(std::iter::once(thought).chain(calls).collect());
        self.harness.model.push(reply);
    }

    /// A turn in which some commands end and one does not.
    async fn begin_turn(&mut self) {
        self.count += 1;
        let ready = format!("ready-{}", self.count);
        let mut commands: Vec<String> = (0..self.dice(3)).map(|_| "true".to_owned()).collect();
        commands.insert(self.dice(commands.len() as u64 + 1) as usize, format!("touch {ready}; sleep 1000"));
        self.will_run(&commands);
        self.thread.input(self.input("begin")).await.unwrap();
        let path = self.harness.work(0).join(ready);
        let wait = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), wait).await.expect("the command does not begin");
    }

    async fn stop(&self) {
        self.thread.interrupt(None, InterruptReason::User).await.unwrap();
        settled(&self.thread).await;
    }

    async fn happens(&mut self) {
        let what = self.dice(8);
        self.told.push(format!("{what} on {}", self.wire));
        match what {
            0 => {
                self.will_run(&["true".into(), "echo two".into()]);
                self.thread.input(self.input("work")).await.unwrap();
                settled(&self.thread).await;
            }
            1 => {
                self.begin_turn().await;
                self.stop().await;
            }
            2 => {
                self.begin_turn().await;
                let fork = self.runtime.fork(ForkThread::new(self.thread.id(), ForkPoint::Interrupted(Marker::User))).await.unwrap();
                self.stop().await;
                self.thread = fork;
            }
            3 => {
                self.harness.model.push(Reply::message("SUMMARY"));
                self.thread.compact().await.unwrap();
                settled(&self.thread).await;
            }
            4 => {
                self.begin_turn().await;
                self.runtime.shutdown(Duration::from_secs(10)).await;
                self.runtime = self.harness.restarted().await;
                self.thread = self.runtime.resume(self.thread.id()).await.unwrap();
            }
            5 => {
                // As after a kill: the other program knows only what was stored, and takes up the command that still runs.
                self.begin_turn().await;
                self.runtime = self.harness.restarted().await;
                self.thread = self.runtime.take_over(self.thread.id()).await.unwrap();
                self.thread.input(self.input("are you there?")).await.unwrap();
                self.stop().await;
            }
            6 => {
                let others: Vec<&str> = WIRES.into_iter().filter(|wire| *wire != self.wire).collect();
                self.wire = others[self.dice(2) as usize];
                self.thread.input(self.input("now with you")).await.unwrap();
                settled(&self.thread).await;
            }
            _ => {
                let started = |entry: &Entry| if let Fact::TurnStarted(turn) = &entry.fact { Some(turn.turn.clone()) } else { None };
                let turns: Vec<_> = self.harness.entries(self.thread.id()).await.iter().filter_map(started).collect();
                // One that was reverted already cannot be reverted again.
                if let Some(turn) = turns.last() {
                    let _ = self.thread.revert(turn.clone()).await;
                }
            }
        }
    }
}

/// Whatever happens in whatever order, the next request is one that the real APIs take.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_the_next_request_is_accepted() {
    for seed in 1..=6 {
        let mut story = Story::begin(seed).await;
        for _ in 0..12 {
            story.happens().await;
        }
        for wire in WIRES {
            story.wire = wire;
            story.thread.input(story.input("go on")).await.unwrap();
            settled(&story.thread).await;
        }
        let violations = story.harness.model.take_violations();
        assert!(violations.is_empty(), "seed {seed}, {:?}: {violations:?}", story.told);
        let ends = story.harness.turn_ends(story.thread.id()).await;
        assert!(ends[ends.len() - 2..].iter().all(is_completed), "seed {seed}, {:?}: {ends:?}", story.told);
    }
}

/// A picture goes back with its id to the provider that made it; to all others the user shows it, behind the results of the calls beside it.
#[tokio::test]
async fn a_picture_of_the_model_goes_back_on_every_wire() {
    let drawn = Reply::Items(vec![quick("a"), image("ig_1"), quick("b")]);
    let harness = Harness::local(vec![drawn, Reply::message("here it is")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "draw a pixel").await;
    let body = harness.model.requests().pop().unwrap().body;
    let sent = body["input"].as_array().unwrap().iter().find(|item| item["type"] == "image_generation_call").unwrap().clone();
    assert_eq!(sent, json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL}));
    let requests = asked_again(&harness, &thread).await;
    let url = format!("data:image/png;base64,{PIXEL}");
    let shown = |request: &Request| {
        let body = request.body.to_string();
        match request.path.as_str() {
            path if path.ends_with("chat/completions") => body.contains(&format!("\"url\":\"{url}\"")),
            path if path.ends_with("messages") => body.contains(&format!("\"data\":\"{PIXEL}\"")),
            _ => body.contains(&format!("\"result\":\"{PIXEL}\"")),
        }
    };
    assert!(requests.iter().all(shown), "{requests:#?}");
    // The provider of the first wire is asked again after another one was: its own name of the picture is gone.
    thread.input(on("scripted")).await.unwrap();
    settled(&thread).await;
    let body = harness.model.requests().pop().unwrap().body;
    let sent: Vec<&Value> = body["input"].as_array().unwrap().iter().filter(|item| item.to_string().contains(PIXEL)).collect();
    assert_eq!((sent.len(), &sent[0]["role"], &sent[0]["content"][1]["image_url"]), (1, &json!("user"), &json!(url)));
}

/// An answer that is a picture and nothing else is an answer, and one that came through a gateway is the same to the thread.
#[tokio::test]
async fn a_picture_alone_is_an_answer() {
    for wire in ["scripted", "chat"] {
        let home = tempfile::tempdir().unwrap();
        let store = outpost_store::Store::Local(crate::harness::on_disk(home.path()));
        let harness = Harness::new(Setup { store, ..Setup::new(&[LinkKind::Memory], vec![Reply::Items(vec![image("ig_1")])]) }).await;
        let thread = harness.start(&[0]).await;
        thread.input(on(wire)).await.unwrap();
        settled(&thread).await;
        assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
        assert_eq!(harness.model.requests().len(), 1, "{wire}: it is not asked to go on");
        let file = home.path().join("images").join(thread.id().to_string()).join("image-1.png");
        assert_eq!(std::fs::read(&file).unwrap(), outpost_wire::base64::decode(PIXEL).unwrap());
        let entries = harness.entries(thread.id()).await;
        let items =
            entries.iter().filter_map(|entry| if let Fact::ModelAnswered(answer) = &entry.fact { Some(&answer.items) } else { None });
        let images: Vec<_> = items.flatten().filter_map(outpost_thread::GeneratedImage::of).collect();
        assert_eq!((images.len(), images[0].saved_path.as_deref()), (1, file.to_str()));
        drop(thread);
    }
}
