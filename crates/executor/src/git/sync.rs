//! Comparing a repository with its layer and carrying over what changed: from the machine into the layer, and from the layer to the
//! machine only objects that were checked, branches, tags, `HEAD` and the entries of the index.
//!
//! Whatever changed on one side only is carried over to the other; what changed on both stays as it is on both, and what sandboxed
//! code committed is kept under a ref of ours.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::gitdir::{Gitdir, Head, Refs};
use super::index::{IndexListing, Merged};
use super::lfs;
use super::names;
use super::repository::{KnownRepository, Repository, RepositoryUnit, joined, tree_path};
use super::run::{self, GitError, Inside, Outside};
use super::stamp::{GitStamp, Stamps, worktrees};
use super::stash;

/// Files that are there while something is unfinished.
const UNFINISHED: [(&str, &str); 7] = [
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase or `git am`"),
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("BISECT_LOG", "a bisection"),
    ("sequencer", "a series of commits"),
];
/// So many refs of one command are carried over.
const MAX_CHANGES: usize = 1000;
/// So many refs tell git in a sandbox what the machine has.
const MAX_KNOWN: usize = 4000;

/// One comparison.
pub(super) struct Comparing<'a> {
    pub repository: &'a Repository,
    pub inside: Inside<'a>,
    /// Under which name commits are kept that cannot be carried over.
    pub label: &'a str,
    pub notices: Vec<String>,
    /// Something has to be tried again with the next command.
    pub is_incomplete: bool,
}

/// What is to be done with the refs of one part.
#[derive(Default)]
struct Changes {
    /// To the machine: name, old value, new value.
    out: Vec<(String, Option<String>, Option<String>)>,
    /// Into the layer: the same.
    into: Vec<(String, Option<String>, Option<String>)>,
    /// Changed on both sides: name, value outside, value inside.
    both: Vec<(String, Option<String>, String)>,
}

/// The index of one working tree, on both sides.
struct IndexChange {
    tree: String,
    outside: IndexListing,
    inside: IndexListing,
    merged: Merged,
    stamp: Option<GitStamp>,
}

/// One part while it is compared.
struct Part<'a> {
    unit: &'a str,
    real: Gitdir,
    layer: Gitdir,
    outside: Outside,
    /// What is unfinished in it, by working tree.
    unfinished: Vec<(String, &'static str)>,
}

impl Comparing<'_> {
    pub(super) async fn run(mut self) -> Vec<String> {
        let repository = self.repository;
        let mut known = repository.known.lock().await;
        // Whatever was said again only counts if it is still so.
        for unit in &repository.units {
            let before = known.units.get(unit).cloned().unwrap_or_default();
            match self.part(unit, before.clone()).await {
                Ok(after) => {
                    let is_new = after != before;
                    known.units.insert(unit.clone(), after);
                    if is_new && let Err(error) = repository.write_down(&known) {
                        tracing::warn!(%error, "what a layer has in common with its repository cannot be written down");
                    }
                }
                Err(why) => {
                    self.failed(format!("git: nothing was carried over for {}: {why}", joined(&repository.gitdir, unit).display()));
                }
            }
        }
        known.outside = Stamps::take(&repository.gitdir, &repository.units, false);
        known.inside = if self.is_incomplete { Stamps::default() } else { Stamps::take(&repository.layer, &repository.units, true) };
        self.new_to_say(&mut known)
    }

    /// Says what could not be done now.
    fn failed(&mut self, notice: String) {
        self.is_incomplete = true;
        self.notices.push(notice);
    }

    /// What was not said before.
    fn new_to_say(self, known: &mut KnownRepository) -> Vec<String> {
        let now: BTreeSet<String> = self.notices.iter().cloned().collect();
        let new = self.notices.into_iter().filter(|notice| !known.said.contains(notice)).collect();
        known.said = now;
        new
    }

    async fn part(&mut self, unit: &str, known: RepositoryUnit) -> Result<RepositoryUnit, GitError> {
        let repository = self.repository;
        let (at, copy) = (joined(&repository.gitdir, unit), joined(&repository.layer, unit));
        let layer = Gitdir::open(&copy).map_err(GitError::Layer)?;
        if !layer.is_repository() {
            if !known.refs.is_empty() {
                self.notices.push(format!(
                    "git: what the sandbox has at {} is not a repository any more; the repository itself is as it was",
                    at.display()
                ));
            }
            return Ok(known);
        }
        let real = match Gitdir::open(&at) {
            Ok(real) if real.is_repository() => real,
            Ok(real) => {
                let Some(real) = self.begin(&at, &real, &layer).await? else { return Ok(known) };
                real
            }
            Err(error) => return Err(error.into()),
        };
        if is_same(&at, &copy, &known) && stash::list(&layer) == known.stashes {
            return Ok(known);
        }
        let outside = Outside::open(self.inside.program, &repository.own, &at, repository.owner).map_err(GitError::Workplace)?;
        let unfinished = unfinished(&copy);
        let part = Part { unit, real, layer, outside, unfinished };
        let mut known = self.carry_over(&part, known).await?;
        self.keep_stashes(&part, &mut known).await;
        Ok(known)
    }

    /// Keeps what `git stash` put away inside under refs of ours, as many as there are.
    async fn keep_stashes(&mut self, part: &Part<'_>, known: &mut RepositoryUnit) {
        let now = stash::list(&part.layer);
        if now == known.stashes {
            return;
        }
        let new: BTreeSet<&str> = now.iter().filter(|oid| !known.stashes.contains(oid)).map(String::as_str).collect();
        let kept = async {
            let here = part.real.refs()?;
            self.fetch(part, new.clone(), &here).await?;
            let updates = stash::updates(self.label, known.stashes.len(), &now);
            part.outside.run(&["update-ref", "--stdin"], updates.into_bytes()).await
        };
        match kept.await {
            Ok(_) if new.is_empty() => {}
            Ok(_) => {
                let name = stash::name(self.label, 0);
                let more = if now.len() > 1 { format!(" and {} more beside it", now.len() - 1) } else { String::new() };
                self.notices.push(format!(
                    "git: what `git stash` put away in the sandbox is kept outside as {name}{more}: `git stash apply {name}` brings it back"
                ));
            }
            Err(why) => return self.failed(format!("git: what `git stash` put away in the sandbox is not kept outside: {why}")),
        }
        known.stashes = now;
    }

    /// Carries over files that git-lfs made inside.
    async fn lfs_out(&mut self, part: &Part<'_>) {
        let (at, copy) = (joined(&self.repository.gitdir, part.unit), joined(&self.repository.layer, part.unit));
        let owner = self.repository.owner;
        if !part.layer.has(lfs::FILES) {
            return;
        }
        let carried = tokio::task::spawn_blocking(move || lfs::carry_over(&Gitdir::open(&copy)?, &Gitdir::open(&at)?, owner));
        let why = match carried.await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => GitError::from(error),
            Err(error) => GitError::from(io::Error::other(error)),
        };
        self.failed(format!("git: files of git-lfs were not carried over: {why}"));
    }

    /// A repository was made inside where there is none: an empty one of ours takes its place on the machine.
    async fn begin(&mut self, at: &Path, real: &Gitdir, layer: &Gitdir) -> Result<Option<Gitdir>, GitError> {
        let is_empty = std::fs::read_dir(at).is_ok_and(|mut entries| entries.next().is_none());
        let work = at.parent().filter(|_| is_empty && !real.has("HEAD") && at.file_name().is_some_and(|name| name == ".git"));
        let Some(work) = work else {
            self.notices.push(format!("git: a repository was made in the sandbox at {}, where the machine has other files", at.display()));
            return Ok(None);
        };
        let branch = match layer.head() {
            Some(Head::Branch(name)) => name.trim_start_matches("refs/heads/").to_owned(),
            _ => "main".to_owned(),
        };
        let is_sha256 = super::layer::Format::of(&self.repository.layer).is_sha256;
        let (program, owner) = (self.inside.program, self.repository.owner);
        run::init(program, work, owner, &branch, is_sha256).await?;
        let listed = self.inside.run(at, &["config", "--file", "config", "--no-includes", "-z", "--list"], &[]).await.unwrap_or_default();
        for record in listed.split(|byte| *byte == 0).filter_map(|record| std::str::from_utf8(record).ok()) {
            let Some((key, value)) = record.split_once('\n') else { continue };
            let is_plain = value.len() < 200 && !value.chars().any(char::is_control);
            if ["user.name", "user.email"].contains(&key) && is_plain {
                run::set(program, at, owner, key, value).await?;
            } else if key.starts_with("remote.") && key.ends_with(".url") && is_plain {
                self.notices.push(format!("git: the sandbox set {key} = {value} for {}; settings stay in the sandbox", work.display()));
            }
        }
        Ok(Some(Gitdir::open(at)?))
    }

    async fn carry_over(&mut self, part: &Part<'_>, mut known: RepositoryUnit) -> Result<RepositoryUnit, GitError> {
        let (outside, inside) = (part.real.refs()?, part.layer.refs()?);
        let has_branch = |refs: &Refs| refs.keys().any(|name| name.starts_with("refs/heads/"));
        if has_branch(&known.refs) && !has_branch(&inside) {
            self.notices.push(format!(
                "git: all branches of {} were removed in the sandbox; that was not carried over",
                joined(&self.repository.gitdir, part.unit).display()
            ));
            return Ok(known);
        }
        let mut changes = compare(&known.refs, &outside, &inside, !part.unfinished.is_empty());
        if changes.out.len() > MAX_CHANGES {
            return Err(format!("{} refs were changed at once", changes.out.len()).into());
        }
        if let Some((_, what)) = part.unfinished.first()
            && outside.iter().any(|(name, oid)| name.starts_with("refs/heads/") && known.refs.get(name) != Some(oid))
        {
            self.failed(format!(
                "git: {what} is unfinished in the sandbox; branches that were changed outside are seen there when it is over"
            ));
        }
        let trees = self.trees(part);
        let mut indexes = Vec::new();
        for tree in &trees {
            if let Some(change) = self.index(part, tree, &mut known).await? {
                indexes.push(change);
            }
        }
        self.take_objects(part, &changes, &indexes, &outside).await?;
        // Before the commits that name them.
        self.lfs_out(part).await;
        let kept = self.settle(part, &mut changes).await;
        self.refs_out(part, &changes, &outside).await;
        self.refs_into(part, &changes).await;
        for tree in &trees {
            let branch = self.head(part, tree, &mut known, &kept).await;
            let is_kept = branch.is_some_and(|branch| kept.contains(&branch));
            for change in indexes.iter().filter(|change| change.tree == *tree && !is_kept) {
                self.index_over(part, change, &mut known).await;
            }
        }
        // What is now the same on both sides is what they have in common.
        let (outside, inside) = (part.real.refs()?, part.layer.refs()?);
        for name in outside.keys().chain(inside.keys()).chain(&known.refs.keys().cloned().collect::<Vec<_>>()) {
            match (outside.get(name), inside.get(name)) {
                (Some(value), Some(other)) if value == other => drop(known.refs.insert(name.clone(), value.clone())),
                (None, None) => drop(known.refs.remove(name)),
                _ => {}
            }
        }
        Ok(known)
    }

    /// The working trees that both sides have.
    fn trees(&mut self, part: &Part<'_>) -> Vec<String> {
        let (at, copy) = (joined(&self.repository.gitdir, part.unit), joined(&self.repository.layer, part.unit));
        let known = worktrees(&at);
        for new in worktrees(&copy).iter().filter(|tree| !known.contains(tree)) {
            self.notices.push(format!(
                "git: the working tree `{new}` was made in the sandbox and exists only there; its branch is carried over, and `git worktree add` outside makes a working tree of it"
            ));
        }
        let is_here = |tree: &String| Gitdir::open(&joined(&copy, &tree_path(tree))).is_ok();
        std::iter::once(String::new()).chain(known.into_iter().filter(is_here)).collect()
    }

    /// Gets every object that is needed for what goes out.
    async fn take_objects(&self, part: &Part<'_>, changes: &Changes, indexes: &[IndexChange], outside: &Refs) -> Result<(), GitError> {
        let mut tips: BTreeSet<&str> = changes.out.iter().filter_map(|(_, _, new)| new.as_deref()).collect();
        tips.extend(changes.both.iter().map(|(_, _, new)| new.as_str()));
        let head = part.layer.head();
        if let Some(Head::Detached(oid)) = &head {
            tips.insert(oid);
        }
        for change in indexes {
            tips.extend(change.merged.outside.objects_beyond(&change.outside));
        }
        self.fetch(part, tips, outside).await
    }

    /// Gets these objects and everything that they need, if the machine has refs to something else only.
    async fn fetch(&self, part: &Part<'_>, mut tips: BTreeSet<&str>, outside: &Refs) -> Result<(), GitError> {
        let here: BTreeSet<&str> = outside.values().map(String::as_str).collect();
        tips.retain(|tip| !here.contains(tip));
        if tips.is_empty() {
            return Ok(());
        }
        let mut input: Vec<u8> = tips.iter().flat_map(|tip| format!("{tip}\n").into_bytes()).collect();
        input.extend_from_slice(b"--not\n");
        input.extend(here.iter().take(MAX_KNOWN).flat_map(|oid| format!("{oid}\n").into_bytes()));
        let gitdir = joined(&self.repository.gitdir, part.unit);
        self.inside.give_objects(&gitdir, &part.outside, &input).await?;
        // Everything that they need is there now, or they are not taken.
        let input: Vec<u8> = tips.iter().flat_map(|tip| format!("{tip}\n").into_bytes()).collect();
        let missing = if part.outside.is_partial() { "--exclude-promisor-objects" } else { "--no-object-names" };
        let arguments = ["rev-list", "--objects", "--stdin", missing, "--not", "--all", "--quiet"];
        part.outside.run(&arguments, input).await.map(drop).map_err(|why| GitError::Objects(Box::new(why)))
    }

    /// Decides about refs that were changed on both sides. Returns those that stay apart.
    async fn settle(&mut self, part: &Part<'_>, changes: &mut Changes) -> BTreeSet<String> {
        let mut kept = BTreeSet::new();
        for (name, theirs, ours) in std::mem::take(&mut changes.both) {
            let (outside, branch) = (&part.outside, name.starts_with("refs/heads/"));
            match &theirs {
                Some(theirs) if branch && outside.holds(&["merge-base", "--is-ancestor", theirs, &ours]).await => {
                    changes.out.push((name, Some(theirs.clone()), Some(ours)));
                }
                Some(theirs) if branch && outside.holds(&["merge-base", "--is-ancestor", &ours, theirs]).await => {
                    changes.into.push((name, Some(ours), Some(theirs.clone())));
                }
                _ => {
                    self.keep(part, &name, &ours).await;
                    kept.insert(name);
                }
            }
        }
        kept
    }

    /// Keeps commits under a ref of ours.
    async fn keep(&mut self, part: &Part<'_>, name: &str, oid: &str) {
        let own = format!("refs/outpost/{}/{}", self.label, name.trim_start_matches("refs/heads/").trim_start_matches("refs/"));
        let notice = match part.outside.run(&["update-ref", "-m", "outpost: kept", &own, oid], Vec::new()).await {
            Ok(_) => format!(
                "git: {name} was changed in the sandbox and outside of it; outside it stays as it is, and what was committed in the sandbox is {own} ({oid:.12}): \
                 `git merge {own}` brings both together"
            ),
            Err(why) => {
                format!("git: {name} was changed in the sandbox and outside of it, and {oid:.12} could not be kept as {own}: {why}")
            }
        };
        self.notices.push(notice);
    }

    async fn refs_out(&mut self, part: &Part<'_>, changes: &Changes, outside: &Refs) {
        for (name, old, new) in &changes.out {
            let zero = "0".repeat(new.as_deref().or(old.as_deref()).map_or(40, str::len));
            let seen = old.as_deref().unwrap_or(&zero);
            let moved = match new {
                Some(new) => part.outside.run(&["update-ref", "-m", "outpost: from the sandbox", name, new, seen], Vec::new()).await,
                None => {
                    // A log goes with its branch: what nothing else reaches is kept.
                    let others: Vec<u8> =
                        outside.iter().filter(|(other, _)| *other != name).flat_map(|(_, oid)| format!("^{oid}\n").into_bytes()).collect();
                    let input = [format!("{seen}\n").into_bytes(), others].concat();
                    let left = part.outside.run(&["rev-list", "--max-count=1", "--stdin"], input).await.unwrap_or(vec![1]);
                    if !left.is_empty() {
                        let own = format!("refs/outpost/{}/deleted/{}", self.label, name.trim_start_matches("refs/"));
                        let _ = part.outside.run(&["update-ref", &own, seen], Vec::new()).await;
                        self.notices
                            .push(format!("git: {name} was deleted in the sandbox; what only it reached is kept as {own} ({seen:.12})"));
                    }
                    part.outside.run(&["update-ref", "-d", name, seen], Vec::new()).await
                }
            };
            match (moved, new) {
                (Ok(_), _) => {}
                // Changed by the user between our look and now.
                (Err(_), Some(new)) => self.keep(part, name, new).await,
                (Err(why), None) => {
                    self.notices.push(format!("git: {name} was deleted in the sandbox, and that was not carried over: {why}"))
                }
            }
        }
    }

    async fn refs_into(&mut self, part: &Part<'_>, changes: &Changes) {
        if changes.into.is_empty() {
            return;
        }
        let lines = changes.into.iter().map(|(name, old, new)| match (old, new) {
            (None, Some(new)) => format!("create {name} {new}\n"),
            (Some(old), Some(new)) => format!("update {name} {new} {old}\n"),
            (Some(old), None) => format!("delete {name} {old}\n"),
            (None, None) => String::new(),
        });
        let input: String = lines.collect();
        let gitdir = joined(&self.repository.gitdir, part.unit);
        if let Err(why) = self.inside.run(&gitdir, &["update-ref", "--no-deref", "--stdin"], input.as_bytes()).await {
            self.notices.push(format!("git: refs that were changed outside are not seen in the sandbox yet: {why}"));
        }
    }

    /// Carries over the `HEAD` of a working tree. Returns the branch that it is on inside.
    async fn head(&mut self, part: &Part<'_>, tree: &str, known: &mut RepositoryUnit, kept: &BTreeSet<String>) -> Option<String> {
        let repository = self.repository;
        let place = joined(&joined(&repository.gitdir, part.unit), &tree_path(tree));
        let copy = joined(&joined(&repository.layer, part.unit), &tree_path(tree));
        let (Ok(real), Ok(layer)) = (Gitdir::open(&place), Gitdir::open(&copy)) else { return None };
        let (outside, inside) = (real.head(), layer.head());
        let Some(inside) = inside else {
            self.notices.push(format!("git: HEAD of {} says something in the sandbox that is not carried over", place.display()));
            return None;
        };
        let branch = match &inside {
            Head::Branch(name) => Some(name.clone()),
            Head::Detached(_) => None,
        };
        if part.unfinished.iter().any(|(other, _)| other == tree) {
            return branch;
        }
        let text = |head: &Option<Head>| head.as_ref().map(Head::text);
        let (now, common) = (text(&outside), known.heads.get(tree).cloned());
        if now.as_ref() == Some(&inside.text()) {
            known.heads.insert(tree.to_owned(), inside.text());
        } else if common.as_ref() == Some(&inside.text()) {
            let moved = match &outside {
                Some(Head::Branch(name)) => self.inside.run(&place, &["symbolic-ref", "HEAD", name], &[]).await,
                Some(Head::Detached(oid)) => self.inside.run(&place, &["update-ref", "--no-deref", "HEAD", oid], &[]).await,
                None => return branch,
            };
            match (moved, outside) {
                (Ok(_), Some(head)) => drop(known.heads.insert(tree.to_owned(), head.text())),
                (Err(why), _) => self.notices.push(format!("git: HEAD was changed outside, which is not seen in the sandbox yet: {why}")),
                _ => {}
            }
        } else if common == now || common.is_none() && part.unit.is_empty() && kept.is_empty() {
            let is_there = match &inside {
                Head::Detached(oid) => part.outside.holds(&["cat-file", "-e", &format!("{oid}^{{commit}}")]).await,
                Head::Branch(_) => true,
            };
            if !is_there {
                self.notices.push("git: HEAD of the sandbox is not a commit, and is not carried over".into());
                return branch;
            }
            let text = inside.text();
            let is_same = || real.head().map(|head| head.text()) == now;
            match real.replace_when_free("HEAD", text.as_bytes(), repository.owner, is_same).await {
                Ok(()) => drop(known.heads.insert(tree.to_owned(), text)),
                Err(error) => self.failed(format!("git: HEAD was changed in the sandbox, and that was not carried over: {error}")),
            }
        } else {
            self.notices.push(format!(
                "git: HEAD of {} was changed in the sandbox ({}) and outside of it ({}); each stays as it is",
                place.display(),
                inside.text().trim_end(),
                now.unwrap_or_default().trim_end()
            ));
        }
        branch
    }

    /// Whether the index of a working tree has to be carried over, and where to.
    async fn index(&mut self, part: &Part<'_>, tree: &str, known: &mut RepositoryUnit) -> Result<Option<IndexChange>, GitError> {
        let repository = self.repository;
        let place = joined(&joined(&repository.gitdir, part.unit), &tree_path(tree));
        let copy = joined(&joined(&repository.layer, part.unit), &tree_path(tree));
        let now = (GitStamp::of(&place.join("index")), GitStamp::of(&copy.join("index")));
        let is_unfinished = part.unfinished.iter().any(|(other, _)| other == tree);
        if known.indexes.get(tree) == Some(&now) || is_unfinished {
            return Ok(None);
        }
        let listed = async |bytes: Vec<u8>| -> Result<IndexListing, GitError> {
            if bytes.is_empty() {
                return Ok(IndexListing::default());
            }
            let aside = part.outside.aside("index-read", &bytes)?;
            IndexListing::read(&part.outside.run_on(&aside, &["ls-files", "--stage", "-z"], Vec::new()).await?)
        };
        let base = repository.base_index(part.unit, tree);
        let common = match std::fs::read(base.with_extension("list")) {
            Ok(text) => IndexListing::read(&text)?,
            Err(_) => listed(std::fs::read(&base).unwrap_or_default()).await?,
        };
        let outside = listed(std::fs::read(place.join("index")).unwrap_or_default()).await?;
        let inside = match now.1 {
            Some(_) => {
                match self.inside.run(&place, &["ls-files", "--stage", "-z"], &[]).await.and_then(|text| IndexListing::read(&text)) {
                    Ok(listing) => listing,
                    Err(why) => {
                        self.notices.push(format!("git: what is staged in the sandbox was not carried over: {why}"));
                        return Ok(None);
                    }
                }
            }
            None => IndexListing::default(),
        };
        let merged = IndexListing::merge(&common, &outside, &inside);
        for nested in &merged.repositories {
            self.notices.push(format!(
                "git: the repository `{nested}` inside the working tree was added in the sandbox; the index outside does not list it, because git would then run what its configuration names: \
                 look at {nested}/.git before you run git there"
            ));
        }
        if let Some(first) = merged.conflicts.first() {
            let others = merged.conflicts.len() - 1;
            self.notices.push(format!(
                "git: `{first}` and {others} others are staged in the sandbox and differently outside of it; each stays as it is"
            ));
        }
        Ok(Some(IndexChange { tree: tree.to_owned(), outside, inside, merged, stamp: now.0 }))
    }

    async fn index_over(&mut self, part: &Part<'_>, change: &IndexChange, known: &mut RepositoryUnit) {
        let repository = self.repository;
        let place = joined(&joined(&repository.gitdir, part.unit), &tree_path(&change.tree));
        let arguments = ["update-index", "-z", "--index-info"];
        let (out, into) = (change.outside.changes_to(&change.merged.outside), change.inside.changes_to(&change.merged.inside));
        let done = async {
            if !out.is_empty() {
                let bytes = std::fs::read(place.join("index")).unwrap_or_default();
                let aside = part.outside.aside("index-write", &bytes)?;
                if bytes.is_empty() {
                    let _ = std::fs::remove_file(&aside);
                }
                part.outside.run_on(&aside, &arguments, out).await?;
                let bytes = std::fs::read(&aside)?;
                let real = Gitdir::open(&place)?;
                let is_same = || GitStamp::of(&place.join("index")) == change.stamp;
                real.replace_when_free("index", &bytes, repository.owner, is_same).await?;
            }
            if !into.is_empty() {
                self.inside.run(&place, &arguments, &into).await?;
            }
            let base = repository.base_index(part.unit, &change.tree).with_extension("list");
            std::fs::write(base, change.merged.common.text())?;
            Ok::<(), GitError>(())
        };
        match done.await {
            Ok(()) => {
                let copy = joined(&joined(&repository.layer, part.unit), &tree_path(&change.tree));
                known.indexes.insert(change.tree.clone(), (GitStamp::of(&place.join("index")), GitStamp::of(&copy.join("index"))));
            }
            Err(why) => self.failed(format!("git: what is staged was not carried over: {why}")),
        }
    }
}

/// Whether both sides are what they were when they were last compared, for sure.
fn is_same(at: &Path, copy: &Path, known: &RepositoryUnit) -> bool {
    let (Ok(real), Ok(layer)) = (Gitdir::open(at), Gitdir::open(copy)) else { return false };
    let (Ok(outside), Ok(inside)) = (real.refs(), layer.refs()) else { return false };
    let changes = compare(&known.refs, &outside, &inside, false);
    let is_tree_same = |tree: String| {
        let (place, copy) = (joined(at, &tree_path(&tree)), joined(copy, &tree_path(&tree)));
        let head = |place: &Path| Gitdir::open(place).ok().and_then(|place| place.head()).map(|head| head.text());
        let indexes = (GitStamp::of(&place.join("index")), GitStamp::of(&copy.join("index")));
        let common = known.heads.get(&tree);
        head(&place).as_ref() == common && head(&copy).as_ref() == common && known.indexes.get(&tree) == Some(&indexes)
    };
    let is_quiet = changes.out.is_empty() && changes.into.is_empty() && changes.both.is_empty();
    let trees = worktrees(copy);
    is_quiet && trees == worktrees(at) && std::iter::once(String::new()).chain(trees).all(is_tree_same)
}

/// What is unfinished in a part of a layer, by working tree.
pub(super) fn unfinished(copy: &Path) -> Vec<(String, &'static str)> {
    let trees = std::iter::once(String::new()).chain(worktrees(copy));
    let found = |tree: String| {
        let place = Gitdir::open(&joined(copy, &tree_path(&tree))).ok()?;
        let (_, what) = UNFINISHED.iter().find(|(name, _)| place.has(name))?;
        Some((tree, *what))
    };
    trees.filter_map(found).collect()
}

fn compare(known: &Refs, outside: &Refs, inside: &Refs, is_unfinished: bool) -> Changes {
    let mut changes = Changes::default();
    let all: BTreeSet<&String> = known.keys().chain(outside.keys()).chain(inside.keys()).filter(|name| !names::stays(name)).collect();
    for name in all {
        let (common, theirs, ours) = (known.get(name), outside.get(name), inside.get(name));
        if theirs == ours {
            continue;
        }
        if ours == common {
            // Whatever is unfinished would not find its branch where it left it.
            if !(is_unfinished && name.starts_with("refs/heads/")) {
                changes.into.push((name.clone(), ours.cloned(), theirs.cloned()));
            }
        } else if !names::crosses(name) {
            continue;
        } else if theirs == common {
            changes.out.push((name.clone(), theirs.cloned(), ours.cloned()));
        } else if let Some(ours) = ours {
            changes.both.push((name.clone(), theirs.cloned(), ours.clone()));
        } else {
            changes.into.push((name.clone(), None, theirs.cloned()));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refs(values: &[(&str, &str)]) -> Refs {
        values.iter().map(|(name, value)| (format!("refs/{name}"), (*value).to_owned())).collect()
    }

    #[test]
    fn what_changed_on_one_side_goes_to_the_other() {
        let known = refs(&[("heads/a", "1"), ("heads/b", "1"), ("heads/c", "1"), ("heads/d", "1"), ("remotes/o/x", "1"), ("heads/e", "1")]);
        let outside =
            refs(&[("heads/a", "2"), ("heads/b", "1"), ("heads/c", "2"), ("heads/d", "1"), ("remotes/o/x", "1"), ("heads/e", "2")]);
        let inside = refs(&[
            ("heads/a", "1"),
            ("heads/b", "3"),
            ("heads/c", "3"),
            ("remotes/o/x", "4"),
            ("heads/new", "5"),
            ("stash", "6"),
            ("heads/e", "2"),
        ]);
        let changes = compare(&known, &outside, &inside, false);
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(changes.into, [("refs/heads/a".to_owned(), some("1"), some("2"))]);
        let out = [("refs/heads/b", some("1"), some("3")), ("refs/heads/d", some("1"), None), ("refs/heads/new", None, some("5"))];
        assert_eq!(changes.out, out.map(|(name, old, new)| (name.to_owned(), old, new)));
        assert_eq!(changes.both, [("refs/heads/c".to_owned(), some("2"), "3".to_owned())]);
        assert!(compare(&known, &outside, &known, true).into.is_empty());
    }
}
