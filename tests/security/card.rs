//! The verdict card of this host: what its executor says that it holds. A promise that the card denies cannot be attacked, only looked up.

use std::process::Command;

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::{Ground, Who, directory};

/// Promises, as the card calls them.
pub(crate) const PROTECTED: &str = "protected paths stay read-only, also before they exist";
pub(crate) const PRIVATE: &str = "/tmp and /run of its own";
pub(crate) const NEVER_ROOT: &str = "sandboxed code never runs as root";
pub(crate) const FORKS: &str = "a number of processes per session";
/// Levels, from the weakest to the strongest. A test that needs one is about something that only this level and stronger ones have.
pub(crate) const MOUNTS: &str = "mounts";
pub(crate) const FULL: &str = "full";
const LEVELS: [&str; 3] = ["landlock", MOUNTS, FULL];
const LEVEL: &str = "a level of the sandbox";
/// Processes are counted for each session, and not for its user.
pub(crate) const PER_SESSION: &str = "processes are counted per session";

/// The layer over the home is kept for the next session, and not in memory.
pub(crate) const KEPT: &str = "the layer over the home is kept";
const HOME: &str = "tools write their caches and settings into a layer of the workspace";

/// Whether the card denies one of these. It must say why.
pub(crate) async fn denies(who: Who, needed: &[&str]) -> bool {
    let rows = card(who).await;
    for need in needed {
        let name = if LEVELS.contains(need) {
            LEVEL
        } else if *need == PER_SESSION {
            FORKS
        } else if *need == KEPT {
            HOME
        } else {
            need
        };
        let row = rows.iter().find(|row| row["promise"] == name).unwrap_or_else(|| panic!("the card does not speak of `{name}`: {rows:?}"));
        let is_denied = if name == LEVEL {
            let rank = |level: &str| LEVELS.iter().position(|known| *known == level);
            row["holds"] == json!(false) || rank(row["mechanism"].as_str().unwrap()) < rank(need)
        } else if *need == PER_SESSION {
            !row["mechanism"].as_str().unwrap().starts_with("cgroup")
        } else if *need == KEPT {
            row["holds"] == json!(false) || !row["mechanism"].as_str().unwrap().contains("kept")
        } else {
            row["holds"] == json!(false)
        };
        if is_denied {
            let reason = row["reason"].as_str().unwrap_or_default();
            assert!(!reason.is_empty(), "the card denies `{name}` and does not say why: {row}");
            eprintln!("denied by the verdict card: {need}: {reason}");
            return true;
        }
    }
    false
}

/// Whether the sandbox here is of this level or a stronger one, for the part of a test that is about such a level only.
pub(crate) async fn is_at_least(who: Who, level: &str) -> bool {
    let row = card(who).await.iter().find(|row| row["promise"] == LEVEL).expect("the card speaks of its level");
    let rank = |level: &str| LEVELS.iter().position(|known| *known == level);
    row["holds"] == json!(true) && rank(row["mechanism"].as_str().unwrap()) >= rank(level)
}

/// What the executor of this user says; asked once.
async fn card(who: Who) -> &'static Vec<Value> {
    static CARDS: [OnceCell<Vec<Value>>; 2] = [const { OnceCell::const_new() }; 2];
    let ask = || async {
        // With a home: what is told of layers over it was tried then.
        let home = directory(who);
        let ground = Ground::at_home(who, home.path(), &[]);
        let info = ground.client().await.result("environment/info", json!({})).await;
        info["sandbox"].as_array().expect("a verdict card").clone()
    };
    CARDS[usize::from(who == Who::Root)].get_or_init(ask).await
}

/// Whether this host lets a test mount something; in a container root cannot.
pub(crate) fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("cannot be tried here: nothing can be mounted");
    }
    can
}
