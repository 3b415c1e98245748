-- Threads in Postgres, version 1. Released files are never changed: the next change is 2.sql.
create table outpost_threads (
  id            text primary key,
  -- The first ordinal of its own; everything before belongs to the base.
  first         bigint not null,
  last          bigint not null,
  base          text,
  base_ordinal  bigint,
  bytes         bigint not null default 0,
  -- It had input: before that it is nobody's business.
  born          boolean not null default false,
  -- The lease. The epoch grows with every change of hands and is compared with every write.
  epoch         bigint not null,
  instance      text,
  host          text,
  pid           bigint,
  since         timestamptz,
  expires       timestamptz,
  -- What lists show; the columns are copies of members of the summary.
  created_at    bigint not null default 0,
  updated_at    bigint not null default 0,
  recency_at    bigint not null default 0,
  archived      boolean not null default false,
  source        text,
  cwd           text,
  parent        text,
  name          text,
  summary       text not null
);
create index outpost_threads_created on outpost_threads (archived, created_at, id) where born;
create index outpost_threads_updated on outpost_threads (archived, updated_at, id) where born;
create index outpost_threads_recency on outpost_threads (archived, recency_at, id) where born;
create index outpost_threads_parent on outpost_threads (parent) where parent is not null;
create index outpost_threads_base on outpost_threads (base) where base is not null;
create index outpost_threads_instance on outpost_threads (instance) where instance is not null;

create table outpost_entries (
  thread  text not null references outpost_threads (id) on delete cascade,
  seq     bigint not null,
  at      bigint not null,
  kind    text not null,
  data    text not null,
  primary key (thread, seq)
);

create table outpost_words (
  thread  text not null references outpost_threads (id) on delete cascade,
  seq     bigint not null,
  words   tsvector not null,
  primary key (thread, seq)
);
create index outpost_words_words on outpost_words using gin (words);

create table outpost_checkpoints (
  thread   text primary key references outpost_threads (id) on delete cascade,
  seq      bigint not null,
  content  bytea not null
);

create table outpost_blobs (
  digest   text primary key,
  content  bytea not null
);
