//! `outpost sandbox list` and `clear`: what commands left in layers over the home.

use std::path::Path;
use std::process::{Command, Output};

use outpost_sandbox::home::Layers;

use crate::OUTPOST;

fn sandbox(home: &Path, arguments: &[&str]) -> Output {
    Command::new(OUTPOST).arg("sandbox").args(arguments).env("OUTPOST_HOME", home).output().unwrap()
}

fn told(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn layers_are_listed_and_removed() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(told(&sandbox(home.path(), &["list"])), (Some(0), String::new()));
    let layers = Layers::new(home.path().join("layers"));
    let busy = layers.take(Path::new("/srv/busy")).unwrap();
    std::fs::write(layers.take(Path::new("/srv/idle")).unwrap().path().join("upper/x"), [1; 4096]).unwrap();
    let (code, list) = told(&sandbox(home.path(), &["list"]));
    assert!(code == Some(0) && list.contains("KiB  /srv/busy  in use\n") && list.contains("KiB  /srv/idle\n"), "{list}");
    let listed = sandbox(home.path(), &["list", "--json"]);
    let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((&rows[1]["workspace"], &rows[1]["inUse"]), (&"/srv/idle".into(), &false.into()), "{rows}");
    let (code, refused) = told(&sandbox(home.path(), &["clear", "/srv/none"]));
    assert!(code == Some(1) && refused.contains("there is no layer of /srv/none"), "{refused}");
    assert_eq!(sandbox(home.path(), &["clear"]).status.code(), Some(2));
    let (code, told_all) = told(&sandbox(home.path(), &["clear", "--all"]));
    assert!(
        code == Some(1) && told_all.contains("removed the layer of /srv/idle") && told_all.contains("uses the layer of /srv/busy"),
        "{told_all}"
    );
    drop(busy);
    assert_eq!(told(&sandbox(home.path(), &["clear", "/srv/busy"])), (Some(0), "removed the layer of /srv/busy\n".into()));
    assert!(layers.list().unwrap().is_empty());
}
