-- Version 5: nodes hear at once that definitions of environments or tokens changed. Other records change often, and are looked at in time.
create function outpost_tell_shared() returns trigger language plpgsql as $$
declare
  kind text := coalesce(new.kind, old.kind);
begin
  if kind in ('environments', 'token', 'bound') then
    perform pg_notify('outpost_shared', kind);
  end if;
  return null;
end $$;
create trigger outpost_tell_shared after insert or update or delete on outpost_shared for each row execute function outpost_tell_shared();
