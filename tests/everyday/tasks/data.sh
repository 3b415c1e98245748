# Databases and servers on localhost.

## sqlite3
# needs: sqlite3
### inside
sqlite3 data.db 'create table t (n); insert into t values (42);' && [ "$(sqlite3 data.db 'select n from t')" = 42 ]

## redis on localhost
# needs: redis-server redis-cli
### inside
redis-server --port 8911 --bind 127.0.0.1 --save '' --daemonize no >log 2>&1 & until_ok redis-cli -p 8911 ping
redis-cli -p 8911 set k v >/dev/null && [ "$(redis-cli -p 8911 get k)" = v ]; redis-cli -p 8911 shutdown nosave || true

## postgres: initdb, a server, psql over TCP and over a socket
# needs: psql
# test
### inside
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); export PATH="$bin:$PATH"
initdb -D data -U postgres -A trust --no-sync --locale C >log 2>&1 || { cat log; exit 1; }
pg_ctl -D data -w -l server.log -o "-p 8912 -k /tmp -c listen_addresses=127.0.0.1" start >/dev/null
psql -h 127.0.0.1 -p 8912 -U postgres -Atc 'select 42' | grep -q 42 && psql -h /tmp -p 8912 -U postgres -Atc 'select 43' | grep -q 43; pg_ctl -D data -m fast stop >/dev/null

## memcached
# needs: memcached python3
### inside
memcached -u "$(id -un)" -l 127.0.0.1 -p 8913 & pid=$!; until_ok python3 -c 'import socket; s = socket.create_connection(("127.0.0.1", 8913)); s.sendall(b"stats\r\n"); assert b"STAT pid" in s.recv(99)'; kill $pid

## nginx serves the workspace
# needs: nginx curl
### inside
echo served >page && mkdir -p run && printf 'pid %s/run/pid; error_log stderr; daemon off; events {}\nhttp { access_log off; client_body_temp_path run/b; proxy_temp_path run/p; fastcgi_temp_path run/f; uwsgi_temp_path run/u; scgi_temp_path run/s; server { listen 127.0.0.1:8914; root %s; } }\n' "$PWD" "$PWD" >nginx.conf
nginx -p "$PWD" -c nginx.conf >log 2>&1 & until_ok curl -sf http://127.0.0.1:8914/page; [ "$(curl -sf http://127.0.0.1:8914/page)" = served ]; kill $!

## php's server
# needs: php curl
### inside
echo '<?php echo "served";' >index.php && { php -S 127.0.0.1:8915 >/dev/null 2>&1 & } && until_ok curl -sf http://127.0.0.1:8915/; [ "$(curl -sf http://127.0.0.1:8915/)" = served ]; kill $!

## ruby: a server and its client
# needs: ruby
### inside
ruby -rsocket -e 's = TCPServer.new("127.0.0.1", 0); Thread.new { s.accept.puts "served" }; exit TCPSocket.new("127.0.0.1", s.addr[1]).gets == "served\n"'

## datagrams on the loopback
# needs: perl
# test
### inside
perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(Proto => "udp", LocalAddr => "127.0.0.1") or die; my $c = IO::Socket::INET->new(Proto => "udp", PeerAddr => "127.0.0.1", PeerPort => $s->sockport) or die; $c->send("hi"); $s->recv(my $said, 9); exit($said ne "hi")'
