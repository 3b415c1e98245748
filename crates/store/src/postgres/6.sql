-- Version 6: the database itself refuses programs that are too old for its tables. Every connection says of which version its program is;
-- those of version 0.1.0 say nothing, and look at no version either.
create function outpost_fence() returns trigger language plpgsql as $$
declare
  program bigint := coalesce(nullif(current_setting('outpost.version', true), ''), '1')::bigint;
begin
  if program < (select max(oldest) from outpost_migrations) then
    raise exception 'the tables of this database were made by a newer program, and this one may not write them any more: upgrade it';
  end if;
  return null;
end $$;
-- Says which programs may write tables of a version. The trigger is there once it shuts any out: until then it would cost every append something.
create function outpost_require(made bigint, program bigint) returns void language plpgsql as $$
begin
  update outpost_migrations set oldest = program where version = made;
  if program > 1 then
    drop trigger if exists outpost_fence on outpost_threads;
    create trigger outpost_fence before insert or update on outpost_threads for each statement execute function outpost_fence();
  end if;
end $$;
