-- The index of threads: disposable, made again from the journals. A change here needs a new VERSION in database.rs.
create table threads (
  key         integer primary key,
  id          text not null unique,
  -- What the row was made from: a journal of another length or time has changed since. A time of 0 is never right.
  size        integer not null,
  modified    integer not null,
  -- Up to this byte of the journal everything is in the index: summary, turns and words. 0: the summary is a quick look at
  -- both ends of the journal.
  worded      integer not null,
  -- The sum of the last line before that byte: a journal that goes on with another one was rewritten.
  chain       text not null,
  -- The highest ordinal ever seen: a journal that ends before it has lost its end.
  high_seq    integer not null,
  created_at  integer not null,
  updated_at  integer not null,
  recency_at  integer not null,
  archived    integer not null,
  source      text,
  cwd         text,
  parent      text,
  name        text,
  -- The rest of the summary; what is sorted and filtered by stands in columns.
  summary     text not null,
  -- A sum over everything above: a flipped bit in a row is found when the row is read.
  sum         integer not null
);
create index threads_created on threads (archived, created_at, id);
create index threads_updated on threads (archived, updated_at, id);
create index threads_recency on threads (archived, recency_at, id);
create index threads_parent on threads (parent) where parent is not null;
create index threads_named on threads (name) where name is not null;

-- Where turns begin.
create table turns (
  thread  integer not null,
  number  integer not null,
  seq     integer not null,
  primary key (thread, number)
) without rowid;

-- The words of messages; the messages themselves stay in the journals. A row is the thread's key and the ordinal: key << 32 | seq.
create virtual table words using fts5(text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 2');
-- Merging pieces of the word index less often writes less per turn; a larger buffer makes fewer pieces when all is read.
insert into words (words, rank) values ('automerge', 16), ('hashsize', 8388608);
