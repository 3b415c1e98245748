//! Control groups of machines that we do not have: a tree that follows the rules of the kernel.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::*;

const OWN: u32 = 100;
const STAGE: u32 = 101;
const OTHER: u32 = 7;
const POINT: &str = "/sys/fs/cgroup";

fn untried(trial: Trial<'_>) -> Probing<'_> {
    Probing { trial, known: &|_| false }
}

/// What a hierarchy of the second version does, in memory.
#[derive(Debug)]
struct Fake(Mutex<BTreeMap<PathBuf, Node>>);

#[derive(Debug, Clone, Default)]
struct Node {
    processes: Vec<u32>,
    controllers: Vec<&'static str>,
    enabled: Vec<String>,
    limits: BTreeMap<String, String>,
    threaded: bool,
    delegated: bool,
    /// Whether we may make groups in it, move processes, and divide it.
    makes: bool,
    moves: bool,
    divides: bool,
    at_top: bool,
}

impl Node {
    fn ours() -> Self {
        Self { controllers: vec!["memory", "pids"], makes: true, moves: true, divides: true, ..Self::default() }
    }
}

fn refused(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Fake {
    fn new(groups: impl IntoIterator<Item = (&'static str, Node)>) -> Arc<Self> {
        let top = Node { controllers: vec!["memory", "pids"], at_top: true, ..Node::default() };
        let nodes = groups.into_iter().map(|(path, node)| (Path::new(POINT).join(path.trim_start_matches('/')), node));
        Arc::new(Self(Mutex::new(std::iter::once((POINT.into(), top)).chain(nodes).collect())))
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Node>> {
        self.0.lock().unwrap()
    }

    fn node(&self, path: &str) -> Node {
        self.nodes()[&Path::new(POINT).join(path.trim_start_matches('/'))].clone()
    }

    fn groups(&self) -> Vec<String> {
        self.nodes().keys().map(|path| path.display().to_string()).collect()
    }

    /// Puts a process into a group, as the kernel would.
    fn enter(&self, group: &Path, pid: u32) -> io::Result<()> {
        let mut nodes = self.nodes();
        let node = nodes.get(group).ok_or(ErrorKind::NotFound)?;
        if !node.moves {
            return Err(refused(libc::EACCES));
        }
        let above = group.parent().and_then(|above| nodes.get(above));
        if node.threaded || above.is_some_and(|above| above.threaded) {
            return Err(refused(libc::EOPNOTSUPP));
        }
        if !node.enabled.is_empty() && !node.at_top {
            return Err(refused(libc::EBUSY));
        }
        for node in nodes.values_mut() {
            node.processes.retain(|known| *known != pid);
        }
        nodes.get_mut(group).ok_or(ErrorKind::NotFound)?.processes.push(pid);
        Ok(())
    }

    /// A process tries groups; `pids` says what the tree around them still allows.
    fn trial(&self, doors: &[PathBuf], look: &mut dyn FnMut()) -> Result<bool, String> {
        let mut held = false;
        for door in doors {
            let group = door.parent().unwrap();
            self.enter(group, 999).map_err(|error| error.to_string())?;
            let nodes = self.nodes();
            held |= group
                .ancestors()
                .filter_map(|above| nodes.get(above))
                .any(|node| node.limits.get("pids.max").is_some_and(|max| max == "1"));
        }
        look();
        for node in self.nodes().values_mut() {
            node.processes.retain(|pid| *pid != 999);
        }
        Ok(held)
    }

    fn probe(self: &Arc<Self>, surroundings: &CgroupHost) -> Hierarchies {
        let tree: Arc<dyn CgroupTree> = self.clone();
        Hierarchies::probe(tree, surroundings, &untried(&|doors, look| self.trial(doors, look)))
    }
}

impl CgroupTree for Fake {
    fn read(&self, file: &Path) -> io::Result<String> {
        let nodes = self.nodes();
        let node = nodes.get(file.parent().unwrap()).ok_or(ErrorKind::NotFound)?;
        let lines = |pids: &[u32]| pids.iter().map(|pid| format!("{pid}\n")).collect();
        Ok(match file.file_name().unwrap().to_str().unwrap() {
            "cgroup.procs" => lines(&node.processes),
            "cgroup.type" if node.at_top => return Err(ErrorKind::NotFound.into()),
            "cgroup.type" if node.threaded => "domain threaded\n".into(),
            "cgroup.type" => "domain\n".into(),
            "cgroup.controllers" => node.controllers.join(" "),
            "cgroup.subtree_control" => node.enabled.join(" "),
            "memory.current" => {
                let inside = nodes.iter().any(|(path, node)| path.starts_with(file.parent().unwrap()) && node.processes.contains(&999));
                if inside { TRIAL_MEMORY.to_string() } else { "0".into() }
            }
            name => node.limits.get(name).cloned().ok_or(ErrorKind::NotFound)?,
        })
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        let group = file.parent().unwrap();
        match file.file_name().unwrap().to_str().unwrap() {
            "cgroup.procs" => self.enter(group, text.parse().unwrap()),
            "cgroup.subtree_control" => {
                let mut nodes = self.nodes();
                let node = nodes.get_mut(group).ok_or(ErrorKind::NotFound)?;
                let controller = text.trim_start_matches('+').to_owned();
                if !node.divides {
                    return Err(refused(libc::EACCES));
                }
                if !node.processes.is_empty() && !node.at_top {
                    // What a controller of threads does to a group with processes in it.
                    if controller == "pids" {
                        node.threaded = true;
                        node.enabled.push(controller);
                        return Ok(());
                    }
                    return Err(refused(libc::EBUSY));
                }
                node.enabled.push(controller);
                Ok(())
            }
            name => {
                let mut nodes = self.nodes();
                let controller = name.split('.').next().unwrap();
                let is_enabled = nodes.get(group.parent().unwrap()).is_some_and(|above| above.enabled.iter().any(|one| one == controller));
                let node = nodes.get_mut(group).ok_or(ErrorKind::NotFound)?;
                if !is_enabled {
                    return Err(ErrorKind::NotFound.into());
                }
                node.limits.insert(name.to_owned(), text.to_owned());
                Ok(())
            }
        }
    }

    fn make(&self, group: &Path) -> io::Result<()> {
        let mut nodes = self.nodes();
        let above = nodes.get(group.parent().unwrap()).ok_or(ErrorKind::NotFound)?;
        if !above.makes {
            return Err(refused(libc::EROFS));
        }
        if nodes.contains_key(group) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        nodes.insert(group.to_owned(), Node::ours());
        Ok(())
    }

    fn remove(&self, group: &Path) -> io::Result<()> {
        let mut nodes = self.nodes();
        let node = nodes.get(group).ok_or(ErrorKind::NotFound)?;
        if !node.processes.is_empty() || nodes.keys().any(|other| other != group && other.starts_with(group)) {
            return Err(refused(libc::EBUSY));
        }
        nodes.remove(group);
        Ok(())
    }

    fn below(&self, group: &Path) -> Vec<PathBuf> {
        self.nodes().keys().filter(|path| path.parent() == Some(group)).cloned().collect()
    }

    fn may_write(&self, file: &Path) -> bool {
        self.nodes().get(file.parent().unwrap()).is_some_and(|node| node.divides)
    }

    fn is_delegated(&self, group: &Path) -> bool {
        self.nodes().get(group).is_some_and(|node| node.delegated)
    }
}

/// A machine with the second version alone, on which we are in this group.
fn at(own: &str, has_systemd: bool) -> CgroupHost {
    CgroupHost {
        mounts: format!("24 18 0:22 / {POINT} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
        own: format!("0::{own}\n"),
        has_systemd,
        is_granted: false,
        ours: vec![OWN, STAGE],
    }
}

const UNIT: &str = "/system.slice/outpost.service";

fn limits() -> Limits {
    Limits { processes: Some(50), memory: Some(1 << 30), ..Limits::default() }
}

#[test]
fn a_delegated_unit_is_divided_and_its_processes_moved() {
    let tree = Fake::new([(UNIT, Node { delegated: true, processes: vec![OWN, STAGE, OTHER], ..Node::ours() })]);
    let found = tree.probe(&at(UNIT, true));
    assert_eq!((found.processes(), found.memory(), found.why()), (Some(Mechanism::CgroupV2), Some(Mechanism::CgroupV2), String::new()));
    let unit = tree.node(UNIT);
    assert_eq!((unit.processes, unit.threaded, unit.enabled), (vec![], false, vec!["pids".to_owned(), "memory".to_owned()]));
    assert_eq!(tree.node(&format!("{UNIT}/outpost-main")).processes, [OWN, STAGE, OTHER]);
    // Nothing is left of trying, and a session of it can be entered.
    assert!(!tree.groups().iter().any(|group| group.contains("trial")), "{:?}", tree.groups());
    let group = Group::make(&found, &limits(), 1).unwrap();
    let [door] = group.doors().try_into().unwrap();
    tree.enter(door.parent().unwrap(), 200).unwrap();
    assert_eq!(tree.node(&format!("{UNIT}/outpost-{}-1", std::process::id())).limits["pids.max"], "50");
    assert!(!group.try_remove());
    tree.nodes().get_mut(door.parent().unwrap()).unwrap().processes.clear();
    assert!(group.try_remove());
    assert!(!tree.groups().iter().any(|group| group.contains("-1")), "{:?}", tree.groups());
}

#[test]
fn what_systemd_keeps_is_not_touched() {
    for own in ["/user.slice/user-0.slice/session-3.scope", UNIT] {
        let tree = Fake::new([("/user.slice/user-0.slice", Node::ours()), (own, Node { processes: vec![OWN, STAGE], ..Node::ours() })]);
        let before = tree.nodes().clone();
        let surroundings = at(own, true);
        assert!(surroundings.needs_unit(tree.as_ref()));
        let found = tree.probe(&surroundings);
        assert_eq!((found.processes(), found.memory()), (None, None));
        assert!(found.why().contains("Delegate=yes"), "{}", found.why());
        assert_eq!(format!("{before:?}"), format!("{:?}", *tree.nodes()));
    }
    // One that was made for us needs no mark.
    let scope = "/user.slice/user-1.slice/user@1.service/app.slice/run-r1.scope";
    let tree = Fake::new([(scope, Node { processes: vec![STAGE], ..Node::ours() })]);
    let found = tree.probe(&CgroupHost { is_granted: true, ..at(scope, true) });
    assert_eq!((found.processes(), found.memory()), (Some(Mechanism::CgroupV2), Some(Mechanism::CgroupV2)));
    let tree = Fake::new([(UNIT, Node { delegated: true, ..Node::ours() })]);
    assert!(!at(UNIT, true).needs_unit(tree.as_ref()) && !at("/x", false).needs_unit(tree.as_ref()));
}

#[test]
fn an_outpost_inside_a_session_of_another_divides_the_group_of_that_session() {
    let tree = Fake::new([(UNIT, Node { delegated: true, processes: vec![OWN, STAGE], ..Node::ours() })]);
    let outer = Group::make(&tree.probe(&at(UNIT, true)), &limits(), 1).unwrap();
    let [door] = outer.doors().try_into().unwrap();
    let leaf = door.parent().unwrap();
    for pid in [300, 301] {
        tree.enter(leaf, pid).unwrap();
    }
    let own = Path::new("/").join(leaf.strip_prefix(POINT).unwrap());
    let inner = CgroupHost { ours: vec![300, 301], ..at(own.to_str().unwrap(), true) };
    assert!(!inner.needs_unit(tree.as_ref()));
    let found = tree.probe(&inner);
    assert_eq!((found.processes(), found.memory(), found.why()), (Some(Mechanism::CgroupV2), Some(Mechanism::CgroupV2), String::new()));
    let session = Group::make(&found, &limits(), 5).unwrap();
    let [inner_door] = session.doors().try_into().unwrap();
    tree.enter(inner_door.parent().unwrap(), 302).unwrap();
    // The other one still puts its own where it did before.
    tree.enter(leaf, 303).unwrap();
    assert!(session.doors()[0].starts_with(leaf.parent().unwrap()));
}

#[test]
fn half_of_what_was_delegated_is_told_and_the_rest_used() {
    let half = Node { delegated: true, controllers: vec!["pids"], processes: vec![OWN, STAGE], ..Node::ours() };
    let tree = Fake::new([(UNIT, half)]);
    let found = tree.probe(&at(UNIT, true));
    assert_eq!((found.processes(), found.memory()), (Some(Mechanism::CgroupV2), None));
    assert!(found.why().contains("`memory` was not left to"), "{}", found.why());
    let strict = Limits { required: true, ..limits() };
    assert!(strict.shortfall(&found).unwrap().contains("`memory` was not left to") && limits().shortfall(&found).is_none());
    assert_eq!(Limits { memory: None, ..strict }.shortfall(&found), None);
    assert_eq!(limits().held(&found).iter().find(|limit| limit.what == MEMORY).unwrap().mechanism, Mechanism::Watchdog);
    // A group that may be entered and not divided is left as it was.
    let closed = Node { divides: false, delegated: true, processes: vec![OWN, STAGE], ..Node::ours() };
    let tree = Fake::new([(UNIT, closed)]);
    let found = tree.probe(&at(UNIT, true));
    assert_eq!((found.processes(), tree.node(UNIT).processes, tree.groups().len()), (None, vec![OWN, STAGE], 2));
    assert!(found.why().contains("may not be written"), "{}", found.why());
}

#[test]
fn a_tree_that_is_read_only_or_made_of_threads_is_told() {
    let tree = Fake::new([(UNIT, Node { makes: false, delegated: true, processes: vec![OWN], ..Node::ours() })]);
    let found = tree.probe(&at(UNIT, true));
    assert_eq!(found.processes(), None);
    assert!(found.why().contains("Read-only file system"), "{}", found.why());
    let tree = Fake::new([(UNIT, Node { threaded: true, delegated: true, processes: vec![OWN], ..Node::ours() })]);
    let found = tree.probe(&at(UNIT, true));
    assert_eq!(found.processes(), None);
    assert!(found.why().contains("domain threaded"), "{}", found.why());
}

#[test]
fn without_systemd_only_our_own_processes_are_moved() {
    let tree = Fake::new([("/box", Node { processes: vec![OWN, STAGE], ..Node::ours() })]);
    assert_eq!(tree.probe(&at("/box", false)).processes(), Some(Mechanism::CgroupV2));
    let tree = Fake::new([("/box", Node { processes: vec![OTHER, OWN, STAGE], ..Node::ours() })]);
    let found = tree.probe(&at("/box", false));
    assert_eq!((found.processes(), tree.node("/box").processes), (None, vec![OTHER, OWN, STAGE]));
    assert!(found.why().contains("processes that are not ours"), "{}", found.why());
}

#[test]
fn a_group_that_nobody_can_enter_or_that_holds_nobody_does_not_count() {
    let tree = Fake::new([(UNIT, Node { delegated: true, processes: vec![OWN], ..Node::ours() })]);
    let shared: Arc<dyn CgroupTree> = tree.clone();
    let full = |_: &[PathBuf], _: &mut dyn FnMut()| Err("it cannot be forked: Resource temporarily unavailable".to_owned());
    let found = Hierarchies::probe(shared.clone(), &at(UNIT, true), &untried(&full));
    assert_eq!((found.processes(), found.memory()), (None, None));
    assert!(found.why().contains("cannot be entered: it cannot be forked"), "{}", found.why());
    let idle = |_: &[PathBuf], _: &mut dyn FnMut()| Ok(false);
    let found = Hierarchies::probe(shared, &at(UNIT, true), &untried(&idle));
    assert_eq!((found.processes(), found.memory()), (None, None));
    assert!(
        found.why().contains("does not hold a number of processes") && found.why().contains("does not count memory"),
        "{}",
        found.why()
    );
}

#[test]
fn only_what_is_mounted_here_is_looked_at() {
    let tree = Fake::new([]);
    let elsewhere =
        CgroupHost { mounts: format!("24 18 0:22 /docker/abc {POINT} rw - cgroup2 cgroup2 rw\n"), ..at("/docker/other", false) };
    assert!(tree.probe(&elsewhere).why().contains("there is no control group of the second version"));
    assert!(tree.probe(&at("/../../x", false)).why().contains("there is no control group"));
    assert_eq!(CgroupHost::default().first_version(tree.as_ref(), "pids"), Vec::<PathBuf>::new());
    let hybrid = CgroupHost {
        mounts: "30 25 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n".into(),
        own: "9:pids:/a\n0::/\n".into(),
        has_systemd: false,
        is_granted: false,
        ours: vec![],
    };
    let parents = ["/sys/fs/cgroup/pids/a", "/sys/fs/cgroup/pids"].map(PathBuf::from);
    assert_eq!(hybrid.first_version(tree.as_ref(), "pids"), parents);
    assert!(CgroupHost { has_systemd: true, ..hybrid }.first_version(tree.as_ref(), "pids").is_empty());
}
