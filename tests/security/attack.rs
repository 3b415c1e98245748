//! Attack families with random interleavings, each against a real executor, with an actor outside who moves things meanwhile.
//!
//! An episode is one family, one seed, one user and one level of the sandbox. The seed decides every step before the first one
//! is done, so it brings the same steps back; what runs at the same time may still meet otherwise. `cargo xtask attack` runs
//! episodes for as long as asked, and prints a finding with its seed and its steps. A few seeds of each family run with the
//! other tests.

mod approvals;
mod floods;
mod hostile;
mod journals;
mod kills;
mod limits;
mod mounts;
mod moves;
mod races;
mod scene;
mod texts;
mod variables;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::as_root_and_user;
use crate::card::{FULL, MOUNTS, denies};
use crate::support::{Who, is_root};

/// Nothing that is well takes as long.
const LONGEST: Duration = Duration::from_secs(300);
/// After so many findings there is enough to do.
const MOST_FINDINGS: usize = 10;

/// Numbers that a seed decides.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) const fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// How much of a sandbox the machine lets the executor have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Full,
    Mounts,
    Landlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// Denied and protected paths while things move, step by step.
    Moves,
    /// File calls and starts while sandboxed code swaps links at the same time.
    Races,
    /// kill -9 at any moment; the first start afterwards works.
    Kills,
    /// Names of secret variables.
    Variables,
    /// Texts that want to be obeyed or hidden.
    Texts,
    /// Executors that answer with rubbish.
    Hostile,
    /// Disks that return other bytes.
    Journals,
    /// Crowds that say nothing.
    Floods,
    /// Programs that take all that they get.
    Limits,
    /// Directories that are mounted a second time.
    Mounts,
    /// Answers to other questions than those that were asked.
    Approvals,
}

/// Those about things that move come more often than the others.
const FAMILIES: &[Family] = &[
    Family::Moves,
    Family::Races,
    Family::Moves,
    Family::Kills,
    Family::Moves,
    Family::Variables,
    Family::Races,
    Family::Texts,
    Family::Hostile,
    Family::Moves,
    Family::Mounts,
    Family::Journals,
    Family::Kills,
    Family::Floods,
    Family::Approvals,
    Family::Limits,
];

impl Family {
    /// Whether it is about what a level of the sandbox holds.
    const fn has_levels(self) -> bool {
        matches!(self, Self::Moves | Self::Races | Self::Kills)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    pub family: Family,
    pub seed: u64,
    pub who: Who,
    pub level: Level,
}

impl fmt::Display for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, who, level) = (format!("{:?}", self.family), format!("{:?}", self.who), format!("{:?}", self.level));
        write!(f, "--family {} --seed {} --as {} --level {}", family.to_lowercase(), self.seed, who.to_lowercase(), level.to_lowercase())
    }
}

/// What was done so far, for the reader of a finding.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<Vec<String>>>);

impl Steps {
    pub(crate) fn note(&self, step: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(step.into());
    }

    fn text(&self) -> String {
        let steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.iter().enumerate().map(|(number, step)| format!("  {number:3} {step}\n")).collect()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Episode {
    fn start(self, steps: Steps) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self.family {
            Family::Moves => Box::pin(moves::run(self, steps)),
            Family::Races => Box::pin(races::run(self, steps)),
            Family::Kills => Box::pin(kills::run(self, steps)),
            Family::Variables => Box::pin(variables::run(self, steps)),
            Family::Texts => Box::pin(texts::run(self, steps)),
            Family::Hostile => Box::pin(hostile::run(self, steps)),
            Family::Journals => Box::pin(journals::run(self, steps)),
            Family::Floods => Box::pin(floods::run(self, steps)),
            Family::Limits => Box::pin(limits::run(self, steps)),
            Family::Mounts => Box::pin(mounts::run(self, steps)),
            Family::Approvals => Box::pin(approvals::run(self, steps)),
        }
    }

    /// Runs it; what a failed assertion says is the finding.
    async fn run(self) -> Result<usize, String> {
        let steps = Steps::default();
        let task = tokio::spawn(self.start(steps.clone()));
        let abort = task.abort_handle();
        let what = match tokio::time::timeout(LONGEST, task).await {
            Ok(Ok(())) => return Ok(steps.count()),
            Ok(Err(error)) => match error.try_into_panic() {
                Ok(panic) => panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default(),
                Err(error) => error.to_string(),
            },
            Err(_) => {
                abort.abort();
                format!("not done after {LONGEST:?}")
            }
        };
        Err(format!("FINDING in {self}\n{}  {what}\nreplay: cargo xtask attack --minutes 0 {self}", steps.text()))
    }
}

/// What `cargo xtask attack` asks for.
struct Asked {
    minutes: f64,
    seed: u64,
    family: Option<Family>,
    who: Option<Who>,
    level: Option<Level>,
}

impl Asked {
    fn from_environment() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Self {
            minutes: text("OUTPOST_ATTACK_MINUTES").map_or(1.0, |text| text.parse().expect("minutes are a number")),
            seed: text("OUTPOST_ATTACK_SEED").map_or_else(now, |text| text.parse().expect("a seed is a number")),
            family: text("OUTPOST_ATTACK_FAMILY").map(|name| {
                let is_it = |family: &&Family| format!("{family:?}").to_lowercase() == name;
                *FAMILIES.iter().find(is_it).unwrap_or_else(|| panic!("`{name}` is no family; there are {FAMILIES:?}"))
            }),
            who: text("OUTPOST_ATTACK_AS").map(|name| match name.as_str() {
                "root" => Who::Root,
                "user" => Who::User,
                _ => panic!("`{name}` is neither root nor user"),
            }),
            level: text("OUTPOST_ATTACK_LEVEL").map(|name| match name.as_str() {
                "full" => Level::Full,
                "mounts" => Level::Mounts,
                "landlock" => Level::Landlock,
                _ => panic!("`{name}` is none of full, mounts, landlock"),
            }),
        }
    }

    /// The episode that a seed means, as far as it is not said. Lower levels are those of an ordinary user.
    fn episode(&self, seed: u64) -> Episode {
        let mut random = Random::new(seed ^ 0x5eed);
        let family = self.family.unwrap_or(FAMILIES[(seed % FAMILIES.len() as u64) as usize]);
        let usual = [(Who::Root, Level::Full), (Who::User, Level::Full), (Who::User, Level::Mounts), (Who::User, Level::Landlock)];
        let fits = |(who, level): &(Who, Level)| {
            self.who.is_none_or(|asked| asked == *who)
                && self.level.is_none_or(|asked| asked == *level)
                && (*who == Who::User || is_root())
                && (*level == Level::Full || family.has_levels() || self.level.is_some())
        };
        let (who, level) = random.pick(&usual.into_iter().filter(fits).collect::<Vec<_>>());
        Episode { family, seed, who, level }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs for as long as `cargo xtask attack` says"]
async fn for_as_long_as_asked() {
    let asked = Asked::from_environment();
    assert!(asked.who != Some(Who::Root) || is_root(), "only root attacks as root");
    assert!(asked.who != Some(Who::Root) || matches!(asked.level, None | Some(Level::Full)), "lower levels are attacked as a user");
    let end = Instant::now() + Duration::from_secs_f64(asked.minutes * 60.0);
    eprintln!("attack: {} minutes from seed {}", asked.minutes, asked.seed);
    let (mut counts, mut findings, mut told) = (BTreeMap::<(Family, String), (usize, usize)>::new(), 0, Instant::now());
    for seed in asked.seed.. {
        let episode = asked.episode(seed);
        let count = counts.entry((episode.family, format!("{:?} {:?}", episode.who, episode.level))).or_default();
        count.0 += 1;
        match episode.run().await {
            Ok(steps) => count.1 += steps,
            Err(finding) => {
                findings += 1;
                eprintln!("{finding}");
            }
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            eprintln!("attack: at seed {seed}, {findings} findings, {} episodes", counts.values().map(|count| count.0).sum::<usize>());
        }
        if Instant::now() >= end || findings >= MOST_FINDINGS {
            break;
        }
    }
    for ((family, whom), (episodes, steps)) in &counts {
        eprintln!("attack: {family:?} {whom}: {episodes} episodes, {steps} steps");
    }
    assert_eq!(findings, 0, "findings; each was printed with its seed and its steps");
}

/// A few seeds that are always the same.
async fn share(family: Family, who: Who, level: Level) {
    for seed in 1..=2 {
        if let Err(finding) = (Episode { family, seed, who, level }).run().await {
            panic!("{finding}");
        }
    }
}

as_root_and_user! {
    async fn a_share_of_moves(who: Who) {
        share(Family::Moves, who, Level::Full).await;
    }

    #[needs(MOUNTS)]
    async fn a_share_of_races(who: Who) {
        share(Family::Races, who, Level::Full).await;
    }

    #[needs(MOUNTS)]
    async fn a_share_of_kills(who: Who) {
        share(Family::Kills, who, Level::Full).await;
    }

    #[needs(MOUNTS)]
    async fn a_share_of_mounts(who: Who) {
        share(Family::Mounts, who, Level::Full).await;
    }

    async fn a_share_of_the_others(who: Who) {
        for family in [Family::Variables, Family::Texts, Family::Hostile, Family::Journals, Family::Floods, Family::Limits] {
            share(family, who, Level::Full).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_approvals() {
    let who = if is_root() { Who::Root } else { Who::User };
    // The homes of these servers lie in /tmp, which commands may write to: without mounts they cannot be denied there, and no command starts.
    if denies(who, &[MOUNTS]).await {
        return;
    }
    share(Family::Approvals, who, Level::Full).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_lower_levels() {
    if denies(Who::User, &[FULL]).await {
        return;
    }
    share(Family::Moves, Who::User, Level::Mounts).await;
    share(Family::Races, Who::User, Level::Landlock).await;
}
