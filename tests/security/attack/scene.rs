//! What is attacked: a workspace with secrets and protected files in it and around it, an executor, and a shell that already
//! runs inside. Secrets are only where the policy denies them, as spelled or where a spelling led; whatever shows one is a finding.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outpost_testkit::Client;
use outpost_testkit::bench::{connect, with};
use outpost_testkit::client::{base64, decode};
use outpost_wire::PathUri;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Episode, Level, Random, Steps};
use crate::levels;
use crate::support::{Ground, Who, directory, entry, give, number};

/// How a secret begins.
pub(super) const SECRET: &str = "SECRET-";
/// What sandboxed code writes where it must not.
pub(super) const EVIL: &str = "EVIL";

/// What may be denied inside of the workspace: files and a directory.
pub(super) const DENIED: &[&str] = &[".env", "deep/secret", "a/b/token", "closed/key"];
/// Links out of the workspace, and what is denied through them.
pub(super) const LINKS: &[(&str, &str, &str)] = &[("link", "link", "vault"), ("sub/link", "sub/link/key", "vault2")];
/// What is protected: all but the last also before they exist.
pub(super) const PROTECTED: &[&str] = &[".git", ".codex", ".agents", ".envrc"];
/// Those that are held also before they exist.
const HELD: &[&str] = &[".git", ".codex", ".agents"];
/// Files that match the pattern.
pub(super) const MATCHING: &[&str] = &["x.pem", "sub/y.pem", "new/deeper/z.pem"];

/// So often, and so long each time, is waited for a guard on a busy machine.
const GUARD_TRIES: usize = 25;
const GUARD_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Scene {
    pub who: Who,
    pub level: Level,
    pub steps: Steps,
    /// Nothing while it is killed and started again.
    ground: Option<Ground>,
    outer: TempDir,
    pub client: Client,
    session: String,
    shell: Option<Shell>,
    /// Something was started in this session.
    has_run: bool,
    denied: Vec<&'static str>,
    links: Vec<usize>,
    has_pattern: bool,
    secrets: u64,
}

/// A shell inside that reads scripts.
struct Shell {
    id: String,
    scripts: u64,
    heard: Vec<u8>,
}

pub(super) fn uri(path: &Path) -> String {
    PathUri::from_native(path).unwrap().to_string()
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// An executor that has this level.
fn ground(who: Who, level: Level) -> Ground {
    match level {
        Level::Full => Ground::new(who),
        Level::Mounts => Ground::after(who, &levels::in_a_world(levels::MASKED)),
        Level::Landlock => Ground::after(who, &levels::in_a_world(levels::NO_NAMESPACES)),
    }
}

impl Scene {
    pub(super) async fn new(episode: Episode, random: &mut Random, steps: Steps) -> Self {
        let Episode { who, level, .. } = episode;
        let ground = ground(who, level);
        let outer = directory(who);
        let mut client = Client::new(connect(ground.executor.url()).await);
        let session = client.hello().await;
        let (mut denied, mut links, mut has_pattern) = (Vec::new(), Vec::new(), false);
        // What is below a writable root cannot be taken out of it by Landlock alone.
        if level != Level::Landlock {
            denied = DENIED.iter().copied().filter(|_| random.percent(70)).collect();
            links = (0..LINKS.len()).filter(|_| random.percent(70)).collect();
            has_pattern = random.percent(60);
        }
        let ground = Some(ground);
        let mut scene =
            Self { who, level, steps, ground, outer, client, session, shell: None, has_run: false, denied, links, has_pattern, secrets: 0 };
        for name in ["attic", "vault", "vault2"] {
            scene.make_directory(&scene.outer(name));
            let key = scene.outer(name).join("key");
            scene.save(&key);
        }
        scene.write(&scene.outer("canary"), "whole");
        scene.fill(random);
        scene.steps.note(format!("denied {:?}, links {:?}, pattern {}", scene.denied, scene.links, scene.has_pattern));
        scene
    }

    pub(super) fn ground(&self) -> &Ground {
        self.ground.as_ref().expect("the executor is being started")
    }

    /// A path below the workspace.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        let root = self.ground().path("project");
        if name.is_empty() { root } else { root.join(name) }
    }

    /// A path below the directory outside.
    pub(super) fn outer(&self, name: &str) -> PathBuf {
        self.outer.path().canonicalize().unwrap().join(name)
    }

    pub(super) fn denied(&self) -> &[&'static str] {
        &self.denied
    }

    pub(super) fn links(&self) -> &[usize] {
        &self.links
    }

    pub(super) const fn has_pattern(&self) -> bool {
        self.has_pattern
    }

    /// What a workspace has in the beginning, and when it is made anew.
    pub(super) fn fill(&mut self, random: &mut Random) {
        let root = self.at("");
        self.make_directory(&root);
        for name in ["deep", "a", "a/b", "closed", "sub", "other", "decoy"] {
            self.make_directory(&self.at(name));
        }
        self.write(&self.at("plain"), "plain");
        for name in self.denied.clone() {
            self.save(&self.at(name));
        }
        for index in self.links.clone() {
            let (link, _, target) = LINKS[index];
            symlink(self.outer(target), self.at(link)).unwrap();
        }
        if random.percent(70) {
            self.make_git();
        }
        for name in &PROTECTED[1..] {
            if random.percent(70) {
                self.write(&self.at(name), "kept");
            }
        }
        if self.has_pattern {
            self.save(&self.at(MATCHING[0]));
        }
    }

    pub(super) fn make_git(&self) {
        let git = self.at(".git");
        for directory in [git.clone(), git.join("hooks")] {
            self.make_directory(&directory);
        }
        self.write(&git.join("config"), "[core]\n");
        self.write(&git.join("hooks/pre-commit"), "kept");
    }

    pub(super) fn make_directory(&self, path: &Path) {
        if fs::create_dir(path).is_ok() {
            give(self.who, path);
        }
    }

    /// Writes as an editor does: aside, then renamed.
    pub(super) fn write(&self, path: &Path, text: &str) {
        let aside = path.with_file_name(format!("aside-{}", number()));
        if fs::write(&aside, text).is_ok() {
            give(self.who, &aside);
            // Something that was put there to keep the name.
            let _ = fs::remove_dir(path);
            if fs::rename(&aside, path).is_err() {
                let _ = fs::remove_file(&aside);
            }
        }
    }

    /// A secret that never was before.
    pub(super) fn save(&mut self, path: &Path) {
        self.secrets += 1;
        self.write(path, &format!("{SECRET}{}", self.secrets));
    }

    /// Puts something away where everything is denied.
    pub(super) fn put_away(&self, path: &Path) {
        let _ = fs::rename(path, self.outer("attic").join(number()));
    }

    fn policy(&self, more: Vec<Value>) -> Value {
        let mut entries = vec![special("root", "read"), special("project_roots", "write"), entry(&self.outer("attic"), "deny")];
        entries.extend(more);
        let root = uri(&self.at(""));
        with(self.ground().policy(json!(entries)), json!({"cwd": root, "workspaceRoots": [root]}))
    }

    /// The policy under which nothing may be learnt.
    pub(super) fn strict(&self) -> Value {
        let mut more: Vec<Value> = self.denied.iter().map(|name| entry(&self.at(name), "deny")).collect();
        more.extend(self.links.iter().map(|index| entry(&self.at(LINKS[*index].1), "deny")));
        if self.links.len() < LINKS.len() {
            more.extend(
                (0..LINKS.len()).filter(|index| !self.links.contains(index)).map(|index| entry(&self.outer(LINKS[index].2), "deny")),
            );
        }
        if self.has_pattern {
            more.push(json!({"path": {"type": "glob_pattern", "pattern": "**/*.pem"}, "access": "deny"}));
        }
        self.policy(more)
    }

    /// A policy that does not speak of what is denied.
    pub(super) fn loose(&self) -> Value {
        self.policy(Vec::new())
    }

    /// Runs a script from the top of the file system; nothing if it was refused, with the reason noted.
    pub(super) async fn run(&mut self, sandbox: &Value, script: &str) -> Option<String> {
        let id = number();
        let start = with(self.ground().shell(&id, script), json!({"sandbox": sandbox, "cwd": "file:///"}));
        let answer = self.client.call("process/start", start).await;
        if answer.get("error").is_some() {
            self.steps.note(format!("refused: {}", answer["error"]["message"]));
            return None;
        }
        self.has_run = true;
        let (_, output) = self.client.outcome(&id).await;
        Some(String::from_utf8_lossy(&output).into_owned())
    }

    /// Runs a script in the shell that already runs.
    pub(super) async fn tell(&mut self, script: &str) -> String {
        if self.shell.is_none() {
            let id = number();
            let start = with(
                self.ground().shell(&id, ""),
                json!({"sandbox": self.strict(), "cwd": "file:///", "argv": ["/bin/sh"], "pipeStdin": true}),
            );
            let answer = self.client.call("process/start", start).await;
            if answer.get("error").is_some() {
                self.steps.note(format!("refused: {}", answer["error"]["message"]));
                return String::new();
            }
            self.shell = Some(Shell { id, scripts: 0, heard: Vec::new() });
        }
        let shell = self.shell.as_mut().unwrap();
        shell.scripts += 1;
        let end = format!("DONE-{}\n", shell.scripts);
        let (id, write) = (shell.id.clone(), shell.scripts.to_string());
        let chunk = base64(format!("{{ {script}\n}} 2>&1\necho DONE-{}\n", shell.scripts));
        self.client.result("process/write", json!({"processId": id, "chunk": chunk, "writeId": write})).await;
        while !shell.heard.ends_with(end.as_bytes()) {
            let message = self.client.until(|message| message["params"]["processId"] == id.as_str()).await;
            assert_eq!(message["method"], "process/output", "the shell that runs ended: {message}");
            shell.heard.extend(decode(&message["params"]["chunk"]));
        }
        String::from_utf8_lossy(&std::mem::take(&mut shell.heard)).into_owned()
    }

    /// Every way to what is denied, as sandboxed code may spell it.
    pub(super) fn ways(&self) -> Vec<String> {
        let root = self.at("");
        let root = root.display();
        let outer = self.outer("");
        let outer = outer.display().to_string();
        let outer = outer.trim_end_matches('/');
        let mut ways = Vec::new();
        for name in DENIED.iter().chain(MATCHING).chain(&["link/key", "sub/link/key"]) {
            ways.extend([format!("{root}/{name}"), format!("{root}/deep/../{name}"), format!("/proc/self/root{root}/{name}")]);
            ways.push(format!("{root}/link/../../{}", name.rsplit('/').next().unwrap_or(name)));
        }
        for name in ["vault/key", "vault2/key", "attic/key", "vault/../attic/key"] {
            ways.extend([format!("{outer}/{name}"), format!("{root}/sub/link/../{name}"), format!("/proc/1/root{outer}/{name}")]);
        }
        ways
    }

    /// A script that shows every secret that it gets hold of.
    fn reads(&self) -> String {
        let (root, outer) = (self.at(""), self.outer(""));
        let ways: String = self.ways().iter().map(|way| format!(" '{way}'")).collect();
        format!(
            "grep -RsahoE '{SECRET}[0-9]+' {} {} 2>/dev/null | head -n 3
cat {ways} 2>/dev/null | grep -aoE '{SECRET}[0-9]+' | head -n 3
",
            root.display(),
            outer.display()
        )
    }

    /// A script that writes wherever it must not.
    fn writes(&self) -> String {
        let (root, outer) = (self.at(""), self.outer("canary"));
        let root = root.display();
        let mut protected: String = PROTECTED.iter().map(|name| format!(" '{root}/{name}'")).collect();
        protected += &format!(" '{root}/.git/hooks/pre-commit' '{root}/.git/config' {root}/store-*/config {root}/store-*/hooks");
        format!(
            "for f in {protected}; do {{ echo {EVIL} >> \"$f\"; echo {EVIL} > \"$f/{EVIL}\"; }} 2>/dev/null; done
{{ echo {EVIL} >> {}; }} 2>/dev/null
echo END
",
            outer.display()
        )
    }

    /// What is at a path: texts, links, names; a directory with nothing in it is as good as nothing.
    fn state(path: &Path) -> String {
        let Ok(metadata) = path.symlink_metadata() else { return String::new() };
        if metadata.is_symlink() {
            let target = fs::read_link(path).unwrap_or_default();
            let there = fs::canonicalize(path).map(|real| Self::state(&real)).unwrap_or_default();
            return format!("-> {} {there}", target.display());
        }
        if metadata.is_dir() {
            let mut names: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            names.sort();
            let within: String = names
                .iter()
                // Where a link in it leads is not its own.
                .map(|path| (path, fs::read_link(path).map_or_else(|_| Self::state(path), |target| format!("-> {}", target.display()))))
                .filter(|(_, state)| !state.is_empty())
                .map(|(path, state)| format!("{}: {state}; ", path.file_name().unwrap_or_default().to_string_lossy()))
                .collect();
            return if within.is_empty() { within } else { format!("{{{within}}}") };
        }
        format!("`{}`", String::from_utf8_lossy(&fs::read(path).unwrap_or_default()))
    }

    /// The repository that a `.git` names which is a file.
    fn repository(&self) -> Option<PathBuf> {
        let text = fs::read_to_string(self.at(".git")).ok()?;
        Some(text.strip_prefix("gitdir:")?.trim().into())
    }

    /// Everything that sandboxed code must leave as it is.
    pub(super) fn kept(&self) -> Vec<(PathBuf, String)> {
        let mut paths: Vec<PathBuf> = self.denied.iter().map(|name| self.at(name)).collect();
        if self.level != Level::Landlock {
            let is_held = |path: &PathBuf| !path.ends_with(".envrc") || path.symlink_metadata().is_ok();
            paths.extend(PROTECTED.iter().map(|name| self.at(name)).filter(is_held));
            paths.extend(self.repository());
        }
        paths.push(self.outer(""));
        paths.into_iter().map(|path| (path.clone(), Self::state(&path))).collect()
    }

    /// Fails with what sandboxed code changed.
    pub(super) fn assert_kept(&self, before: &[(PathBuf, String)], by: &str) {
        for (path, was) in before {
            let is = Self::state(path);
            assert!(is == *was, "{by} changed {}:\n  was {was}\n  is  {is}", path.display());
        }
    }

    pub(super) fn assert_silent(shown: &str, by: &str) {
        assert!(!shown.contains(SECRET), "{by} shows a secret: {shown}");
    }

    /// Whatever sandboxed code tries, by a command that is started now, by a program that already runs, and by file calls: nothing is learnt and
    /// nothing is changed.
    pub(super) async fn judge(&mut self, random: &mut Random) {
        let before = self.kept();
        let (strict, reads, writes) = (self.strict(), self.reads(), self.writes());
        if let Some(shown) = self.run(&strict, &format!("{reads}{writes}")).await {
            assert!(shown.contains("END"), "a command that is started does not end: {shown}");
            Self::assert_silent(&shown, "a command that is started");
            // What already runs may be in a sandbox that others have taken the place of, which is not looked at before a start. Its guard
            // hears of changes a little later; that window is known, and it has an end.
            let mut shown = self.tell(&reads).await;
            for _ in 0..GUARD_TRIES {
                if !shown.contains(SECRET) {
                    break;
                }
                tokio::time::sleep(GUARD_PAUSE).await;
                shown = self.tell(&reads).await;
            }
            Self::assert_silent(&shown, "a command that already runs");
            tokio::time::sleep(GUARD_PAUSE).await;
            let shown = self.tell(&format!("{writes}{reads}")).await;
            Self::assert_silent(&shown, "a command that already runs");
        } else if self.shell.is_some() && self.level != Level::Landlock {
            Self::settle(HELD.iter().map(|name| self.at(name)).collect()).await;
        }
        for _ in 0..3 {
            self.call(random, &strict).await;
        }
        self.assert_kept(&before, "something inside");
    }

    /// A script of sandboxed code in which `{W}` is the workspace: nothing is learnt and nothing is changed by it.
    pub(super) async fn attempt(&mut self, script: &str, already_runs: bool) {
        let (before, root) = (self.kept(), self.at("").display().to_string());
        let (script, strict) = (script.replace("{W}", &root), self.strict());
        let shown = if already_runs { self.tell(&script).await } else { self.run(&strict, &script).await.unwrap_or_default() };
        Self::assert_silent(&shown, "sandboxed code");
        self.assert_kept(&before, "sandboxed code");
    }

    /// Waits until names that a program outside took away are held again. Until then what already runs can make them: that window is known,
    /// and it has an end. A command that is started closes it; one that is refused does not.
    async fn settle(names: Vec<PathBuf>) {
        for _ in 0..GUARD_TRIES {
            if names.iter().all(|name| name.symlink_metadata().is_ok()) {
                break;
            }
            tokio::time::sleep(GUARD_PAUSE).await;
        }
        tokio::time::sleep(GUARD_PAUSE).await;
    }

    /// One file call that tries to get at something.
    pub(super) async fn call(&mut self, random: &mut Random, sandbox: &Value) {
        let ways = self.ways();
        let way = PathBuf::from(random.pick(&ways));
        let protected = self.at(random.pick(PROTECTED));
        let (inside, way, deep) = (uri(&self.at(&format!("in-{}", number()))), uri(&way), uri(&protected.join("x")));
        let protected = uri(&protected);
        let evil = base64(EVIL);
        let landlock = self.level == Level::Landlock;
        let (method, params) = match random.below(if landlock { 5 } else { 12 }) {
            0 | 1 => ("fs/readFile", json!({"path": way})),
            2 => ("fs/copy", json!({"sourcePath": way, "destinationPath": inside, "recursive": true})),
            3 => ("fs/rename", json!({"sourcePath": way, "destinationPath": inside})),
            4 => ("fs/writeFile", json!({"path": uri(&self.outer("canary")), "dataBase64": evil})),
            5 => ("fs/writeFile", json!({"path": protected, "dataBase64": evil})),
            6 => ("fs/writeFile", json!({"path": deep, "dataBase64": evil})),
            7 => ("fs/remove", json!({"path": protected, "recursive": true, "force": true})),
            8 => ("fs/rename", json!({"sourcePath": protected, "destinationPath": inside})),
            9 => ("fs/createLink", json!({"path": deep, "target": "x"})),
            10 => ("fs/writeFile", json!({"path": way, "dataBase64": evil})),
            _ => ("fs/open", json!({"path": way, "handleId": number(), "mode": "read"})),
        };
        let params = with(params, json!({"sandbox": sandbox}));
        let answer = self.client.call(method, params.clone()).await;
        let mut shown =
            answer["result"]["dataBase64"].as_str().map(|_| String::from_utf8_lossy(&decode(&answer["result"]["dataBase64"])).into_owned());
        if method == "fs/open" && answer.get("result").is_some() {
            let block = self.client.call("fs/readBlock", json!({"handleId": params["handleId"], "offset": 0, "len": 64})).await;
            shown = block["result"]["chunk"].as_str().map(|_| String::from_utf8_lossy(&decode(&block["result"]["chunk"])).into_owned());
            self.client.call("fs/close", json!({"handleId": params["handleId"]})).await;
        }
        Self::assert_silent(&shown.unwrap_or_default(), &format!("{method} {}{}", params["path"], params["sourcePath"]));
    }

    /// kill -9, and the next executor on the same files; the session goes on if anything was answered in it.
    pub(super) async fn kill(&mut self) {
        self.next_executor().await;
        if self.has_run {
            let session = self.session.clone();
            assert_eq!(self.client.resume(&session).await, session);
        } else {
            self.session = self.client.hello().await;
        }
    }

    /// The same with a new session.
    pub(super) async fn begin_anew(&mut self) {
        self.next_executor().await;
        self.has_run = false;
        self.session = self.client.hello().await;
    }

    async fn next_executor(&mut self) {
        let ground = self.ground.take().unwrap();
        let ground = ground.killed(self.who);
        self.client = Client::new(connect(ground.executor.url()).await);
        self.ground = Some(ground);
        self.shell = None;
    }

    /// What already runs is left to itself from now on, and another shell takes its place: a program that runs is not kept from where a link
    /// leads only later.
    pub(super) fn leave_shell(&mut self) {
        self.shell = None;
    }

    /// Ends the session; nothing that was put there to keep a name stays.
    pub(super) async fn end(mut self) {
        self.client.result("session/end", json!({})).await;
        let names: Vec<PathBuf> = self.denied.iter().chain(PROTECTED).map(|name| self.at(name)).collect();
        let is_placeholder = |path: &PathBuf| {
            path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
                && fs::read_dir(path).is_ok_and(|mut names| names.next().is_none())
        };
        self.steps.note("the end of the session");
        for _ in 0..600 {
            if !names.iter().any(is_placeholder) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let left: Vec<_> = names.into_iter().filter(is_placeholder).collect();
        panic!("left after the end of the session: {left:?}");
    }
}
