//! Programs that take as much as they can get of processes, memory, files and disk: another session is served meanwhile, and nothing is left.

use outpost_testkit::Client;
use outpost_testkit::bench::{connect, with};
use serde_json::json;

use super::{Episode, Random, Steps};
use crate::support::{Ground, number};

const HOGS: &[&str] = &[
    "i=0; while [ $i -lt 400 ]; do sleep 30 & i=$((i+1)); done 2>/dev/null; wait",
    "perl -e 'my @all; while (1) { push @all, \"x\" x (1 << 20) }'",
    "perl -e 'my @all; while (1) { open(my $f, \"<\", \"/dev/null\") or last; push @all, $f } sleep 30'",
    "cat /dev/zero > big",
    "while :; do echo x; done",
    "sh -c 'setsid sleep 300 & setsid sh -c \"sleep 300 & sleep 300\" &' ; sleep 30",
    "mkdir -p d; i=0; while [ $i -lt 3000 ]; do : > d/$i; i=$((i+1)); done; sleep 30",
];

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let limits = ["--limit", "processes=48", "--limit", "memory=192M", "--limit", "file-size=16M", "--limit", "open-files=128"];
    let ground = Ground::with(episode.who, &limits);
    for _ in 0..3 {
        let mut hog = ground.client().await;
        for _ in 0..1 + random.below(2) {
            let (script, id, confined) = (random.pick(HOGS), number(), random.percent(60));
            steps.note(format!("{script} (sandbox: {confined})"));
            let start = ground.shell(&id, script);
            let start = if confined { with(start, json!({"sandbox": ground.workspace_write()})) } else { start };
            hog.request("process/start", start);
        }
        let mut other = ground.client().await;
        let shown = ground.run(&mut other, &ground.read_only(), "echo served").await;
        assert_eq!(shown, (0, "served\n".to_owned()), "another session");
        other.result("session/end", json!({})).await;
        hog.result("session/end", json!({})).await;
        let mut again = Client::new(connect(ground.executor.url()).await);
        again.hello().await;
        let shown = ground.run(&mut again, &ground.read_only(), "echo still").await;
        assert_eq!(shown, (0, "still\n".to_owned()), "a session that comes later");
        again.result("session/end", json!({})).await;
    }
}
