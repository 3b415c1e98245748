//! kill -9 of the executor at any moment: the first start and the first file call afterwards work, what is denied stays denied, and no
//! placeholder stays.

use std::time::Duration;

use outpost_testkit::bench::with;
use serde_json::json;

use super::scene::Scene;
use super::{Episode, Random, Steps};
use crate::support::number;

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let mut scene = Scene::new(episode, &mut random, steps).await;
    for _ in 0..2 + random.below(3) {
        let (starts, calls, moment, is_new) = (random.below(4), random.below(4), random.below(60), random.percent(40));
        scene.steps.note(format!("{starts} starts and {calls} calls, killed after {moment} ms, then a new session: {is_new}"));
        let strict = scene.strict();
        for _ in 0..starts {
            let start = with(scene.ground().shell(&number(), "sleep 100"), json!({"sandbox": strict, "cwd": "file:///"}));
            scene.client.request("process/start", start);
        }
        for _ in 0..calls {
            let path = super::scene::uri(&scene.at("made"));
            scene.client.request("fs/writeFile", json!({"path": path, "dataBase64": "eA==", "sandbox": strict}));
        }
        // Any moment is as good as another; nothing is waited for.
        tokio::time::sleep(Duration::from_millis(moment as u64)).await;
        if is_new {
            scene.begin_anew().await;
        } else {
            scene.kill().await;
        }
        let strict = scene.strict();
        let shown = scene.run(&strict, "echo works").await;
        assert_eq!(shown.as_deref(), Some("works\n"), "the first start after a kill");
        let path = super::scene::uri(&scene.at("plain"));
        let answer = scene.client.call("fs/readFile", json!({"path": path, "sandbox": strict})).await;
        assert!(answer.get("error").is_none(), "the first file call after a kill: {answer}");
        scene.judge(&mut random).await;
    }
    scene.end().await;
}
