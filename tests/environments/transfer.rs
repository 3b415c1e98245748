//! Copies between environments over links that break, and from machines that lie.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use outpost_environment::{Connector, Environment, Location, Transfer, TransferError, TransferOptions};
use outpost_rpc::link::memory;
use outpost_testkit::{Client, LinkKind};
use serde_json::{Value, json};

use crate::support::{Site, options, over_sites, soon, uri};

const RECURSIVE: TransferOptions =
    TransferOptions { recursive: true, into_directory: false, exclude: Vec::new(), delete: false, dry_run: false, sync: false };

/// A little of everything: files of no, one and several blocks, links, a directory that may not be written to.
fn plant(root: &Path) {
    fs::create_dir_all(root.join("sub/closed")).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("small"), "small").unwrap();
    fs::write(root.join("sub/large"), large()).unwrap();
    fs::set_permissions(root.join("small"), Permissions::from_mode(0o640)).unwrap();
    symlink("nowhere", root.join("sub/link")).unwrap();
    fs::set_permissions(root.join("sub/closed"), Permissions::from_mode(0o500)).unwrap();
}

fn large() -> Vec<u8> {
    (0..600_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn assert_planted(root: &Path, what: &str) {
    assert_eq!(fs::read(root.join("empty")).unwrap(), b"", "{what}");
    assert_eq!(fs::read(root.join("small")).unwrap(), b"small", "{what}");
    assert!(fs::read(root.join("sub/large")).unwrap() == large(), "{what}");
    assert_eq!(fs::read_link(root.join("sub/link")).unwrap(), Path::new("nowhere"), "{what}");
    let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("small"), mode("sub/closed")), (0o640, 0o500), "{what}");
    let mut names = Vec::new();
    for directory in [root.to_owned(), root.join("sub"), root.parent().unwrap().to_owned()] {
        names.extend(fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    }
    assert!(!names.iter().any(|name| name.ends_with(".part")), "{what}: {names:?}");
}

fn at(environment: &Environment, path: &Path) -> Location {
    Location { environment: environment.clone(), path: uri(path) }
}

async fn copy(from: Location, to: Location, what: &str) {
    let transfer = Transfer::new(from, to, RECURSIVE, "test".into());
    let copied = soon(what, transfer.run()).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_eq!(copied.files, 4, "{what}");
}

over_sites! {
    async fn every_frame_of_a_copy_may_be_the_last_of_its_connection(site: Site) {
        let steady = site.environment();
        steady.info().await.unwrap();
        plant(&site.path("tree"));
        let mut n = 0;
        loop {
            let before = site.connections();
            let shaky = Environment::new(site.cut(vec![n]), options());
            // The whole tree into a new place, once more over what is there, and back from there.
            let (there, back) = (site.path(&format!("there-{n}")), site.path(&format!("back-{n}")));
            copy(at(&steady, &site.path("tree")), at(&shaky, &there), &format!("sent, cut after {n}")).await;
            assert_planted(&there, &format!("sent, cut after {n}"));
            let was_cut = site.connections() > before + 1;
            let shaky = Environment::new(site.cut(vec![n]), options());
            copy(at(&shaky, &there), at(&steady, &back), &format!("fetched, cut after {n}")).await;
            assert_planted(&back, &format!("fetched, cut after {n}"));
            fs::remove_file(there.join("sub/large")).unwrap();
            fs::write(there.join("small"), "old").unwrap();
            let shaky = Environment::new(site.cut(vec![n]), options());
            let into = site.path(&format!("into-{n}"));
            fs::create_dir(&into).unwrap();
            fs::rename(&there, into.join("tree")).unwrap();
            copy(at(&steady, &site.path("tree")), at(&shaky, &into), &format!("merged, cut after {n}")).await;
            assert_planted(&into.join("tree"), &format!("merged, cut after {n}"));
            if !was_cut {
                break;
            }
            n += 5;
        }
        assert!(n > 30, "only {n} frames");
    }
}

/// An executor with a directory whose listing holds this one name.
fn liar(name: &'static str) -> Connector {
    Connector::new("liar", move || {
        let (ours, theirs) = memory::pair();
        tokio::spawn(async move {
            let mut client = Client::new(theirs);
            while let Ok(request) = client.receive().await {
                let attributes = |kind: &str| json!({"kind": kind, "size": 1, "mode": 511, "modifiedAtMs": 0, "inode": 1});
                let answer = match request["method"].as_str().unwrap_or_default() {
                    "initialize" => json!({
                        "sessionId": "s",
                        "environmentInfo": {"shell": {"name": "sh", "path": "/bin/sh"}, "capabilities": {"fileAttributes": true}},
                    }),
                    "fs/getAttributes" => attributes("directory"),
                    "fs/listAttributes" => json!({"entries": [{"name": name, "attributes": attributes("file")}]}),
                    "fs/readBlock" => json!({"chunk": "eA==", "eof": true}),
                    "initialized" => continue,
                    _ => json!({}),
                };
                client.send(&json!({"id": request["id"], "result": answer}) as &Value);
            }
        });
        std::future::ready(Ok(ours))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_a_copy_does_not_choose_where_things_go() {
    let site = Site::new(LinkKind::Memory);
    for name in ["../evil", "..", "a/b", "%2e%2e/evil", "/evil", ""] {
        let liar = Environment::new(liar(name), options());
        let transfer = Transfer::new(at(&liar, Path::new("/x")), at(&site.environment(), &site.path("copy")), RECURSIVE, "test".into());
        let error = soon(name, transfer.run()).await.unwrap_err();
        assert!(matches!(&error, TransferError::Source { source, .. } if source.to_string().contains("as a name")), "{name}: {error:?}");
        assert_eq!(transfer.clean_up().await, Vec::<String>::new());
    }
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 0);
}
