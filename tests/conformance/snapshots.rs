//! Shell snapshots: profiles are run once for many commands.

use std::fs;

use outpost_testkit::bench::with;
use outpost_testkit::executor::eventually;
use outpost_testkit::{Bench, Client, over_links};
use serde_json::{Value, json};

use crate::support::Pipe;

/// A home whose profile counts how often it is read.
fn profile(bench: &Bench, text: &str) {
    fs::create_dir_all(bench.path("home")).unwrap();
    let count = format!("echo loaded >> {}\n", bench.path("home/loads").display());
    fs::write(bench.path("home/.bash_profile"), format!("{count}{text}")).unwrap();
}

fn loads(bench: &Bench) -> usize {
    fs::read_to_string(bench.path("home/loads")).map_or(0, |text| text.lines().count())
}

fn command(bench: &Bench, id: &str, script: &str, scope: &str) -> Value {
    with(
        bench.start(id, &["/bin/bash", "-lc", script]),
        json!({
            "env": {"PATH": "/usr/bin:/bin", "HOME": bench.path("home"), "KEEP": "request"},
            "shellSnapshot": {"scopeId": scope, "shell": {"name": "bash", "path": "/bin/bash"}},
        }),
    )
}

async fn says(client: &mut Client, start: Value) -> (i64, String) {
    let id = start["processId"].as_str().unwrap().to_owned();
    client.start(start).await;
    let (code, output) = client.outcome(&id).await;
    (code, String::from_utf8(output).unwrap())
}

over_links! {
    [Memory, WebSocket]

    async fn profiles_are_run_once(bench: Bench) {
        profile(&bench, "export FROM_PROFILE=yes KEEP=profile\nshopt -s expand_aliases\nalias hi='echo alias'\nfn() { echo \"it's a function\"; }\n\
                         set -o noclobber\ncd /usr\nlocal_only=1\necho noise\n");
        let mut client = bench.client().await;
        let script = "echo $FROM_PROFILE $KEEP $local_only; pwd\nfn\nhi\nset -o | grep noclobber | tr -d ' \\t'\necho $#";
        let expected = format!("yes request\n{}\nit's a function\nalias\nnoclobberon\n0\n", bench.path("").display().to_string().trim_end_matches('/'));
        for id in ["a", "b"] {
            assert_eq!(says(&mut client, command(&bench, id, script, "s")).await, (0, expected.clone()));
        }
        assert_eq!(loads(&bench), 1);
        // Other variables of the request do not matter; another scope does.
        let more = with(command(&bench, "c", "echo $FROM_PROFILE $EXTRA", "s"), json!({
            "env": {"PATH": "/usr/bin:/bin", "HOME": bench.path("home"), "EXTRA": "1"},
        }));
        assert_eq!(says(&mut client, more).await, (0, "yes 1\n".into()));
        assert_eq!(loads(&bench), 1);
        says(&mut client, command(&bench, "d", "true", "other")).await;
        assert_eq!(loads(&bench), 2);
    }

    async fn arguments_and_exit_codes_are_those_of_the_command(bench: Bench) {
        profile(&bench, "");
        let mut client = bench.client().await;
        let mut start = command(&bench, "a", "echo $0 $1; exit 7", "s");
        start["argv"] = json!(["/bin/bash", "-lc", "echo $0 $1; exit 7", "zero", "one"]);
        assert_eq!(says(&mut client, start.clone()).await, (7, "zero one\n".into()));
        // The same start again is the same start.
        client.start(start).await;
        assert_eq!(loads(&bench), 1);
    }

    async fn without_a_snapshot_the_command_runs_as_it_was_asked_for(bench: Bench) {
        profile(&bench, "exit 3\n");
        let mut client = bench.client().await;
        assert_eq!(says(&mut client, command(&bench, "a", "echo never", "s")).await.0, 3);
        let plain = with(command(&bench, "b", "", "s"), json!({"argv": ["/bin/bash", "-c", "echo plain"]}));
        let before = loads(&bench);
        assert_eq!(says(&mut client, plain).await, (0, "plain\n".into()));
        assert_eq!(loads(&bench), before);
    }

    async fn what_profiles_print_is_kept_apart(bench: Bench) {
        // More than a pipe holds, on both streams, and a trace of itself.
        profile(&bench, "for i in $(seq 5000); do echo 'a line that a profile prints'; echo 'a complaint of a profile' >&2; done\nset -x\n");
        let mut client = bench.client().await;
        for id in ["a", "b"] {
            assert_eq!(says(&mut client, command(&bench, id, "echo own; echo complaint >&2", "s")).await, (0, "own\ncomplaint\n".into()));
        }
        assert_eq!(loads(&bench), 1);
    }

    async fn a_policy_filters_what_profiles_leave_behind(bench: Bench) {
        profile(&bench, "export MY_TOKEN=secret PLAIN=p\n");
        let mut client = bench.client().await;
        let start = with(command(&bench, "a", "echo $PLAIN $MY_TOKEN.", "s"), json!({
            "envPolicy": {"inherit": "core", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []},
        }));
        assert_eq!(says(&mut client, start).await, (0, "p .\n".into()));
    }

    async fn what_cannot_be_meant_is_refused(bench: Bench) {
        let mut client = bench.client().await;
        let refused = client.error("process/start", command(&bench, "a", "true", "")).await;
        assert_eq!(refused, (-32602, "shell snapshot scope must be non-empty and at most 256 bytes".into()));
        let fish = with(command(&bench, "b", "true", "s"), json!({"shellSnapshot": {"scopeId": "s", "shell": {"name": "fish", "path": "/bin/bash"}}}));
        assert_eq!(client.error("process/start", fish).await, (-32602, "shell snapshots are unsupported for shell `fish`".into()));
    }

    async fn a_plain_shell_keeps_variables_and_aliases(bench: Bench) {
        fs::create_dir_all(bench.path("home")).unwrap();
        fs::write(bench.path("home/.profile"), "export FROM_PROFILE=yes\nalias hi='echo alias'\n").unwrap();
        let mut client = bench.client().await;
        for id in ["a", "b"] {
            let start = with(command(&bench, id, "", "s"), json!({
                "argv": ["/bin/sh", "-lc", "echo $FROM_PROFILE\nhi"],
                "shellSnapshot": {"scopeId": "s", "shell": {"name": "sh", "path": "/bin/sh"}},
            }));
            assert_eq!(says(&mut client, start).await, (0, "yes\nalias\n".into()));
        }
    }

    async fn what_one_command_was_given_is_not_given_to_the_next(bench: Bench) {
        profile(&bench, "export DERIVED=from-$ONCE\n");
        let mut client = bench.client().await;
        let with_variable = |id: &str, name: &str| {
            let mut start = command(&bench, id, "echo $ONCE $DERIVED $OTHER", "s");
            start["env"][name] = json!("given");
            start
        };
        assert_eq!(says(&mut client, with_variable("a", "ONCE")).await, (0, "given from-\n".into()));
        assert_eq!(says(&mut client, with_variable("b", "OTHER")).await, (0, "from- given\n".into()));
        assert_eq!(loads(&bench), 1);
        // Another home has other profiles.
        let mut elsewhere = with_variable("c", "ONCE");
        elsewhere["env"]["HOME"] = json!(bench.path(""));
        assert_eq!(says(&mut client, elsewhere).await, (0, "given\n".into()));
    }

    async fn a_start_that_reads_its_profiles_can_be_terminated(bench: Bench) {
        let pipe = Pipe::new(&bench, "pipe");
        profile(&bench, &format!("read x < {}\n", bench.path("pipe").display()));
        let mut client = bench.client().await;
        let start = command(&bench, "a", "echo ran >> ran", "s");
        let first = client.request("process/start", start.clone());
        eventually("the profile is read", || loads(&bench) == 1).await;
        // It is known meanwhile; what is the same waits for the same end, what is not is refused.
        let same = client.request("process/start", start.clone());
        let (_, why) = client.error("process/start", command(&bench, "a", "echo other", "s")).await;
        assert_eq!(why, "process a already exists");
        let write = client.result("process/write", json!({"processId": "a", "chunk": "", "writeId": "w"})).await;
        assert_eq!(write["status"], "starting");
        assert_eq!(client.result("process/terminate", json!({"processId": "a"})).await, json!({"running": true}));
        let told = client.answer(first).await["error"]["message"].clone();
        assert_eq!(told, "process a was terminated before it had started");
        // The id is free again, and the one that waited is a start of its own.
        eventually("the profile is read again", || loads(&bench) == 2).await;
        assert!(!bench.path("ran").exists());
        pipe.go();
        assert!(client.answer(same).await["result"].is_object());
        assert_eq!(client.outcome("a").await.0, 0);
        assert_eq!(fs::read_to_string(bench.path("ran")).unwrap(), "ran\n");
        assert_eq!(client.result("process/terminate", json!({"processId": "a"})).await, json!({"running": false}));
    }
}
