//! Workspaces with other things mounted in them: a program outside mounts directories a second time, over denied and protected names,
//! moves mounts and takes them away. What is denied is denied under every name that a mount gives it, and what is protected stays so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::moves::inside;
use super::scene::{DENIED, PROTECTED, Scene};
use super::{Episode, Random, Steps};
use crate::card::can_mount;
use crate::support::{is_root, number};

/// What a program outside does.
#[derive(Debug, Clone, Copy)]
enum Outside {
    /// A directory with secrets, a denied one or a protected one is mounted in the workspace.
    Bind(usize),
    /// Something harmless is mounted on a denied or protected name.
    Cover(usize),
    Move,
    Unmount,
    /// The executor begins anew: only then what was mounted meanwhile is seen inside.
    Kill,
    Anew,
}

#[derive(Debug, Clone)]
enum Step {
    Outside(Outside),
    Inside { script: String, already_runs: bool },
}

/// What is mounted a second time: below the directory outside, and below the workspace.
const OUTER: &[&str] = &["vault", "vault2", "attic"];
const INNER: &[&str] = &[".git", "closed", "deep", "a"];

/// Mounts of this episode, the newest last. They are taken away before anything is removed: what is removed below a mount is gone where it
/// really is.
struct Mounts(Vec<PathBuf>);

impl Drop for Mounts {
    fn drop(&mut self) {
        self.0.iter().rev().for_each(|point| unmount(point));
    }
}

fn mount(words: &[&str], from: &Path, to: &Path) -> bool {
    let mount = Command::new("mount").args(words).arg(from).arg(to).stderr(Stdio::null()).status();
    mount.is_ok_and(|status| status.success())
}

fn unmount(point: &Path) {
    let _ = Command::new("umount").arg("-l").arg(point).stderr(Stdio::null()).status();
}

fn plan(random: &mut Random) -> Vec<Step> {
    let count = 6 + random.below(8);
    (0..count)
        .map(|_| match random.below(12) {
            0..=3 => Step::Outside(Outside::Bind(random.below(OUTER.len() + INNER.len()))),
            4 => Step::Outside(Outside::Cover(random.below(DENIED.len() + PROTECTED.len()))),
            5 => Step::Outside(Outside::Move),
            6 => Step::Outside(Outside::Unmount),
            7 => Step::Outside(Outside::Kill),
            8 => Step::Outside(Outside::Anew),
            _ => Step::Inside { script: inside(random), already_runs: random.percent(30) },
        })
        .collect()
}

pub(super) async fn run(episode: Episode, steps: Steps) {
    if !is_root() || !can_mount() {
        return;
    }
    let mut random = Random::new(episode.seed);
    let plan = plan(&mut random);
    let mut scene = Scene::new(episode, &mut random, steps).await;
    // Declared after the scene, so that it is dropped before it.
    let mut mounts = Mounts(Vec::new());
    if random.percent(50) {
        act(&mut scene, &mut mounts, Outside::Bind(random.below(OUTER.len())), &mut random).await;
    }
    scene.judge(&mut random).await;
    for step in plan {
        scene.steps.note(format!("{step:?}"));
        match step {
            Step::Outside(outside) => act(&mut scene, &mut mounts, outside, &mut random).await,
            Step::Inside { script, already_runs } => scene.attempt(&script, already_runs).await,
        }
        scene.judge(&mut random).await;
    }
    drop(mounts);
    scene.end().await;
}

async fn act(scene: &mut Scene, mounts: &mut Mounts, outside: Outside, random: &mut Random) {
    let point = scene.at(&format!("bound-{}", number()));
    match outside {
        Outside::Bind(index) => {
            let from = match index.checked_sub(OUTER.len()) {
                None => scene.outer(OUTER[index]),
                Some(index) => scene.at(INNER[index]),
            };
            scene.make_directory(&point);
            if mount(&["--bind"], &from, &point) {
                mounts.0.push(point);
            }
        }
        Outside::Cover(index) => {
            let names = [DENIED, PROTECTED].concat();
            let path = scene.at(names[index]);
            let harmless = scene.outer(if path.is_dir() { "harmless" } else { "canary" });
            scene.make_directory(&scene.outer("harmless"));
            if !path.is_symlink() && mount(&["--bind"], &harmless, &path) {
                mounts.0.push(path);
            }
        }
        Outside::Move if !mounts.0.is_empty() => {
            let index = random.below(mounts.0.len());
            let is_directory = mounts.0[index].is_dir();
            if is_directory {
                scene.make_directory(&point);
            } else {
                scene.write(&point, "");
            }
            // Not possible where mounts are shared with others.
            if mount(&["--move"], &mounts.0[index], &point) {
                mounts.0[index] = point;
            } else {
                let _ = fs::remove_dir(&point).or_else(|_| fs::remove_file(&point));
            }
        }
        Outside::Unmount if !mounts.0.is_empty() => unmount(&mounts.0.remove(random.below(mounts.0.len()))),
        Outside::Kill => scene.kill().await,
        Outside::Anew => scene.begin_anew().await,
        Outside::Move | Outside::Unmount => {}
    }
}
