//! The process of a cell that stays outside of its fences: in the same view of the file system, with the rights to mount, and
//! out of sight of everything that runs inside.
//!
//! It waits for the first process of the sandbox and goes with it, or takes it along. Meanwhile it keeps what the sandbox holds:
//! before a start, when it is asked, and while programs run, when it hears of a change. It mounts only on what it finds without
//! following a link. What it cannot put back in the same way it covers whole, and says that nothing new should be started there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process, set_dumpable_behavior};

use super::super::kin;
use super::masks::{self, Kind, Mask};
use super::matches::{self, BOUNDS};
use super::view::{access_at, is_in_layer, is_in_temporary};
use super::watch::{Heard, Watch};
use crate::channel::Channel;
use crate::message::{Checked, Loss, MessageReader, MessageWriter, OrderOutcome};
use crate::plan::Confinement;
use crate::policy::{Glob, PathAccess};
use crate::sys::{self, SignalReader};

/// How often is tried to cover what is replaced at the same time.
const TRIES: usize = 8;

/// Our ends of the sockets of a guard.
pub(crate) struct GuardSockets {
    /// Asked by the executor, and answered.
    pub requests: Channel,
    /// Told to the executor. The guard does not wait for it to be read.
    pub reports: Channel,
}

pub(super) struct Guard {
    first: Pid,
    signals: SignalReader,
    /// Nothing once the executor is gone; the first process hears of that, too.
    requests: Option<Channel>,
    reports: Channel,
    keeper: Keeper,
}

impl Guard {
    pub(super) fn new(first: Pid, signals: SignalReader, ends: GuardSockets, keeper: Keeper) -> Self {
        Self { first, signals, requests: Some(ends.requests), reports: ends.reports, keeper }
    }

    /// Never returns. `built` is where the first process says what it put in place.
    pub(super) fn run(mut self, built: &Channel) -> ! {
        let _ = rustix::thread::set_name(c"outpost-guard");
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        // Until everything is in place there is nothing to keep.
        while !self.wait(Some(built.as_fd())).asked {}
        self.begin(built);
        loop {
            let requests = self.requests.as_ref().map(AsFd::as_fd);
            let came = self.wait(requests);
            if came.asked {
                self.answer();
            } else if came.heard {
                let losses = self.keeper.hear();
                self.report(&losses);
            }
        }
    }

    /// Waits for something to do besides looking after the first process.
    fn wait(&self, asking: Option<BorrowedFd<'_>>) -> Came {
        let queue = self.keeper.watch.as_ref().map(Watch::queue);
        let mut events = vec![PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)];
        events.extend(asking.map(|asking| PollFd::from_borrowed_fd(asking, PollFlags::IN)));
        events.extend(queue.map(|queue| PollFd::new(queue, PollFlags::IN)));
        let _ = poll(&mut events, None);
        let is_ready = |index: usize| events.get(index).is_some_and(|event| !event.revents().is_empty());
        if is_ready(0) {
            self.look_after();
        }
        let after = usize::from(asking.is_some());
        Came { asked: asking.is_some() && is_ready(1), heard: is_ready(after + 1) }
    }

    fn look_after(&self) {
        if self.signals.take() {
            // With the first process the kernel kills all others of its table.
            let _ = kill_process(self.first, Signal::KILL);
        }
        let mut is_over = false;
        let first = self.first;
        kin::reap(|pid, _| is_over |= pid == first);
        if is_over {
            sys::exit(0);
        }
    }

    fn begin(&mut self, built: &Channel) {
        let received = built.receive().ok().flatten().and_then(|message| MessageReader(&message.bytes).list(Mask::decode).ok());
        // Without it the first process does not go on.
        let Some(found) = received else { return };
        self.keeper.masks = found;
        self.keeper.nothing = masks::find(Path::new("/dev/null")).ok();
        let losses = self.keeper.hear();
        let _ = built.send(&[], &[]);
        self.report(&losses);
    }

    fn answer(&mut self) {
        let Some(requests) = &self.requests else { return };
        match requests.receive() {
            Ok(Some(_)) => {
                let (checked, losses) = self.keeper.check();
                let _ = requests.send(&checked.encode(), &[]);
                self.report(&losses);
            }
            Ok(None) | Err(_) => self.requests = None,
        }
    }

    fn report(&self, losses: &[Loss]) {
        for loss in losses {
            let _ = self.reports.send(&loss.encode(), &[]);
        }
    }
}

/// What a guard was woken by.
struct Came {
    asked: bool,
    heard: bool,
}

/// Keeps what a sandbox holds.
pub(super) struct Keeper {
    watch: Option<Watch>,
    globs: Vec<Glob>,
    confinement: Confinement,
    masks: Vec<Mask>,
    nothing: Option<OwnedFd>,
    stale: Option<String>,
}

impl Keeper {
    /// Made before anything is put in place, so that nothing is missed in between.
    pub(super) fn new(watch: Option<Watch>, confinement: &Confinement) -> Self {
        let globs = confinement.globs.clone();
        Self { watch, globs, confinement: confinement.clone(), masks: Vec::new(), nothing: None, stale: None }
    }

    /// Deals with what has come.
    fn hear(&mut self) -> Vec<Loss> {
        if let Some(watch) = &self.watch {
            watch.work();
        }
        let mut losses = Vec::new();
        let heard = self.watch.as_mut().map(Watch::hear).unwrap_or_default();
        self.deal_with(&heard, &mut losses);
        if let Some(watch) = &self.watch
            && !heard.has_more
        {
            watch.rest();
        }
        losses
    }

    /// Looks at everything.
    fn check(&mut self) -> (Checked, Vec<Loss>) {
        if let Some(watch) = &self.watch {
            watch.work();
        }
        let mut losses = Vec::new();
        let mut heard = self.watch.as_mut().map(Watch::hear).unwrap_or_default();
        heard.is_touched = true;
        heard.is_overflown |= heard.has_more || self.watch.as_ref().is_none_or(|watch| !watch.is_complete());
        self.deal_with(&heard, &mut losses);
        let missing = self.masks.iter().filter(|mask| mask.in_writable && mask.mount.is_none() && !mask.by_pattern);
        let missing = missing.filter(|mask| matches!(mask.kind, Kind::Hide | Kind::Hold | Kind::Layer));
        let places = &self.confinement.places;
        let missing = missing.filter(|mask| !is_in_layer(places, &mask.path)).map(|mask| mask.path.clone()).collect();
        let checks = self.masks.iter().filter(|mask| !mask.by_pattern).map(Mask::check).collect();
        let checked = Checked { stale: self.stale.clone(), checks, missing };
        if let Some(watch) = &self.watch {
            watch.rest();
        }
        (checked, losses)
    }

    fn deal_with(&mut self, heard: &Heard, losses: &mut Vec<Loss>) {
        let mut is_touched = heard.is_touched;
        if heard.is_overflown {
            is_touched |= self.search_all();
        }
        for path in &heard.new {
            is_touched |= self.search(path);
        }
        // Below a root that was replaced everything is new, and the watch did not hear of it.
        if is_touched && self.verify(losses) && self.search_all() {
            self.verify(losses);
        }
    }

    /// Hides what patterns deny, wherever it is. False if there is nothing.
    fn search_all(&mut self) -> bool {
        let bases: Vec<PathBuf> = self.globs.iter().map(|glob| glob.base().to_owned()).collect();
        let mut has_found = false;
        for base in &bases {
            has_found |= self.search(base);
        }
        has_found
    }

    /// Hides what patterns deny at a path and below it. False if there is nothing.
    fn search(&mut self, path: &Path) -> bool {
        let globs = std::mem::take(&mut self.globs);
        let mut found = Vec::new();
        for glob in globs.iter().filter(|glob| path.starts_with(glob.base()) && (glob.fits(path) || glob.leads_below(path))) {
            let (watch, confinement) = (&mut self.watch, &self.confinement);
            let mut visit = |directory: &Path| {
                if let Some(watch) = watch {
                    watch.for_pattern(directory, confinement);
                }
            };
            if let Err(why) = matches::find_below(glob, path.to_owned(), BOUNDS, &mut visit, &mut found) {
                self.stale = Some(why);
            }
        }
        let found: Vec<PathBuf> = found.into_iter().map(|found| found.path).collect();
        self.globs = globs;
        let has_found = !found.is_empty();
        found.into_iter().for_each(|path| self.hide_match(path));
        has_found
    }

    fn hide_match(&mut self, path: PathBuf) {
        let parent = path.parent().unwrap_or(&path);
        let places = &self.confinement.places;
        if self.masks.iter().any(|mask| mask.path == path)
            || access_at(places, parent) == PathAccess::Deny
            || is_in_temporary(places, &path)
        {
            return;
        }
        // What the machine has there is not seen.
        if is_in_layer(places, &path) {
            return;
        }
        let in_writable = access_at(places, parent) == PathAccess::Write;
        // It may have been moved here together with what hides it.
        let now = masks::mount_at(&path).ok().flatten();
        if let Some(known) = self.masks.iter_mut().find(|mask| mask.by_pattern && now.is_some() && mask.mount == now) {
            known.path = path;
            return;
        }
        let mut mask = Mask { path, kind: Kind::Hide, mount: None, in_writable, by_pattern: true };
        if self.put(&mut mask) == OrderOutcome::Restored {
            self.masks.push(mask);
        }
    }

    /// Puts back what is not in place. True if a root of the view was replaced.
    fn verify(&mut self, losses: &mut Vec<Loss>) -> bool {
        let mut has_new_root = false;
        for index in 0..self.masks.len() {
            let mut mask = self.masks[index].clone();
            match masks::mount_at(&mask.path) {
                Ok(now) if now == mask.mount => continue,
                // Where not even the guard gets to, no process does.
                Err(Errno::ACCESS) => continue,
                _ => {}
            }
            has_new_root |= mask.kind == Kind::Root;
            let had_been = mask.mount.is_some();
            let mut outcome = self.put(&mut mask);
            let is_protected = matches!(mask.kind, Kind::Hold | Kind::Layer) && mask.in_writable;
            if is_protected && !had_been && outcome == OrderOutcome::Restored {
                outcome = OrderOutcome::Made;
            }
            // What was not there has not been lost.
            if had_been || matches!(outcome, OrderOutcome::Open | OrderOutcome::Made) {
                losses.push(Loss { path: mask.path.clone(), held: mask.kind.held(), outcome });
            }
            self.masks[index] = mask;
        }
        self.masks.retain(|mask| !mask.by_pattern || mask.mount.is_some());
        has_new_root
    }

    /// Covers what is at the path of a mask now.
    fn put(&mut self, mask: &mut Mask) -> OrderOutcome {
        if mask.kind == Kind::Root {
            self.stale = Some(format!("{} was replaced", mask.path.display()));
            // It can only be read here from now on. With a mount of its own it is seen when it is replaced once more.
            let covered = self.nothing.as_ref().and_then(|nothing| masks::cover(&masks::find(&mask.path).ok()?, Kind::Hold, nothing).ok());
            mask.mount = covered.or_else(|| masks::mount_at(&mask.path).ok().flatten());
            return OrderOutcome::Open;
        }
        let Some(nothing) = &self.nothing else { return OrderOutcome::Open };
        for _ in 0..TRIES {
            // The directories around it may be others by now, in which there is no watch yet. Before it is looked at, so that nothing is
            // missed in between.
            if let Some(watch) = &mut self.watch {
                watch.around(&mask.path);
            }
            // What a link leads to can only be said by the next policy.
            let kind = match mask.kind {
                Kind::Link(PathAccess::Deny) => Kind::Hide,
                kind => kind,
            };
            match masks::find(&mask.path) {
                Ok(place) => {
                    let turned = matches!(kind, Kind::Hold | Kind::Layer) && is_link(&place);
                    if turned || matches!(mask.kind, Kind::Link(_) | Kind::Layer) {
                        self.stale = Some(format!("{} was replaced", mask.path.display()));
                    }
                    let Ok(mount) = masks::cover(&place, kind, nothing) else { continue };
                    mask.mount = Some(mount);
                    if masks::mount_at(&mask.path) == Ok(mask.mount) {
                        return OrderOutcome::Restored;
                    }
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    mask.mount = None;
                    return OrderOutcome::Missing;
                }
                Err(Errno::LOOP) => {
                    self.stale = Some(format!("{} lies behind a link now", mask.path.display()));
                    cover_link_above(&mask.path, nothing);
                    mask.mount = masks::mount_at(&mask.path).ok().flatten();
                    return OrderOutcome::Restored;
                }
                Err(_) => break,
            }
        }
        self.stale = Some(format!("{} cannot be held any more", mask.path.display()));
        mask.mount = masks::mount_at(&mask.path).ok().flatten();
        OrderOutcome::Open
    }
}

fn is_link(place: &OwnedFd) -> bool {
    rustix::fs::fstat(place.as_fd()).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
}

/// A directory on the way has become a link: nothing is seen through it any more.
fn cover_link_above(path: &Path, nothing: &OwnedFd) {
    let mut way: Vec<&Path> = path.ancestors().skip(1).collect();
    way.reverse();
    for directory in way {
        if let Ok(place) = masks::find(directory)
            && is_link(&place)
        {
            let _ = masks::cover(&place, Kind::Hide, nothing);
            return;
        }
    }
}

/// What has to be said by the first process before it goes on.
pub(super) fn hand_over(built: &Channel, masks: &[Mask]) -> io::Result<()> {
    let mut out = MessageWriter::default();
    out.list(masks, |out, mask| mask.encode(out));
    built.send(&out.0, &[])
}

/// Waits until the guard keeps it.
pub(super) fn is_kept(built: &Channel) -> io::Result<()> {
    built.receive()?.map(drop).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
