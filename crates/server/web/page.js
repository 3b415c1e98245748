// The page of `outpost serve`: a plain client of the app protocol. Nothing is loaded from anywhere else.

import { MARK, show as visible } from "/shown.js";

const $ = (id) => document.getElementById(id);

/** A text as nodes: what could deceive is marked, and the marks stand out. Texts of ours have nothing to mark. */
function parts(text, form = "text") {
  const shown = visible(String(text), form);
  const nodes = [];
  let at = 0;
  for (const { 0: mark, index } of shown.matchAll(MARK)) {
    const element = document.createElement("mark");
    element.textContent = mark;
    nodes.push(shown.slice(at, index), element);
    at = index + mark.length;
  }
  return [...nodes, shown.slice(at)];
}

/** What will be carried out, or a path: whatever is not plain ASCII is marked. */
const code = (text, form = "script") => h("span", { className: "exact" }, parts(text ?? "", form));

/** Attributes that people read. */
const READ = new Set(["title", "aria-label", "placeholder"]);

/** An element; text children are never read as HTML, and go through `parts`. */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (READ.has(name)) element.setAttribute(name, visible(String(value), "line"));
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  const there = children.filter((child) => child !== undefined && child !== null && child !== false);
  element.append(...there.flatMap((child) => (typeof child === "string" || typeof child === "number" ? parts(child) : child)));
  return element;
}

/** Keeps one element per key, so that what has the focus keeps it. */
function keyed(container, entries, make) {
  const old = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let at = container.firstChild;
  for (const [key, entry] of entries) {
    const signature = JSON.stringify(entry);
    let element = old.get(key);
    if (!element || element.signature !== signature) {
      const fresh = make(entry, key);
      fresh.dataset.key = key;
      fresh.signature = signature;
      if (element) {
        if (at === element) at = element.nextSibling;
        element.replaceWith(fresh);
        if (fresh.nextSibling !== at) container.insertBefore(fresh, at);
      } else container.insertBefore(fresh, at);
      element = fresh;
    } else if (element !== at) container.insertBefore(element, at);
    else at = at.nextSibling;
    old.delete(key);
  }
  for (const gone of old.values()) gone.remove();
}

function show(id, visible) { $(id).hidden = !visible; }
function complain(id, text) { $(id).replaceChildren(...parts(text ?? "", "line")); show(id, Boolean(text)); }

// ---------------------------------------------------------------- the link

const link = {
  socket: null, next: 1, pending: new Map(), wait: 500,
  call(method, params = {}) {
    return new Promise((resolve, reject) => {
      if (this.socket?.readyState !== WebSocket.OPEN) return reject(new Error("there is no connection"));
      const id = this.next++;
      this.pending.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ id, method, params }));
    });
  },
  answer(id, result) { this.socket?.send(JSON.stringify({ id, result })); },
};

function connect() {
  const scheme = location.protocol === "https:" ? "wss://" : "ws://";
  const socket = new WebSocket(`${scheme}${location.host}/`);
  link.socket = socket;
  socket.onopen = () => begin().catch((error) => { console.warn(error.message); socket.close(); });
  socket.onmessage = (event) => receive(JSON.parse(event.data));
  socket.onclose = async () => {
    for (const { reject } of link.pending.values()) reject(new Error("the connection was lost"));
    link.pending.clear();
    tell("failed", "not connected; trying again");
    // A user who was logged out meanwhile is asked for a token again.
    setTimeout(() => session().then((state) => (state?.in === false ? location.reload() : connect())), link.wait);
    link.wait = Math.min(link.wait * 2, 10_000);
  };
}

function tell(state, text) {
  document.querySelector("#link .dot").dataset.state = state;
  $("link-text").textContent = text;
}

async function begin() {
  await link.call("initialize", {
    clientInfo: { name: "outpost-page", title: "Outpost page", version: "1" },
    capabilities: { experimentalApi: true },
  });
  link.socket.send(JSON.stringify({ method: "initialized" }));
  link.wait = 500;
  tell("ready", "connected");
  questions.clear();
  heard.clear();
  for (const entry of (await link.call("environment/watch")).data) environments.set(entry.environmentId, entry);
  drawEnvironments();
  drawQuestions();
  await refresh();
  await route();
}

function receive(message) {
  if (message.method && message.id !== undefined) return asked(message);
  if (message.method) return hear[message.method]?.(message.params);
  const pending = link.pending.get(message.id);
  link.pending.delete(message.id);
  if (message.error) pending?.reject(new Error(message.error.message));
  else pending?.resolve(message.result);
}

// ---------------------------------------------------------------- environments

const environments = new Map();
const TINTS = 6;

/** The same colour for the same environment, on every screen; the colours themselves are in the style sheet. */
function tint(id) {
  let sum = 0;
  for (const letter of id) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return String(sum % TINTS);
}

function badge(id) {
  if (!id) return null;
  return h("span", { className: "badge", data: { tint: tint(id) }, title: `environment ${id}` }, id);
}

/** More environments than this are folded: what is in use, and what is in trouble, is what people look for. */
const FEW = 8;
const IDLE = new Set(["idle", "disabled"]);
const unfolded = new Set();

/** All of them if that is asked for, and else the first few; the button says how many there are. */
function folded(button, all, first = all) {
  const isOpen = unfolded.has(button);
  $(button).hidden = all.length <= FEW;
  $(button).textContent = isOpen ? "Show fewer" : `Show all ${all.length}`;
  $(button).setAttribute("aria-expanded", String(isOpen));
  return isOpen ? all : first.slice(0, FEW);
}

function drawEnvironments() {
  const all = [...environments].map(([id, entry]) => [id, { id, state: entry.state, reason: entry.reason }]);
  const isIdle = ([, { state }]) => IDLE.has(state);
  const first = [...all.filter((one) => !isIdle(one)), ...all.filter(isIdle)];
  keyed($("environments"), folded("all-environments", all, first), ({ id, state, reason }) =>
    h("li", { data: { state, environment: id } },
      h("span", { className: "dot", data: { state }, "aria-hidden": "true" }),
      badge(id),
      h("span", { className: "word" }, state),
      reason && state !== "ready" ? h("span", { className: "why" }, reason) : null));
  show("no-environments", environments.size === 0);
  drawPlaces();
  drawAttached();
}

for (const button of ["all-environments", "all-places"]) {
  $(button).onclick = () => { if (!unfolded.delete(button)) unfolded.add(button); drawEnvironments(); };
}

const hear = {
  "environment/changed"({ environmentId, state, reason, generation, event }) {
    if (event === "removed") environments.delete(environmentId);
    else environments.set(environmentId, { ...environments.get(environmentId), environmentId, state, reason, generation });
    drawEnvironments();
  },
};

// ---------------------------------------------------------------- threads

const threads = new Map();
const heard = new Set();
let cursor = null;
let shown = 50;
let refreshing = null;

/** Reads the list anew; many wishes at once are one. */
function refresh() {
  refreshing ??= (async () => {
    await new Promise((resolve) => setTimeout(resolve, 50));
    refreshing = null;
    const searchTerm = $("search").value.trim() || undefined;
    const page = await link.call("thread/list", { limit: shown, sortKey: "recency_at", searchTerm });
    cursor = page.nextCursor;
    const ids = page.data.map((thread) => thread.id);
    const about = new Map();
    for (let at = 0; at < ids.length; at += 100) {
      const { data } = await link.call("thread/overview", { threadIds: ids.slice(at, at + 100) });
      for (const entry of data) about.set(entry.threadId, entry);
    }
    threads.clear();
    for (const thread of page.data) threads.set(thread.id, { ...thread, ...about.get(thread.id), id: thread.id });
    drawThreads();
    drawFacts();
    drawQuestions();
    // A thread that waits for an answer is announced even if it is not open.
    for (const thread of threads.values()) {
      if (thread.status.type === "active" && thread.holder?.isHere !== false) subscribe(thread.id);
    }
  })().catch((error) => { refreshing = null; console.warn(error.message); });
  return refreshing;
}

function subscribe(id) {
  if (heard.has(id)) return;
  heard.add(id);
  link.call("thread/resume", { threadId: id, excludeTurns: true }).catch(() => heard.delete(id));
}

function title(thread) { return thread.name || thread.preview || "(nothing was said yet)"; }

/** What a thread does, in a word, and what kind of word that is. */
function standing(thread) {
  const { type, activeFlags = [] } = thread.status;
  if (type === "active" && activeFlags.length) return ["waiting", "waiting for you"];
  if (type === "active") return ["active", "working"];
  if (type === "systemError") return ["systemError", "stopped by an error"];
  return [type, type === "idle" ? "idle" : "not loaded"];
}

function tokens(count) {
  if (!count) return "no tokens";
  return count < 10_000 ? `${count} tokens` : `${Math.round(count / 1000)}k tokens`;
}

function holder(thread) {
  if (!thread.holder) return "not in use";
  return thread.holder.isHere ? "held here" : `held by ${thread.holder.host}, process ${thread.holder.pid}`;
}

/** How long ago, in one unit. */
function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  return past < 86_400 ? `${Math.floor(past / 3600)} h ago` : `${Math.floor(past / 86_400)} d ago`;
}

/** Badges of the first few, and how many more there are. */
function badges(ids) {
  const more = ids.length - 3;
  if (more <= 1) return ids.map(badge);
  return [...ids.slice(0, 3).map(badge), h("span", { title: ids.slice(3).join(", ") }, `and ${more} more`)];
}

function turns(thread) { return thread.turns === 1 ? "1 turn" : `${thread.turns ?? 0} turns`; }

/** The forest of forks: a fork stands below what it was forked from, if that is shown. */
function drawThreads() {
  const below = new Map([[null, []]]);
  for (const thread of threads.values()) {
    const from = thread.forkedFromId ?? thread.parentThreadId;
    const parent = threads.has(from) ? from : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(thread);
  }
  const current = location.hash.match(/^#\/thread\/(.+)$/)?.[1];
  const branch = (parent) => below.get(parent).map((thread) => [thread.id, {
    id: thread.id, title: title(thread), standing: standing(thread), places: (thread.environments ?? []).map((place) => place.environmentId),
    about: [thread.damaged ? "damaged" : null, ago(thread.updatedAt), turns(thread), tokens(thread.totalTokens), thread.holder ? holder(thread) : null].filter(Boolean), isFork: Boolean(thread.forkedFromId), current: thread.id === current,
    below: below.has(thread.id) ? branch(thread.id) : [],
  }]);
  const make = (entry) => {
    const [kind, word] = entry.standing;
    const inner = h("ul");
    keyed(inner, entry.below, make);
    return h("li", {},
      h("a", { href: `#/thread/${entry.id}`, "aria-current": entry.current ? "page" : null },
        h("span", { className: "title" }, entry.isFork ? "↳ " : "", entry.title),
        h("span", { className: "about" },
          h("span", { className: "state", data: { kind } }, word), ...badges(entry.places), ...entry.about.map((text) => h("span", {}, text)))),
      entry.below.length ? inner : null);
  };
  keyed($("threads"), branch(null), make);
  const searches = $("search").value.trim() !== "";
  show("no-threads", threads.size === 0 && !searches);
  show("none-found", threads.size === 0 && searches);
  show("more", Boolean(cursor));
}

$("more").onclick = () => { shown += 50; refresh(); };
$("search").oninput = () => { shown = 50; refresh(); };

// ---------------------------------------------------------------- one thread

let open = null;

function fresh(id) { return { id, items: new Map(), turn: null, tokens: null, outputs: new Map(), environments: [], ended: new Set(), background: [] }; }

async function openThread(id) {
  open = fresh(id);
  complain("thread-error", null);
  drawThread();
  $("items").replaceChildren();
  try {
    const opened = await link.call("thread/resume", { threadId: id });
    heard.add(id);
    if (open?.id !== id) return;
    take(opened.thread);
  } catch (error) {
    // Another program may hold it: it can still be read.
    complain("thread-error", `It can only be read here: ${error.message}`);
    const read = await link.call("thread/read", { threadId: id, includeTurns: true }).catch((trouble) => complain("thread-error", trouble.message));
    if (read && open?.id === id) take(read.thread);
  }
}

function take(thread) {
  open.environments = thread.environments ?? [];
  open.thread = thread;
  for (const turn of thread.turns) {
    for (const item of turn.items) put(turn.id, item);
    if (turn.status === "inProgress") open.turn = turn.id;
    else end(turn);
  }
  drawThread();
  drawItems();
  lookForBackground();
}

function put(turn, item) {
  const known = open.items.get(item.id);
  if (known?.item.status && known.item.status !== "inProgress" && item.status === "inProgress") return;
  open.items.set(item.id, { kind: "item", turn, item });
}

function end(turn) {
  if (open.ended.has(turn.id)) return;
  open.ended.add(turn.id);
  if (open.turn === turn.id) open.turn = null;
  open.items.set(`end of ${turn.id}`, { kind: "end", turn: turn.id, status: turn.status, error: turn.error?.message ?? null });
}

const about = (thread) => open?.id === thread;

Object.assign(hear, {
  "thread/started": () => refresh(),
  "thread/closed"({ threadId }) { heard.delete(threadId); refresh(); },
  "thread/archived": () => refresh(),
  "thread/unarchived": () => refresh(),
  "thread/deleted": () => refresh(),
  "thread/name/updated": () => refresh(),
  "thread/status/changed"({ threadId, status }) {
    const thread = threads.get(threadId);
    if (thread) { thread.status = status; drawThreads(); }
    refresh();
  },
  "thread/tokenUsage/updated"({ threadId, tokenUsage }) {
    const thread = threads.get(threadId);
    if (thread) thread.totalTokens = tokenUsage.total.totalTokens;
    if (about(threadId)) { open.tokens = tokenUsage.total.totalTokens; drawFacts(); }
    drawThreads();
  },
  "turn/started"({ threadId, turn }) {
    if (about(threadId)) { open.turn = turn.id; drawThread(); }
  },
  "turn/completed"({ threadId, turn }) {
    if (about(threadId)) { end(turn); drawThread(); drawItems(); lookForBackground(); }
    refresh();
  },
  "item/started"({ threadId, turnId, item }) {
    if (about(threadId)) { put(turnId, item); drawItems(); }
  },
  "item/completed"({ threadId, turnId, item }) {
    if (!about(threadId)) return;
    open.outputs.delete(item.id);
    put(turnId, item);
    drawItems();
    if (item.type === "commandExecution" && item.processId) lookForBackground();
  },
  "item/agentMessage/delta"({ threadId, itemId, delta }) {
    const known = about(threadId) && open.items.get(itemId);
    if (known) { known.item = { ...known.item, text: (known.item.text ?? "") + delta }; drawItems(); }
  },
  "item/commandExecution/outputDelta"({ threadId, itemId, delta }) {
    if (!about(threadId)) return;
    // The end is what people look at; the whole is in the item once it is over.
    open.outputs.set(itemId, ((open.outputs.get(itemId) ?? "") + delta).slice(-20_000));
    drawItems();
  },
  "error"({ threadId, error, willRetry }) {
    if (about(threadId)) complain("thread-error", willRetry ? `${error.message}; trying again` : error.message);
  },
  "warning"({ threadId, message }) {
    if (about(threadId)) complain("thread-error", message);
  },
  "serverRequest/resolved"({ requestId }) { resolved(requestId); },
});

function drawThread() {
  const thread = { ...open.thread, ...threads.get(open.id) };
  const name = thread.preview !== undefined || thread.name ? title(thread) : "…";
  $("thread-title").replaceChildren(...parts(name, "line"));
  document.title = `${visible(name, "line")} · Outpost`;
  drawAttached();
  show("stop", Boolean(open.turn));
  $("send").textContent = open.turn ? "Steer" : "Send";
  drawFacts();
}

/** Where the open thread works, and how it stands there. */
function drawAttached() {
  const places = (open?.environments ?? []).map((place) => [place.environmentId, { ...place, state: environments.get(place.environmentId)?.state ?? "missing" }]);
  keyed($("thread-environments"), folded("all-places", places), ({ environmentId, cwd, state }) => h("li", {},
    h("span", { className: "dot", data: { state }, "aria-hidden": "true" }), badge(environmentId), h("span", { className: "hint" }, state), h("code", {}, code(cwd, "word"))));
}

function drawFacts() {
  if (!open) return;
  const thread = { ...open.thread, ...threads.get(open.id) };
  const facts = [
    ["Model", [thread.modelProvider, thread.model].filter(Boolean).join(" / ")],
    ["State", thread.status ? standing(thread)[1] : ""],
    ["Turns", String(thread.turns?.length ?? thread.turns ?? "")],
    ["Spent", tokens(open.tokens ?? thread.totalTokens)],
    ["Holder", threads.has(open.id) ? holder(thread) : ""],
    ["Forked from", thread.forkedFromId ?? ""],
  ].filter(([, value]) => value);
  keyed($("facts"), facts.map(([name, value]) => [name, { name, value }]), ({ name, value }) => h("div", {}, h("dt", {}, name),
    h("dd", {}, name === "Forked from" ? h("a", { href: `#/thread/${value}` }, value.slice(0, 8)) : value)));
}

let drawing = false;

/** Draws at most once a frame, however much comes. */
function drawItems() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!open) return;
    const room = document.scrollingElement;
    const atEnd = room.scrollHeight - room.scrollTop - room.clientHeight < 120;
    const waits = new Set([...questions.values()].map((question) => question.params.itemId));
    const entries = [...open.items].map(([key, entry]) => [key, { ...entry, output: open.outputs.get(key) ?? null, waits: waits.has(key) }]);
    keyed($("items"), entries, (entry) => h("li", {}, entry.kind === "end" ? turnEnd(entry) : drawItem(entry)));
    drawRunning(waits);
    if (atEnd) room.scrollTop = room.scrollHeight;
    for (const output of document.querySelectorAll("pre[data-live]")) output.scrollTop = output.scrollHeight;
  });
}

function turnEnd({ status, error }) {
  const words = { completed: "end of the turn", interrupted: "interrupted", failed: "failed" };
  return h("p", { className: "turn-end" }, h("span", {}, error ? `${words[status] ?? status}: ${error}` : (words[status] ?? status)));
}

const HOW = { inProgress: "running", completed: "done", failed: "failed", declined: "not allowed" };

function how(item, waits) {
  if (waits) return h("span", { className: "how", data: { kind: "inProgress" } }, "waiting for you");
  let word = HOW[item.status] ?? item.status ?? "";
  if (item.exitCode !== null && item.exitCode !== undefined) word = item.exitCode === 0 ? "done" : `exit code ${item.exitCode}`;
  if (item.type === "commandExecution" && item.status === "completed" && item.processId && item.exitCode === null) word = "goes on";
  if (item.durationMs) word += `, ${item.durationMs < 1000 ? `${item.durationMs} ms` : `${(item.durationMs / 1000).toFixed(1)} s`}`;
  return h("span", { className: "how", data: { kind: item.status ?? "" } }, word);
}

/** Text that may be long: it can be scrolled with the keyboard, too. */
function long(text, label, live) {
  const kept = text.slice(-20_000);
  const shown = kept.length < text.length ? `… ${text.length - kept.length} characters before this are not shown\n${kept}` : kept;
  return h("pre", { tabIndex: 0, role: "region", "aria-label": label.slice(0, 120), data: live ? { live: "1" } : {} }, shown);
}

function drawItem({ item, output, waits }) {
  const box = (kind, ...children) => h("article", { className: `item ${kind}`, data: { type: item.type } }, ...children);
  switch (item.type) {
    case "userMessage":
      return box("user", h("p", { className: "who" }, "You"),
        h("p", { className: "said" }, item.content.map((part) => part.text ?? `[${part.type}]`).join("\n")));
    case "agentMessage":
      if (item.damage) return box("missing", h("p", { className: "said", role: "note" }, item.text));
      return box("agent", h("p", { className: "who" }, "Agent"), h("p", { className: "said" }, item.text));
    case "reasoning":
      return box("agent", h("details", {}, h("summary", {}, "Thoughts"), h("p", { className: "said" }, [...item.summary, ...item.content].join("\n"))));
    case "commandExecution": {
      const text = item.aggregatedOutput || output || "";
      return box("work", h("div", { className: "head" }, badge(item.environmentId), h("span", { className: "command" }, "$ ", code(item.command)), how(item, waits)),
        text ? long(text, `Output of ${item.command}`, item.status === "inProgress") : null);
    }
    case "fileChange":
      return box("work", h("div", { className: "head" }, badge(item.environmentId),
        h("span", { className: "command" }, ...item.changes.flatMap((change, at) => [at ? "\n" : null, code(`${change.kind.type} ${change.path}`, "word")])), how(item, waits)),
        ...item.changes.filter((change) => change.diff).map((change) => long(change.diff, `Changes of ${change.path}`)));
    case "mcpToolCall":
      return box("work", h("div", { className: "head" }, badge(item.environmentId), h("span", { className: "command" }, `${item.server}: ${item.tool}`), how(item, waits)));
    case "collabAgentToolCall":
      return box("work", h("div", { className: "head" }, h("span", { className: "command" }, item.tool), how(item, waits)),
        item.prompt ? h("p", { className: "said" }, item.prompt) : null,
        ...item.receiverThreadIds.map((id) => h("a", { href: `#/thread/${id}` }, `agent ${id.slice(0, 8)}`)));
    case "contextCompaction":
      return box("work", h("p", { className: "hint" }, "What was said before was summarised for the model."));
    default:
      return box("work", h("div", { className: "head" }, badge(item.environmentId), h("span", { className: "command" }, item.tool ?? item.path ?? item.type), how(item, waits)));
  }
}

// ---------------------------------------------------------------- running processes

/** Commands that run in a call, and those that outlived theirs. */
function drawRunning(waits) {
  const runs = ({ item }) => item?.type === "commandExecution" && item.status === "inProgress" && !waits.has(item.id);
  const running = [...open.items.values()].filter(runs)
    .map(({ item }) => [item.id, { command: item.command, place: item.environmentId, process: null, last: lastLine(open.outputs.get(item.id)) }]);
  const behind = open.background.map((one) => [`process ${one.processId}`, { command: one.command, place: one.environmentId, process: one.processId, last: "" }]);
  keyed($("running"), [...running, ...behind], ({ command, place, process, last }) => h("li", {},
    h("p", { className: "cut" }, badge(place), " ", h("span", { className: "command" }, code(command, "word"))),
    last ? h("p", { className: "hint command cut" }, last) : null,
    process ? h("div", { className: "buttons" }, h("button", { onclick: () => terminate(process) }, "End it")) : null));
  show("processes", running.length + behind.length > 0);
}

function lastLine(text) { return (text ?? "").trimEnd().split("\n").pop().slice(0, 200); }

let looking = null;

async function lookForBackground() {
  clearTimeout(looking);
  const id = open?.id;
  const listed = await link.call("thread/backgroundTerminals/list", { threadId: id }).catch(() => ({ data: [] }));
  if (open?.id !== id) return;
  open.background = listed.data;
  drawItems();
  if (listed.data.length) looking = setTimeout(lookForBackground, 2000);
}

async function terminate(processId) {
  await link.call("thread/backgroundTerminals/terminate", { threadId: open.id, processId }).catch((error) => complain("thread-error", error.message));
  lookForBackground();
}

// ---------------------------------------------------------------- questions

const questions = new Map();

function asked({ id, method, params }) {
  const known = [
    "item/commandExecution/requestApproval", "item/fileChange/requestApproval", "item/permissions/requestApproval",
    "item/tool/requestUserInput",
  ];
  if (!known.includes(method)) {
    return link.socket.send(JSON.stringify({ id, error: { code: -32601, message: "this page cannot answer that" } }));
  }
  questions.set(id, { method, params });
  drawQuestions();
}

/** Since when the questions stand where they are: if one goes away, another one moves below a finger that is just coming down. */
let moved = -Infinity;
const isSteady = () => performance.now() - moved > 500;

function resolved(id) {
  if (questions.delete(id) && questions.size) moved = performance.now();
  whole.delete(id);
  drawQuestions();
}

function decide(id, decision) {
  if (!isSteady()) return;
  link.answer(id, { decision });
  resolved(id);
}

/** Grants what was asked for, for a turn or for the thread; without a scope, nothing. */
function grant(id, permissions, scope) {
  if (!isSteady()) return;
  link.answer(id, scope ? { permissions, scope } : { permissions: {} });
  resolved(id);
}

/** Permissions in words, one a line. */
function worded(permissions) {
  const files = permissions?.fileSystem;
  return [
    ...(permissions?.network?.enabled ? ["use the network"] : []),
    ...(files?.read ?? []).map((path) => `read ${path}`),
    ...(files?.write ?? []).map((path) => `write ${path}`),
  ];
}

/** More than this of what is asked about is folded, and must be looked at before it is allowed. */
const LONG = { lines: 16, characters: 1600, shownLines: 6, shownCharacters: 300 };
/** The questions that were unfolded. */
const whole = new Set();

/** What is asked about, line by line: the command, or the changes of files. */
function subject(method, params) {
  const script = (text, before) => text.split("\n").map((line, at) => ({ text: `${at ? "  " : before}${line}`, form: "script" }));
  if (method !== "item/fileChange/requestApproval") return script(params.command ?? "", "$ ");
  const heading = ({ path, kind }) => `${kind?.type ?? "change"} ${path}${kind?.move_path ? ` to ${kind.move_path}` : ""}`;
  return (params.terms?.changes ?? []).flatMap((change) => [{ text: heading(change), form: "word" }, ...(change.diff ? script(change.diff, "  ") : [])]);
}

/** Lines in full; or, if they are long, their beginning and a button for the rest. */
function exactly(id, lines) {
  const label = { tabIndex: 0, role: "region", "aria-label": "What is asked about" };
  const characters = lines.reduce((sum, { text }) => sum + text.length, 0);
  const drawn = (some) => some.flatMap(({ text, form }, at) => [at ? "\n" : null, code(text, form)]);
  const isLong = lines.length > LONG.lines || characters > LONG.characters;
  if (!isLong || whole.has(id)) return { pre: h("pre", { ...label, className: isLong ? "long" : "" }, ...drawn(lines)), unfold: null };
  const begin = lines.slice(0, LONG.shownLines).map(({ text, form }) => ({ text: text.slice(0, LONG.shownCharacters), form }));
  const open = () => { whole.add(id); drawQuestions(); };
  return {
    pre: h("pre", label, ...drawn(begin)),
    unfold: h("button", { className: "unfold", onclick: open }, `Show all of it: ${lines.length === 1 ? "1 line" : `${lines.length} lines`}, ${characters} characters`),
  };
}

/** Where it runs, in which sandbox, and why it is asked. Each stands in a row of its own that no text of others can leave. */
function terms({ cwd, reason, terms = {} }) {
  // For clients that know no terms the server says there, too, that it is asked again.
  const own = terms.changed ? reason?.replace(/^Asked again, because .*? changed\. /, "") : reason;
  const rows = [
    ["Asked again", terms.changed?.length ? `changed since it was allowed: ${terms.changed.join(", ")}` : null, "line"],
    ["Directory", cwd, "word"],
    ["Sandbox", terms.sandbox, "line"],
    ["Run by", terms.program?.join(" "), "word"],
    ["Asked because", terms.why, "line"],
    ["Agent's reason", own !== terms.why ? own : null, "line"],
  ].filter(([, value]) => value);
  return h("dl", { className: "terms" }, ...rows.map(([name, value, form]) => h("div", {}, h("dt", {}, name),
    h("dd", {}, code(value.length > 400 ? `${value.slice(0, 400)} … ${value.length - 400} more characters` : value, form)))));
}

function drawQuestions() {
  show("asked", questions.size > 0);
  if (open) drawItems();
  const named = (question) => title(threads.get(question.params.threadId) ?? { preview: "this thread" });
  keyed($("questions"), [...questions].map(([id, question]) => [String(id), { id, ...question, name: named(question), whole: whole.has(id) }]), ({ id, method, params, name }) => {
    const where = h("p", { className: "hint cut" }, "in ", h("a", { href: `#/thread/${params.threadId}` }, name));
    if (method === "item/tool/requestUserInput") return drawInput(id, params, where);
    const hint = terms(params);
    const more = worded(params.permissions ?? params.additionalPermissions).map((line) => h("p", { className: "command" }, "+ ", code(line, "word")));
    if (method === "item/permissions/requestApproval") {
      return h("li", {},
        h("div", { className: "head" }, badge(params.environmentId), "More than the sandbox allows"),
        ...more, hint, where,
        h("div", { className: "buttons" },
          h("button", { className: "primary", onclick: () => grant(id, params.permissions, "turn") }, "Grant for this turn"),
          h("button", { onclick: () => grant(id, params.permissions, "session") }, "Grant in this thread"),
          h("button", { onclick: () => grant(id) }, "Do not grant")));
    }
    const { pre, unfold } = exactly(id, subject(method, params));
    const first = unfold ? { disabled: true, title: "Show all of it first" } : {};
    return h("li", {},
      h("div", { className: "head" }, badge(params.environmentId), method === "item/fileChange/requestApproval" ? "Change files" : "Run a command"),
      pre, unfold, ...more, hint, where,
      h("div", { className: "buttons" },
        h("button", { className: "primary", ...first, onclick: () => decide(id, "accept") }, "Allow once"),
        h("button", { ...first, onclick: () => decide(id, "acceptForSession") }, "Allow in this thread"),
        h("button", { onclick: () => decide(id, "decline") }, "Do not allow"),
        h("button", { onclick: () => decide(id, "cancel") }, "Stop the turn")));
  });
}

/** The agent asks the user something. */
function drawInput(id, params, where) {
  const form = h("form", { className: "card" }, where, ...params.questions.map((question, number) => {
    const name = `question-${id}-${number}`;
    const field = question.options?.length
      ? h("select", { id: name, name: question.id }, ...question.options.map((option) => h("option", { value: option.label ?? option }, option.label ?? option)))
      : h("input", { id: name, name: question.id, type: question.isSecret ? "password" : "text" });
    return h("div", {}, h("label", { htmlFor: name }, question.question), field);
  }), h("div", { className: "buttons" }, h("button", { className: "primary" }, "Answer")));
  form.onsubmit = (event) => {
    event.preventDefault();
    const answers = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, { answers: [value] }]));
    link.answer(id, { answers });
    questions.delete(id);
    drawQuestions();
  };
  return h("li", {}, form);
}

// ---------------------------------------------------------------- saying something

const said = (text) => [{ type: "text", text, text_elements: [] }];

async function startTurn(threadId, text) {
  await link.call("turn/start", { threadId, input: said(text), clientUserMessageId: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` });
}

$("say").onsubmit = async (event) => {
  event.preventDefault();
  const text = $("text").value;
  if (!text.trim() || !open) return;
  complain("thread-error", null);
  $("send").disabled = true;
  try {
    await startTurn(open.id, text);
    $("text").value = "";
  } catch (error) { complain("thread-error", error.message); } finally { $("send").disabled = false; }
};

for (const [field, form] of [["text", "say"], ["first", "start"]]) {
  $(field).onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $(form).requestSubmit(); }
  };
}

$("stop").onclick = () => link.call("turn/interrupt", { threadId: open.id, turnId: open.turn }).catch((error) => complain("thread-error", error.message));

$("fork").onclick = async () => {
  try {
    const { thread } = await link.call("thread/fork", { threadId: open.id, excludeTurns: true });
    heard.add(thread.id);
    await refresh();
    location.hash = `#/thread/${thread.id}`;
  } catch (error) { complain("thread-error", error.message); }
};

/** Places that a new thread may work in, in the order in which they were chosen. */
const places = new Map();

function drawPlaces() {
  keyed($("places"), [...environments].map(([id, { state }]) => [id, { id, state }]), ({ id, state }) => {
    const cwd = h("input", { className: "cwd", "aria-label": `Directory in ${id}`, placeholder: "/absolute/path", hidden: !places.has(id), value: places.get(id) ?? "" });
    cwd.oninput = () => places.set(id, cwd.value);
    const box = h("input", { type: "checkbox", checked: places.has(id) });
    box.onchange = async () => {
      if (!box.checked) { places.delete(id); cwd.hidden = true; return; }
      places.set(id, cwd.value);
      cwd.hidden = false;
      if (cwd.value) return;
      // Where that machine begins by itself is the best guess.
      const info = await link.call("environment/info", { environmentId: id }).catch(() => null);
      if (info?.cwd && !cwd.value) { cwd.value = decodeURIComponent(info.cwd.replace(/^file:\/\//, "")); places.set(id, cwd.value); }
    };
    return h("li", {}, h("label", {}, box, badge(id), h("span", { className: "hint" }, state)), cwd);
  });
}

$("start").onsubmit = async (event) => {
  event.preventDefault();
  complain("start-error", null);
  const params = {};
  if (places.size) params.environments = [...places].map(([environmentId, cwd]) => ({ environmentId, cwd }));
  if ($("sandbox").value) params.sandbox = $("sandbox").value;
  if ($("approval").value) params.approvalPolicy = $("approval").value;
  try {
    const { thread } = await link.call("thread/start", params);
    heard.add(thread.id);
    await startTurn(thread.id, $("first").value);
    $("first").value = "";
    location.hash = `#/thread/${thread.id}`;
    refresh();
  } catch (error) { complain("start-error", error.message); }
};

// ---------------------------------------------------------------- which part is shown

async function route() {
  const id = location.hash.match(/^#\/thread\/([\w-]+)$/)?.[1];
  const view = id ? "thread" : location.hash === "#/new" ? "new" : "list";
  document.body.dataset.view = view;
  show("thread", view === "thread");
  show("new", view === "new");
  show("nothing", view === "list");
  document.title = view === "new" ? "New thread · Outpost" : "Outpost";
  if (view !== "thread") open = null;
  drawThreads();
  document.querySelector('#threads [aria-current="page"]')?.scrollIntoView({ block: "nearest" });
  if (id) await openThread(id);
}

/** Keyboard focus follows to where the user went. */
function arrive() {
  scrollTo(0, 0);
  const place = { new: "first", thread: "main" }[document.body.dataset.view];
  if (place) $(place).focus({ preventScroll: true });
}

addEventListener("hashchange", () => { route().catch((error) => console.warn(error.message)); arrive(); });
// What other programs of this home do to threads is not told, so it is looked up now and then.
setInterval(() => { if (link.socket?.readyState === WebSocket.OPEN && !document.hidden) refresh(); }, 10_000);

async function session() {
  return fetch("/session").then((answer) => answer.json()).catch(() => null);
}

const state = await session();
if (state?.in) {
  show("app", true);
  show("logout", !state.open);
  connect();
} else {
  show("login", true);
  show("link", false);
  show("wrong", location.hash === "#wrong");
  $("token").focus();
}
