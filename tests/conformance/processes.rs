//! Processes: how they start, what they are told, how they end.

use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use outpost_testkit::executor::{eventually, is_alive};
use outpost_testkit::{Client, over_every_link, over_links};
use serde_json::{Value, json};

use crate::support::Pipe;

/// What a process wrote to one stream.
fn stream(events: &[Value], name: &str) -> String {
    let chunks = events.iter().filter(|event| event["params"]["stream"] == name);
    String::from_utf8(chunks.flat_map(|event| decode(&event["params"]["chunk"])).collect()).unwrap()
}

/// Waits until a process has written this text.
async fn until_written(client: &mut Client, process: &str, text: &str) {
    let mut after = 0;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let read = client.result("process/read", json!({"processId": process, "afterSeq": after, "waitMs": 30_000})).await;
        seen.extend(read["chunks"].as_array().unwrap().iter().flat_map(|piece| decode(&piece["chunk"])));
        after = read["nextSeq"].as_u64().unwrap() - 1;
        assert!(read["closed"] == false || String::from_utf8_lossy(&seen).contains(text), "closed without it: {read}");
    }
}

over_every_link! {
    async fn a_start_is_answered_with_the_id_and_the_kind_of_confinement(bench: Bench) {
        let mut client = bench.client().await;
        for id in ["p", "", "a/b c\"ü", &"x".repeat(5000)] {
            let answer = client.start(bench.shell(id, "echo hi")).await;
            assert_eq!(answer, json!({"processId": id, "sandboxType": "none"}));
            assert_eq!(client.outcome(id).await, (0, b"hi\n".to_vec()));
        }
    }

    async fn events_are_numbered_from_one_without_gaps(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; sleep 0.01; done; exit 7")).await;
        let events = client.events("p").await;
        let numbers: Vec<_> = events.iter().map(|event| event["params"]["seq"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
        assert_eq!(stream(&events, "stdout"), "out 1\nout 2\nout 3\nout 4\nout 5\n");
        assert_eq!(stream(&events, "stderr"), "err 1\nerr 2\nerr 3\nerr 4\nerr 5\n");
        let exits: Vec<_> = events.iter().filter(|event| event["method"] == "process/exited").collect();
        assert_eq!(exits.len(), 1);
        let seq = exits[0]["params"]["seq"].clone();
        assert_eq!(exits[0]["params"], json!({"processId": "p", "seq": seq, "exitCode": 7, "sandboxDenied": false}));
        let last = events.len() as u64;
        assert_eq!(events[events.len() - 1], json!({"method": "process/closed", "params": {"processId": "p", "seq": last}}));
    }

    async fn exit_codes_are_those_of_the_direct_child(bench: Bench) {
        let mut client = bench.client().await;
        for (id, script, code) in [
            ("zero", "true", 0),
            ("own", "exit 42", 42),
            ("most", "exit 255", 255),
            ("kill", "kill -KILL $$", 137),
            ("term", "kill -TERM $$", 143),
            ("segv", "kill -SEGV $$", 139),
        ] {
            client.start(bench.shell(id, script)).await;
            assert_eq!(client.outcome(id).await.0, code, "{script}");
        }
    }

    async fn closed_waits_for_whoever_holds_the_output(bench: Bench) {
        let mut client = bench.client().await;
        let pipe = Pipe::new(&bench, "pipe");
        client.start(bench.shell("p", "(read x < pipe; echo late) & exit 4")).await;
        let exited = client.until(|message| message["method"] == "process/exited").await;
        assert_eq!((&exited["params"]["seq"], &exited["params"]["exitCode"]), (&json!(1), &json!(4)));
        pipe.go();
        let events = client.events("p").await;
        let methods: Vec<_> = events.iter().map(|event| event["method"].as_str().unwrap()).collect();
        assert_eq!(methods, ["process/output", "process/closed"]);
        assert_eq!(stream(&events, "stdout"), "late\n");
    }

    async fn the_program_sees_its_arguments_directory_and_name(bench: Bench) {
        let mut client = bench.client().await;
        std::fs::create_dir(bench.path("sub dir")).unwrap();
        let start = bench.start("p", &["sh", "-c", "pwd -P; printf '<%s>' \"$0\" \"$@\"", "zero", "", "a b", "ü\n*"]);
        client.start(with(start, json!({"cwd": bench.uri("sub dir")}))).await;
        let place = std::fs::canonicalize(bench.path("sub dir")).unwrap();
        assert_eq!(client.outcome("p").await, (0, format!("{}\n<zero><><a b><ü\n*>", place.display()).into_bytes()));
    }

    async fn the_name_that_a_program_is_told_may_be_another(bench: Bench) {
        let mut client = bench.client().await;
        let script = "tr '\\0' '\\n' < /proc/$$/cmdline | head -n 1";
        for (id, tty) in [("pipes", false), ("terminal", true)] {
            client.start(with(bench.shell(id, script), json!({"arg0": "another name", "tty": tty}))).await;
            let (code, output) = client.outcome(id).await;
            assert_eq!((code, String::from_utf8(output).unwrap().trim()), (0, "another name"), "{id}");
        }
    }

    async fn a_program_is_looked_up_in_the_path_of_the_child(bench: Bench) {
        let mut client = bench.client().await;
        std::os::unix::fs::symlink("/bin/sh", bench.path("my-shell")).unwrap();
        let start = bench.start("p", &["my-shell", "-c", "echo found"]);
        assert_eq!(client.error("process/start", start.clone()).await, (-32603, "No such file or directory (os error 2)".into()));
        let place = bench.path("");
        client.start(with(start, json!({"env": {"PATH": format!("/usr/bin:{}", place.display())}}))).await;
        assert_eq!(client.outcome("p").await, (0, b"found\n".to_vec()));
    }

    async fn a_start_that_fails_leaves_its_id_free(bench: Bench) {
        let mut client = bench.client().await;
        std::fs::write(bench.path("plain"), "").unwrap();
        let missing = (-32603, "No such file or directory (os error 2)".to_owned());
        for tty in [false, true] {
            let start = |argv: &[&str]| with(bench.start("p", argv), json!({"tty": tty}));
            assert_eq!(client.error("process/start", start(&["/no/such/program"])).await, missing);
            assert_eq!(client.error("process/start", start(&["no-such-program"])).await, missing);
            assert_eq!(client.error("process/start", start(&[""])).await, missing);
            let elsewhere = with(start(&["/bin/true"]), json!({"cwd": bench.uri("missing")}));
            assert_eq!(client.error("process/start", elsewhere).await, missing);
            let on_file = with(start(&["/bin/true"]), json!({"cwd": bench.uri("plain")}));
            assert_eq!(client.error("process/start", on_file).await, (-32603, "Not a directory (os error 20)".into()));
            let plain = bench.path("plain");
            let refused = client.error("process/start", start(&[plain.to_str().unwrap()])).await;
            assert_eq!(refused, (-32603, "Permission denied (os error 13)".into()));
        }
        assert_eq!(client.error("process/read", json!({"processId": "p"})).await.1, "unknown process id p");
        client.start(bench.shell("p", "echo free")).await;
        assert_eq!(client.outcome("p").await, (0, b"free\n".to_vec()));
    }

    async fn parameters_of_a_start_are_checked(bench: Bench) {
        let mut client = bench.client().await;
        let good = bench.start("p", &["/bin/true"]);
        for name in ["processId", "argv", "cwd", "env", "tty"] {
            let mut start = good.clone();
            start.as_object_mut().unwrap().remove(name);
            assert_eq!(client.error("process/start", start).await, (-32602, format!("missing field `{name}`")));
        }
        for change in [
            json!({"argv": []}),
            json!({"argv": "true"}),
            json!({"argv": [1]}),
            json!({"tty": null}),
            json!({"env": {"A": 1}}),
            json!({"env": null}),
            json!({"cwd": "/tmp"}),
            json!({"cwd": "file:///C:/x"}),
            json!({"pipeStdin": 1}),
            json!({"metadata": {"threadId": "no uuid"}}),
            json!({"networkProxy": {}}),
        ] {
            assert_eq!(client.error("process/start", with(good.clone(), change.clone())).await.0, -32602, "{change}");
        }
        let whole = json!({
            "metadata": {"threadId": "0198e6a0-0000-7000-8000-000000000000", "toolCallId": "call"}, "envPolicy": null,
            "shellSnapshot": null,
            "pipeStdin": false, "arg0": null, "sandbox": null, "enforceManagedNetwork": false, "managedNetwork": null, "networkProxy": null,
        });
        client.start(with(good, whole)).await;
        assert_eq!(client.outcome("p").await.0, 0);
    }

    async fn a_sandbox_is_kept_and_what_it_refuses_is_told(bench: Bench) {
        let mut client = bench.client().await;
        let restricted =
            json!({"type": "restricted", "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]});
        let sandbox = json!({
            "permissions": {"type": "managed", "file_system": restricted, "network": "restricted"},
            "cwd": "file:///", "windowsSandboxLevel": "disabled",
        });
        let start = with(bench.shell("p", "touch /usr/ran"), json!({"sandbox": sandbox, "cwd": "file:///"}));
        let answer = client.start(start.clone()).await;
        assert_eq!(answer, json!({"processId": "p", "sandboxType": "linuxSeccomp"}));
        assert_eq!(client.start(start).await, answer);
        let events = client.events("p").await;
        let exited = events.iter().find(|event| event["method"] == "process/exited").unwrap();
        assert_ne!(exited["params"]["exitCode"], 0);
        assert_eq!(exited["params"]["sandboxDenied"], true);
        assert_eq!(client.read("p", 0).await["sandboxDenied"], true);
        client.start(with(bench.shell("q", "touch /usr/ran; true"), json!({"sandbox": sandbox, "cwd": "file:///"}))).await;
        let events = client.events("q").await;
        let exited = events.iter().find(|event| event["method"] == "process/exited").unwrap();
        assert_eq!((&exited["params"]["exitCode"], &exited["params"]["sandboxDenied"]), (&json!(0), &json!(false)));
    }

    async fn a_sandbox_that_cannot_be_meant_is_refused_and_nothing_runs(bench: Bench) {
        let mut client = bench.client().await;
        let entry = json!({"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": "write"});
        let sandbox = json!({
            "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": [entry]}, "network": "restricted"},
            "windowsSandboxLevel": "disabled",
        });
        let refused = client.error("process/start", with(bench.shell("p", "touch ran"), json!({"sandbox": sandbox}))).await;
        assert_eq!(refused, (-32602, "file system sandbox context with dynamic permissions requires cwd".into()));
        assert_eq!(client.error("process/read", json!({"processId": "p"})).await.1, "unknown process id p");
        assert!(!bench.path("ran").exists());
    }

    async fn the_same_start_again_is_the_same_process(bench: Bench) {
        let mut client = bench.client().await;
        let start = bench.shell("p", "echo run >> runs; echo one");
        let first = client.start(start.clone()).await;
        assert_eq!(client.start(start.clone()).await, first);
        assert_eq!(client.outcome("p").await, (0, b"one\n".to_vec()));
        assert_eq!(client.start(with(start.clone(), json!({"arg0": null, "pipeStdin": false}))).await, first);
        assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap(), "run\n");
        for change in [json!({"argv": ["/bin/true"]}), json!({"env": {}}), json!({"tty": true}), json!({"pipeStdin": true})] {
            let refused = client.error("process/start", with(start.clone(), change.clone())).await;
            assert_eq!(refused, (-32600, "process p already exists".into()), "{change}");
        }
        assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap(), "run\n");
    }

    async fn starts_of_one_id_that_are_sent_together_run_once(bench: Bench) {
        let mut client = bench.client().await;
        let same: Vec<_> = (0..20).map(|_| client.request("process/start", bench.shell("p", "echo run >> runs"))).collect();
        let other = client.request("process/start", bench.shell("p", "echo other >> runs"));
        for id in same {
            assert_eq!(client.answer(id).await["result"]["processId"], "p");
        }
        assert_eq!(client.answer(other).await["error"]["code"], -32600);
        client.outcome("p").await;
        assert_eq!(std::fs::read_to_string(bench.path("runs")).unwrap(), "run\n");
    }

    async fn a_terminal_merges_both_streams_and_has_a_size(bench: Bench) {
        let mut client = bench.client().await;
        let script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo err >&2";
        client.start(with(bench.shell("p", script), json!({"tty": true}))).await;
        let events = client.events("p").await;
        assert_eq!(stream(&events, "pty"), "24 80\r\nerr\r\n");
        assert!(events.iter().all(|event| event["method"] != "process/output" || event["params"]["stream"] == "pty"));
    }

    async fn a_terminal_process_that_a_signal_killed_reports_one(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "kill -KILL $$"), json!({"tty": true}))).await;
        assert_eq!(client.outcome("p").await.0, 1);
        client.start(with(bench.shell("q", "exit 5"), json!({"tty": true}))).await;
        assert_eq!(client.outcome("q").await.0, 5);
    }

    async fn a_terminal_can_be_resized_and_other_processes_cannot(bench: Bench) {
        let mut client = bench.client().await;
        let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
        client.start(with(bench.shell("p", script), json!({"tty": true}))).await;
        until_written(&mut client, "p", "ready").await;
        assert_eq!(client.result("process/resize", json!({"processId": "p", "rows": 50, "cols": 132})).await, json!({}));
        let (code, output) = client.outcome("p").await;
        assert_eq!((code, String::from_utf8(output).unwrap().as_str()), (0, "ready\r\n50 132\r\n"));
        client.start(bench.shell("q", "exec sleep 60")).await;
        let size = |id: &str| json!({"processId": id, "rows": 1, "cols": 1});
        assert_eq!(client.error("process/resize", size("q")).await, (-32600, "process q has no terminal".into()));
        assert_eq!(client.error("process/resize", size("none")).await, (-32600, "unknown process id none".into()));
        client.result("process/terminate", json!({"processId": "q"})).await;
    }
}

over_every_link! {
    async fn terminate_kills_the_whole_group_without_a_chance_to_object(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "trap 'echo trapped' TERM INT HUP; sleep 60 & echo $!; while :; do wait; done")).await;
        let first = client.until(|message| message["method"] == "process/output").await;
        let grandchild: u32 = String::from_utf8(decode(&first["params"]["chunk"])).unwrap().trim().parse().unwrap();
        assert_eq!(client.result("process/terminate", json!({"processId": "p"})).await, json!({"running": true}));
        let (code, output) = client.outcome("p").await;
        assert_eq!((code, output), (137, Vec::new()));
        eventually("the grandchild was killed", || !is_alive(grandchild)).await;
        assert_eq!(client.result("process/terminate", json!({"processId": "p"})).await, json!({"running": false}));
        assert_eq!(client.result("process/terminate", json!({"processId": "none"})).await, json!({"running": false}));
    }

    async fn terminate_ends_a_process_whose_output_a_stranger_holds(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "setsid sleep 10 & echo started; wait")).await;
        client.until(|message| message["method"] == "process/output").await;
        client.result("process/terminate", json!({"processId": "p"})).await;
        assert_eq!(client.outcome("p").await.0, 137);
    }

    async fn signals_reach_the_group(bench: Bench) {
        let mut client = bench.client().await;
        for (signal, name) in [
            ("interrupt", "INT"),
            ("terminate", "TERM"),
            ("hangup", "HUP"),
            ("quit", "QUIT"),
            ("usr1", "USR1"),
            ("usr2", "USR2"),
            ("winch", "WINCH"),
        ] {
            let script = format!("exec 2> /dev/null; trap 'echo got {name}; exit 3' {name}; echo ready; while :; do sleep 0.02; done");
            client.start(bench.shell(name, &script)).await;
            until_written(&mut client, name, "ready").await;
            assert_eq!(client.result("process/signal", json!({"processId": name, "signal": signal})).await, json!({}));
            assert_eq!(client.outcome(name).await, (3, format!("ready\ngot {name}\n").into_bytes()));
        }
        client.start(bench.shell("p", "exec sleep 60")).await;
        client.result("process/signal", json!({"processId": "p", "signal": "kill"})).await;
        assert_eq!(client.outcome("p").await.0, 137);
    }

    async fn a_signal_to_nobody_is_no_error(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "true")).await;
        client.outcome("p").await;
        for id in ["p", "none"] {
            assert_eq!(client.result("process/signal", json!({"processId": id, "signal": "interrupt"})).await, json!({}));
        }
    }

    async fn the_list_tells_of_every_process_of_the_session(bench: Bench) {
        let mut client = bench.client().await;
        let metadata = json!({"threadId": "0198e6a0-0000-7000-8000-000000000000", "toolCallId": null});
        client.start(with(bench.start("b", &["/bin/sleep", "60"]), json!({"metadata": metadata}))).await;
        client.start(with(bench.start("a", &["/bin/echo", "x"]), json!({"tty": true}))).await;
        client.outcome("a").await;
        let mut list = client.result("process/list", json!({})).await;
        let rows = list["processes"].as_array_mut().unwrap();
        assert!(rows.iter_mut().all(|row| row["pid"].take().as_u64().is_some()));
        assert_eq!(
            rows[0],
            json!({
                "processId": "a", "argv": ["/bin/echo", "x"], "metadata": null, "pid": null, "tty": true,
                "nextSeq": 4, "exited": true, "exitCode": 0, "closed": true,
            })
        );
        assert_eq!(
            rows[1],
            json!({
                "processId": "b", "argv": ["/bin/sleep", "60"], "metadata": metadata, "pid": null, "tty": false,
                "nextSeq": 1, "exited": false, "exitCode": null, "closed": false,
            })
        );
        client.result("process/terminate", json!({"processId": "b"})).await;
    }
}

over_links! { [Memory, WebSocket]
    async fn a_megabyte_of_bytes_arrives_as_it_was_written(bench: Bench) {
        let mut client = bench.client().await;
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(bench.path("data"), &bytes).unwrap();
        client.start(bench.start("p", &["cat", "data"])).await;
        let events = client.events("p").await;
        let chunks: Vec<_> =
            events.iter().filter(|event| event["method"] == "process/output").map(|event| decode(&event["params"]["chunk"])).collect();
        assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= 64 << 10));
        assert!(chunks.concat() == bytes && base64(&bytes).len() > bytes.len());
    }
}
