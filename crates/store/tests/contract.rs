//! What every store promises, run against each of them. A new store joins by a line in `stores!`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use outpost_store::{
    Ancestry, AppendError, ClaimError, ClaimMode, Coverage, Direction, ForkRequest, ForkStoreError, ListCursor, ListOrder, ListQuery,
    ListScope, Need, PageRequest, ReadError, Store, open, open_many,
};
use outpost_thread::{
    CompactReason, Context, ContextCompacted, Cut, Entry, Fact, ForkPoint, Kept, Outline, Thread, ThreadForked, ThreadId,
};
use support::{Place, created, entries, id, input, plain_turn, start};

macro_rules! stores {
    ($($test:ident)+) => {
        mod local { $(#[tokio::test] async fn $test() { super::$test(super::Place::local()).await; })+ }
        mod postgres { $(#[tokio::test] async fn $test() { super::$test(super::Place::postgres().await).await; })+ }
        mod memory { $(#[tokio::test] async fn $test() { super::$test(super::Place::memory()).await; })+ }
    };
}

stores! {
    what_was_written_is_read
    ordinals_must_follow
    nothing_is_there_before_the_first_input
    one_writer_at_a_time
    pages_lead_back_to_the_beginning
    a_fork_shares_its_past
    forks_of_forks_survive_their_parents
    many_forks_survive_their_parent
    a_fork_needs_a_place_that_exists
    checkpoints_are_optional
    many_threads_are_opened_as_each_alone
    the_context_starts_at_the_last_compaction
    large_content_comes_back
    unknown_kinds_are_carried
    secrets_are_not_stored
    deleted_threads_are_gone
    lists_show_threads_in_pages
    words_are_found
    where_words_stand_is_found
    a_fork_shows_what_it_inherited
}

async fn all(store: &Store, thread: ThreadId) -> Vec<Entry> {
    store.history(thread, 0).await.unwrap().rest().await.unwrap().entries
}

async fn what_was_written_is_read(place: Place) {
    let store = &place.store;
    let (lease, mut written) = start(store, 1).await;
    for turn in 0..5 {
        let next = entries(written.len() as u64 + 1, plain_turn(turn));
        let appended = store.append(&lease, next.clone(), Need::BeforeCompleted).await.unwrap();
        assert_eq!(appended.entries, next);
        assert_eq!(appended.last, next.last().unwrap().ordinal);
        written.extend(next);
    }
    assert_eq!(all(store, lease.thread).await, written);
    for after in [0, 1, 7, written.len() as u64 - 1, written.len() as u64] {
        let read = store.history(lease.thread, after).await.unwrap().rest().await.unwrap();
        assert_eq!(read.entries, written[after as usize..], "after {after}");
        assert_eq!(read.damage, []);
    }
    let head = store.head(lease.thread).await.unwrap();
    assert_eq!((head.last, head.first.as_ref()), (written.len() as u64, written.first()));
    assert_eq!(store.threads().await.unwrap(), [lease.thread]);
    assert!(matches!(store.history(id(99), 0).await, Err(ReadError::NotFound(_))));
    assert!(matches!(store.head(id(99)).await, Err(ReadError::NotFound(_))));
}

async fn ordinals_must_follow(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    let last = written.len() as u64;
    for found in [last, last + 2] {
        let error = store.append(&lease, entries(found, vec![input("x", None)]), Need::Stored).await.unwrap_err();
        assert!(matches!(error, AppendError::Conflict { expected, found: told } if expected == last + 1 && told == found), "{error}");
    }
    let mut gap = entries(last + 1, vec![input("x", None), input("y", None)]);
    gap[1].ordinal += 1;
    assert!(matches!(store.append(&lease, gap, Need::Stored).await, Err(AppendError::Conflict { .. })));
    assert_eq!(all(store, lease.thread).await, written, "a refused append left something behind");
}

async fn nothing_is_there_before_the_first_input(place: Place) {
    let store = &place.store;
    let lease = store.create(id(1)).await.unwrap();
    assert!(matches!(store.create(id(1)).await, Err(ClaimError::Exists(_))));
    let first = entries(1, vec![created(1)]);
    assert_eq!(store.append(&lease, first.clone(), Need::Stored).await.unwrap().entries, first);
    assert_eq!(store.threads().await.unwrap(), []);
    place.assert_no_journals();
    assert_eq!(all(store, id(1)).await, first);
    assert_eq!(store.head(id(1)).await.unwrap().last, 1);
    store.release(lease).await;
    assert!(matches!(store.claim(id(1), ClaimMode::IfFree).await, Err(ClaimError::NotFound(_))));
    let lease = store.create(id(1)).await.unwrap();
    store.append(&lease, first, Need::Stored).await.unwrap();
    store.append(&lease, entries(2, vec![input("x", None)]), Need::Stored).await.unwrap();
    assert_eq!(store.threads().await.unwrap(), [id(1)]);
    assert_eq!(all(store, id(1)).await.len(), 2);
}

async fn one_writer_at_a_time(place: Place) {
    let store = &place.store;
    let (first, written) = start(store, 1).await;
    let next = written.len() as u64 + 1;
    let held = store.claim(first.thread, ClaimMode::IfFree).await.unwrap_err();
    assert!(matches!(&held, ClaimError::Held { holder, .. } if holder.pid == std::process::id()), "{held}");
    let holder = store.holder(first.thread).await.unwrap().expect("somebody holds it");
    assert_eq!(holder.pid, std::process::id());
    assert!(holder.renewed >= holder.since, "{holder:?}");
    assert!(matches!(store.holder(id(99)).await, Err(ClaimError::NotFound(_))));
    let second = store.claim(first.thread, ClaimMode::TakeOver).await.unwrap();
    assert!(second.epoch > first.epoch);
    let late = store.append(&first, entries(next, vec![input("late", None)]), Need::Stored).await;
    assert!(matches!(late, Err(AppendError::LeaseLost { .. })), "{late:?}");
    store.append(&second, entries(next, vec![input("mine", None)]), Need::Stored).await.unwrap();
    // Giving back what one no longer has takes nothing from the new holder.
    store.release(first).await;
    store.append(&second, entries(next + 1, vec![input("mine", None)]), Need::Stored).await.unwrap();
    let thread = second.thread;
    store.release(second).await;
    assert_eq!(store.holder(thread).await.unwrap(), None, "nobody after it was given back");
    let third = store.claim(thread, ClaimMode::IfFree).await.unwrap();
    store.append(&third, entries(next + 2, vec![input("again", None)]), Need::Stored).await.unwrap();
    assert_eq!(all(store, thread).await.len() as u64, next + 2);
}

async fn pages_lead_back_to_the_beginning(place: Place) {
    let store = &place.store;
    let (lease, mut written) = start(store, 1).await;
    for turn in 0..7 {
        let next = entries(written.len() as u64 + 1, plain_turn(turn));
        store.append(&lease, next.clone(), Need::Stored).await.unwrap();
        written.extend(next);
    }
    let mut pages = Vec::new();
    let mut before = None;
    loop {
        let page = store.page(lease.thread, PageRequest { before, turns: 3, bytes: 1 << 20 }).await.unwrap();
        let turns = page.entries.iter().filter(|entry| matches!(entry.fact, Fact::TurnStarted(_))).count();
        assert!(turns <= 3, "{turns} turns");
        before = page.before;
        pages.push(page.entries);
        if before.is_none() {
            break;
        }
    }
    assert_eq!(pages.len(), 3);
    assert_eq!(pages.into_iter().rev().flatten().collect::<Vec<_>>(), written);
}

/// A fork of everything so far.
async fn fork(store: &Store, parent: ThreadId, child: ThreadId) -> Result<outpost_store::Lease, ForkStoreError> {
    let ordinal = store.head(parent).await.unwrap().last;
    store.fork(ForkRequest { forked: ThreadForked::new(child, parent), cut: Cut { ordinal, close: None }, at: 5 }).await
}

async fn a_fork_shares_its_past(place: Place) {
    let store = &place.store;
    let (parent, mut written) = start(store, 1).await;
    for turn in 0..3 {
        let next = entries(written.len() as u64 + 1, plain_turn(turn));
        store.append(&parent, next.clone(), Need::Stored).await.unwrap();
        written.extend(next);
    }
    let mut outline = Outline::default();
    written.iter().for_each(|entry| outline.apply(entry));
    let cut = outline.cut(&ForkPoint::BeforeUserMessage(2)).unwrap();
    let shared = cut.ordinal as usize;
    let child = store.fork(ForkRequest { forked: ThreadForked::new(id(2), id(1)), cut, at: 5 }).await.unwrap();
    let past = all(store, id(2)).await;
    assert_eq!(past[..shared], written[..shared]);
    assert_eq!(past.len(), shared + 1);
    assert!(matches!(&past[shared].fact, Fact::ThreadForked(fork) if fork.base.thread == id(1) && fork.base.ordinal == shared as u64));
    let next = entries(shared as u64 + 2, plain_turn(9));
    store.append(&child, next.clone(), Need::BeforeCompleted).await.unwrap();
    // The parent goes on as if nothing had happened, and so does the child.
    store.append(&parent, entries(written.len() as u64 + 1, plain_turn(4)), Need::Stored).await.unwrap();
    assert_eq!(all(store, id(2)).await[shared + 1..], next);
    let opened = open(store, id(2)).await.unwrap();
    assert_eq!((opened.unfit.as_slice(), opened.thread.turns), (&[][..], 3));
    assert_eq!((opened.thread.id, opened.thread.metadata.forked_from), (id(2), Some(id(1))));
    for after in [0, 3, shared as u64, shared as u64 + 1, shared as u64 + 3] {
        let read = store.history(id(2), after).await.unwrap().rest().await.unwrap().entries;
        assert_eq!(read.first().map(|entry| entry.ordinal), Some(after + 1));
    }
    let mut paged = Vec::new();
    let mut before = None;
    loop {
        let page = store.page(id(2), PageRequest { before, turns: 1, bytes: 1 << 20 }).await.unwrap();
        paged.push(page.entries);
        before = page.before;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(paged.into_iter().rev().flatten().collect::<Vec<_>>(), all(store, id(2)).await);
}

async fn forks_of_forks_survive_their_parents(place: Place) {
    let store = &place.store;
    let (parent, written) = start(store, 1).await;
    store.append(&parent, entries(written.len() as u64 + 1, plain_turn(0)), Need::Stored).await.unwrap();
    let child = fork(store, id(1), id(2)).await.unwrap();
    let last = store.head(id(2)).await.unwrap().last;
    store.append(&child, entries(last + 1, plain_turn(1)), Need::Stored).await.unwrap();
    let _grandchild = fork(store, id(2), id(3)).await.unwrap();
    // This one shares only what its parent itself shares.
    let cut = Cut { ordinal: 2, close: None };
    let _cousin = store.fork(ForkRequest { forked: ThreadForked::new(id(4), id(2)), cut, at: 5 }).await.unwrap();
    let before = [all(store, id(2)).await, all(store, id(3)).await, all(store, id(4)).await];
    let state = |entries: &[Entry]| {
        let mut thread = Thread::begin(&entries[0]).unwrap();
        entries[1..].iter().for_each(|entry| thread.apply(entry).unwrap());
        thread
    };
    assert_eq!(state(&before[2]).metadata.forked_from, Some(id(2)));
    store.delete(id(1), ClaimMode::TakeOver).await.unwrap();
    for (thread, expected) in [(id(2), &before[0]), (id(3), &before[1]), (id(4), &before[2])] {
        assert_eq!(&all(store, thread).await, expected);
        let verdict = store.verify(thread, None).await.unwrap();
        assert!(verdict.is_whole(), "{verdict:?}");
    }
    // Whoever was writing the child goes on.
    let last = store.head(id(2)).await.unwrap().last;
    store.append(&child, entries(last + 1, plain_turn(2)), Need::BeforeCompleted).await.unwrap();
    store.append(&child, entries(last + 7, plain_turn(3)), Need::BeforeCompleted).await.unwrap();
    assert_eq!(all(store, id(2)).await.len() as u64, last + 12);
    store.delete(id(2), ClaimMode::TakeOver).await.unwrap();
    assert_eq!(all(store, id(3)).await, before[1]);
    assert_eq!(open(store, id(3)).await.unwrap().thread, state(&before[1]));
}

/// More than get their own copies together.
async fn many_forks_survive_their_parent(place: Place) {
    const FORKS: u64 = 150;
    let store = &place.store;
    let (parent, written) = start(store, 1).await;
    store.append(&parent, entries(written.len() as u64 + 1, plain_turn(0)), Need::Stored).await.unwrap();
    let mut children = Vec::new();
    for number in 2..2 + FORKS {
        let lease = fork(store, id(1), id(number)).await.unwrap();
        children.push((id(number), lease, all(store, id(number)).await));
    }
    store.delete(id(1), ClaimMode::TakeOver).await.unwrap();
    for (thread, lease, before) in &children {
        assert_eq!(&all(store, *thread).await, before);
        assert!(store.verify(*thread, None).await.unwrap().is_whole());
        // A program that was writing it goes on.
        let last = store.head(*thread).await.unwrap().last;
        store.append(lease, entries(last + 1, plain_turn(1)), Need::BeforeCompleted).await.unwrap();
    }
}

async fn a_fork_needs_a_place_that_exists(place: Place) {
    let store = &place.store;
    let (_parent, written) = start(store, 1).await;
    for ordinal in [0, written.len() as u64 + 1, u64::MAX - 1] {
        let cut = Cut { ordinal, close: None };
        let refused = store.fork(ForkRequest { forked: ThreadForked::new(id(2), id(1)), cut, at: 5 }).await;
        assert!(matches!(refused, Err(ForkStoreError::OutOfRange { .. })), "{ordinal}: {refused:?}");
    }
    assert!(matches!(fork(store, id(1), id(1)).await, Err(ForkStoreError::Exists(_))));
    let cut = Cut { ordinal: 1, close: None };
    let orphan = store.fork(ForkRequest { forked: ThreadForked::new(id(2), id(9)), cut, at: 5 }).await;
    assert!(matches!(orphan, Err(ForkStoreError::Read(ReadError::NotFound(_)))));
    assert_eq!(store.threads().await.unwrap(), [id(1)]);
}

async fn checkpoints_are_optional(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    store.append(&lease, entries(written.len() as u64 + 1, plain_turn(0)), Need::Stored).await.unwrap();
    assert_eq!(store.checkpoint(id(1)).await, None);
    let before = open(store, id(1)).await.unwrap();
    let sum = store.head(id(1)).await.unwrap().sum;
    store.put_checkpoint(&outpost_thread::Checkpoint::of(&before.thread, sum).unwrap()).await.unwrap();
    let next = before.thread.last + 1;
    let with = open(store, id(1)).await.unwrap();
    assert_eq!((&with.thread, with.folded), (&before.thread, 0));
    store.append(&lease, entries(next, plain_turn(1)), Need::Stored).await.unwrap();
    let later = open(store, id(1)).await.unwrap();
    assert_eq!((later.folded, later.thread.turns), (6, 3));
}

/// Long and short ones, forks within and behind what was kept of their parents, one that is not there, and one that is asked for twice.
async fn many_threads_are_opened_as_each_alone(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    let mut last = written.len() as u64;
    for turn in 0..200 {
        last = store.append(&lease, entries(last + 1, plain_turn(turn)), Need::Stored).await.unwrap().last;
    }
    let cut = |ordinal| Cut { ordinal, close: None };
    let _early = store.fork(ForkRequest { forked: ThreadForked::new(id(2), id(1)), cut: cut(written.len() as u64), at: 5 }).await.unwrap();
    let kept = open(store, id(1)).await.unwrap().thread;
    let sum = store.head(id(1)).await.unwrap().sum;
    store.put_checkpoint(&outpost_thread::Checkpoint::of(&kept, sum).unwrap()).await.unwrap();
    store.append(&lease, entries(last + 1, plain_turn(200)), Need::Stored).await.unwrap();
    let late = fork(store, id(1), id(3)).await.unwrap();
    let after = store.head(id(3)).await.unwrap().last;
    store.append(&late, entries(after + 1, plain_turn(201)), Need::Stored).await.unwrap();
    let _of_fork = fork(store, id(3), id(4)).await.unwrap();
    let (_short, _) = start(store, 5).await;
    let ids = [id(1), id(99), id(2), id(3), id(4), id(5), id(1)];
    let many = open_many(store, &ids).await.unwrap();
    assert_eq!(many.len(), 5);
    for number in 1..=5 {
        let (one, alone) = (&many[&id(number)], open(store, id(number)).await.unwrap());
        assert_eq!((&one.thread, one.folded), (&alone.thread, alone.folded), "thread {number}");
        assert_eq!((&one.damage, &one.unfit), (&alone.damage, &alone.unfit), "thread {number}");
    }
    assert_eq!(many[&id(1)].folded, 6, "what was kept is not read again");
    let standings = store.standings(&ids).await.unwrap();
    for number in 1..=5 {
        let standing = &standings[&id(number)];
        assert_eq!(standing.summary, store.summary(id(number)).await.unwrap(), "thread {number}");
        assert_eq!(standing.holder, store.holder(id(number)).await.unwrap(), "thread {number}");
    }
    assert!(standings[&id(1)].holder.is_some() && standings[&id(1)].summary.is_some());
    store.release(lease).await;
    assert_eq!(store.standings(&[id(1)]).await.unwrap()[&id(1)].holder, store.holder(id(1)).await.unwrap());
}

async fn the_context_starts_at_the_last_compaction(place: Place) {
    let store = &place.store;
    let (lease, mut written) = start(store, 1).await;
    let mut whole = Context::new();
    for turn in 0..4 {
        let mut facts = plain_turn(turn);
        if turn == 2 {
            let kept = vec![Kept::Entry(2), Kept::Item(outpost_thread::Raw::parse("{\"summary\":1}").unwrap())];
            facts.insert(0, ContextCompacted { turn: None, reason: CompactReason::Asked, kept, tokens: 5, context_generation: 1 }.into());
            // It waits while the context is made smaller.
            facts.insert(0, input("waits", None));
        }
        let next = entries(written.len() as u64 + 1, facts);
        store.append(&lease, next.clone(), Need::Stored).await.unwrap();
        written.extend(next);
    }
    written.iter().for_each(|entry| whole.apply(entry));
    let opened = open(store, id(1)).await.unwrap();
    assert!(opened.thread.compacted_ordinal > 0 && !opened.thread.waited_then.is_empty());
    let read = outpost_store::context(store, &opened.thread).await.unwrap();
    assert_eq!(read, whole);
    assert_eq!(read.items().len(), 6);
    let picked = store.entries(id(1), vec![3, 99_999, 1]).await.unwrap();
    assert_eq!(picked, [written[2].clone(), written[0].clone()]);
}

async fn large_content_comes_back(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    let text = "x".repeat(3 << 20);
    let large = entries(written.len() as u64 + 1, vec![input(&text, None)]);
    assert_eq!(store.append(&lease, large.clone(), Need::BeforeCompleted).await.unwrap().entries, large);
    assert_eq!(all(store, id(1)).await.last(), large.last());
    place.assert_lines_are_short();
    let digest = store.put_blob(b"image".to_vec()).await.unwrap();
    assert_eq!(store.blob(digest).await.unwrap(), b"image");
    assert!(store.blob(outpost_store::Digest::of(b"never stored")).await.is_err());
}

async fn unknown_kinds_are_carried(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    let data = outpost_thread::Raw::parse(r#"{"later": ["a",  1.50]}"#).unwrap();
    let strange = entries(written.len() as u64 + 1, vec![Fact::Unknown { kind: "fromTheFuture".into(), data }]);
    store.append(&lease, strange.clone(), Need::Stored).await.unwrap();
    assert_eq!(all(store, id(1)).await.last(), strange.last());
    assert_eq!(open(store, id(1)).await.unwrap().thread.unknown["fromTheFuture"], 1);
}

async fn secrets_are_not_stored(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    let told = entries(written.len() as u64 + 1, vec![input("the key is s3cr\\et \"s3cr\\et\"", None)]);
    let appended = store.append(&lease, told, Need::Stored).await.unwrap();
    let stored = all(store, id(1)).await;
    assert_eq!(stored.last(), appended.entries.last(), "the caller must be told what was stored");
    let text = appended.entries[0].fact.data().unwrap();
    assert!(text.get().contains("the key is *** \\\"***\\\"") && !text.get().contains("s3cr"), "{text:?}");
}

async fn deleted_threads_are_gone(place: Place) {
    let store = &place.store;
    let (lease, _) = start(store, 1).await;
    let held = store.delete(id(1), ClaimMode::IfFree).await;
    assert!(held.is_err(), "somebody writes it");
    store.release(lease).await;
    store.delete(id(1), ClaimMode::IfFree).await.unwrap();
    assert_eq!(store.threads().await.unwrap(), []);
    assert!(matches!(store.history(id(1), 0).await, Err(ReadError::NotFound(_))));
    place.assert_no_journals();
    // The id is free again.
    start(store, 1).await;
}

async fn listed(store: &Store, mut query: ListQuery) -> Vec<ThreadId> {
    let mut found = Vec::new();
    loop {
        let page = store.list(query.clone()).await.unwrap();
        found.extend(page.threads.iter().map(|thread| thread.id));
        match page.next {
            Some(next) => query.after = Some(next.to_string().parse::<ListCursor>().unwrap()),
            None => return found,
        }
    }
}

async fn lists_show_threads_in_pages(place: Place) {
    let store = &place.store;
    // All of them have equal times, as after an import.
    for number in 1..=23 {
        let (lease, _) = start(store, number).await;
        store.release(lease).await;
    }
    let all: std::collections::HashSet<ThreadId> = (1..=23).map(id).collect();
    for order in [ListOrder::Created, ListOrder::Updated, ListOrder::Recency] {
        for direction in [Direction::NewestFirst, Direction::OldestFirst] {
            for limit in [1, 5, 22, 23, 100] {
                let found = listed(store, ListQuery { order, direction, limit, ..ListQuery::default() }).await;
                assert_eq!(found.len(), 23, "{order:?} {direction:?} {limit}");
                assert_eq!(found.into_iter().collect::<std::collections::HashSet<_>>(), all);
            }
        }
    }
    let lease = store.claim(id(7), ClaimMode::IfFree).await.unwrap();
    let next = store.head(id(7)).await.unwrap().last + 1;
    let marks = outpost_thread::MetadataChanged { name: Some(Some("The Seventh".into())), archived: Some(true), ..Default::default() };
    store.append(&lease, entries(next, vec![marks.into()]), Need::Stored).await.unwrap();
    assert_eq!(listed(store, ListQuery { shelf: ListScope::Archived, ..ListQuery::default() }).await, [id(7)]);
    assert_eq!(listed(store, ListQuery::default()).await.len(), 22);
    let summary = store.summary(id(7)).await.unwrap().unwrap();
    assert_eq!((summary.name.as_deref(), summary.archived, summary.ordinal, summary.turns), (Some("The Seventh"), true, next, 1));
    assert_eq!(summary.preview.as_deref(), Some("message 100"));
    assert_eq!(listed(store, ListQuery { kin: Some(Ancestry::DescendantsOf(id(7))), ..ListQuery::default() }).await, []);
    assert_eq!(store.summary(id(99)).await.unwrap(), None);
}

async fn words_are_found(place: Place) {
    let store = &place.store;
    for (number, text) in [(1, "a Red apple"), (2, "a green Apple-tree"), (3, "nothing of it")] {
        let lease = store.create(id(number)).await.unwrap();
        store.append(&lease, entries(1, vec![created(number), input(text, None)]), Need::Stored).await.unwrap();
        store.release(lease).await;
    }
    if let Store::Local(store) = store {
        store.index().unwrap().complete().await;
    }
    for (search, expected) in
        [("apple", vec![2, 1]), ("APP", vec![2, 1]), ("red app", vec![1]), ("red tree", vec![]), ("tree", vec![2]), ("\"", vec![])]
    {
        let query = ListQuery { search: Some(search.to_owned()), ..ListQuery::default() };
        assert_eq!(store.list(query.clone()).await.unwrap().coverage, Coverage::Complete);
        assert_eq!(listed(store, query).await, expected.into_iter().map(id).collect::<Vec<_>>(), "{search}");
    }
}

async fn where_words_stand_is_found(place: Place) {
    let store = &place.store;
    for (number, texts) in [(1, ["nothing", "a red apple", "another red apple"]), (2, ["an apple", "red", "nothing"])] {
        let lease = store.create(id(number)).await.unwrap();
        let facts = std::iter::once(created(number)).chain(texts.map(|text| input(text, None))).collect();
        store.append(&lease, entries(1, facts), Need::Stored).await.unwrap();
        store.release(lease).await;
    }
    if let Store::Local(store) = store {
        store.index().unwrap().complete().await;
    }
    let all = [id(1), id(2), id(99)];
    for (search, expected) in [("apple", vec![(1, 3), (2, 2)]), ("RED app", vec![(1, 3)]), ("red", vec![(1, 3), (2, 3)]), ("blue", vec![])]
    {
        let mentions = store.mentions(&all, search).await.unwrap();
        let places: BTreeMap<_, _> = mentions.iter().map(|(thread, entry)| (*thread, entry.ordinal)).collect();
        assert_eq!(places, expected.into_iter().map(|(thread, ordinal)| (id(thread), ordinal)).collect(), "{search}");
        assert!(
            mentions
                .values()
                .all(|entry| outpost_store::searchable(entry).contains(search.split(' ').next().unwrap().to_lowercase().as_str()))
        );
    }
    assert_eq!(store.mentions(&[id(2)], "apple").await.unwrap().len(), 1, "others are not asked for");
}

async fn a_fork_shows_what_it_inherited(place: Place) {
    let store = &place.store;
    let (lease, written) = start(store, 1).await;
    let cut = Cut { ordinal: written.len() as u64, close: None };
    let child = store.fork(ForkRequest { forked: ThreadForked::new(id(2), id(1)), cut, at: 1_763_247_700_000 }).await.unwrap();
    let summary = store.summary(id(2)).await.unwrap().unwrap();
    assert_eq!((summary.forked_from, summary.created_at, summary.ordinal), (Some(id(1)), 1_763_247_700_000, written.len() as u64 + 1));
    assert_eq!((summary.preview.as_deref(), summary.turns), (Some("message 100"), 1));
    store.release(child).await;
    store.release(lease).await;
    store.delete(id(1), ClaimMode::IfFree).await.unwrap();
    assert_eq!(listed(store, ListQuery::default()).await, [id(2)]);
    let summary = store.summary(id(2)).await.unwrap().unwrap();
    assert_eq!((summary.preview.as_deref(), summary.turns, summary.forked_from), (Some("message 100"), 1, Some(id(1))));
}

/// What nodes share is the same in memory and in a database; a store of one home has nothing of the kind.
mod records {
    use outpost_store::{RecordChanges, SharedRecords};
    use outpost_testkit::postgres::Database;

    use super::support::{Place, postgres};

    #[tokio::test]
    async fn in_memory() {
        let memory = SharedRecords::memory();
        records_are_kept_and_told(&memory, &memory).await;
        of_many_changes_none_is_lost(&[memory.clone(), memory]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn in_postgres() {
        let database = Database::create();
        let (one, two) = (postgres(database.url(), "one").await, postgres(database.url(), "two").await);
        let (one, two) = (one.records().unwrap(), two.records().unwrap());
        records_are_kept_and_told(&one, &two).await;
        of_many_changes_none_is_lost(&[one, two]).await;
    }

    #[tokio::test]
    async fn a_store_of_one_home_shares_nothing() {
        assert!(Place::memory().store.records().is_none() && Place::local().store.records().is_none());
    }

    /// A program that hears nothing looks after ten seconds, which is told apart. A busy machine has a minute.
    async fn told(changes: &mut RecordChanges) -> bool {
        for _ in 0..6 {
            if changes.wait().await {
                return true;
            }
        }
        false
    }

    async fn records_are_kept_and_told(writer: &SharedRecords, reader: &SharedRecords) {
        // Making the connection may have taken a change with it, and counts as one.
        let mut changes = reader.changes();
        assert!(writer.put_new("token", "a", "1").await.unwrap());
        assert!(told(&mut changes).await);
        assert!(!writer.put_new("token", "a", "2").await.unwrap(), "there is one");
        assert_eq!(reader.get("token", "a").await.unwrap().as_deref(), Some("1"));
        assert_eq!(reader.get("token", "b").await.unwrap(), None);
        assert_eq!(reader.get("bound", "a").await.unwrap(), None, "another kind");
        for kind in ["environments", "token", "bound"] {
            for change in ["put", "exchange", "remove"] {
                // Whatever is left of the changes before.
                while tokio::time::timeout(std::time::Duration::from_millis(200), changes.wait()).await.is_ok() {}
                match change {
                    "put" => assert!(writer.put_new(kind, "all", "x").await.unwrap()),
                    "exchange" => assert!(writer.exchange(kind, "all", "x", "y").await.unwrap()),
                    _ => assert!(writer.remove(kind, "all").await.unwrap()),
                }
                assert!(told(&mut changes).await, "{kind}: {change}");
            }
        }
        assert!(!writer.exchange("token", "a", "2", "3").await.unwrap(), "it is another one");
        assert!(!writer.exchange("token", "b", "", "3").await.unwrap(), "there is none");
        assert!(!writer.remove("token", "b").await.unwrap());
        writer.put_new("token", "0", "zero").await.unwrap();
        let all: Vec<String> =
            reader.all("token").await.unwrap().into_iter().map(|record| format!("{}={}", record.key, record.content)).collect();
        assert_eq!(all, ["0=zero", "a=1"]);
    }

    async fn of_many_changes_none_is_lost(nodes: &[SharedRecords; 2]) {
        nodes[0].put_new("environments", "sum", "").await.unwrap();
        let add = async |node: &SharedRecords, digit: &str| {
            for _ in 0..20 {
                loop {
                    let before = node.get("environments", "sum").await.unwrap().unwrap();
                    if node.exchange("environments", "sum", &before, &format!("{before}{digit}")).await.unwrap() {
                        break;
                    }
                }
            }
        };
        tokio::join!(add(&nodes[0], "a"), add(&nodes[1], "b"));
        let sum = nodes[1].get("environments", "sum").await.unwrap().unwrap();
        assert_eq!((sum.matches('a').count(), sum.matches('b').count()), (20, 20), "{sum}");
    }
}
