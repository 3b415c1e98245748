//! Journals that are not as they were written: whatever is wrong is found and named, and the rest is still there.
//! `OUTPOST_SOAK_FLIPS` says how many random bits are flipped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outpost_store::{ClaimMode, Damage, DamageKind, Need, Store, open};
use outpost_thread::{Checkpoint, Entry};
use support::{entries, id, local, plain_turn, start};

/// A home with one thread of a few turns, closed cleanly.
struct Sample {
    home: tempfile::TempDir,
    journal: PathBuf,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

async fn sample() -> Sample {
    let home = tempfile::tempdir().unwrap();
    let store = local(home.path(), "writer");
    let (lease, mut written) = start(&store, 1).await;
    for turn in 0..3 {
        let next = entries(written.len() as u64 + 1, plain_turn(turn));
        store.append(&lease, next.clone(), Need::BeforeCompleted).await.unwrap();
        written.extend(next);
    }
    store.release(lease).await;
    let Store::Local(local) = &store else { panic!() };
    let journal = local.journal(id(1)).unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    drop(store);
    Sample { home, journal, bytes, entries: written }
}

impl Sample {
    fn spoil(&self, bytes: &[u8]) -> Store {
        std::fs::write(&self.journal, bytes).unwrap();
        local(self.home.path(), "reader")
    }

    /// What is read is what was written, and what is not read is named.
    async fn check(&self, store: &Store, what: &str) -> Vec<Damage> {
        let read = store.history(id(1), 0).await.unwrap().rest().await.unwrap();
        let mut seen = BTreeSet::new();
        for entry in &read.entries {
            assert_eq!(Some(entry), self.entries.get(entry.ordinal as usize - 1), "{what}");
            assert!(seen.insert(entry.ordinal), "{what}: entry {} twice", entry.ordinal);
        }
        let named: BTreeSet<u64> = read.damage.iter().flat_map(|damage| damage.from..=damage.to).collect();
        let last = seen.last().max(named.last()).copied().unwrap_or(0);
        for ordinal in 1..=last {
            assert!(seen.contains(&ordinal) != named.contains(&ordinal), "{what}: entry {ordinal}, damage {:?}", read.damage);
        }
        let verdict = store.verify(id(1), Some(self.entries.len() as u64)).await.unwrap();
        for ordinal in last + 1..=self.entries.len() as u64 {
            assert!(
                verdict.damage.iter().any(|(_, damage)| (damage.from..=damage.to).contains(&ordinal)),
                "{what}: entry {ordinal} is not named"
            );
        }
        verdict.damage.into_iter().map(|(_, damage)| damage).collect()
    }

    /// A thread with damage can be gone on with, and afterwards be repaired.
    async fn go_on(&self, store: &Store, what: &str) {
        let lease = store.claim(id(1), ClaimMode::IfFree).await.unwrap();
        let opened = open(store, id(1)).await.unwrap();
        let mut next = opened.thread.last + 1;
        if let Some(note) = opened.unnoted() {
            store.append(&lease, entries(next, vec![note.into()]), Need::Stored).await.unwrap();
            next += 1;
        }
        let turn = entries(next, plain_turn(50));
        store.append(&lease, turn.clone(), Need::BeforeCompleted).await.unwrap();
        let again = open(store, id(1)).await.unwrap();
        assert_eq!(again.unnoted(), None, "{what}: noted twice");
        assert_eq!(again.thread.last, next + 5, "{what}");
        store.release(lease).await;
        store.repair(id(1), ClaimMode::IfFree).await.unwrap();
        let verdict = store.verify(id(1), None).await.unwrap();
        assert!(verdict.is_whole(), "{what}: {verdict:?}");
        let repaired = open(store, id(1)).await.unwrap();
        assert_eq!((repaired.thread.last, repaired.damage.len()), (next + 5, 0), "{what}");
        let read = store.history(id(1), 0).await.unwrap().rest().await.unwrap().entries;
        assert_eq!(read[read.len() - 6..], turn, "{what}");
    }
}

#[tokio::test]
async fn a_torn_end_is_tolerated_at_every_byte() {
    let sample = sample().await;
    let first_line = sample.bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in first_line..sample.bytes.len() {
        // Zeroes are the same everywhere; a few places will do.
        let zeroes: &[usize] = if length % 31 == 0 { &[0, 1, 700] } else { &[0] };
        for &zeroes in zeroes {
            let mut bytes = sample.bytes[..length].to_vec();
            bytes.resize(length + zeroes, 0);
            let what = format!("cut at {length}, {zeroes} zeroes");
            let store = sample.spoil(&bytes);
            sample.check(&store, &what).await;
            if length % 97 == 0 && length > first_line + 300 {
                sample.go_on(&store, &what).await;
            }
        }
    }
}

#[tokio::test]
async fn a_first_line_that_is_not_there_is_named() {
    let sample = sample().await;
    let first_line = sample.bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let store = sample.spoil(&sample.bytes[first_line..]);
    let damage = sample.check(&store, "without its first line").await;
    assert!(damage.iter().any(|damage| damage.what == DamageKind::Header), "{damage:?}");
    sample.go_on(&store, "without its first line").await;
}

/// Numbers that are always the same.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[tokio::test]
async fn every_flipped_bit_is_found_and_named() {
    let count: usize = std::env::var("OUTPOST_SOAK_FLIPS").map_or(1000, |text| text.parse().unwrap());
    let sample = sample().await;
    let mut dice = Dice(0x5eed);
    for round in 0..count {
        let bit = dice.below(sample.bytes.len() * 8);
        let mut bytes = sample.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let what = format!("bit {bit}");
        let store = sample.spoil(&bytes);
        let damage = sample.check(&store, &what).await;
        assert_ne!(damage, [], "{what} was not found");
        if round % 50 == 0 {
            sample.go_on(&store, &what).await;
        }
    }
}

#[tokio::test]
async fn lines_that_are_missing_doubled_or_moved_are_named() {
    let sample = sample().await;
    let lines: Vec<&[u8]> = sample.bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let kinds = |damage: &[Damage]| damage.iter().map(|damage| damage.what).collect::<Vec<_>>();
    for at in 2..lines.len() - 1 {
        let mut without = lines.clone();
        without.remove(at);
        let damage = sample.check(&sample.spoil(&without.concat()), &format!("without line {at}")).await;
        let expected = Damage { from: at as u64, to: at as u64, offset: damage[0].offset, bytes: 0, what: DamageKind::Missing };
        assert_eq!(damage, [expected], "without line {at}");
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        let damage = sample.check(&sample.spoil(&doubled.concat()), &format!("line {at} twice")).await;
        assert_eq!(kinds(&damage)[0], DamageKind::Misplaced, "line {at} twice");
        let mut swapped = lines.clone();
        swapped.swap(at, at - 1);
        let damage = sample.check(&sample.spoil(&swapped.concat()), &format!("line {at} earlier")).await;
        assert!(kinds(&damage).contains(&DamageKind::Missing), "line {at} earlier: {damage:?}");
        sample.go_on(&sample.spoil(&swapped.concat()), &format!("line {at} earlier")).await;
    }
    // A line of another journal in its place: whole by itself, but not here.
    let mut foreign = lines.clone();
    let other = String::from_utf8(lines[5].to_vec()).unwrap().replace("turn-100", "turn-666");
    let body = &other[..other.len() - 28];
    let sum = outpost_store::Sum::seal(outpost_store::Sum::default(), body.as_bytes());
    let other = format!("{body},\"sum\":\"{sum}\"}}\n");
    foreign[5] = other.as_bytes();
    let store = sample.spoil(&foreign.concat());
    let verdict = store.verify(id(1), None).await.unwrap();
    assert!(verdict.damage.iter().any(|(_, damage)| damage.what == DamageKind::Unchained), "{verdict:?}");
}

#[tokio::test]
async fn a_cut_at_a_line_end_is_found_when_a_checkpoint_knows_better() {
    let sample = sample().await;
    let store = local(sample.home.path(), "reader");
    let opened = open(&store, id(1)).await.unwrap();
    let sum = store.head(id(1)).await.unwrap().sum;
    store.put_checkpoint(&Checkpoint::of(&opened.thread, sum).unwrap()).await.unwrap();
    let last_line = sample.bytes[..sample.bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let store = sample.spoil(&sample.bytes[..last_line]);
    let last = sample.entries.len() as u64;
    let verdict = store.verify(id(1), None).await.unwrap();
    assert!(
        matches!(verdict.damage.as_slice(), [(_, damage)] if (damage.from, damage.to, damage.what) == (last, last, DamageKind::CutOff))
    );
    // The checkpoint itself is not believed: its entry is not there.
    let opened = open(&store, id(1)).await.unwrap();
    assert_eq!((opened.thread.last, opened.folded), (last - 1, last - 1));
    assert_eq!(store.head(id(1)).await.unwrap().damage.len(), 1);
}

#[tokio::test]
async fn garbled_checkpoints_and_leases_do_not_matter() {
    let sample = sample().await;
    let store = local(sample.home.path(), "reader");
    let opened = open(&store, id(1)).await.unwrap();
    let sum = store.head(id(1)).await.unwrap().sum;
    store.put_checkpoint(&Checkpoint::of(&opened.thread, sum).unwrap()).await.unwrap();
    fn spoil(folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                spoil(&entry.path());
            } else if entry.path().extension().is_some_and(|extension| extension == "json" || extension == "lease") {
                std::fs::write(entry.path(), b"{\"version\":1,\"seq\":\xff").unwrap();
            }
        }
    }
    spoil(sample.home.path());
    assert_eq!(open(&store, id(1)).await.unwrap().thread, opened.thread);
    sample.go_on(&store, "garbled").await;
}

#[tokio::test]
async fn a_missing_blob_takes_only_its_entry() {
    let home = tempfile::tempdir().unwrap();
    let store = local(home.path(), "writer");
    let (lease, written) = start(&store, 1).await;
    let next = written.len() as u64 + 1;
    store.append(&lease, entries(next, vec![support::input(&"x".repeat(2 << 20), None)]), Need::Stored).await.unwrap();
    store.append(&lease, entries(next + 1, vec![support::input("after", None)]), Need::Stored).await.unwrap();
    std::fs::remove_dir_all(home.path().join("blobs")).unwrap();
    let read = store.history(id(1), 0).await.unwrap().rest().await.unwrap();
    assert_eq!(read.entries.len(), written.len() + 1);
    assert!(matches!(read.damage.as_slice(), [damage] if (damage.from, damage.to, damage.what) == (next, next, DamageKind::Blob)));
    assert_eq!(open(&store, id(1)).await.unwrap().thread.last, next + 1);
}

/// A line in the middle that is not as it was written.
fn flipped(sample: &Sample, text: &str) -> Vec<u8> {
    let mut bytes = sample.bytes.clone();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    bytes
}

#[tokio::test]
async fn a_repaired_thread_is_exported_and_imported_with_its_ordinals() {
    let sample = sample().await;
    let store = sample.spoil(&flipped(&sample, "answer 1"));
    store.repair(id(1), ClaimMode::IfFree).await.unwrap();
    let file = sample.home.path().join("export.jsonl");
    outpost_store::export(&store, id(1), &mut std::fs::File::create(&file).unwrap()).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    for again in [local(other.path(), "other"), support::Place::memory().store] {
        outpost_store::import_export(&file, &again).await.unwrap();
        let (here, there) = (store.history(id(1), 0).await.unwrap(), again.history(id(1), 0).await.unwrap());
        assert_eq!(there.rest().await.unwrap().entries, here.rest().await.unwrap().entries);
        let thread = open(&again, id(1)).await.unwrap().thread;
        assert_eq!((thread.last, thread.damage.len()), (sample.entries.len() as u64, 1));
        // It goes on where it ended.
        let lease = again.claim(id(1), ClaimMode::IfFree).await.unwrap();
        again.append(&lease, entries(thread.last + 1, plain_turn(9)), Need::Stored).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_missing_has_its_place_in_every_reading() {
    let sample = sample().await;
    let store = sample.spoil(&flipped(&sample, "answer 1"));
    let whole = store.history(id(1), 0).await.unwrap().rest().await.unwrap().with_gaps();
    let ordinals: Vec<u64> = whole.iter().map(|entry| entry.ordinal).collect();
    assert_eq!(ordinals, (1..=sample.entries.len() as u64).collect::<Vec<_>>());
    let notes: Vec<&Entry> = whole.iter().filter(|entry| entry.fact.kind() == "damageNoted").collect();
    assert_eq!(notes.len(), 1);
    // Pages of every size, put together, are the same.
    for bytes in [1, 300, 1000, 4000] {
        let mut pages = Vec::new();
        let mut before = None;
        loop {
            let page = store.page(id(1), outpost_store::PageRequest { before, turns: 2, bytes }).await.unwrap();
            before = page.before;
            pages.insert(0, page.with_gaps());
            if before.is_none() {
                break;
            }
        }
        let read: Vec<u64> = pages.concat().iter().map(|entry| entry.ordinal).collect();
        assert_eq!(read, ordinals, "{bytes}");
    }
    // The list has a mark.
    let page = store.list(outpost_store::ListQuery::default()).await.unwrap();
    assert!(page.threads[0].damaged);
}

/// What was under way where something is lost is not begun again by itself.
#[tokio::test]
async fn a_message_whose_turn_is_lost_is_not_taken_up_again() {
    let sample = sample().await;
    let lines: Vec<&[u8]> = sample.bytes.split_inclusive(|byte| *byte == b'\n').collect();
    // The header, the first entry, a turn of six; then only the message of the next turn is left, and its beginning is spoiled.
    let mut bytes = lines[..10].concat();
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    let store = sample.spoil(&bytes);
    let opened = open(&store, id(1)).await.unwrap();
    assert_eq!(opened.thread.next(), outpost_thread::NextAction::Idle);
    assert_eq!(opened.unnoted().unwrap().damage.len(), 1);
}

/// An end that is missing without a trace is known from the checkpoint.
#[tokio::test]
async fn an_end_that_is_cut_off_is_noted_once() {
    let sample = sample().await;
    let store = local(sample.home.path(), "keeper");
    outpost_store::keep_checkpoint(&store, &open(&store, id(1)).await.unwrap().thread).await.unwrap();
    drop(store);
    let lines: Vec<&[u8]> = sample.bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let store = sample.spoil(&lines[..lines.len() - 3].concat());
    let opened = open(&store, id(1)).await.unwrap();
    let note = opened.unnoted().unwrap();
    assert_eq!((note.damage[0].from, note.damage[0].to), (opened.thread.last + 1, sample.entries.len() as u64));
    assert_eq!(opened.thread.turn.as_ref().map(|turn| turn.stopped), Some(false));
    let lease = store.claim(id(1), ClaimMode::IfFree).await.unwrap();
    store.append(&lease, entries(opened.thread.last + 1, vec![note.into()]), Need::Stored).await.unwrap();
    let again = open(&store, id(1)).await.unwrap();
    assert_eq!(again.unnoted(), None);
    assert!(again.thread.turn.is_some_and(|turn| turn.stopped), "a turn that lost its end is not gone on with");
}
