//! A conversation with start, output, input and files, over links that are cut after every possible frame: nothing may be
//! lost and nothing may be doubled.

use bytes::Bytes;
use outpost_environment::{Environment, EnvironmentError, ProcessStart};
use outpost_wire::exec::process::WriteStatus;

use crate::support::{Site, finish, options, over_sites, read_line, soon, uri};

const LINES: usize = 4;

/// Writes down what it reads, and answers with it. Each start leaves a mark.
const SCRIPT: &str =
    "echo start >> starts; while read -r line; do [ \"$line\" = end ] && exit 7; echo \"$line\" >> journal; echo \"got $line\"; done";

async fn converse(site: &Site, environment: &Environment, n: usize) {
    let (start, journal) = (format!("starts-{n}"), format!("journal-{n}"));
    let script = SCRIPT.replace("starts", &start).replace("journal", &journal);
    let process = environment.start(site.shell(&format!("chaos-{n}"), &script)).await.unwrap();
    let (mut text, file) = (String::new(), site.path(&format!("file-{n}")));
    for line in 0..LINES {
        let status = process.write(Bytes::from(format!("line {line}\n"))).await.unwrap();
        assert_eq!(status, WriteStatus::Accepted);
        environment.files().write(uri(&file), Bytes::from(format!("content {line}"))).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, format!("got line {line}"), "cut after {n}");
        let read = environment.files().read(uri(&file)).await.unwrap();
        assert_eq!(read, format!("content {line}"), "cut after {n}");
    }
    process.write(Bytes::from_static(b"end\n")).await.unwrap();
    let (rest, exit) = finish(&process).await;
    assert_eq!((text + &rest, exit), (String::new(), Some(7)), "cut after {n}");
    assert_eq!(std::fs::read_to_string(site.path(&start)).unwrap(), "start\n", "it ran once, cut after {n}");
    let written: String = (0..LINES).map(|line| format!("line {line}\n")).collect();
    assert_eq!(std::fs::read_to_string(site.path(&journal)).unwrap(), written, "cut after {n}");
    // What may not be done twice is either done or said to be unknown.
    let moved = site.path(&format!("moved-{n}"));
    match environment.files().rename(uri(&file), uri(&moved)).await {
        Ok(()) => assert!(moved.exists() && !file.exists(), "cut after {n}"),
        Err(EnvironmentError::Unknown { method, .. }) => assert_eq!(method, "fs/rename"),
        Err(other) => panic!("{other}, cut after {n}"),
    }
}

over_sites! {
    async fn every_frame_may_be_the_last_of_its_connection(site: Site) {
        let mut n = 0;
        loop {
            let before = site.connections();
            let environment = Environment::new(site.cut(vec![n]), options());
            soon(&format!("cut after {n}"), converse(&site, &environment, n)).await;
            environment.end().await.unwrap();
            if site.connections() == before + 1 {
                break;
            }
            n += 1;
        }
        assert!(n > 4 * LINES, "only {n} frames");
    }

    async fn a_start_that_fails_never_looks_like_one_that_works(site: Site) {
        for n in 3..12 {
            let environment = Environment::new(site.cut(vec![n]), options());
            let start = ProcessStart { argv: vec!["/no/such/program".into()], ..site.shell(&format!("bad-{n}"), "") };
            let error = soon(&format!("cut after {n}"), environment.start(start)).await.err().expect("it cannot work");
            assert!(matches!(error, EnvironmentError::Fault(_) | EnvironmentError::Unknown { .. }), "cut after {n}: {error}");
            environment.end().await.unwrap();
        }
    }

    async fn every_connection_may_be_short(site: Site) {
        // Each of many connections lasts for a handful of frames; the handshake alone takes some of them.
        for n in [5, 6, 7, 11] {
            let environment = Environment::new(site.cut(vec![n; 40]), options());
            soon(&format!("cut after every {n}"), converse(&site, &environment, 1000 + n)).await;
            environment.end().await.unwrap();
        }
    }
}
