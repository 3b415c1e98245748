//! What people do wrong in their first ten minutes, and what they are told to do next.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::OUTPOST;
use crate::person::Newcomer;

#[test]
fn a_machine_that_is_not_there_is_told_with_how_to_add_or_reach_it() {
    let me = Newcomer::new();
    for verb in [&["run", "-e", "box", "--", "true"][..], &["exec", "-e", "box", "$ true"]] {
        let (told, _) = me.told(verb);
        assert!(told.contains("there is no environment `box`; there is only `local`. `outpost env add box --ssh USER@HOST`"), "{told}");
    }
    me.write("environments.toml", "[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n");
    for (verb, code) in [(&["run", "-e", "box", "--", "true"][..], 125), (&["exec", "-e", "box", "$ true"], 3), (&["cp", "box:x", "y"], 3)]
    {
        let (told, ended) = me.told(verb);
        assert_eq!(ended, Some(code), "{told}");
        assert!(told.contains("Connection refused") && told.contains("`box` is ws://127.0.0.1:1 in environments.toml"), "{told}");
    }
    let checked = me.command(&["env", "check"]).output().unwrap();
    let table = String::from_utf8(checked.stdout).unwrap();
    assert!(table.lines().take(3).all(|line| line.len() < 160), "a reason does not widen the table: {table}");
    assert!(table.contains("\nbox is unreachable: Connection refused"), "{table}");
}

#[test]
fn a_model_that_cannot_be_asked_is_told_before_there_is_a_thread() {
    let me = Newcomer::new();
    let cases: [(&[&str], &str); 4] = [
        (&["exec", "--provider", "openai", "hi"], "set the variable OPENAI_API_KEY"),
        (&["exec", "--provider", "nobody", "hi"], "there is no model provider `nobody`; there are: anthropic, offline, ollama, openai"),
        (&["exec", "--provider", "box", "-c", "model_providers.box.base_url=here", "hi"], "it begins with http:// or https://"),
        (&["exec", "-e", "local=/no/such", "$ pwd"], "-e local=/no/such: there is no such directory"),
    ];
    for (arguments, why) in cases {
        let (told, code) = me.told(arguments);
        assert_eq!((code, told.matches(why).count()), (Some(1), 1), "{told}");
    }
    let listed = me.command(&["thread", "list"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "no threads; `outpost exec PROMPT` starts one\n");
    // Where it was looked for is told, in few words.
    let nowhere = ["-c", "model_providers.box.base_url=http://me:secret@127.0.0.1:1/v1", "-c", "model_providers.box.request_max_retries=0"];
    let (told, _) = me.told(&[&["exec", "--provider", "box", "--model", "m"], &nowhere[..], &["hi"]].concat());
    assert!(told.contains("box cannot be reached: http://127.0.0.1:1/v1: Connection refused"), "{told}");
}

#[test]
fn commands_that_did_not_run_are_not_said_to_have_run() {
    let me = Newcomer::new();
    me.write("environments.toml", "[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n");
    let output = me.command(&["exec", "--provider", "offline", "-e", "*", "@box $ true"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 command did not run; the reason is above.\n", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("[box] $ true\n  environment `box` is not ready"), "{output:?}");
    assert_eq!(output.status.code(), Some(3), "the machine is what failed");
}

/// As ssh to a far machine does: the first connection takes longer than a step waits for a machine.
#[test]
fn a_machine_that_is_named_is_waited_for() {
    let me = Newcomer::new();
    let slow = format!("sleep 4; exec '{OUTPOST}' executor --listen stdio");
    me.write("environments.toml", &format!("[[environments]]\nid = \"slow\"\nprogram = \"sh\"\nargs = [\"-c\", \"{slow}\"]\n"));
    let place = format!("slow={}", me.work.path().display());
    let script = "$ echo here\n@slow $ echo there";
    let arguments = ["exec", "--provider", "offline", "--sandbox", "danger-full-access", "-e", "local", "-e", &place, script];
    let output = me.command(&arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Done: 2 commands ran; the output is above.\n", "{output:?}");
}

#[test]
fn output_of_commands_that_run_at_once_says_whose_it_is() {
    let me = Newcomer::new();
    let script = "$ while [ ! -e go ]; do sleep 0.01; done; echo slow\n$ echo quick; touch go";
    let (told, _) = me.told(&["exec", "--provider", "offline", "--sandbox", "danger-full-access", script]);
    let slow = told.rfind("  slow").unwrap_or_else(|| panic!("{told}"));
    let above = told[..slow].trim_end().lines().last().unwrap();
    assert!(above.starts_with("[local] $ while"), "{told}");
}

#[test]
fn threads_are_found_by_where_they_work() {
    let me = Newcomer::new();
    let (told, code) = me.told(&["exec", "--provider", "offline", "> hi"]);
    assert_eq!(code, Some(0), "{told}");
    let list = |directory: &str| String::from_utf8(me.command(&["thread", "list", "--cwd", directory]).output().unwrap().stdout).unwrap();
    let here = me.work.path().canonicalize().unwrap();
    assert!(list(here.to_str().unwrap()).contains("> hi"), "{}", list(here.to_str().unwrap()));
    assert!(list(".").contains("> hi") && list(&format!("{}/", here.display())).contains("> hi"));
    assert_eq!(list("/elsewhere"), "no thread fits; `outpost thread list --all` shows all of them\n");
}

#[test]
fn a_port_that_is_taken_and_a_token_that_is_missing_are_told_with_what_to_do() {
    let me = Newcomer::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("ws://{}", taken.local_addr().unwrap());
    for verb in ["serve", "executor", "app-server"] {
        let (told, code) = me.told(&[verb, "--listen", &address]);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains(&format!("cannot listen on {address}; another program listens there")), "{told}");
    }
    let executor = outpost_testkit::ExecutorProcess::start(std::path::Path::new(OUTPOST), &["--listen", "ws://127.0.0.1:0"]);
    let (told, _) = me.told(&["run", "-e", executor.url(), "--", "true"]);
    assert!(told.contains("pass it in OUTPOST_TOKEN"), "{told}");
}

#[test]
fn a_home_that_cannot_be_written_to_is_named() {
    let me = Newcomer::new();
    // A file is in the way: that stops root as well.
    me.write("file", "");
    let below = me.home.path().join("file/home");
    for verb in [&["exec", "> hi"][..], &["demo"], &["thread", "list"], &["env", "add", "x", "--url", "ws://127.0.0.1:1"]] {
        let output = me.command(verb).env("OUTPOST_HOME", &below).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("the home {} cannot be made", below.display())) && told.contains("set OUTPOST_HOME"), "{told}");
    }
    if rustix::process::geteuid().is_root() {
        return;
    }
    std::fs::set_permissions(me.home.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let (told, _) = me.told(&["exec", "> hi"]);
    std::fs::set_permissions(me.home.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(told.contains("cannot be written to"), "{told}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let me = Newcomer::new();
    for verb in [&["schema"][..], &["demo"], &["doctor"], &["completions", "bash"], &["thread", "list"]] {
        let mut child = me.command(verb).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{verb:?}");
    }
}

/// Whoever started us closed our standard error, or the disk behind it is full.
#[test]
fn words_that_nobody_hears_end_nothing() {
    let me = Newcomer::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    me.write("environments.toml", "[[environments]]\nid = \"down\"\nurl = \"ws://127.0.0.1:1\"\n");
    let cases: [(&[&str], i32); 6] = [
        (&["thread", "show", "nosuch"], 1),
        (&["token", "create", "--client"], 0),
        (&["env", "remove", "nosuch"], 1),
        (&["cp", "down:x", "y"], 3),
        (&["run", "-e", "nosuch", "--", "true"], 125),
        (&["exec", "--provider", "offline", "--sandbox", "danger-full-access", "$ echo hi"], 0),
    ];
    for (verb, code) in cases {
        // With every line of the log, too.
        for log in ["warn", "debug"] {
            let ended = me.command(verb).env("OUTPOST_LOG", log).stderr(full()).output().unwrap();
            assert_eq!(ended.status.code(), Some(code), "{verb:?}: {ended:?}");
            let mut child = me.command(verb).env("OUTPOST_LOG", log).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stderr.take());
            assert_eq!(child.wait().unwrap().code(), Some(code), "{verb:?}");
        }
    }
}

#[test]
fn a_server_that_nobody_could_reach_says_so() {
    let me = Newcomer::new();
    let mut first = me.command(&["app-server", "--listen", "off"]).stderr(Stdio::null()).spawn().unwrap();
    let socket = me.home.path().join("run/app.sock");
    while !socket.exists() {
        assert!(first.try_wait().unwrap().is_none(), "the first one ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (told, code) = me.told(&["app-server", "--listen", "off"]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("app.sock: another server of this home listens there; stop it first"), "{told}");
}

#[test]
fn readers_of_lists_and_exports_may_leave_and_full_disks_are_told() {
    let me = Newcomer::new();
    assert_eq!(me.told(&["exec", "--provider", "offline", "> hi"]).1, Some(0));
    assert_eq!(me.told(&["token", "create", "--client"]).1, Some(0));
    let list = me.command(&["thread", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let id = list["threads"][0]["id"].as_str().unwrap();
    let verbs: [&[&str]; 6] = [
        &["thread", "export", id],
        &["thread", "export", "--markdown", id],
        &["token", "list"],
        &["token", "list", "--json"],
        &["env", "list"],
        &["env", "check", "local"],
    ];
    for verb in verbs {
        let mut child = me.command(verb).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{verb:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = me.command(verb).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains("No space left"), "{verb:?}: {output:?}");
    }
    // It has nothing more to say, and ends all the same.
    let mut child = me.command(&["env", "watch"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A log line is for a server; a person is told one sentence, once.
#[test]
fn what_is_wrong_with_declarations_is_told_in_plain_words() {
    let me = Newcomer::new();
    me.write("config.toml", "[mcp_servers.notes]\ncommand = \"cat\"\ncolour = \"red\"\nenabled = false\n");
    std::fs::write(me.work.path().join(".mcp.json"), "no JSON").unwrap();
    for json in [&[][..], &["--json"]] {
        let output = me.command(&[&["exec"], json, &["> hello"]].concat()).output().unwrap();
        let said = [String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap()].concat();
        assert!(said.contains("outpost: mcp_servers.notes: the key `colour` is not known and has no effect\n"), "{said}");
        assert_eq!(said.matches("is not valid JSON").count(), 1, "{said}");
        assert!(!said.contains("WARN"), "{said}");
    }
    let mut chat = me.command(&["chat"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"> hello\n").unwrap();
    let said = String::from_utf8(chat.wait_with_output().unwrap().stderr).unwrap();
    assert_eq!((said.matches("is not valid JSON").count(), said.matches("WARN").count()), (1, 0), "{said}");
}

/// A directory of this machine need not be there on every other one, and that is nobody's business until something runs there.
#[test]
fn a_directory_that_is_not_there_is_told_to_whoever_works_in_it() {
    let me = Newcomer::new();
    me.write(
        "environments.toml",
        &format!("[[environments]]\nid = \"far\"\nprogram = \"{OUTPOST}\"\nargs = [\"executor\", \"--listen\", \"stdio\"]\n"),
    );
    for mode in ["workspace-write", "read-only", "danger-full-access"] {
        let prompt = "$ echo here\n@far $ echo there";
        let (told, _) = me.told(&["exec", "--sandbox", mode, "-e", "local", "-e", "far=/no/such/place", prompt]);
        assert!(told.contains("  here"), "{mode}: {told}");
        assert_eq!(told.matches("/no/such/place").count(), 1, "{mode}: {told}");
        assert!(
            told.contains("The command could not be started: there is no directory /no/such/place in environment `far`"),
            "{mode}: {told}"
        );
    }
}

/// Whoever works in their own home finds shells and git as they are; what would be run later cannot be written all the same.
#[test]
fn a_home_can_be_worked_in() {
    let me = Newcomer::new();
    std::fs::write(me.work.path().join(".profile"), "export FROM_PROFILE=it-was-read\n").unwrap();
    let prompt =
        "$ git config --global --list && echo git is fine; bash -lc 'echo $FROM_PROFILE'; echo x >> ~/.bash_login; mv ~/.gitconfig y; true";
    let (told, code) = me.told(&["exec", prompt]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("  git is fine\n  it-was-read\n"), "{told}");
    assert!(told.contains(".bash_login: Read-only file system") && told.contains("mv: cannot move"), "{told}");
    let left: Vec<_> = std::fs::read_dir(me.work.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".profile"], "nothing is left");
}

/// Other shells than bash have start-up files, too. A placeholder for one of tcsh's does not hide the other.
#[test]
fn start_up_files_of_every_shell_stay_as_they_are() {
    let me = Newcomer::new();
    let home = me.work.path();
    std::fs::create_dir_all(home.join(".config/other")).unwrap();
    std::fs::write(home.join(".cshrc"), "setenv FROM_CSHRC it-was-read\n").unwrap();
    for file in [".cshrc", ".tcshrc", ".login", ".logout", ".kshrc", ".zshenv", ".config/fish/config.fish", ".config/git/config"] {
        let (told, code) = me.told(&["exec", &format!("$ echo evil >> {file}")]);
        assert!(code == Some(1) && told.contains(file), "{file}: {told}");
    }
    let (told, code) =
        me.told(&["exec", "$ echo fine > .config/other/file; if command -v tcsh > /dev/null; then tcsh -c 'echo $FROM_CSHRC'; fi"]);
    assert_eq!(code, Some(0), "{told}");
    let has_tcsh = Command::new("sh").args(["-c", "command -v tcsh"]).output().unwrap().status.success();
    assert!(!has_tcsh || told.contains("it-was-read"), "{told}");
    assert_eq!(std::fs::read_to_string(home.join(".cshrc")).unwrap(), "setenv FROM_CSHRC it-was-read\n");
    let mut left: Vec<_> = std::fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".config", ".cshrc"], "nothing is left");
    assert!(home.join(".config/other/file").exists() && !home.join(".config/fish").exists());
}

/// A command that a limit stopped did not just end with a number.
#[test]
fn a_limit_that_stops_a_command_is_named() {
    let me = Newcomer::new();
    let script = "for n in $(seq 600); do echo $n >> f; sleep 0.1; done";
    let (told, code) = me.told(&["exec", "-c", "limits.free_space=\"999T\"", &format!("$ {script}")]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("exit code 137: stopped by the limit of 1047527424 MiB of free space"), "{told}");
    let (told, code) = me.told(&["run", "-c", "limits.free_space=\"999T\"", "--", "sh", "-c", script]);
    assert_eq!((told.as_str(), code), ("outpost: the command was stopped by the limit of 1047527424 MiB of free space\n", Some(137)));
}

/// What cannot be used is named by the run that would have used it, and not only to the model.
#[test]
fn what_is_configured_and_broken_is_named_by_exec() {
    let me = Newcomer::new();
    me.write("environments.toml", "start = \"all\"\n[[environments]]\nid = \"box\"\nprogram = \"/no/such/executor\"\n");
    me.write("requirements.toml", "mcp_servers = {");
    let (told, code) = me.told(&["exec", "--sandbox", "danger-full-access", "$ sleep 0.5"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("environment `box` cannot be used: cannot run `/no/such/executor`"), "{told}");
    assert!(told.contains("no MCP server may be used, because the requirements in") && told.contains("requirements.toml"), "{told}");
    let output = me.command(&["exec", "--json", "--sandbox", "danger-full-access", "$ sleep 0.5"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("cannot run `/no/such/executor`"), "{output:?}");
}

#[test]
fn an_entry_without_a_usable_id_fails_the_check() {
    let me = Newcomer::new();
    me.write("environments.toml", "[[environments]]\nid = \"local\"\nurl = \"ws://127.0.0.1:1\"\n");
    let output = me.command(&["env", "check"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("environments.toml:1  failed") && table.contains("reserved"), "{table}");
    let output = me.command(&["env", "check", "--json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"id\":\"environments.toml:1\""), "{output:?}");
}

/// Whoever asks for a list has no process in the background afterwards.
#[test]
fn verbs_without_an_environment_start_no_keeper() {
    let me = Newcomer::new();
    let keepers = || {
        let names = std::fs::read_dir(me.home.path().join("run")).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name.starts_with("local-")).count()
    };
    for verb in [["thread", "list"], ["env", "list"], ["config", "show"], ["token", "list"]] {
        let (told, code) = me.told(&verb);
        assert_eq!((code, keepers()), (Some(0), 0), "{verb:?}: {told}");
    }
    let (told, code) = me.told(&["exec", "--sandbox", "danger-full-access", "$ true"]);
    assert_eq!((code, keepers()), (Some(0), 1), "a command needs one: {told}");
}
