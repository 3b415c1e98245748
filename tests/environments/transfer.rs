//! Copies between environments over links that break, and from machines that lie.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use bytes::Bytes;
use outpost_environment::{Connector, Environment, Location, Transfer, TransferError, TransferOptions};
use outpost_rpc::link::memory;
use outpost_testkit::{Client, LinkKind};
use outpost_wire::exec::packs::{Compression, PackedBytes};
use outpost_wire::fault;
use serde_json::{Value, json};
use tokio::sync::mpsc;

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

/// An executor with a directory that has this listing. Read together its files are this, and each by itself is `each`.
fn liar(entries: Value, pack: Value) -> Connector {
    Connector::new("liar", move || {
        let (ours, theirs) = memory::pair();
        let (entries, pack) = (entries.clone(), pack.clone());
        tokio::spawn(async move {
            let mut client = Client::new(theirs);
            while let Ok(request) = client.receive().await {
                let answer = match request["method"].as_str().unwrap_or_default() {
                    "initialize" => json!({
                        "sessionId": "s",
                        "environmentInfo": {
                            "shell": {"name": "sh", "path": "/bin/sh"},
                            "capabilities": {"fileAttributes": true, "filePacks": true},
                        },
                    }),
                    "fs/getAttributes" => listed("x", "directory")["attributes"].clone(),
                    "fs/listAttributes" => json!({"entries": entries}),
                    "fs/readBlock" => json!({"chunk": "eA==", "eof": true}),
                    "fs/readFile" => json!({"dataBase64": "ZWFjaA=="}),
                    "fs/readPack" => pack.clone(),
                    "initialized" => continue,
                    _ => json!({}),
                };
                client.send(&json!({"id": request["id"], "result": answer}) as &Value);
            }
        });
        std::future::ready(Ok(ours))
    })
}

fn listed(name: &str, kind: &str) -> Value {
    json!({"name": name, "attributes": {"kind": kind, "size": 1, "mode": 511, "modifiedAtMs": 0, "inode": 1}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_a_copy_does_not_choose_where_things_go() {
    let site = Site::new(LinkKind::Memory);
    for name in ["../evil", "..", "a/b", "%2e%2e/evil", "/evil", ""] {
        let liar = Environment::new(liar(json!([listed(name, "file")]), json!({})), options());
        let transfer = Transfer::new(at(&liar, Path::new("/x")), at(&site.environment(), &site.path("copy")), RECURSIVE, "test".into());
        let error = soon(name, transfer.run()).await.unwrap_err();
        assert!(matches!(&error, TransferError::Source { source, .. } if source.to_string().contains("as a name")), "{name}: {error:?}");
        assert_eq!(transfer.clean_up().await, Vec::<String>::new());
    }
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 0);
}

/// A link, and then a file of the same name that would be written through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_listed_once() {
    let site = Site::new(LinkKind::Memory);
    let outside = site.path("outside");
    fs::write(&outside, "old").unwrap();
    let mut link = listed("x", "symlink");
    link["attributes"]["linkTarget"] = json!(outside.to_str().unwrap());
    for entries in [json!([link, listed("x", "file")]), json!([listed("x", "file"), listed("y", "file"), link])] {
        let liar = Environment::new(liar(entries, json!({})), options());
        let transfer = Transfer::new(at(&liar, Path::new("/x")), at(&site.environment(), &site.path("copy")), RECURSIVE, "test".into());
        let copied = soon("a copy of x and x", transfer.run()).await;
        assert_eq!(fs::read_to_string(&outside).unwrap(), "old");
        let error = copied.unwrap_err();
        assert!(matches!(&error, TransferError::Source { source, .. } if source.to_string().contains("twice")), "{error:?}");
        assert_eq!(transfer.clean_up().await, Vec::<String>::new());
    }
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 1);
}

/// `fs/writeFile` follows links, and a file system that ignores case may have one under the name of a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_no_pack_took_is_written_under_a_name_of_the_copy() {
    let site = Site::new(LinkKind::Memory);
    fs::create_dir(site.path("from")).unwrap();
    fs::write(site.path("from/file"), "text").unwrap();
    let (calls, mut called) = mpsc::unbounded_channel();
    let destination = Connector::new("destination", move || {
        let (ours, theirs) = memory::pair();
        let calls = calls.clone();
        tokio::spawn(async move {
            let mut client = Client::new(theirs);
            while let Ok(request) = client.receive().await {
                let refuse = |code: i64| json!({"id": request["id"], "error": {"code": code, "message": "refused"}});
                let answer = match request["method"].as_str().unwrap_or_default() {
                    "initialize" => json!({"id": request["id"], "result": {
                        "sessionId": "s",
                        "environmentInfo": {
                            "shell": {"name": "sh", "path": "/bin/sh"},
                            "capabilities": {"fileAttributes": true, "filePacks": true, "writeMode": true},
                        },
                    }}),
                    "fs/getAttributes" => refuse(fault::NOT_FOUND),
                    "fs/writePack" => refuse(fault::INVALID_PARAMS),
                    "initialized" => continue,
                    _ => json!({"id": request["id"], "result": {}}),
                };
                let _ = calls.send(request);
                client.send(&answer);
            }
        });
        std::future::ready(Ok(ours))
    });
    let destination = Environment::new(destination, options());
    let transfer = Transfer::new(at(&site.environment(), &site.path("from")), at(&destination, Path::new("/to")), RECURSIVE, "test".into());
    soon("a copy", transfer.run()).await.unwrap();
    let (mut packs, mut written) = (0, Vec::new());
    while let Ok(call) = called.try_recv() {
        packs += usize::from(call["method"] == "fs/writePack");
        if call["method"] == "fs/writeFile" {
            written.push(call["params"]["path"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!((packs, written.len()), (1, 1), "{written:?}");
    assert!(written[0].ends_with(".part"), "{written:?}");
}

/// The first copy may have brought the link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_not_copied_through_a_link() {
    let site = Site::new(LinkKind::Memory);
    for directory in ["from/d", "to/from", "outside"] {
        fs::create_dir_all(site.path(directory)).unwrap();
    }
    fs::write(site.path("from/d/f"), "new").unwrap();
    symlink(site.path("outside"), site.path("to/from/d")).unwrap();
    let environment = site.environment();
    let transfer = Transfer::new(at(&environment, &site.path("from")), at(&environment, &site.path("to")), RECURSIVE, "test".into());
    let error = soon("a copy over a link", transfer.run()).await.unwrap_err();
    assert!(matches!(&error, TransferError::WouldReplaceFile { path, .. } if path.ends_with("to/from/d")), "{error:?}");
    assert_eq!(fs::read_dir(site.path("outside")).unwrap().count(), 0);
    assert!(site.path("to/from/d").is_symlink());
}

/// Each of these would take memory or write bytes that were not asked for: the files are read one by one instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pack_is_what_was_asked_for() {
    let site = Site::new(LinkKind::Memory);
    let pack = |sizes: &[u64], raw: &[u8], compression| json!({"sizes": sizes, "bytes": PackedBytes::pack(Bytes::copy_from_slice(raw), compression)});
    let mut huge = pack(&[1 << 46], &[0; 4096], None);
    huge["bytes"]["compression"] = json!("zstd");
    let packs = [
        huge,
        pack(&[u64::MAX, 2], b"x", None),
        pack(&[1, 1], b"xy", None),
        pack(&[], b"", None),
        pack(&[2 << 20], &[0; 2 << 20], None),
        pack(&[4096], &[0; 4096], Some(Compression::Zstd)),
    ];
    for (index, pack) in packs.into_iter().enumerate() {
        let liar = Environment::new(liar(json!([listed("file", "file")]), pack), options());
        let there = site.path(&format!("copy-{index}"));
        let transfer = Transfer::new(at(&liar, Path::new("/x")), at(&site.environment(), &there), RECURSIVE, "test".into());
        soon("a copy", transfer.run()).await.unwrap_or_else(|error| panic!("pack {index}: {error:?}"));
        assert_eq!(fs::read_to_string(there.join("file")).unwrap(), "each", "pack {index}");
        assert_eq!(fs::read_dir(&there).unwrap().count(), 1, "pack {index}");
    }
}
