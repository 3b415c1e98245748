//! Hears when the skills of this machine change: the local executor watches their folders, or where they would come to be.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::select_all;
use outpost_environment::{Environment, FileChanges, FileWatch};
use outpost_wire::PathUri;
use outpost_wire::exec::discovery::DiscoveredRoot;
use tokio::sync::watch;

use super::host::HostRoot;
use crate::runtime::RuntimeShared;

/// How often folders are looked at that cannot be watched.
const PERIOD: Duration = Duration::from_secs(2);
/// How often the others are: what lies behind a link is not watched.
const SELDOM: Duration = Duration::from_secs(60);
/// Several changes in so short a time are one.
const SETTLE: Duration = Duration::from_millis(200);
/// How far above a missing folder an existing one is looked for.
const HIGHEST: usize = 4;

/// A folder with skills, and the watch that tells of it.
struct Watched {
    root: PathUri,
    watch: FileWatch,
}

/// Looks again whenever something changes, until the last listener is gone.
pub(super) async fn watch_host(shared: Weak<RuntimeShared>, sender: watch::Sender<u64>) {
    let mut before: Option<Vec<Arc<DiscoveredRoot>>> = None;
    loop {
        let Some(host) = shared.upgrade() else { return };
        let mut extra = host.skills.host.changed.subscribe();
        let roots = host.host_roots();
        // Watched first and looked at then, so that nothing between the two is missed.
        let handle = host.host().await;
        let mut watches = match &handle {
            Some(handle) => watch_all(handle, &roots).await,
            None => Vec::new(),
        };
        let now: Vec<_> = host.look_at_host(&roots).await.into_iter().map(|(_, _, found)| found).collect();
        drop(host);
        if before.as_ref().is_some_and(|before| *before != now) {
            sender.send_modify(|count| *count += 1);
        }
        before = Some(now);
        let pause = if watches.len() == roots.len() { SELDOM } else { PERIOD };
        tokio::select! {
            () = sender.closed() => return,
            _ = extra.changed() => {}
            () = changed(&mut watches) => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn watch_all(handle: &Environment, roots: &[HostRoot]) -> Vec<Watched> {
    let mut watches = Vec::new();
    for root in roots {
        if let Some(watch) = watch_root(handle, &root.path).await {
            watches.push(Watched { root: root.path.clone(), watch });
        }
    }
    watches
}

/// Watches a folder, or the nearest one above it that is there.
async fn watch_root(handle: &Environment, root: &PathUri) -> Option<FileWatch> {
    if let Ok(watch) = handle.watch_files(root.clone(), true).await {
        return Some(watch);
    }
    let parent = |path: &PathUri| path.split().map(|(parent, _)| parent);
    for above in std::iter::successors(parent(root), parent).take(HIGHEST) {
        if let Ok(watch) = handle.watch_files(above, false).await {
            return Some(watch);
        }
    }
    None
}

/// Waits until something happens in one of the folders, or on the way to it.
async fn changed(watches: &mut [Watched]) {
    if watches.is_empty() {
        return std::future::pending().await;
    }
    let each = watches.iter_mut().map(|watched| Box::pin(watched.changed()));
    select_all(each).await;
}

impl Watched {
    async fn changed(&mut self) {
        loop {
            match self.watch.next().await {
                Some(changes) if !concerns(&changes, &self.root) => {}
                // A watch that cannot go on is made anew.
                _ => return,
            }
        }
    }
}

fn concerns(changes: &FileChanges, root: &PathUri) -> bool {
    changes.overflow || changes.paths.iter().any(|path| path.is_within(root) || root.is_within(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_a_folder_or_on_the_way_to_it_concerns_it() {
        let path = |text: &str| PathUri::from_syntax(text).unwrap();
        let of = |paths: &[&str]| FileChanges { paths: paths.iter().map(|text| path(text)).collect(), overflow: false };
        let root = path("/home/u/.agents/skills");
        assert!(concerns(&of(&["/home/u/.agents"]), &root) && concerns(&of(&["/x", "/home/u/.agents/skills/a/SKILL.md"]), &root));
        assert!(!concerns(&of(&["/home/u/.bash_history", "/home/u/.agents/other"]), &root));
        assert!(concerns(&FileChanges { overflow: true, ..of(&[]) }, &root));
    }
}
