//! Watches over paths, there or missing.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use outpost_testkit::executor::eventually;
use outpost_testkit::{Bench, Client, LinkKind, Setup, over_every_link, over_links};
use serde_json::{Value, json};

use crate::support::OUTPOST;

/// Long enough for a notification that should not come to be seen.
const QUIET: Duration = Duration::from_millis(300);

/// Waits until a watch has told about a path.
async fn changed(client: &mut Client, watch: &str, path: &str) {
    let tells = |message: &Value| {
        let params = &message["params"];
        let paths = params["paths"].as_array();
        message["method"] == "fs/changed" && params["watchId"] == watch && paths.is_some_and(|paths| paths.iter().any(|told| told == path))
    };
    client.until(tells).await;
}

fn watch(bench: &Bench, id: &str, name: &str, recursive: bool) -> Value {
    json!({"watchId": id, "path": bench.uri(name), "recursive": recursive})
}

fn missing(bench: &Bench, id: u64, names: &[&str], present: &str) -> Value {
    let names: Vec<_> = names.iter().map(|name| bench.uri(name)).collect();
    json!({"watchId": id, "missing": names, "present": bench.uri(present)})
}

async fn is_watching(client: &mut Client, params: Value) -> bool {
    client.result("fs/watchMissing", params).await["watching"].as_bool().unwrap()
}

async fn missing_changed(client: &mut Client, id: u64) {
    let told = client.until(|message| message["method"] == "fs/missingChanged").await;
    assert_eq!(told["params"], json!({"watchId": id}));
}

/// How many inotify instances a process has.
fn instances(pid: u32) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.as_os_str() == "anon_inode:inotify").count()
}

over_every_link! {
    async fn changes_are_told(bench: Bench) {
        fs::create_dir_all(bench.path("d/sub")).unwrap();
        let mut client = bench.client().await;
        assert_eq!(client.result("fs/watch", watch(&bench, "flat", "d", false)).await, json!({}));
        client.result("fs/watch", watch(&bench, "deep", "d", true)).await;
        fs::write(bench.path("d/sub/x"), "1").unwrap();
        changed(&mut client, "deep", &bench.uri("d/sub/x")).await;
        fs::write(bench.path("d/y"), "1").unwrap();
        changed(&mut client, "flat", &bench.uri("d/y")).await;
        changed(&mut client, "deep", &bench.uri("d/y")).await;
        fs::remove_file(bench.path("d/y")).unwrap();
        changed(&mut client, "flat", &bench.uri("d/y")).await;
        let others = client.quiet(QUIET).await;
        let of_flat = others.iter().filter(|message| message["params"]["watchId"] == "flat");
        assert!(of_flat.flat_map(|message| message["params"]["paths"].as_array().unwrap()).all(|path| path != &bench.uri("d/sub/x")));
    }

    async fn an_appearing_path_is_told_once(bench: Bench) {
        fs::create_dir(bench.path("here")).unwrap();
        let mut client = bench.client().await;
        assert!(is_watching(&mut client, missing(&bench, 1, &["here/later"], "here")).await);
        fs::write(bench.path("here/other"), "").unwrap();
        assert!(client.quiet(QUIET).await.is_empty());
        fs::write(bench.path("here/later"), "").unwrap();
        missing_changed(&mut client, 1).await;
        fs::remove_file(bench.path("here/later")).unwrap();
        assert!(client.quiet(QUIET).await.is_empty());
    }
}

over_links! { [Memory, WebSocket]
    async fn a_watch_ends_when_asked(bench: Bench) {
        fs::create_dir_all(bench.path("d/sub")).unwrap();
        let mut client = bench.client().await;
        client.result("fs/watch", watch(&bench, "outer", "d", true)).await;
        client.result("fs/watch", watch(&bench, "inner", "d/sub", false)).await;
        client.result("fs/watch", watch(&bench, "twin", "d/sub", false)).await;
        for id in ["outer", "twin", "unknown"] {
            assert_eq!(client.result("fs/unwatch", json!({"watchId": id})).await, json!({}));
        }
        client.quiet(QUIET).await;
        fs::write(bench.path("d/sub/x"), "").unwrap();
        changed(&mut client, "inner", &bench.uri("d/sub/x")).await;
        let others = client.quiet(QUIET).await;
        assert!(others.iter().all(|message| message["params"]["watchId"] == "inner"), "{others:?}");
    }

    async fn paths_are_told_as_the_client_spells_them(bench: Bench) {
        fs::create_dir(bench.path("real")).unwrap();
        symlink("real", bench.path("link")).unwrap();
        let mut client = bench.client().await;
        client.result("fs/watch", watch(&bench, "link", "link", false)).await;
        client.result("fs/watch", watch(&bench, "real", "real", false)).await;
        fs::write(bench.path("real/x"), "").unwrap();
        changed(&mut client, "link", &bench.uri("link/x")).await;
        changed(&mut client, "real", &bench.uri("real/x")).await;
        fs::write(bench.path("file"), "").unwrap();
        client.result("fs/watch", watch(&bench, "file", "file", false)).await;
        fs::write(bench.path("file"), "more").unwrap();
        changed(&mut client, "file", &bench.uri("file")).await;
    }

    async fn watches_are_few(bench: Bench) {
        let mut client = bench.client().await;
        assert_eq!(client.error("fs/watch", watch(&bench, "w", "nope", false)).await.0, -32004);
        for n in 0..1024 {
            client.result("fs/watch", watch(&bench, &format!("w{n}"), "", false)).await;
        }
        let twice = client.error("fs/watch", watch(&bench, "w0", "", false)).await;
        assert_eq!(twice, (-32600, "watch `w0` already exists".into()));
        let many = client.error("fs/watch", watch(&bench, "one more", "", false)).await;
        assert_eq!(many, (-32600, "at most 1024 watches may be active per connection; end one first".into()));
        client.result("fs/unwatch", json!({"watchId": "w7"})).await;
        client.result("fs/watch", watch(&bench, "one more", "", false)).await;
    }

    async fn many_changes_make_few_notifications(bench: Bench) {
        let mut client = bench.client().await;
        client.result("fs/watch", watch(&bench, "w", "", false)).await;
        let begin = std::time::Instant::now();
        for n in 0..200 {
            fs::write(bench.path("f"), n.to_string()).unwrap();
        }
        fs::write(bench.path("last"), "").unwrap();
        let tells_last = |message: &Value| message["params"]["paths"].as_array().unwrap().contains(&json!(bench.uri("last")));
        let mut count = 0;
        loop {
            let message = client.receive().await.unwrap();
            count += 1;
            if tells_last(&message) {
                break;
            }
        }
        // Each stands for at least a tenth of a second.
        assert!(count <= 1 + begin.elapsed().as_millis() / 100, "{count} notifications");
    }

    async fn missing_paths_are_watched_only_if_they_are_missing(bench: Bench) {
        fs::create_dir(bench.path("here")).unwrap();
        fs::write(bench.path("file"), "").unwrap();
        let mut client = bench.client().await;
        assert!(!is_watching(&mut client, missing(&bench, 1, &["gone", "file"], "here")).await);
        assert!(!is_watching(&mut client, missing(&bench, 2, &["gone"], "nope")).await);
        assert!(!is_watching(&mut client, missing(&bench, 3, &[], "here")).await);
        let names: Vec<String> = (0..65).map(|n| format!("gone{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(!is_watching(&mut client, missing(&bench, 4, &names, "here")).await);
        assert!(is_watching(&mut client, missing(&bench, 5, &names[1..], "here")).await);
        let stale = missing(&bench, 5, &["gone"], "here");
        assert!(!is_watching(&mut client, stale).await);
        let virtual_path = json!({"watchId": 6, "missing": ["file:///proc/nope"], "present": bench.uri("here")});
        assert!(!is_watching(&mut client, virtual_path).await);
        let foreign = json!({"watchId": 7, "missing": ["file:///C:/x"], "present": bench.uri("here")});
        assert!(!is_watching(&mut client, foreign).await);
        let typed = client.error("fs/watchMissing", json!({"watchId": "w", "missing": [], "present": bench.uri("")})).await;
        assert_eq!(typed, (-32602, "invalid type: string \"w\", expected u64".into()));
    }

    async fn a_newer_missing_watch_replaces_the_older(bench: Bench) {
        let mut client = bench.client().await;
        assert!(is_watching(&mut client, missing(&bench, 1, &["first"], "")).await);
        assert!(is_watching(&mut client, missing(&bench, 2, &["second/deep"], "")).await);
        fs::write(bench.path("first"), "").unwrap();
        fs::create_dir(bench.path("second")).unwrap();
        missing_changed(&mut client, 2).await;
        assert!(client.quiet(QUIET).await.is_empty());
    }

    async fn what_is_present_counts_as_well(bench: Bench) {
        fs::create_dir_all(bench.path("a/b")).unwrap();
        fs::write(bench.path("a/b/file"), "").unwrap();
        let mut client = bench.client().await;
        let gone = |id| missing(&bench, id, &["gone"], "a/b/file");
        assert!(is_watching(&mut client, gone(1)).await);
        fs::write(bench.path("a/b/file"), "more").unwrap();
        missing_changed(&mut client, 1).await;
        assert!(is_watching(&mut client, gone(2)).await);
        fs::rename(bench.path("a"), bench.path("moved")).unwrap();
        missing_changed(&mut client, 2).await;
        assert!(!is_watching(&mut client, gone(3)).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_instance_serves_a_connection_and_goes_with_it() {
    for kind in [LinkKind::Unix, LinkKind::WebSocket] {
        let bench = Bench::with_setup(kind, OUTPOST, &Setup { readable: true, ..Setup::default() });
        let pid = bench.process().unwrap().pid();
        let mut client = bench.client().await;
        assert_eq!(instances(pid), 0);
        client.result("fs/watch", watch(&bench, "a", "", true)).await;
        client.result("fs/watch", watch(&bench, "b", "", false)).await;
        assert!(is_watching(&mut client, missing(&bench, 1, &["gone"], "")).await);
        assert_eq!(instances(pid), 1);
        client.close();
        eventually("the instance is gone", || instances(pid) == 0).await;
    }
}
