//! What people see of a turn, and what its exit code says.

use super::*;

fn lines_of(count: usize) -> String {
    (0..count).map(|n| format!("line-{n}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_says_before_a_call_is_shown_and_the_answer_comes_once() {
    let run = call("a", "exec_command", &json!({"cmd": "echo ran"}));
    let scene = Scene::new(vec![Reply::Items(vec![message("I look first."), run]), Reply::message("the answer")]).await;
    let output = scene.run(&["exec", "go"]);
    let told = text(&output.stderr);
    let (said, ran) = (told.find("I look first.").expect("the remark is missing"), told.find("$ echo ran").unwrap());
    assert!(said < ran && !told.contains("the answer"), "{told}");
    assert_eq!(text(&output.stdout), "the answer\n");
    // On a terminal both streams are one.
    scene.model.push(Reply::Items(vec![message("I look first."), call("b", "exec_command", &json!({"cmd": "echo ran"}))]));
    scene.model.push(Reply::message("the answer"));
    let mut terminal = TestTerminal::start(scene.command(&["exec", "go"]).env("TERM", "xterm"));
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let shown = terminal.text();
    assert_eq!((shown.matches("I look first.").count(), shown.matches("the answer").count()), (1, 1), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_output_shows_both_ends_and_what_is_left_out() {
    let scene = Scene::new(vec![]).await;
    std::fs::write(scene.work.path().join("long"), format!("{}the error\n", lines_of(1000))).unwrap();
    let cat = || Reply::call("a", "exec_command", &json!({"cmd": "cat long; exit 3"}));
    scene.model.push(cat());
    scene.model.push(Reply::message("done"));
    let told = text(&scene.run(&["exec", "go"]).stderr);
    assert!(told.contains("  line-0\n") && told.contains("  line-999\n  the error\n") && told.contains("exit code 3"), "{told}");
    assert!(told.contains("… 985 lines (") && !told.contains("line-500\n"), "{told}");
    scene.model.push(cat());
    scene.model.push(Reply::message("done"));
    let told = text(&scene.run(&["exec", "--full", "go"]).stderr);
    assert!((0..1000).all(|n| told.contains(&format!("  line-{n}\n"))) && !told.contains('…'), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_a_running_command_streams_to_a_terminal_and_survives_ctrl_c() {
    let endless = json!({"cmd": "echo be''gun; printf 'no end '; printf 'of a line'; sleep 1000", "yield_time_ms": 30000});
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &endless)]).await;
    let mut terminal = TestTerminal::start(scene.command(&["exec", "go"]).env("TERM", "xterm"));
    // It runs: the call is not over.
    terminal.wait_for("  begun");
    outpost_testkit::executor::eventually("the second text came, too", || {
        terminal.text().contains("no end of a line") || terminal.text().contains("… 1 s")
    })
    .await;
    terminal.type_keys("\u{3}");
    assert_eq!(terminal.exit_code(), Some(1), "{}", terminal.text());
    let shown = terminal.text();
    assert!(shown.contains("no end of a line") && shown.contains("stopped"), "{shown}");
    // What was printed is in the thread, and the hint does what it says.
    let hint = shown.split('`').find(|part| part.starts_with("outpost exec resume ")).expect("there is no hint");
    let id = hint.rsplit(' ').next().unwrap();
    let kept = text(&scene.run(&["thread", "show", id]).stdout);
    assert!(kept.contains("begun") && kept.contains("no end of a line"), "{kept}");
    scene.model.push(Reply::message("went on"));
    let output = scene.run(&hint.split(' ').skip(1).collect::<Vec<_>>());
    assert!(output.status.success() && text(&output.stdout) == "went on\n", "{output:?}");
}

/// Two environments are configured; only the default is touched unless others are asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_call_selects_the_default_environment_only() {
    let scene = Scene::new(vec![]).await;
    let file = scene.home.path().join("environments.toml");
    let away = "[[environments]]\nid = \"away\"\nurl = \"ws://127.0.0.1:1\"\n";
    std::fs::write(&file, away).unwrap();
    let offers_away = |scene: &Scene| scene.model.requests().pop().unwrap().body.to_string().contains("away");
    let output = scene.run(&["exec", "go"]);
    assert!(output.status.success() && !offers_away(&scene) && !text(&output.stderr).contains("away"), "{output:?}");
    assert!(scene.run(&["exec", "-e", "*", "go"]).status.success() && offers_away(&scene));
    std::fs::write(&file, format!("start = \"all\"\n{away}")).unwrap();
    assert!(scene.run(&["exec", "go"]).status.success() && offers_away(&scene));
    let both = scene.run(&["exec", "-e", "*", "-e", "local", "go"]);
    assert!(both.status.code() == Some(1) && text(&both.stderr).contains("cannot be combined"), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_of_work_that_failed() {
    let scene = Scene::new(vec![]).await;
    std::fs::write(
        scene.home.path().join("environments.toml"),
        "default = \"away\"\n[[environments]]\nid = \"away\"\nurl = \"ws://127.0.0.1:1\"\n",
    )
    .unwrap();
    // The default cannot be reached: by a model's call, by a command of the user's, and where it is named with a directory.
    let cases: [(&[&str], i32); 6] = [
        (&["exec", "go"], 3),
        (&["exec", "-e", "away=/tmp", "go"], 3),
        (&["exec", "--provider", "offline", "$ true"], 3),
        (&["exec", "--provider", "offline", "-e", "local", "$ true"], 0),
        (&["exec", "--provider", "offline", "-e", "local", "$ exit 9"], 1),
        (&["exec", "-e", "local", "go"], 0),
    ];
    for (arguments, code) in cases {
        scene.model.push_for("\"text\":\"go\"", Reply::call("a", "exec_command", &json!({"cmd": "false"})));
        let output = scene.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    }
    scene.model.push(Reply::status(400, r#"{"error":{"message":"no"}}"#));
    assert_eq!(scene.run(&["exec", "-e", "local", "fails"]).status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_hears_of_ends_and_failures() {
    let scene = Scene::new(vec![Reply::message("all done"), Reply::status(400, r#"{"error":{"message":"no such thing"}}"#)]).await;
    let heard = scene.work.path().join("heard");
    let script = format!("printf '%s\\n' \"$1\" >> {}", heard.display());
    let setting = format!("notify=[\"sh\", \"-c\", {}, \"notify\"]", Value::from(script));
    for prompt in ["one", "two"] {
        scene.run(&["exec", "-c", &setting, "-c", "model_provider=scripted", prompt]);
    }
    let read = || std::fs::read_to_string(&heard).unwrap_or_default();
    outpost_testkit::executor::eventually("both were heard", || read().lines().count() == 2).await;
    let mut news: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The command runs beside the next turn.
    news.sort_by_key(|news| news["type"].as_str().unwrap().to_owned());
    assert_eq!((&news[0]["type"], &news[0]["message"]), (&json!("turn_completed"), &json!("all done")));
    assert_eq!(news[1]["type"], "turn_failed");
    assert!(news[1]["message"].as_str().unwrap().contains("no such thing") && news[1]["thread_id"].is_string(), "{news:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_says_the_answer_and_what_went_wrong_and_verbose_says_more() {
    let script = json!({"cmd": "echo noise"});
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &script), Reply::message("the answer"), Reply::status(400, "{}")]).await;
    let quiet = scene.run(&["exec", "--quiet", "hello"]);
    assert_eq!((String::from_utf8_lossy(&quiet.stdout).trim(), String::from_utf8_lossy(&quiet.stderr).as_ref()), ("the answer", ""));
    let failed = scene.run(&["-q", "exec", "hello"]);
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("400"), "{failed:?}");
    let usual = scene.run(&["exec", "hello"]);
    let verbose = scene.run(&["exec", "-vv", "hello"]);
    assert!(verbose.stderr.len() > usual.stderr.len(), "{verbose:?}");
    let both = scene.run(&["exec", "-q", "-v", "hello"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

/// The executor is inside of namespaces that allow no more of them.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_sandbox_of_another_machine_does_not_hold_is_told_once() {
    if !Command::new("unshare").args(["--user", "--map-root-user", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("cannot be tried here: it needs namespaces of users");
        return;
    }
    let closed = "echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_mnt_namespaces && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", closed, "sh", OUTPOST, "executor", "--no-auth"]);
    // Without mounts a home below `/tmp`, where sandboxed code may write, could not be kept from it.
    let weak = ExecutorProcess::start_command(command, tempfile::tempdir_in("/var/tmp").unwrap());
    let scene = Scene::new(vec![]).await;
    let files = format!("[[environments]]\nid = \"weak\"\nurl = \"{}\"\n", weak.url());
    std::fs::write(scene.home.path().join("environments.toml"), files).unwrap();
    let run = |id: &str| Reply::call(id, "exec_command", &json!({"cmd": "true"}));
    let selected = format!("weak={}", scene.work.path().display());
    for (id, options) in [("a", &["exec", "--sandbox", "read-only"][..]), ("b", &["exec", "--sandbox", "read-only", "--json"])] {
        scene.model.push(run(id));
        scene.model.push(Reply::message("done"));
        let output = scene.run(&[options, &["-e", &selected, "go"]].concat());
        let told = text(&[output.stdout, output.stderr].concat());
        assert_eq!(told.matches("environment `weak`: the sandbox there has the level `landlock`").count(), 1, "{told}");
        assert_eq!(told.matches("not more, because of").count(), 1, "{told}");
    }
    // An agent without a sandbox misses nothing of it.
    scene.model.push(run("c"));
    scene.model.push(Reply::message("done"));
    let output = scene.run(&["exec", "-e", &selected, "go"]);
    assert!(!text(&output.stderr).contains("the sandbox there"), "{}", text(&output.stderr));
}
