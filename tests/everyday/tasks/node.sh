# Node: npm with its cache and logs in the home, servers, workers, watchers, bundlers.

## prepare
# needs: npm node
mkdir -p "$PREP/node" && cd "$PREP/node" && npm install --silent --no-audit --no-fund --prefix . typescript@5 tsx@4 vite@5 vitest@2 playwright-core@1.64.1 is-number@7 ws@8

## npm init, run, test
# needs: npm node
# test
### inside
npm init -y >/dev/null && npm pkg set scripts.test='node --test' scripts.hello='echo hello' && npm run --silent hello | grep -q hello
echo 'require("node:test")("adds", () => require("node:assert").equal(1 + 1, 2))' >app.test.js && npm test --silent

## npm pack and npm install of a tarball
# needs: npm node
# test
### inside
mkdir dep app && cd dep && npm init -y >/dev/null && echo 'module.exports = 42' >index.js && npm pack --silent >/dev/null
cd ../app && npm init -y >/dev/null && npm install --silent --no-audit --no-fund --offline ../dep/dep-1.0.0.tgz && [ "$(node -p 'require("dep")')" = 42 ]

## npm install of a local package with an install script
# needs: npm node
### inside
mkdir dep app && (cd dep && npm init -y >/dev/null && npm pkg set scripts.postinstall='node -e "require(\"fs\").writeFileSync(\"built\", \"\")"' && npm pack --silent >/dev/null)
cd app && npm init -y >/dev/null && npm install --silent --no-audit --no-fund --offline ../dep/dep-1.0.0.tgz && [ -f node_modules/dep/built ]

## npx of a program of the project
# needs: npm node
### inside
ln -s "$PREP/node/node_modules" node_modules && npx --no-install tsc --version | grep -q Version

## npm install -g into the home
# needs: npm node
### inside
mkdir tool && cd tool && npm init -y >/dev/null && npm pkg set bin.everyday-tool=cli.js && printf '#!/usr/bin/env node\nconsole.log("tool")\n' >cli.js && npm pack --silent >/dev/null
npm install --silent --offline -g --prefix "$HOME/.local" ./tool-1.0.0.tgz && "$HOME/.local/bin/everyday-tool" | grep -q tool

## npm config set, which writes ~/.npmrc
# needs: npm node
# forbidden: of the home only directories of caches and settings are written
# allow: -c sandbox_workspace_write.writable_roots=["$HOME/.npmrc"]
### inside
mkdir tool && cd tool && npm init -y >/dev/null && npm pkg set bin.everyday-tool=cli.js && printf '#!/usr/bin/env node\nconsole.log("tool")\n' >cli.js && npm pack --silent >/dev/null
npm config set prefix "$HOME/.local" && npm install --silent --offline -g ./tool-1.0.0.tgz && "$HOME/.local/bin/everyday-tool" | grep -q tool

## an HTTP server and fetch
# needs: node
# test
### inside
node -e '
const server = require("http").createServer((_, answer) => answer.end("served"))
server.listen(0, "localhost", async () => {
  const answer = await fetch(`http://localhost:${server.address().port}/`)
  if (await answer.text() !== "served") process.exit(1)
  server.close(); server.closeAllConnections()
})'

## a server of another process, by curl
# needs: node curl
### inside
echo 'require("http").createServer((_, answer) => answer.end("served")).listen(8902, "127.0.0.1")' >server.js && node server.js & until_ok curl -sf http://127.0.0.1:8902/
[ "$(curl -sf http://localhost:8902/)" = served ]; kill $!

## worker threads and cluster
# needs: node
### inside
node -e '
const { Worker, isMainThread, parentPort } = require("worker_threads")
new Worker("require(\"worker_threads\").parentPort.postMessage(new SharedArrayBuffer(8).byteLength)", { eval: true }).on("message", n => process.exitCode = n === 8 ? 0 : 1)'
cat >cluster.js <<'J'
const cluster = require("cluster"), http = require("http")
if (cluster.isPrimary) { cluster.fork(); cluster.fork(); let n = 0; cluster.on("listening", () => { if (++n === 2) http.get("http://127.0.0.1:8903", a => { a.resume(); process.exit(a.statusCode === 200 ? 0 : 1) }) }) }
else http.createServer((_, a) => a.end()).listen(8903, "127.0.0.1")
J
node cluster.js

## fs.watch sees a change
# needs: node
# test
### inside
node -e '
const fs = require("fs"), timer = setTimeout(() => process.exit(1), 20000)
fs.mkdirSync("src/deep", { recursive: true })
fs.watch("src", { recursive: true }, (_, name) => { if (name?.endsWith("file")) { clearTimeout(timer); process.exit(0) } })
setInterval(() => fs.writeFileSync("src/deep/file", String(Date.now())), 200)'

## node --watch restarts
# needs: node
### inside
echo 'console.log("one")' >app.js && { node --watch app.js >said 2>&1 & } && pid=$! && until_ok grep -q one said
n=0; until grep -q two said || [ $n -gt 50 ]; do n=$((n + 1)); echo 'console.log("two")' >app.js; sleep 0.3; done; kill $pid; grep -q two said

## a unix socket in the temporary directory, as tsx makes one
# needs: node
### inside
printf 'const n: number = 42\nconsole.log(n)\n' >app.ts && [ "$("$PREP/node/node_modules/.bin/tsx" app.ts)" = 42 ]

## the debugger's port
# needs: node curl
### inside
echo 'setInterval(() => 0, 1000)' >app.js && { node --inspect=127.0.0.1:8904 app.js 2>/dev/null & } && until_ok curl -sf http://127.0.0.1:8904/json && curl -sf http://127.0.0.1:8904/json | grep -q webSocketDebuggerUrl; kill $!

## tsc in watch mode
# needs: node
### inside
echo 'const n: number = 1' >app.ts && { "$PREP/node/node_modules/.bin/tsc" --watch --preserveWatchOutput app.ts >said 2>&1 & } && pid=$! && until_ok [ -f app.js ]
echo 'const m: number = 2' >app.ts && until_ok grep -q 'm = 2' app.js; kill $pid; grep -q 'm = 2' app.js

## vite: build, and a development server
# needs: node curl
### inside
ln -s "$PREP/node/node_modules" node_modules && echo '<script type="module" src="/app.js"></script>' >index.html && echo 'document.title = "built"' >app.js && echo '{"type":"module"}' >package.json
npx vite build --logLevel error --configLoader runner 2>/dev/null || npx vite build --logLevel error && ls dist/assets/*.js >/dev/null
{ npx vite --port 8905 --host 127.0.0.1 >log 2>&1 & } && until_ok curl -sf http://127.0.0.1:8905/app.js && curl -sf http://127.0.0.1:8905/ | grep -q vite/client; kill $!

## vitest
# needs: node
### inside
ln -s "$PREP/node/node_modules" node_modules && printf 'import { expect, test } from "vitest"\ntest("adds", () => expect(1 + 1).toBe(2))\n' >app.test.js && npx vitest run --cache=false >said 2>&1 || npx vitest run >said 2>&1; grep -q '1 passed' said

## a WebSocket between two processes
# needs: node
### inside
ln -s "$PREP/node/node_modules" node_modules && echo 'new (require("ws").WebSocketServer)({ port: 8906, host: "127.0.0.1" }).on("connection", s => s.send("hi"))' >server.js && { node server.js & } && pid=$!
until_ok node -e 'new (require("ws"))("ws://127.0.0.1:8906").on("message", m => process.exit(String(m) === "hi" ? 0 : 1)).on("error", () => process.exit(1))'; kill $pid

## WebAssembly
# needs: node
### inside
node -e 'new WebAssembly.Memory({ initial: 1, maximum: 65536 }); const m = new WebAssembly.Module(Buffer.from("0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b", "hex")); if (new WebAssembly.Instance(m).exports.add(20, 22) !== 42) process.exit(1)'

## chromium takes a picture of a page of a local server
# needs: chromium node
# timeout: 180
### inside
echo '<h1>served</h1>' >index.html && { node -e 'require("http").createServer((_, a) => { a.setHeader("content-type", "text/html"); a.end("<h1>served</h1>") }).listen(8907, "127.0.0.1")' & } && pid=$!
chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync --user-data-dir="$PWD/profile" --screenshot="$PWD/page.png" http://127.0.0.1:8907/ >log 2>&1 || { tail -n 3 log >&2; exit 1; }
kill $pid; [ -s page.png ]

## playwright drives chromium
# needs: chromium node
# timeout: 180
### inside
ln -s "$PREP/node/node_modules" node_modules && node -e '
const { chromium } = require("playwright-core");
(async () => {
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"] })
  const page = await browser.newPage(); await page.setContent("<button onclick=\"this.textContent=1\">0</button>"); await page.click("button")
  const text = await page.textContent("button"); await browser.close(); process.exit(text === "1" ? 0 : 1)
})().catch(error => { console.error(String(error).split("\n")[0]); process.exit(1) })'

## npm install from the registry
# needs: npm node
# forbidden: no network
# allow: -c sandbox_workspace_write.network_access=true
### inside
npm init -y >/dev/null && npm install --silent --no-audit --no-fund is-number@7.0.0 && node -e 'process.exit(require("is-number")(1) ? 0 : 1)'
