use serde_json::{Value, json};

use super::*;

fn context(entries: Value, root: &Path) -> SandboxContext {
    let uri = PathUri::from_native(root).unwrap().to_string();
    serde_json::from_value(json!({
        "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": entries}, "network": "restricted"},
        "cwd": uri, "workspaceRoots": [uri], "windowsSandboxLevel": "disabled",
    }))
    .unwrap()
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn access(policy: &Policy, path: &Path) -> PathAccess {
    policy.rules().unwrap().access(path).access
}

#[test]
fn a_denied_link_that_leads_elsewhere_is_followed_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for name in ["one", "two", "a"] {
        std::fs::create_dir(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("key"), name).unwrap();
    }
    let point = |to: &str| {
        let _ = std::fs::remove_file(root.join("link"));
        std::os::unix::fs::symlink(to, root.join("link")).unwrap();
    };
    point("one");
    let deny = |path: &str| json!({"path": {"type": "path", "path": PathUri::from_native(&root.join(path)).unwrap().to_string()}, "access": "none"});
    let asked = context(json!([special("root", "read"), special("project_roots", "write"), deny("link/key"), deny("a/key")]), &root);
    let (policies, grounds, trails) = (Policies::default(), Grounds::default(), Trails::default());
    let policy = || policies.of(&asked, &grounds, &trails).unwrap();
    let resolved_at = || policies.0.lock().unwrap().values().map(|resolved| resolved.at).next();
    assert_eq!(access(&policy(), &root.join("one/key")), PathAccess::Deny);
    let first = resolved_at();
    assert_ne!(access(&policy(), &root.join("two/key")), PathAccess::Deny);
    assert_eq!(resolved_at(), first, "nothing changed: it is not resolved again");
    point("two");
    assert_eq!(access(&policy(), &root.join("two/key")), PathAccess::Deny);
    // A directory on the way becomes a link.
    std::fs::rename(root.join("a"), root.join("was")).unwrap();
    std::fs::create_dir(root.join("decoy")).unwrap();
    std::fs::write(root.join("decoy/key"), "decoy").unwrap();
    std::os::unix::fs::symlink("decoy", root.join("a")).unwrap();
    assert_eq!(access(&policy(), &root.join("decoy/key")), PathAccess::Deny);
}

#[test]
fn the_workspace_policy_of_a_real_client() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("own")).unwrap();
    let grounds = Grounds { own: vec![root.join("own")], ..Grounds::default() };
    let mut git = special("project_roots", "read");
    git["path"]["value"]["subpath"] = json!(".git");
    git["missing_path_behavior"] = json!("skip");
    let secrets = json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "none"});
    let policy = grounds
        .policy(
            Some(&context(json!([special("root", "read"), special("project_roots", "write"), git, secrets]), &root)),
            &Trails::default(),
        )
        .unwrap();
    assert_eq!(access(&policy, &root.join("src")), PathAccess::Write);
    assert_eq!(access(&policy, &root.join(".git/config")), PathAccess::Read);
    assert_eq!(access(&policy, &root.join("own/tokens")), PathAccess::Deny);
    assert_eq!(access(&policy, &root.join("a/b.env")), PathAccess::Deny);
    assert_eq!(access(&policy, Path::new("/etc/passwd")), PathAccess::Read);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let refused = |entries: Value| Grounds::default().policy(Some(&context(entries, root)), &Trails::default()).unwrap_err().to_string();
    let path = |path: &Path| json!({"type": "path", "path": PathUri::from_native(path).unwrap().to_string()});
    assert!(refused(json!([{"path": path(&root.join("none")), "access": "write"}])).contains("does not exist"));
    assert!(refused(json!([{"path": {"type": "glob_pattern", "pattern": "*"}, "access": "write"}])).contains("only deny"));
    let mut out = special("project_roots", "write");
    out["path"]["value"]["subpath"] = json!("../x");
    assert!(refused(json!([out])).contains("leads out"));
    std::os::unix::fs::symlink("/nowhere/at/all", root.join("link")).unwrap();
    assert!(refused(json!([{"path": path(&root.join("link")), "access": "read"}])).contains("link"));
    let mut without = context(json!([special("project_roots", "write")]), root);
    without.cwd = None;
    assert!(matches!(Grounds::default().policy(Some(&without), &Trails::default()), Err(PolicyError::NeedsCwd)));
}

#[test]
fn links_are_resolved_before_rules_are_made() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
    let policy = Grounds::default()
        .policy(Some(&context(json!([special("project_roots", "write")]), &root.join("link"))), &Trails::default())
        .unwrap();
    assert_eq!(access(&policy, &root.join("real/x")), PathAccess::Write);
}

#[test]
fn what_was_denied_stays_so_where_it_led() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for name in ["w", "one", "two", "other"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let point = |name: &str, target: &str| {
        let _ = std::fs::remove_file(root.join(name));
        std::os::unix::fs::symlink(root.join(target), root.join(name)).unwrap();
    };
    let entry = |name: &str, access: &str| json!({"path": {"type": "path", "path": PathUri::from_native(&root.join(name)).unwrap().to_string()}, "access": access});
    let trails = Trails::default();
    let policy = |entries: Value| {
        Grounds::default()
            .policy(Some(&context(json!([special("root", "read"), special("project_roots", "write"), entries]), &root.join("w"))), &trails)
    };
    point("w/link", "one");
    let first = policy(entry("w/link", "deny")).unwrap();
    assert_eq!(first.rules().unwrap().links().collect::<Vec<_>>(), [(root.join("w/link").as_path(), PathAccess::Deny)]);
    point("w/link", "two");
    let next = policy(entry("w/link", "deny")).unwrap();
    assert_eq!([access(&next, &root.join("one/x")), access(&next, &root.join("two/x"))], [PathAccess::Deny, PathAccess::Deny]);
    // A pattern whose directory is behind a link.
    let pattern = || json!({"path": {"type": "glob_pattern", "pattern": "base/*.env"}, "access": "deny"});
    point("w/base", "one");
    policy(pattern()).unwrap();
    point("w/base", "two");
    let next = policy(pattern()).unwrap();
    assert_eq!([access(&next, &root.join("one/a.env")), access(&next, &root.join("two/a.env"))], [PathAccess::Deny, PathAccess::Deny]);
    // What may be written is not what a link in a writable root says later.
    point("w/out", "one");
    assert_eq!(access(&policy(entry("w/out", "write")).unwrap(), &root.join("one/x")), PathAccess::Write);
    point("w/out", "other");
    assert!(matches!(policy(entry("w/out", "write")), Err(PolicyError::Moved { .. })));
    assert!(matches!(policy(entry("w/out", "read")), Err(PolicyError::Moved { .. })));
}

#[test]
fn what_is_given_on_top_is_given_as_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for name in ["work", "data", "closed"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(root.join("data"), root.join("link")).unwrap();
    let entry = |name: &str, grant: &str| {
        let uri = PathUri::from_native(&root.join(name)).unwrap().to_string();
        json!({"path": {"type": "path", "path": uri}, "access": "write", "grant": grant})
    };
    let ceiling = PathRules::new(
        [granted("/", PathAccess::Read), granted(root.join("work"), PathAccess::Write), granted(root.join("data"), PathAccess::Write)],
        vec![],
        NetworkRule::Restricted,
    );
    let grounds = Grounds { ceiling: Policy::Confined(Arc::new(ceiling)), ..Grounds::default() };
    let policy = |given: Value| {
        grounds.policy(
            Some(&context(json!([special("root", "read"), special("project_roots", "write"), given]), &root.join("work"))),
            &Trails::default(),
        )
    };
    let given = policy(entry("data", "required")).unwrap();
    assert_eq!((access(&given, &root.join("data/x")), access(&given, &root.join("x"))), (PathAccess::Write, PathAccess::Read));
    for (name, why) in [("link", "real path"), ("closed", "ceiling"), ("none", "does not exist")] {
        assert!(policy(entry(name, "required")).unwrap_err().to_string().contains(why), "{name}");
        let less = policy(entry(name, "optional")).unwrap();
        assert_eq!(access(&less, &root.join("data/x")), PathAccess::Read, "{name}");
        assert_eq!(access(&less, &root.join("work/x")), PathAccess::Write, "{name}");
    }
}

#[test]
fn patterns_deny_where_their_directory_really_is() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for name in ["real", "[id]", "[id]/sub*"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
    let denied = |pattern: &str, cwd: &str, path: &str| {
        let entries = json!([special("root", "read"), {"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"}]);
        let policy = Grounds::default().policy(Some(&context(entries, &root.join(cwd))), &Trails::default()).unwrap();
        access(&policy, &root.join(path)) == PathAccess::Deny
    };
    let top = root.display();
    assert!(denied(&format!("{top}/link/**/*.env"), "", "real/a/b.env"));
    assert!(denied("link/*.env", "", "real/b.env") && denied("**/*.env", "link", "real/a/b.env"));
    assert!(denied("**/*.env", "[id]", "[id]/a/b.env") && !denied("**/*.env", "[id]", "i/b.env"));
    // Put before a pattern as text, by a user who did not think of this.
    assert!(denied(&format!("{top}/[id]/**/*.env"), "", "[id]/a/b.env") && denied(&format!("{top}/[id]/*"), "", "i/b"));
    assert!(denied(&format!("{top}/[id]/sub*/x"), "", "[id]/sub*/x") && denied(&format!("{top}/[id]/sub*/x"), "", "d/subs/x"));
}

mod malformed {
    use proptest::prelude::*;

    use super::*;

    /// What sandboxed code may put where something else belongs.
    fn junk() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            prop::sample::select(vec!["..", "\0", "file://", "file:///../..", "/", "~", "**", "["]).prop_map(Value::from),
            Just(json!([])),
            Just(json!({})),
            Just(json!([[[{"type": "special"}]]])),
        ]
    }

    /// Damages the value behind the n-th member or element: takes it away, renames it, or puts something else there.
    fn damage(value: &mut Value, left: &mut usize, how: u8, junk: &Value) -> bool {
        match value {
            Value::Object(members) => {
                for key in members.keys().cloned().collect::<Vec<_>>() {
                    if *left == 0 {
                        let old = members.remove(&key).unwrap_or_default();
                        match how % 3 {
                            0 => {}
                            1 => drop(members.insert(format!("{key}x"), old)),
                            _ => drop(members.insert(key, junk.clone())),
                        }
                        return true;
                    }
                    *left -= 1;
                    if members.get_mut(&key).is_some_and(|inner| damage(inner, left, how, junk)) {
                        return true;
                    }
                }
                false
            }
            Value::Array(items) => items.iter_mut().any(|item| {
                if *left == 0 {
                    *item = junk.clone();
                    return true;
                }
                *left -= 1;
                damage(item, left, how, junk)
            }),
            _ => false,
        }
    }

    proptest! {
        /// A policy that was damaged on its way is refused or still confines. It never becomes none.
        #[test]
        fn no_damage_opens_a_policy(at in 0..60_usize, how in any::<u8>(), junk in junk()) {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().canonicalize().unwrap();
            std::fs::write(root.join("secret"), "").unwrap();
            let secret = json!({"path": {"type": "path", "path": PathUri::from_native(&root.join("secret")).unwrap().to_string()}, "access": "deny"});
            let pattern = json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "none"});
            let whole = context(json!([special("root", "read"), special("project_roots", "write"), secret, pattern]), &root);
            let mut text = serde_json::to_value(&whole).unwrap();
            damage(&mut text, &mut at.clone(), how, &junk);
            let Ok(damaged) = serde_json::from_value::<SandboxContext>(text) else { return Ok(()) };
            let Ok(policy) = Grounds::default().policy(Some(&damaged), &Trails::default()) else { return Ok(()) };
            prop_assert!(!matches!(policy, Policy::Open), "{damaged:?}");
            prop_assert_eq!(policy.rules().unwrap().network, NetworkRule::Restricted);
        }

        /// Whatever stands in a path, a subpath or a pattern, what is denied stays denied and nothing panics.
        #[test]
        fn no_words_take_back_a_denial(text in ".{0,24}", deep in "[a-z./*?\\[\\]{}\0]{0,24}") {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().canonicalize().unwrap();
            std::fs::create_dir(root.join("secret")).unwrap();
            let denied = json!({"path": {"type": "path", "path": PathUri::from_native(&root.join("secret")).unwrap().to_string()}, "access": "deny"});
            let mut below = special("project_roots", "write");
            below["path"]["value"]["subpath"] = json!(deep);
            below["missing_path_behavior"] = json!("skip");
            let entries = json!([special("root", "read"), below, denied,
                {"path": {"type": "glob_pattern", "pattern": text}, "access": "deny"}]);
            let Ok(policy) = Grounds::default().policy(Some(&context(entries, &root)), &Trails::default()) else { return Ok(()) };
            prop_assert_eq!(access(&policy, &root.join("secret/x")), PathAccess::Deny);
        }
    }
}
