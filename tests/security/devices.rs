//! Devices: sandboxes show the harmless ones and those that were asked for, below the ceiling, and no others.
//!
//! No graphics processor is needed: plain nodes that are made for the test stand for it, which takes root.

use std::path::{Path, PathBuf};
use std::process::Command;

use outpost_testkit::bench::with;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::{FULL, MOUNTS, denies};
use crate::levels::{NO_NAMESPACES, in_a_world};
use crate::support::{Ground, Who, is_root, number};

/// Two nodes that say what `/dev/zero` says.
struct Nodes(PathBuf);

impl Nodes {
    /// Nothing where devices cannot be made: for an ordinary user, and for root of a container without the right to.
    fn make() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let directory = PathBuf::from(format!("/dev/outpost-{}-{}", std::process::id(), number()));
        std::fs::create_dir(&directory).unwrap();
        let nodes = Self(directory);
        for name in ["card0", "card1"] {
            let made = Command::new("mknod").args(["-m", "666"]).arg(nodes.path(name)).args(["c", "1", "5"]).status().unwrap();
            if !made.success() {
                eprintln!("cannot be tried here: devices cannot be made");
                return None;
            }
        }
        Some(nodes)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn policy(&self, ground: &Ground, names: &[&str]) -> Value {
        let devices: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        with(ground.workspace_write(), json!({"devices": devices}))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn reads(path: &Path) -> String {
    format!("head -c 4 {} | od -An -tx1", path.display())
}

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn exactly_what_was_asked_for_is_shown(who: Who) {
        let Some(nodes) = Nodes::make() else { return };
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let (code, output) = ground.run(&mut client, &nodes.policy(&ground, &["card0"]), &reads(&nodes.path("card0"))).await;
        assert_eq!((code, output.trim()), (0, "00 00 00 00"));
        let (code, _) = ground.run(&mut client, &nodes.policy(&ground, &["card0"]), &format!("test -e {}", nodes.path("card1").display())).await;
        assert_ne!(code, 0);
        let (code, _) = ground.run(&mut client, &ground.workspace_write(), &format!("test -e {}", nodes.path("card0").display())).await;
        assert_ne!(code, 0);
        for (devices, why) in [(json!(["/dev/mem"]), "never shown"), (json!(["/etc/passwd"]), "not a device"), (json!(["/dev/shm"]), "not a character device")] {
            let sandbox = with(ground.workspace_write(), json!({"devices": devices}));
            let refused = client.error("process/start", with(ground.shell(&number(), "true"), json!({"sandbox": sandbox}))).await;
            assert!(refused.1.contains(why), "{refused:?}");
        }
    }

    async fn no_device_is_shown_beyond_the_ceiling(who: Who) {
        let Some(nodes) = Nodes::make() else { return };
        let file = tempfile::Builder::new().prefix("outpost-ceiling-").tempfile_in("/var/tmp").unwrap();
        std::fs::write(file.path(), format!("read = ['/']\nwrite = ['/']\ndevices = ['{}']\n", nodes.path("card0").display())).unwrap();
        crate::support::give(who, file.path());
        let ground = Ground::with(who, &["--ceiling", file.path().to_str().unwrap()]);
        let mut client = ground.client().await;
        let (code, output) = ground.run(&mut client, &nodes.policy(&ground, &["card0"]), &reads(&nodes.path("card0"))).await;
        assert_eq!(code, 0, "{output}");
        let sandbox = nodes.policy(&ground, &["card0", "card1"]);
        let refused = client.error("process/start", with(ground.shell(&number(), "true"), json!({"sandbox": sandbox}))).await;
        assert!(refused.1.contains("card1") && refused.1.contains("ceiling"), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_namespaces_the_others_stay_closed() {
    if !is_root() || denies(Who::User, &[FULL]).await {
        return;
    }
    let Some(nodes) = Nodes::make() else { return };
    let ground = Ground::after(Who::User, &in_a_world(NO_NAMESPACES));
    let mut client = ground.client().await;
    let policy = nodes.policy(&ground, &["card0"]);
    let (code, output) = ground.run(&mut client, &policy, &reads(&nodes.path("card0"))).await;
    assert_eq!((code, output.trim()), (0, "00 00 00 00"));
    let (code, output) = ground.run(&mut client, &policy, &format!("exec 3< {}", nodes.path("card1").display())).await;
    assert_ne!(code, 0, "{output}");
}
