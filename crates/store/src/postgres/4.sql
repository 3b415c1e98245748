-- The nodes of a database share a key, by which they claim each other's running commands.
create table outpost_keys (
  name  text primary key,
  value text not null,
  made  timestamptz not null default now()
);
