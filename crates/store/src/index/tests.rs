//! The index against real files: garbled, deleted, stale, equal timestamps.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use outpost_thread::{
    Entry, Fact, InputId, InputReceived, MetadataChanged, Ordinal, Parent, Raw, Settings, ThreadCreated, ThreadId, TurnStarted,
};
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use super::database::{Database, IndexError};
use super::writer::IndexWriter;
use super::{Index, IndexConfig};
use crate::journal::{self, LineParts, Sum};
use crate::list::{Ancestry, Coverage, Direction, ListCursor, ListOrder, ListQuery, ListScope};

struct Home {
    directory: tempfile::TempDir,
}

/// A journal that is written by hand.
struct Journal {
    id: ThreadId,
    path: PathBuf,
    sum: Sum,
    ordinal: Ordinal,
    at: u64,
}

fn id(number: u128) -> ThreadId {
    ThreadId::new(Uuid::from_u128(number))
}

impl Home {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn config(&self) -> IndexConfig {
        IndexConfig { idle: Duration::from_millis(5), ..IndexConfig::of_home(self.directory.path()) }
    }

    fn start(&self) -> Index {
        Index::start(self.config()).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("index/threads.sqlite")
    }

    fn journal(&self, number: u128, at: u64) -> Journal {
        let folder = self.directory.path().join("threads/2026/11/15");
        fs::create_dir_all(&folder).unwrap();
        let (id, path) = (id(number), folder.join(format!("{}.jsonl", id(number))));
        let (line, sum) = journal::header(id, None);
        fs::write(&path, line).unwrap();
        let mut journal = Journal { id, path, sum, ordinal: 0, at };
        let settings = Settings { cwd: Some(format!("/work/{}", number % 3)), ..Settings::default() };
        journal.append(ThreadCreated { source: Some(Raw::from(json!("cli"))), settings, ..ThreadCreated::new(id) });
        journal
    }
}

impl Journal {
    fn append(&mut self, fact: impl Into<Fact>) {
        self.ordinal += 1;
        let entry = Entry { ordinal: self.ordinal, at: self.at, fact: fact.into() };
        let mut line = Vec::new();
        let data = entry.fact.data().unwrap();
        let parts = LineParts { ordinal: entry.ordinal, at: entry.at, kind: entry.fact.kind(), data: data.get() };
        self.sum = journal::write(&mut line, self.sum, parts);
        File::options().append(true).open(&self.path).unwrap().write_all(&line).unwrap();
    }

    fn say(&mut self, text: &str) {
        let item = Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}));
        let input = InputId::from(format!("i{}", self.ordinal));
        self.append(InputReceived {
            input,
            turn: None,
            origin: Default::default(),
            client_key: None,
            by: None,
            content: vec![],
            items: vec![item],
        });
    }

    fn turn(&mut self, name: &str) {
        self.append(serde_json::from_value::<TurnStarted>(json!({"turn": name})).unwrap());
    }
}

async fn all(index: &Index, mut query: ListQuery) -> Vec<ThreadId> {
    let mut found = Vec::new();
    loop {
        let page = index.list(query.clone()).await.unwrap();
        found.extend(page.threads.iter().map(|thread| thread.id));
        match page.next {
            Some(next) => query.after = Some(next.to_string().parse::<ListCursor>().unwrap()),
            None => return found,
        }
    }
}

async fn search(index: &Index, words: &str) -> Vec<ThreadId> {
    all(index, ListQuery { search: Some(words.to_owned()), ..ListQuery::default() }).await
}

#[test]
fn what_the_database_says_is_behind_an_index_that_cannot_be_used() {
    let home = Home::new();
    fs::create_dir_all(home.file().parent().unwrap()).unwrap();
    fs::write(home.file(), "this is not a database, and longer than the head of one: ".repeat(20)).unwrap();
    let error = Database::open(&home.file()).err().unwrap();
    assert!(matches!(error, IndexError::Unusable(_)), "{error:?}");
    let mut causes = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    assert!(causes.any(|cause| cause.is::<rusqlite::Error>()), "{error:?}");
}

#[tokio::test]
async fn threads_with_equal_times_are_paged_without_loss() {
    let home = Home::new();
    for number in 1..=103 {
        home.journal(number, 1000 + u64::try_from(number).unwrap() / 50).say("hello");
    }
    let index = home.start();
    for order in [ListOrder::Created, ListOrder::Updated, ListOrder::Recency] {
        for direction in [Direction::NewestFirst, Direction::OldestFirst] {
            for limit in [1, 7, 50, 103, 200] {
                let found = all(&index, ListQuery { order, direction, limit, ..ListQuery::default() }).await;
                let distinct: HashSet<_> = found.iter().collect();
                assert_eq!((found.len(), distinct.len()), (103, 103), "{order:?} {direction:?} {limit}");
            }
        }
    }
}

#[tokio::test]
async fn filters_kin_and_marks() {
    let home = Home::new();
    let mut root = home.journal(1, 10);
    root.say("root");
    for (number, parent) in [(2, 1), (3, 2), (4, 3), (5, 9)] {
        let mut child = home.journal(number, 20);
        // The first entry is written anew with a parent.
        let (line, sum) = journal::header(child.id, None);
        fs::write(&child.path, line).unwrap();
        (child.sum, child.ordinal) = (sum, 0);
        let parent = Parent { thread: id(parent), depth: 1, path: None, nickname: None, role: None };
        let source = Some(Raw::from(json!({"subagent": {"x": 1}})));
        child.append(ThreadCreated { parent: Some(parent), source, ..ThreadCreated::new(child.id) });
    }
    root.append(MetadataChanged { name: Some(Some("100% Ready_made".into())), archived: Some(true), ..MetadataChanged::default() });
    let index = home.start();
    let ids = |numbers: &[u128]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
    assert_eq!(all(&index, ListQuery { shelf: ListScope::Archived, ..ListQuery::default() }).await, ids(&[1]));
    assert_eq!(all(&index, ListQuery::default()).await.len(), 4);
    let kin = |kin| ListQuery { kin: Some(kin), direction: Direction::OldestFirst, ..ListQuery::default() };
    assert_eq!(all(&index, kin(Ancestry::ChildrenOf(id(1)))).await, ids(&[2]));
    assert_eq!(all(&index, kin(Ancestry::DescendantsOf(id(1)))).await, ids(&[2, 3, 4]));
    assert_eq!(all(&index, ListQuery { sources: vec!["subagent".into()], ..ListQuery::default() }).await.len(), 4);
    assert_eq!(all(&index, ListQuery { shelf: ListScope::Both, cwds: vec!["/work/1".into()], ..ListQuery::default() }).await, ids(&[1]));
    for (words, count) in [("ready", 1), ("100%", 1), ("%", 1), ("10%R", 0), ("root", 1), ("ROO", 1), ("\"", 0), ("root and", 0)] {
        let query = ListQuery { shelf: ListScope::Both, search: Some(words.into()), ..ListQuery::default() };
        assert_eq!(all(&index, query).await.len(), count, "{words}");
    }
    let summary = index.summary(id(1)).await.unwrap().unwrap();
    assert_eq!((summary.preview.as_deref(), summary.archived, summary.ordinal), (Some("root"), true, 3));
}

#[tokio::test]
async fn appends_are_seen_at_once_and_words_too() {
    let home = Home::new();
    let mut journal = home.journal(1, 10);
    let index = home.start();
    assert_eq!(all(&index, ListQuery::default()).await, [journal.id]);
    for round in 0..20 {
        journal.at += 1;
        journal.say(&format!("grüße number{round}"));
        journal.turn(&format!("turn-{round}"));
        index.touched(journal.id, &journal.path);
        assert_eq!(search(&index, &format!("number{round}")).await, [journal.id]);
    }
    assert_eq!(search(&index, "grusse").await, [], "ß is no s");
    assert_eq!(search(&index, "gruße").await, [journal.id], "an umlaut is its letter");
    let summary = index.summary(journal.id).await.unwrap().unwrap();
    assert_eq!((summary.ordinal, summary.updated_at, summary.recency_at), (41, 30, 30));
    assert_eq!(index.turn_start(journal.id, 2).await.unwrap(), Some(5));
    fs::remove_file(&journal.path).unwrap();
    index.removed(journal.id);
    assert_eq!(all(&index, ListQuery::default()).await, []);
    assert_eq!(search(&index, "number1").await, []);
}

type Spoiler = (&'static str, fn(&Path));

/// Ways to spoil a file, each of which must be healed.
fn spoilers() -> Vec<Spoiler> {
    fn write(path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
    }
    vec![
        ("deleted", |path| super::database::discard(path).unwrap()),
        ("empty", |path| write(path, b"")),
        ("garbage", |path| write(path, &b"no database ".repeat(5000))),
        ("zeroes", |path| write(path, &[0; 100_000])),
        ("cut", |path| write(path, &fs::read(path).unwrap()[..1500])),
        ("garbled in the middle", |path| {
            let mut bytes = fs::read(path).unwrap();
            let length = bytes.len();
            bytes[600..length - length / 4].fill(0x5a);
            write(path, &bytes);
        }),
        ("a directory", |path| {
            super::database::discard(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("another version", |path| {
            let other = rusqlite::Connection::open(path).unwrap();
            other.pragma_update(None, "user_version", 999).unwrap();
        }),
        ("another schema", |path| {
            super::database::discard(path).unwrap();
            rusqlite::Connection::open(path).unwrap().execute_batch("create table mine (x)").unwrap();
        }),
        ("a row with a flipped bit", |path| {
            let other = rusqlite::Connection::open(path).unwrap();
            other.execute_batch("update threads set summary = replace(summary, 'hello', 'hellp')").unwrap();
        }),
    ]
}

fn move_log_into_file(path: &Path) {
    let other = rusqlite::Connection::open(path).unwrap();
    other.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(())).unwrap();
}

fn filled() -> Home {
    let home = Home::new();
    for number in 1..=40 {
        home.journal(number, 1000).say(&format!("hello word{number}"));
    }
    home
}

#[tokio::test]
async fn an_index_that_was_spoiled_before_the_start_is_made_anew() {
    for (how, spoil) in spoilers() {
        let home = filled();
        let index = home.start();
        index.complete().await;
        assert!(index.check().await);
        drop(index);
        // The writer ends by itself, a moment later; only then is everything in one file.
        while home.file().with_extension("sqlite-wal").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        spoil(&home.file());
        let index = home.start();
        assert_eq!(all(&index, ListQuery::default()).await.len(), 40, "{how}");
        assert_eq!(search(&index, "word17").await, [id(17)], "{how}");
    }
}

#[tokio::test]
async fn an_index_that_is_spoiled_while_in_use_is_made_anew() {
    for (how, spoil) in spoilers() {
        let home = filled();
        let index = home.start();
        index.complete().await;
        assert_eq!(all(&index, ListQuery::default()).await.len(), 40);
        move_log_into_file(&home.file());
        spoil(&home.file());
        let mut journal = home.journal(41, 2000);
        journal.say("hello again");
        index.touched(journal.id, &journal.path);
        assert_eq!(all(&index, ListQuery::default()).await.len(), 41, "{how}");
        // What is spoiled beneath an open file may show itself only later.
        index.check().await;
        assert_eq!(search(&index, "again").await, [id(41)], "{how}");
        assert_eq!(search(&index, "word17").await, [id(17)], "{how}");
    }
}

#[tokio::test]
async fn changes_made_while_no_program_ran_are_found() {
    let home = filled();
    let index = home.start();
    index.complete().await;
    drop(index);
    home.journal(50, 3000).say("brand new");
    fs::remove_file(home.directory.path().join(format!("threads/2026/11/15/{}.jsonl", id(3)))).unwrap();

    let mut journal = home.journal(4, 5000);
    journal.say("rewritten from scratch");

    let index = home.start();
    assert_eq!(all(&index, ListQuery::default()).await.len(), 40);
    assert_eq!(search(&index, "brand").await, [id(50)]);
    assert_eq!(search(&index, "scratch").await, [id(4)]);
    assert_eq!(search(&index, "word4 hello").await, []);
}

#[tokio::test]
async fn a_journal_that_lost_its_end_is_known_to_have_had_more() {
    let home = Home::new();
    let mut journal = home.journal(1, 10);
    journal.say("one");
    let kept = fs::metadata(&journal.path).unwrap().len();
    journal.say("two");
    let index = home.start();
    index.complete().await;
    assert_eq!(index.high_ordinal(journal.id).await.unwrap(), Some(3));
    File::options().write(true).open(&journal.path).unwrap().set_len(kept).unwrap();
    index.touched(journal.id, &journal.path);
    assert_eq!(index.summary(journal.id).await.unwrap().unwrap().ordinal, 2);
    assert_eq!(index.high_ordinal(journal.id).await.unwrap(), Some(3));
    assert_eq!(search(&index, "two").await, []);
}

#[tokio::test]
async fn long_journals_are_listed_first_and_read_later() {
    let home = Home::new();
    let mut journal = home.journal(1, 10);
    journal.say("the beginning");
    for _ in 0..300 {
        journal.say(&"filler ".repeat(100));
    }
    journal.append(MetadataChanged { name: Some(Some("named late".into())), ..MetadataChanged::default() });
    for _ in 0..300 {
        journal.say(&"filler ".repeat(100));
    }
    journal.at = 77;
    journal.say("the end");
    let index = home.start();
    let summary = index.summary(journal.id).await.unwrap().unwrap();
    assert_eq!((summary.preview.as_deref(), summary.updated_at, summary.ordinal), (Some("the beginning"), 77, 604));
    assert_eq!(search(&index, "end").await, [journal.id]);
    assert_eq!(index.summary(journal.id).await.unwrap().unwrap().name.as_deref(), Some("named late"));
    let page = index.list(ListQuery::default()).await.unwrap();
    assert_eq!(page.coverage, Coverage::Complete);
}

/// A time that no database can hold is damage of one journal and nothing else.
#[tokio::test]
async fn one_odd_journal_does_not_hide_the_others() {
    let home = Home::new();
    home.journal(1, 1000).say("hello");
    home.journal(2, u64::MAX).say("hello");
    let index = home.start();
    assert!(all(&index, ListQuery::default()).await.contains(&id(1)));
    assert_eq!(search(&index, "hello").await, [id(1)]);
}

#[test]
fn what_a_quick_look_told_is_not_looked_at_again() {
    let home = Home::new();
    let mut journal = home.journal(1, 1000);
    journal.say("the first words");
    // Each ends before it reads the words, as a program does that only lists.
    let compare =
        || IndexWriter::new(home.config(), mpsc::channel().1, watch::Sender::default(), Arc::default()).open_and_compare().unwrap();
    let preview = || Database::open(&home.file()).unwrap().find(id(1)).unwrap().unwrap().1.summary.preview;
    compare();
    assert_eq!(preview().as_deref(), Some("the first words"));
    let then = fs::metadata(&journal.path).unwrap().modified().unwrap();
    let garbled = fs::read_to_string(&journal.path).unwrap().replace("the first words", "the other words");
    fs::write(&journal.path, garbled).unwrap();
    File::options().write(true).open(&journal.path).unwrap().set_modified(then).unwrap();
    compare();
    assert_eq!(preview().as_deref(), Some("the first words"), "it was read again");
}

#[tokio::test]
async fn other_users_cannot_read_it() {
    let home = filled();
    let index = home.start();
    index.complete().await;
    for entry in fs::read_dir(home.directory.path().join("index")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
    }
    assert_eq!(fs::metadata(home.directory.path().join("index")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn the_words_of_many_journals_are_written_in_one_piece() {
    let home = Home::new();
    for number in 1..=60 {
        let mut journal = home.journal(number, 1000);
        journal.turn("one");
        journal.say(&format!("question {number}"));
    }
    let index = home.start();
    index.complete().await;
    assert_eq!(search(&index, "question 7").await, [id(7)]);
    let pieces = || -> i64 {
        let connection = rusqlite::Connection::open(home.file()).unwrap();
        connection.query_row("select count(distinct segid) from words_idx", [], |row| row.get(0)).unwrap()
    };
    // Whatever makes SQLite look into the words, or begin a statement that could fail half way, has them written out.
    assert_eq!(pieces(), 1);
    let mut journal = home.journal(100, 2000);
    journal.say("an afterthought");
    index.touched(journal.id, &journal.path);
    assert_eq!(search(&index, "afterthought").await, [id(100)]);
    assert_eq!(pieces(), 2);
}
