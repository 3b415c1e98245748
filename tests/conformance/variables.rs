//! The environment of a child: what it gets by itself, and what a policy lets through.

use outpost_testkit::bench::with;
use outpost_testkit::{Bench, LinkKind, Setup, over_every_link};
use serde_json::{Value, json};

use crate::support::OUTPOST;

const INHERITED: &[(&str, &str)] = &[
    ("HOME", "/home/test"),
    ("LANG", "C.UTF-8"),
    ("PLAIN", "plain"),
    ("MY_API_KEY", "key"),
    ("Some_Token_Name", "token"),
    ("secretary", "secret"),
    ("DB_PASSWORD", "word"),
    ("db_passwd", "word"),
    ("GPG_PASSPHRASE", "phrase"),
    ("CLOUD_CREDENTIALS", "file"),
    ("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "1"),
    ("OPENAI_IDENTITY_TOKEN_FILE", "file"),
];

fn policy(changes: Value) -> Value {
    with(json!({"inherit": "none", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []}), changes)
}

/// The variables that a child finds, as lines in order of their names.
async fn seen(bench: &Bench, policy: Option<Value>, env: Value) -> Vec<String> {
    let mut client = bench.client().await;
    let start = with(bench.start("p", &["/usr/bin/env"]), json!({"envPolicy": policy, "env": env}));
    client.start(start).await;
    let (code, output) = client.outcome("p").await;
    assert_eq!(code, 0);
    let mut lines: Vec<_> = String::from_utf8(output).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Only the variables that this test put into the executor's own environment.
async fn inherited(bench: &Bench, changes: Value) -> Vec<String> {
    let mut lines = seen(bench, Some(policy(changes)), json!({})).await;
    lines.retain(|line| INHERITED.iter().any(|(name, _)| line.starts_with(&format!("{name}="))));
    lines
}

fn benches() -> [Bench; 2] {
    let setup = Setup { variables: INHERITED, ..Setup::default() };
    [LinkKind::Memory, LinkKind::WebSocket].map(|kind| Bench::with_setup(kind, OUTPOST, &setup))
}

over_every_link! {
    async fn without_a_policy_a_child_gets_exactly_what_is_asked(bench: Bench) {
        assert_eq!(seen(&bench, None, json!({})).await, [""; 0]);
        let env = json!({"B": "two words", "A": "", "MY_TOKEN": "kept", "ü": "ö"});
        assert_eq!(seen(&bench, None, env).await, ["A=", "B=two words", "MY_TOKEN=kept", "ü=ö"]);
    }

    async fn some_names_never_reach_a_child(bench: Bench) {
        let env = json!({
            "A": "1", "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE": "1", "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": "1", "NODE_REPL_AUTH_TOKEN": "1",
            "OPENAI_FEDERATION_RULE_ID": "1", "OPENAI_IDENTITY_TOKEN_FILE": "1", "openai_workload_identity_context": "1",
        });
        assert_eq!(seen(&bench, None, env.clone()).await, ["A=1"]);
        assert_eq!(seen(&bench, Some(policy(json!({"set": env}))), json!({})).await, ["A=1"]);
    }

    async fn a_policy_needs_all_of_its_members(bench: Bench) {
        let mut client = bench.client().await;
        for name in ["inherit", "ignoreDefaultExcludes", "exclude", "set", "includeOnly"] {
            let mut policy = policy(json!({}));
            policy.as_object_mut().unwrap().remove(name);
            let refused = client.error("process/start", with(bench.start("p", &["/bin/true"]), json!({"envPolicy": policy}))).await;
            assert_eq!(refused, (-32602, format!("missing field `{name}`")));
        }
        let unknown = with(bench.start("p", &["/bin/true"]), json!({"envPolicy": policy(json!({"inherit": "some"}))}));
        assert_eq!(client.error("process/start", unknown).await.0, -32602);
    }

    async fn what_a_policy_sets_can_be_narrowed_and_overlaid(bench: Bench) {
        let set = json!({"ONE": "1", "TWO": "2", "A_KEY": "k"});
        assert_eq!(seen(&bench, Some(policy(json!({"set": set}))), json!({})).await, ["A_KEY=k", "ONE=1", "TWO=2"]);
        let narrowed = policy(json!({"set": set, "includeOnly": ["o*", "nothing"]}));
        assert_eq!(seen(&bench, Some(narrowed.clone()), json!({})).await, ["ONE=1"]);
        assert_eq!(seen(&bench, Some(narrowed), json!({"TWO": "own", "ONE": "own"})).await, ["ONE=own", "TWO=own"]);
        let excluded = policy(json!({"set": set, "exclude": ["*"]}));
        assert_eq!(seen(&bench, Some(excluded), json!({})).await, ["A_KEY=k", "ONE=1", "TWO=2"], "excludes come before what is set");
    }

    async fn a_terminal_gets_no_variables_of_its_own(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.start("p", &["/usr/bin/env"]), json!({"env": {"A": "1"}, "tty": true}))).await;
        assert_eq!(client.outcome("p").await, (0, b"A=1\r\n".to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inheritance_has_three_widths() {
    for bench in benches() {
        assert_eq!(inherited(&bench, json!({"inherit": "none"})).await, [""; 0]);
        assert_eq!(inherited(&bench, json!({"inherit": "core"})).await, ["HOME=/home/test", "LANG=C.UTF-8"]);
        assert_eq!(inherited(&bench, json!({"inherit": "all"})).await, ["HOME=/home/test", "LANG=C.UTF-8", "PLAIN=plain"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_look_like_secrets_are_inherited_only_on_request() {
    for bench in benches() {
        let secret = ["DB_PASSWORD=word", "GPG_PASSPHRASE=phrase", "CLOUD_CREDENTIALS=file", "MY_API_KEY=key", "Some_Token_Name=token"];
        let plain = ["HOME=/home/test", "LANG=C.UTF-8", "PLAIN=plain", "db_passwd=word", "secretary=secret"];
        let mut all = [secret, plain].concat();
        all.sort_unstable();
        assert_eq!(inherited(&bench, json!({"inherit": "all", "ignoreDefaultExcludes": true})).await, all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_have_wildcards_and_no_case() {
    for bench in benches() {
        let excluded = json!({"inherit": "all", "exclude": ["pl?in", "h*E"]});
        assert_eq!(inherited(&bench, excluded).await, ["LANG=C.UTF-8"]);
        let short = json!({"inherit": "all", "exclude": ["plai", "lain", "?plain"]});
        assert_eq!(inherited(&bench, short).await, ["HOME=/home/test", "LANG=C.UTF-8", "PLAIN=plain"]);
        let only = json!({"inherit": "all", "includeOnly": ["*ai*"]});
        assert_eq!(inherited(&bench, only).await, ["PLAIN=plain"]);
    }
}
