-- Version 2: nodes know each other, and threads say whether they have work to do.
create table outpost_nodes (
  instance  text primary key,
  host      text not null,
  pid       bigint not null,
  -- It takes up threads of nodes that died, and its own are taken up.
  adopts    boolean not null,
  since     timestamptz not null default now(),
  expires   timestamptz not null
);
alter table outpost_threads add column work boolean not null default false;
-- So often was it taken up from a dead node since it last got on.
alter table outpost_threads add column claims bigint not null default 0;
create index outpost_threads_work on outpost_threads (instance) where work and instance is not null;
