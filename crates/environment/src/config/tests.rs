use std::time::Duration;

use super::*;
use crate::definition::ConnectionWay;
use crate::environment::ConnectPolicy;

fn read_text(text: &str) -> Result<ConfigurationSnapshot, EnvironmentsFileError> {
    parse(text, Path::new("/home/me/.outpost/environments.toml"))
}
fn snapshot(text: &str) -> ConfigurationSnapshot {
    read_text(text).unwrap()
}
fn fatal(text: &str) -> String {
    read_text(text).unwrap_err().to_string().replace("/home/me/.outpost/", "")
}
/// What is wrong with the only entry.
fn entry(members: &str) -> String {
    let snapshot = snapshot(&format!("[[environments]]\nid = \"box\"\n{members}\n"));
    snapshot.entries[0].definition.clone().unwrap_err().replace("/home/me/.outpost/", "")
}
fn id(text: &str) -> EnvironmentId {
    text.parse().unwrap()
}

#[test]
fn s13_the_list_keeps_its_order_and_this_machine_comes_first() {
    let text = "[[environments]]\nid='zeta'\nurl='ws://z:1'\n[[environments]]\nid='alpha'\nprogram='ssh'\nargs=['-T','x']\n";
    let read = snapshot(text);
    assert_eq!(read.ids(), [id("local"), id("zeta"), id("alpha")]);
    assert_eq!(read.default_id(), Some(id("local")));
    assert_eq!(snapshot(&format!("default = 'NONE'\n{text}")).default_id(), None);
    assert_eq!(snapshot(&format!("default = ' alpha '\n{text}")).default_id(), Some(id("alpha")));
    assert!(snapshot("").entries.is_empty() && snapshot("").include_local);
}

#[test]
fn s14_without_this_machine() {
    assert_eq!(snapshot("include_local = false").default_id(), None);
    assert!(snapshot("include_local = false").ids().is_empty());
    assert_eq!(fatal("include_local = false\ndefault = 'local'"), "environments.toml:2: the default environment `local` is not known");
}

#[test]
fn s15_wrong_entries_are_disabled_with_their_line_and_the_others_work() {
    for (members, why) in [
        (
            "",
            "environments.toml:1: environment `box`: one of `url`, `program`, `ssh`, `slurm`, `docker`, `podman`, `devcontainer` and `kubectl` is needed",
        ),
        ("url='ws://a:1'\nprogram='x'", "environments.toml:1: environment `box`: only one of `url` and `program` may be given"),
        (
            "url='http://a'",
            "environments.toml:3: environment `box`: `url`: `http://a` is not an executor's address; use ws://HOST:PORT, wss://HOST or unix:///PATH",
        ),
        ("url='  '", "environments.toml:3: environment `box`: `url`: the address is empty"),
        ("url='ws://'", "environments.toml:3: environment `box`: `url`: `ws://` names no host and port"),
        ("url='ws://a:b'", "environments.toml:3: environment `box`: `url`: `ws://a:b` names no host and port"),
        ("url=7", "environments.toml:3: environment `box`: `url` is a text"),
        ("program=' '", "environments.toml:3: environment `box`: `program`: the program is empty"),
        ("url='ws://a:1'\nargs=['x']", "environments.toml:4: environment `box`: `args` needs `program` or `ssh`"),
        ("url='ws://a:1'\nenv={A='b'}", "environments.toml:4: environment `box`: `env` needs `program`"),
        ("url='ws://a:1'\ncwd='/x'", "environments.toml:4: environment `box`: `cwd` needs `program`"),
        ("program='x'\nconnect_timeout_sec=1", "environments.toml:4: environment `box`: `connect_timeout_sec` needs `url`"),
        ("program='x'\ntoken_file='t'", "environments.toml:4: environment `box`: `token_file` needs `url`"),
        ("program='x'\nargs='y'", "environments.toml:4: environment `box`: `args` is a list of texts"),
        ("program='x'\nenv={A=1}", "environments.toml:4: environment `box`: `env` is a table of texts"),
        (
            "url='ws://a:1'\ninitialize_timeout_sec=-1.0",
            "environments.toml:4: environment `box`: `initialize_timeout_sec` is a number of seconds, from 0 to a year",
        ),
        (
            "url='ws://a:1'\nconnect_timeout_sec=nan",
            "environments.toml:4: environment `box`: `connect_timeout_sec` is a number of seconds, from 0 to a year",
        ),
        (
            "url='ws://a:1'\nconnect_timeout_sec=inf",
            "environments.toml:4: environment `box`: `connect_timeout_sec` is a number of seconds, from 0 to a year",
        ),
        (
            "url='ws://a:1'\nconnect='later'",
            "environments.toml:4: environment `box`: `connect` is \"eager\", \"lazy\" or \"manual\", not \"later\"",
        ),
        (
            "url='ws://far:1'\ntoken_file='t'",
            "environments.toml:3: environment `box`: `url`: a token would cross the network in the clear to `ws://far:1`; use wss:// or a loopback address",
        ),
        (
            "ssh='-x'",
            "environments.toml:3: environment `box`: `ssh`: `-x` is not an ssh destination; use user@host or a name from the ssh configuration",
        ),
        (
            "url='ws://a:1'\nfuture=1",
            "environments.toml:4: environment `box`: unknown key `future`; there are id, url, token_file, program, args, env, cwd, ssh, slurm, docker, podman, devcontainer, kubectl, user, run_args, engine, container, namespace, setup, setup_timeout_sec, idle_stop, labels, connect, connect_timeout_sec, initialize_timeout_sec, ceiling, sandbox, network, writable_roots, approval_policy, devices",
        ),
    ] {
        assert_eq!(entry(members), why);
    }
    let read = snapshot("[[environments]]\nid='bad'\n[[environments]]\nid='good'\nurl='ws://a:1'\n");
    assert!(read.entries[0].definition.is_err() && read.entries[1].definition.is_ok());
}

#[test]
fn s15_wrong_ids_have_no_name_to_be_listed_under() {
    let long = "x".repeat(65);
    for (line, why) in [
        ("", "environments.toml:1: an environment without `id`".to_owned()),
        ("id=7", "environments.toml:2: `id` is a text".to_owned()),
        ("id=''", "environments.toml:2: an environment id must not be empty".to_owned()),
        ("id=' a'", "environments.toml:2: environment id ` a` must not have spaces around it".to_owned()),
        ("id='local'", "environments.toml:2: environment id `local` is reserved: it is this machine".to_owned()),
        ("id='None'", "environments.toml:2: environment id `None` is reserved: it says that there is no environment".to_owned()),
        ("id='a b'", "environments.toml:2: environment id `a b` may hold only ASCII letters, digits, `-` and `_`, not ' '".to_owned()),
        (&format!("id='{long}'"), "environments.toml:2: an environment id has at most 64 bytes; this one has 65".to_owned()),
    ] {
        let read = snapshot(&format!("[[environments]]\n{line}\nurl='ws://a:1'\n"));
        assert!(read.entries.is_empty());
        assert_eq!(read.nameless[0].reason.replace("/home/me/.outpost/", ""), why);
    }
}

#[test]
fn s15_of_two_with_one_id_neither_is_meant() {
    let read = snapshot("[[environments]]\nid='a'\nurl='ws://x:1'\n\n[[environments]]\nid='a'\nurl='ws://y:1'\n");
    assert_eq!(read.entries.len(), 1);
    assert!(read.entries[0].definition.as_ref().unwrap_err().contains(":1: duplicate environment id `a`, again in line 5"));
}

#[test]
fn s15_what_concerns_all_is_fatal() {
    assert!(fatal("default = 'x'\n").ends_with("environments.toml:1: the default environment `x` is not known"));
    assert!(fatal("\ndefault = ' '").starts_with("environments.toml:2: `default` is empty"));
    assert!(fatal("default = 7").contains("`default` is a text"));
    assert!(fatal("default = 'a b'").contains("may hold only"));
    assert!(fatal("include_local = 'yes'").contains("true or false"));
    assert!(fatal("a = 1\n").starts_with("environments.toml:1: unknown key `a`"));
    assert!(fatal("start = \"some\"\n").starts_with("environments.toml:1: `start` is \"default\" or \"all\""));
    assert!(fatal("environments = 1").contains("is a list"));
    assert!(fatal("x = \n").starts_with("environments.toml:1: "));
    assert!(fatal("[[environments]]\nid='a'\nid='b'\n").starts_with("environments.toml:3: duplicate key"));
}

#[test]
fn a_default_that_names_a_wrong_entry_is_not_replaced() {
    let read = snapshot("default='bad'\n[[environments]]\nid='bad'\n");
    assert_eq!(read.default_id(), Some(id("bad")));
    assert!(read.entries[0].definition.is_err());
}

#[test]
fn s16_paths_and_timeouts() {
    let read = snapshot(
        "[[environments]]\nid='p'\nprogram=' run '\nargs=['a']\ncwd='sub'\nenv={A='b'}\ninitialize_timeout_sec=2.5\n\
         [[environments]]\nid='u'\nurl=' ws://127.0.0.1:1 '\ntoken_file='tokens/u'\nconnect_timeout_sec=3\nconnect='manual'\n\
         [[environments]]\nid='s'\nssh='me@box'\nceiling='c'\n",
    );
    let program = read.entries[0].definition.as_ref().unwrap();
    let ConnectionWay::Program(line) = &program.way else { panic!() };
    assert_eq!(line.program, "run");
    assert_eq!(line.cwd.as_deref(), Some(Path::new("/home/me/.outpost/sub")));
    assert_eq!(program.initialize_timeout, Duration::from_millis(2500));
    assert_eq!(program.connect, ConnectPolicy::Lazy);
    let url = read.entries[1].definition.as_ref().unwrap();
    assert_eq!((url.connect_timeout, url.initialize_timeout), (Duration::from_secs(3), Duration::from_secs(10)));
    assert_eq!((url.connect, url.ceiling.as_deref()), (ConnectPolicy::Manual, None));
    assert_eq!(read.entries[2].definition.as_ref().unwrap().ceiling.as_deref(), Some("c"));
    for way in ["url='ws://a:1'", "program='x'"] {
        let read = snapshot(&format!("[[environments]]\nid='a'\n{way}\nceiling='c'\n"));
        assert!(
            read.entries[0].definition.as_ref().unwrap_err().contains("environments.toml:4: environment `a`: `ceiling`: only"),
            "{way}"
        );
    }
    assert!(
        matches!(&url.way, ConnectionWay::Listening { token: crate::connector::Token::File(path), .. } if path == Path::new("/home/me/.outpost/tokens/u"))
    );
    let nowhere = parse("[[environments]]\nid='p'\nprogram='x'\ncwd='sub'", Path::new("environments.toml")).unwrap();
    assert!(nowhere.entries[0].definition.as_ref().unwrap_err().contains("`cwd` is relative"));
}

#[test]
fn s17_a_file_that_is_not_there_is_no_error_and_one_that_cannot_be_read_is() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("environments.toml");
    assert_eq!(read(&path), Ok(None));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(read(&path), Err(EnvironmentsFileError::Unreadable { .. })));
}

fn right(members: &str) -> Definition {
    let snapshot = snapshot(&format!("[[environments]]\nid = \"box\"\n{members}\n"));
    snapshot.entries[0].definition.clone().unwrap()
}

#[test]
fn ways_lead_into_each_other() {
    assert_eq!(right("docker = 'web'").to_string(), "docker web");
    assert_eq!(
        right("ssh = 'me@a'\npodman = 'img:1'\nuser = 'dev'\nrun_args = ['--rm']\nargs = ['-p', '2']").to_string(),
        "ssh me@a, podman img:1"
    );
    assert_eq!(right("ssh = 'login'\nslurm = 4711").to_string(), "ssh login, slurm 4711");
    assert_eq!(right("kubectl = 'p'\ncontainer = 'c'\nnamespace = 'n'").to_string(), "kubectl p -n n -c c");
    assert_eq!(right("devcontainer = 'work'\nengine = 'podman'").to_string(), "devcontainer /home/me/.outpost/work");
    assert_eq!(right("ssh = 'a'\ndevcontainer = '/srv/x'").to_string(), "ssh a, devcontainer /srv/x");
    let full =
        right("podman = 'a'\nidle_stop = '30m'\nlabels = ['ci', 'gpu']\nsetup = ['true']\nsetup_timeout_sec = 30\nconnect = 'manual'");
    assert_eq!((full.idle_stop, full.labels.len(), full.setup.timeout), (Some(Duration::from_secs(1800)), 2, Duration::from_secs(30)));
    assert!(full.connect_timeout > full.setup.timeout, "setting up may take its time");
    for (members, why) in [
        ("docker='a'\npodman='b'", "only one of `docker` and `podman` may be given"),
        ("url='ws://a:1'\ndocker='b'", "only one of `url` and `docker` may be given"),
        ("docker='-v'", "`-v` is not a name of a container or image"),
        ("docker='a'\nargs=['x']", "`args` needs `ssh`"),
        ("ssh='a'\nuser='x'", "`user` needs `docker` or `podman`"),
        ("docker='a'\nnamespace='x'", "`namespace` needs `kubectl`"),
        ("slurm='x'", "`x` is not a Slurm job number"),
        ("slurm='1'\nidle_stop=5", "`idle_stop` needs"),
        ("docker='a'\nidle_stop='soon'", "`idle_stop` is a number of seconds, or such as"),
        ("url='ws://a:1'\nsetup=['x']", "`setup` needs"),
        ("docker='a'\nsetup_timeout_sec=5", "`setup_timeout_sec` needs `setup`"),
        ("devcontainer='/x'\nengine='crio'", "`engine` is \"docker\" or \"podman\""),
        ("docker='a'\nlabels=['']", "a label is empty"),
    ] {
        assert!(entry(members).contains(why), "{members}: {}", entry(members));
    }
}

#[test]
fn an_entry_narrows_what_may_be_done_there() {
    use crate::narrowing::{Fence, NarrowedApproval, Narrowing};
    let members = "url='ws://a:1'\nsandbox='read-only'\nnetwork='restricted'\nwritable_roots=['/srv/a']\napproval_policy='untrusted'\ndevices=['dri', '/dev/kfd']";
    let read = snapshot(&format!("[[environments]]\nid='a'\n{members}\n")).entries[0].definition.clone().unwrap().narrowing;
    let expected = Narrowing {
        sandbox: Some(Fence::ReadOnly),
        no_network: true,
        writable_roots: Some(vec!["/srv/a".into()]),
        approval_policy: Some(NarrowedApproval::Untrusted),
        devices: vec!["dri".into(), "/dev/kfd".into()],
        ..Narrowing::default()
    };
    assert_eq!(read, expected);
    let open = "url='ws://a:1'\nsandbox='danger-full-access'\nnetwork='enabled'";
    assert_eq!(
        snapshot(&format!("[[environments]]\nid='a'\n{open}\n")).entries[0].definition.clone().unwrap().narrowing,
        Narrowing::default()
    );
    for (member, expected) in [
        ("sandbox='readonly'", "`sandbox` is \"read-only\" or \"workspace-write\" or \"danger-full-access\", not \"readonly\""),
        ("network=true", "`network` is a text"),
        ("devices=['gpu']", "`devices` are \"nvidia\", \"dri\" and paths below /dev, not \"gpu\""),
        ("writable_roots=['a']", "`writable_roots` are absolute paths of that machine"),
        ("approval_policy='always'", "`approval_policy` is \"untrusted\" or \"on-request\" or \"never\", not \"always\""),
    ] {
        let read = snapshot(&format!("[[environments]]\nid='a'\nurl='ws://a:1'\n{member}\n"));
        let why = read.entries[0].definition.clone().unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}
