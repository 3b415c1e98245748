//! File calls and starts while sandboxed code swaps directories, links and files under them at the same time. No program outside helps, so there
//! is no window: nothing may be learnt and nothing outside be changed, at any moment.

use std::path::{Path, PathBuf};

use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use serde_json::{Value, json};

use super::scene::{EVIL, SECRET, Scene, uri};
use super::{Episode, Level, Random, Steps};
use crate::support::number;

/// What the swapping loop does; `{A}` and `{B}` are names in the workspace, `{T}` is where a link may lead.
const SWAPS: &[&str] = &[
    "ln -sfn {T} {A}",
    "rm -rf {A}; mkdir {A}; echo x > {A}/key",
    "mv -T {A} {B}",
    "mv --exchange -T {A} {B} || { mv {A} swap; mv {B} {A}; mv swap {B}; }",
    "rm -rf {A}; ln -s {T} {A}",
    "mkdir -p {A}/key/deep",
    "ln -sfn {B} {A}",
    "rm -rf {A}; echo x > {A}",
    "ln -sfn {T}/key {A}",
];
const NAMES: &[&str] = &["one", "two", "three"];

fn swaps(random: &mut Random, targets: &[String]) -> String {
    (0..4 + random.below(8))
        .map(|_| {
            let swap = random.pick(SWAPS).replace("{A}", random.pick(NAMES)).replace("{B}", random.pick(NAMES));
            swap.replace("{T}", &random.pick(targets)) + "\n"
        })
        .collect()
}

/// A call, and the path that it would be a finding to have reached.
fn call(random: &mut Random, root: &Path) -> (&'static str, Value) {
    let name = root.join(random.pick(NAMES));
    let (name, key) = (uri(&name), uri(&name.join(random.pick(&["key", "hooks", "config", "deep/key"]))));
    let (other, evil) = (uri(&root.join(random.pick(NAMES)).join("key")), base64(EVIL));
    match random.below(13) {
        0..=2 => ("fs/readFile", json!({"path": key})),
        3 => ("fs/writeFile", json!({"path": key, "dataBase64": evil})),
        4 => ("fs/remove", json!({"path": key, "recursive": true, "force": true})),
        5 => ("fs/copy", json!({"sourcePath": name, "destinationPath": uri(&root.join(format!("in-{}", number()))), "recursive": true})),
        6 => ("fs/copy", json!({"sourcePath": uri(&root.join("plain")), "destinationPath": key, "recursive": false})),
        7 => ("fs/rename", json!({"sourcePath": uri(&root.join("plain")), "destinationPath": key})),
        8 => ("fs/createDirectory", json!({"path": key, "recursive": true})),
        9 => ("fs/setMode", json!({"path": key, "mode": 0o777})),
        10 => ("fs/createLink", json!({"path": key, "target": EVIL})),
        11 => ("fs/walk", json!({"path": name})),
        _ => ("fs/rename", json!({"sourcePath": key, "destinationPath": other})),
    }
}

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let mut scene = Scene::new(episode, &mut random, steps).await;
    let root = scene.at("");
    // With protected names where there are any; the vaults are denied by every policy of the scene.
    let mut targets: Vec<String> = ["attic", "vault", ""].iter().map(|name| scene.outer(name).display().to_string()).collect();
    if episode.level != Level::Landlock {
        targets.extend([".git", ".git/hooks", "closed"].map(|name| root.join(name).display().to_string()));
    }
    let strict = scene.strict();
    for _ in 0..2 + random.below(2) {
        let script = format!("cd {}\necho ready\nwhile :; do\n{}done 2>/dev/null", root.display(), swaps(&mut random, &targets));
        scene.steps.note(format!("swaps: {script}"));
        let before = scene.kept();
        let swapper = number();
        let start = with(scene.ground().shell(&swapper, &script), json!({"sandbox": strict}));
        scene.client.start(start).await;
        scene.client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == swapper.as_str()).await;
        for _ in 0..60 {
            let (method, params) = call(&mut random, &root);
            let answer = scene.client.call(method, with(params.clone(), json!({"sandbox": strict}))).await;
            let shown = answer["result"]["dataBase64"].as_str().map(|_| decode(&answer["result"]["dataBase64"])).unwrap_or_default();
            let shown = String::from_utf8_lossy(&shown);
            assert!(!shown.contains(SECRET), "{method} {params} shows {shown}");
        }
        for _ in 0..4 {
            let cwd: PathBuf = root.join(random.pick(NAMES));
            let id = number();
            let probe = format!("cat key */key; echo {EVIL} > key; echo {EVIL} > x; rm -rf hooks");
            let start = with(scene.ground().shell(&id, &probe), json!({"sandbox": strict, "cwd": uri(&cwd)}));
            let answer = scene.client.call("process/start", start).await;
            if answer.get("error").is_none() {
                let (_, output) = scene.client.outcome(&id).await;
                Scene::assert_silent(&String::from_utf8_lossy(&output), "a command that is started behind a link");
            }
        }
        scene.client.result("process/terminate", json!({"processId": swapper})).await;
        scene.client.outcome(&swapper).await;
        scene.assert_kept(&before, "sandboxed code or a file call");
    }
    scene.judge(&mut random).await;
    scene.end().await;
}
