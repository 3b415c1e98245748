//! Denied and protected paths while things move: a program outside replaces, moves, links and makes things anew; sandboxed code
//! re-points, renames and writes; the executor is killed. After each step nothing may be learnt or changed, by what is started next
//! or by what already runs.

use std::fs;
use std::os::unix::fs::symlink;

use super::scene::{DENIED, EVIL, LINKS, MATCHING, PROTECTED, Scene};
use super::{Episode, Level, Random, Steps};
use crate::support::{give, number};

/// What a program outside does.
#[derive(Debug, Clone, Copy)]
enum Outside {
    /// An editor saves a denied file.
    Save(usize),
    Remove(usize),
    /// The directory around it is put away and made anew.
    SwapParent(usize),
    /// The directory around it becomes a link to another one.
    LinkParent(usize),
    /// A link on the way leads to another secret.
    Repoint(usize),
    /// A file comes to match the pattern.
    Match(usize),
    /// A directory with a matching file in it is moved in.
    MoveIn,
    /// `.git` is put away, and made anew or not.
    Git(bool),
    /// `.git` becomes a file that names a repository inside of the workspace, as in a worktree.
    GitFile,
    /// A protected file is saved.
    SaveProtected(usize),
    RemoveProtected(usize),
    /// A protected file becomes a link out of the workspace.
    LinkProtected(usize),
    /// The workspace is put away and made anew.
    Root,
    /// Many names come and go where others are watched.
    Flood,
}

/// What sandboxed code tries: `{P}` is one path, `{Q}` another one, `{N}` a new name.
const INSIDE: &[&str] = &[
    "ln -sfn {P} {N}; cat {N}",
    "ln {P} {N}; cat {N}",
    "mv {P} {N}; cat {N}",
    "mv -T {N} {P}",
    "mkdir {N}; mv -T {N} {P}",
    "rm -rf {P}; mkdir -p {P}; ln -sfn /etc {P}",
    "ln -sfn {Q} {P}",
    "cp -r {P} {N}",
    "chmod -R 777 {P}; chown 0 {P}",
    "mount --bind {N} {P}; unshare -Urm mount -t tmpfs x {P}",
    "rmdir {P}; mkdir {P}; echo EVIL > {P}/x",
    "mkdir {N}; cd {N}; cat ../../{P}; mv {Q} .",
    "for i in 1 2 3 4 5 6 7 8; do touch {N}$i; mv {N}$i {P}; rm -f {N}$i; done",
    "(exec 5<{P}; cat <&5)",
    "truncate -s 0 {P}; echo EVIL > {P}; tee {P} < /dev/null",
    "cd {P}/..; cat *; cd /",
    "find {P} -exec mv '{}' {N} ';'",
];

#[derive(Debug, Clone)]
enum Step {
    Outside(Vec<Outside>),
    Inside {
        script: String,
        already_runs: bool,
    },
    /// Under a policy that does not deny it, a link is changed.
    Loose(String),
    Kill,
}

fn outside(random: &mut Random, in_burst: bool) -> Outside {
    let file = random.below(DENIED.len());
    match random.below(if in_burst { 11 } else { 14 }) {
        0 | 1 => Outside::Save(file),
        2 => Outside::Remove(file),
        3 => Outside::SwapParent(1 + random.below(DENIED.len() - 1)),
        4 => Outside::Match(random.below(MATCHING.len())),
        5 => Outside::MoveIn,
        6 => Outside::Git(random.percent(70)),
        7 => Outside::SaveProtected(1 + random.below(PROTECTED.len() - 1)),
        8 => Outside::RemoveProtected(1 + random.below(PROTECTED.len() - 1)),
        9 => Outside::Flood,
        10 => Outside::LinkProtected(1 + random.below(PROTECTED.len() - 1)),
        // Where something leads is remembered by the next start: one at a time.
        11 if random.percent(40) => Outside::GitFile,
        11 => Outside::LinkParent(1 + random.below(2)),
        12 => Outside::Repoint(random.below(LINKS.len())),
        _ => Outside::Root,
    }
}

/// A script of sandboxed code; the workspace is filled in later.
pub(super) fn inside(random: &mut Random) -> String {
    let mut names: Vec<&str> = [DENIED, PROTECTED, MATCHING, &["link", "sub/link", "sub", "deep", "a", "closed", ".git/hooks"]].concat();
    names.extend(LINKS.iter().map(|(link, ..)| *link));
    let mut lines = String::new();
    for _ in 0..=random.below(3) {
        let line = random.pick(INSIDE).replace("{P}", &format!("{{W}}/{}", random.pick(&names)));
        let line =
            line.replace("{Q}", &format!("{{W}}/{}", random.pick(&names))).replace("{N}", &format!("{{W}}/in-{}", random.below(1000)));
        lines.push_str(&line.replace("EVIL", EVIL));
        lines.push('\n');
    }
    lines
}

fn plan(random: &mut Random, level: Level) -> Vec<Step> {
    let count = 8 + random.below(10);
    (0..count)
        .map(|_| match random.below(20) {
            0..=7 => Step::Outside(vec![outside(random, false)]),
            8..=10 => Step::Outside((0..2 + random.below(4)).map(|_| outside(random, true)).collect()),
            11..=16 => Step::Inside { script: inside(random), already_runs: random.percent(50) },
            17 | 18 if level != Level::Landlock => {
                let (link, ..) = random.pick(LINKS);
                Step::Loose(format!("ln -sfn {} {{W}}/{link}", random.pick(&["../decoy", "decoy", "/etc", "{W}/other"])))
            }
            _ => Step::Kill,
        })
        .collect()
}

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let plan = plan(&mut random, episode.level);
    let mut scene = Scene::new(episode, &mut random, steps).await;
    scene.judge(&mut random).await;
    for step in plan {
        scene.steps.note(format!("{step:?}"));
        match step {
            Step::Outside(all) => all.into_iter().for_each(|outside| act(&mut scene, outside, &mut random)),
            Step::Inside { script, already_runs } => {
                scene.attempt(&script, already_runs).await;
            }
            Step::Loose(script) => {
                let (script, loose) = (script.replace("{W}", &scene.at("").display().to_string()), scene.loose());
                scene.run(&loose, &script).await;
            }
            Step::Kill => scene.kill().await,
        }
        scene.judge(&mut random).await;
    }
    scene.end().await;
}

fn act(scene: &mut Scene, outside: Outside, random: &mut Random) {
    let denied = |scene: &Scene, index: usize| scene.denied().contains(&DENIED[index]);
    match outside {
        Outside::Save(index) if denied(scene, index) => scene.save(&scene.at(DENIED[index])),
        Outside::Remove(index) if denied(scene, index) => {
            let path = scene.at(DENIED[index]);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        Outside::SwapParent(index) => {
            let path = scene.at(DENIED[index]);
            let parent = path.parent().unwrap().to_owned();
            scene.put_away(&parent);
            scene.make_directory(&parent);
            if denied(scene, index) {
                scene.save(&path);
            }
        }
        Outside::LinkParent(index) if denied(scene, index) => {
            let path = scene.at(DENIED[index]);
            let parent = path.parent().unwrap().to_owned();
            scene.put_away(&parent);
            let target = scene.at(&format!("other-{}", number()));
            scene.make_directory(&target);
            let _ = symlink(&target, &parent);
            scene.save(&path);
            scene.leave_shell();
        }
        Outside::Repoint(index) if scene.links().contains(&index) => {
            let (link, ..) = LINKS[index];
            let target = scene.outer(&format!("vault-{}", number()));
            scene.make_directory(&target);
            let aside = scene.at(&format!("aside-{}", number()));
            symlink(&target, &aside).unwrap();
            let _ = fs::remove_dir(scene.at(link));
            let _ = fs::rename(&aside, scene.at(link));
            let _ = fs::remove_file(&aside);
            // Only where the link really leads.
            if fs::read_link(scene.at(link)).is_ok_and(|now| now == target) {
                scene.save(&target.join("key"));
            }
            scene.leave_shell();
        }
        Outside::Match(index) if scene.has_pattern() => {
            let path = scene.at(MATCHING[index]);
            for directory in path.ancestors().skip(1).take(2).collect::<Vec<_>>().into_iter().rev() {
                scene.make_directory(directory);
            }
            scene.save(&path);
        }
        Outside::MoveIn if scene.has_pattern() => {
            let aside = scene.outer("attic").join(number());
            scene.make_directory(&aside);
            scene.save(&aside.join("moved.pem"));
            let _ = fs::rename(&aside, scene.at(&format!("moved-{}", number())));
        }
        Outside::Git(anew) => {
            scene.put_away(&scene.at(".git"));
            if anew {
                scene.make_git();
            }
        }
        Outside::GitFile => {
            scene.put_away(&scene.at(".git"));
            let store = scene.at(&format!("store-{}", number()));
            for directory in [store.clone(), store.join("hooks")] {
                scene.make_directory(&directory);
            }
            scene.write(&store.join("config"), "[core]\n");
            scene.write(&scene.at(".git"), &format!("gitdir: {}\n", store.display()));
            scene.leave_shell();
        }
        Outside::SaveProtected(index) => scene.write(&scene.at(PROTECTED[index]), &format!("kept {}", number())),
        Outside::RemoveProtected(index) => {
            let path = scene.at(PROTECTED[index]);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        Outside::LinkProtected(index) => {
            let (path, target) = (scene.at(PROTECTED[index]), scene.outer(&format!("dot-{}", number())));
            scene.write(&target, "kept");
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            let _ = symlink(&target, &path);
        }
        Outside::Root => {
            scene.put_away(&scene.at(""));
            scene.fill(random);
        }
        Outside::Flood => {
            for number in 0..300 {
                let path = scene.at(&format!("flood-{number}"));
                if fs::write(&path, "").is_ok() {
                    give(scene.who, &path);
                }
                let _ = fs::remove_file(&path);
            }
        }
        _ => {}
    }
}
