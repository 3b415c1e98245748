-- Version 3: the nodes of a database share a key.
create table outpost_keys (
  name  text primary key,
  value text not null,
  made  timestamptz not null default now()
);
