# Python: virtual environments, packages, servers, processes.

## prepare
# needs: python3
mkdir -p "$PREP/wheels" && python3 -m pip download -q --disable-pip-version-check --no-deps -d "$PREP/wheels" iniconfig pluggy packaging pytest pygments setuptools wheel

## a virtual environment and pip install
# needs: python3
### inside
python3 -m venv env && ./env/bin/pip install -q --no-index --find-links "$PREP/wheels" pytest && ./env/bin/pytest --version

## pytest with a live server
# needs: python3
### inside
python3 -m venv --without-pip env && python3 -m pip install -q --disable-pip-version-check --no-index --find-links "$PREP/wheels" --target lib pytest
cat >test_app.py <<'P'
import http.server, threading, urllib.request
def test_serves():
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("127.0.0.1", "localhost"):
        assert urllib.request.urlopen(f"http://{name}:{server.server_port}/test_app.py").status == 200
    server.shutdown()
def test_tmp_path(tmp_path):
    (tmp_path / "file").write_text("x")
P
PYTHONPATH=lib python3 -m pytest -q

## pip install with pip's own cache in the home
# needs: python3
### inside
python3 -m venv env && ./env/bin/pip install --no-index --find-links "$PREP/wheels" iniconfig 2>&1 | tee said && ! grep -q -i 'cache.*disabled' said
./env/bin/pip cache dir

## an editable install of a package of the workspace
# needs: python3
### inside
mkdir app && echo 'answer = 42' >app/__init__.py && printf '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\nname = "app"\nversion = "1"\n' >pyproject.toml
python3 -m venv env && ./env/bin/pip install -q --no-index --find-links "$PREP/wheels" setuptools wheel && ./env/bin/pip install -q --no-index --no-build-isolation -e . && cd / && "$OLDPWD/env/bin/python" -c 'import app; assert app.answer == 42'

## pip install --user
# needs: python3
### inside
python3 -m pip install -q --user --break-system-packages --no-index --find-links "$PREP/wheels" iniconfig 2>said || python3 -m pip install -q --user --no-index --find-links "$PREP/wheels" iniconfig
python3 -c 'import iniconfig'

## http.server and a client in another process
# needs: python3
# test
### inside
echo served >page && { python3 -m http.server --bind 127.0.0.1 8901 >/dev/null 2>&1 & }
until_ok python3 -c 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:8901/page")'
python3 -c 'import urllib.request; assert urllib.request.urlopen("http://localhost:8901/page").read() == b"served\n"'

## multiprocessing: a pool, locks, queues (POSIX semaphores)
# needs: python3
# test
### inside
cat >app.py <<'P'
import multiprocessing as m
def twice(n): return 2 * n
if __name__ == "__main__":
    with m.Pool(2) as pool: assert pool.map(twice, range(5)) == [0, 2, 4, 6, 8]
    lock, queue = m.Lock(), m.Queue()
    with lock: queue.put(1)
    assert queue.get() == 1
P
python3 app.py

## shared memory
# needs: python3
# test
### inside
python3 -c '
from multiprocessing import shared_memory
one = shared_memory.SharedMemory(create=True, size=1 << 20, name="everyday")
other = shared_memory.SharedMemory("everyday"); one.buf[0] = 7; assert other.buf[0] == 7; other.close(); one.close(); one.unlink()'

## a unix socket in the workspace, in /tmp and an abstract one
# needs: python3
# test
### inside
cat >app.py <<'P'
import os, socket, threading
for path in (os.path.join(os.getcwd(), "s"), f"/tmp/everyday-{os.getpid()}.sock", f"\0everyday-{os.getpid()}"):
    server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
    threading.Thread(target=lambda: server.accept()[0].sendall(b"served")).start()
    client = socket.socket(socket.AF_UNIX); client.connect(path); assert client.recv(9) == b"served", path
P
python3 app.py

## asyncio: a server, a subprocess, a pipe
# needs: python3
### inside
python3 -c '
import asyncio
async def main():
    async def serve(reader, writer): writer.write(await reader.readline()); await writer.drain(); writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0); port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port); writer.write(b"hi\n"); assert await reader.readline() == b"hi\n"
    child = await asyncio.create_subprocess_shell("echo out", stdout=asyncio.subprocess.PIPE); assert (await child.communicate())[0] == b"out\n"
asyncio.run(main())'

## sqlite in write-ahead mode
# needs: python3
# test
### inside
python3 -c '
import sqlite3
one = sqlite3.connect("data.db"); one.execute("pragma journal_mode=wal"); one.execute("create table t (n)"); one.execute("insert into t values (1)"); one.commit()
assert sqlite3.connect("data.db").execute("select n from t").fetchone() == (1,)'

## the certificates of the system
# needs: python3
# test
### inside
python3 -c 'import ssl; assert len(ssl.create_default_context().get_ca_certs()) > 10'

## bytecode, __pycache__ and temporary files
# needs: python3
### inside
echo 'answer = 42' >mod.py && python3 -c 'import mod, tempfile; tempfile.NamedTemporaryFile().write(b"x"); tempfile.mkdtemp()' && [ -d __pycache__ ]

## pdb and faulthandler
# needs: python3
### inside
printf 'x = 41\nx += 1\n' >app.py && printf 'next\nnext\np x\nquit\n' | python3 -m pdb app.py | grep -q 41
python3 -X faulthandler -c 'import faulthandler; faulthandler.dump_traceback_later(60); faulthandler.cancel_dump_traceback_later()'

## pre-commit run
# needs: pre-commit git
### before
git init -q -b main . && printf 'repos:\n- repo: local\n  hooks:\n  - {id: no-tabs, name: no tabs, language: system, entry: "sh -c \\"! grep -n tab file\\""}\n' >.pre-commit-config.yaml && echo x >file && git add . && git commit -q -m one
### inside
pre-commit run --all-files | grep -q Passed

## pre-commit install, then commit
# needs: pre-commit git
### before
git init -q -b main . && printf 'repos:\n- repo: local\n  hooks:\n  - {id: ok, name: ok, language: system, entry: "true"}\n' >.pre-commit-config.yaml && git add . && git commit -q -m one
### inside
pre-commit install >/dev/null && echo x >file && git add . && git commit -m two 2>&1 | grep -q Passed
### after
git log --oneline | grep -q two

## pip install from the package index
# needs: python3
# forbidden: no network
# allow: -c sandbox_workspace_write.network_access=true
### inside
python3 -m venv env && ./env/bin/pip install -q --disable-pip-version-check iniconfig && ./env/bin/python -c 'import iniconfig'
