//! Roots that are no good: each is told, none spoils another.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use outpost_wire::intent::CapabilityRoot;

use crate::stage::{Machine, Stage, id, put, put_skill, uri};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s78_bad_roots_say_why_and_spoil_nothing() {
    let machine = Machine::new();
    put(machine.path("file"), "not a folder");
    symlink("loop", machine.path("loop")).unwrap();
    put(machine.path("bytes/a/SKILL.md"), [0xff, 0xfe]);
    put(machine.path("headless/a/SKILL.md"), "no front matter");
    put(machine.path("json/.codex-plugin/plugin.json"), "{oops");
    put_skill(machine.path("json"), "fine");
    put_skill(machine.path("circle"), "round");
    symlink("..", machine.path("circle/round/up")).unwrap();
    put_skill(machine.path("good"), "deploy");
    let names = ["file", "loop", "none", "bytes", "headless", "json", "circle", "good"];
    let roots = names.map(|name| CapabilityRoot::new(name, id("box"), uri(machine.path(name))));
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], roots.to_vec()).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- deploy:") && told.contains("- fine:") && told.contains("- round:"), "{told}");
    let step = stage.runtime.why(thread.id()).await.unwrap();
    let report = |name: &str| step.roots.iter().find(|report| report.id == name).unwrap();
    for (name, reason) in [("file", "is not a directory"), ("loop", "(os error 40)"), ("none", "(os error 2)")] {
        assert!(!report(name).available && report(name).reason.as_ref().unwrap().contains(reason), "{:?}", report(name));
    }
    for (name, warning) in
        [("bytes", "is not UTF-8"), ("headless", "does not begin with front matter"), ("json", "cannot be read as a manifest")]
    {
        assert!(report(name).available && report(name).warnings.iter().any(|text| text.contains(warning)), "{:?}", report(name));
    }
    assert_eq!((report("circle").skills, report("good").skills), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s78_more_files_than_are_looked_at_are_bounded() {
    let machine = Machine::new();
    put_skill(machine.path("big"), "near");
    put_skill(machine.path("big").join("skills"), "usual");
    // A few more than the 20,000 that are looked at; that there could be five times as many changes nothing.
    for folder in 0..22 {
        let folder = machine.path("big").join(format!("f{folder:03}"));
        fs::create_dir(&folder).unwrap();
        (0..1000).for_each(|file| drop(fs::File::create(folder.join(file.to_string())).unwrap()));
    }
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("big", id("box"), uri(machine.path("big")))]).await;
    let step = stage.runtime.why(thread.id()).await.unwrap();
    let names: Vec<&str> = step.skills.iter().map(|skill| skill.name.as_str()).collect();
    assert!(names.contains(&"near") && names.contains(&"usual"), "{names:?}");
    assert!(step.roots[0].warnings.iter().any(|warning| warning.contains("more than 20000 entries")), "{:?}", step.roots);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s78_a_folder_that_may_not_be_read_is_told() {
    let machine = Machine::of_an_ordinary_user();
    put_skill(machine.path("closed"), "deploy");
    put_skill(machine.path("half/open"), "near");
    put_skill(machine.path("half/closed"), "far");
    let closed = [machine.path("closed"), machine.path("half/closed")];
    let set = |mode: u32| closed.iter().for_each(|path| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap());
    set(0o000);
    let stage = Stage::new(&[("box", &machine)]).await;
    let root = |name: &str| CapabilityRoot::new(name, id("box"), uri(machine.path(name)));
    let thread = stage.thread(&["box"], vec![root("closed"), root("half")]).await;
    let step = stage.runtime.why(thread.id()).await.unwrap();
    set(0o755);
    assert!(step.roots[0].reason.as_ref().unwrap().contains("(os error 13)"), "{:?}", step.roots);
    // What is closed inside a root is told, and the rest of it is there.
    assert!(step.roots[1].available && step.skills.iter().any(|skill| skill.name == "near"), "{:?}", step.roots);
    assert!(step.roots[1].warnings.iter().any(|warning| warning.contains("closed")), "{:?}", step.roots);
    // Opened, it is there: no failure is kept.
    let step = stage.runtime.why(thread.id()).await.unwrap();
    assert!(step.roots[0].available, "{:?}", step.roots);
}

/// Names of any bytes: of the root itself, and of what lies in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s78_names_that_are_no_text_are_names() {
    use std::os::unix::ffi::OsStrExt;
    let machine = Machine::new();
    let strange = std::ffi::OsStr::from_bytes(b"to\xffols");
    let root = machine.path("").join(strange);
    put_skill(&root, "deploy");
    put(root.join(std::ffi::OsStr::from_bytes(b"o\xfedd")).join("SKILL.md"), "---\nname: odd\ndescription: odd\n---\nThe odd one.\n");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("strange", id("box"), uri(&root))]).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- deploy:") && told.contains("- odd:"), "{told}");
    assert!(stage.turn(&thread, "use $odd").await.contains("The odd one."));
}
