-- Version 3: appends check no foreign keys, names are found by an index, nodes have an address, and what nodes share beside threads.
alter table outpost_migrations add column oldest bigint not null default 1;

-- What belongs to a thread goes with it. An append compares and writes the thread's row itself, so that no key needs to be checked.
alter table outpost_entries drop constraint outpost_entries_thread_fkey;
alter table outpost_words drop constraint outpost_words_thread_fkey;
create function outpost_forget() returns trigger language plpgsql as $$
begin
  delete from outpost_entries where thread = old.id;
  delete from outpost_words where thread = old.id;
  delete from outpost_names where thread = old.id;
  return old;
end $$;
create trigger outpost_forget after delete on outpost_threads for each row execute function outpost_forget();

-- Parts of names of up to three characters. Only ASCII is folded, so that the answer does not depend on the locale; the rest is compared afterwards.
create function outpost_grams(name text) returns text[] language sql immutable parallel safe as $$
  select coalesce(array_agg(distinct gram), '{}')
  from (select translate(name, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz') as low) folded,
       generate_series(1, 3) size, generate_series(1, length(low) - size + 1) start,
       substr(low, start, size) gram
  where octet_length(gram) = size
$$;
create table outpost_names (
  thread  text primary key,
  name    text not null
);
insert into outpost_names (thread, name) select id, name from outpost_threads where name is not null;
create index outpost_names_grams on outpost_names using gin (outpost_grams(name));
create function outpost_rename() returns trigger language plpgsql as $$
begin
  delete from outpost_names where thread = new.id;
  if new.name is not null then
    insert into outpost_names (thread, name) values (new.id, new.name);
  end if;
  return new;
end $$;
create trigger outpost_rename_new after insert on outpost_threads for each row when (new.name is not null) execute function outpost_rename();
create trigger outpost_rename after update on outpost_threads for each row when (new.name is distinct from old.name) execute function outpost_rename();

-- Where other nodes reach a node, and what it is called.
alter table outpost_nodes add column address text;
alter table outpost_nodes add column name text;

-- What the nodes of a store share: definitions of environments, tokens, who has which executor, and the secret by which nodes know each other.
create table outpost_shared (
  kind     text not null,
  key      text not null,
  content  text not null,
  changed  timestamptz not null default now(),
  primary key (kind, key)
);
insert into outpost_shared (kind, key, content)
values ('secret', 'nodes', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
