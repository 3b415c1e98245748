// The page of `outpost serve`: a plain client of the app protocol. Nothing is loaded from anywhere else.

import { $, badge, code, complain, h, keyed, machineLink, parts, show, sure, visible } from "/dom.js";
import { ago, connect, link, now, session } from "/link.js";
import { drawItem, drawRunning, plan, turnEnd, words } from "/items.js";
import { VirtualList } from "/list.js";
import { asked, card, drawElsewhere, forget, listen, offerNotifications, questions, questionsOf, resolved, signature } from "/questions.js";
import { close as closeMachine, drawMachine, isOpen as isMachineOpen, look as lookAtMachine, openMachine } from "/machine.js";

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
  forget();
  heard.clear();
  for (const entry of (await link.call("environment/watch")).data) environments.set(entry.environmentId, entry);
  drawEnvironments();
  drawQuestions();
  loadModels();
  await refresh();
  await route();
}

// ---------------------------------------------------------------- environments

const environments = new Map();

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

const RETRY = new Set(["failed", "needs login"]);

function drawEnvironments() {
  const all = [...environments].map(([id, entry]) => [id, { id, state: entry.state, reason: entry.reason, isDefault: entry.isDefault }]);
  const isIdle = ([, { state }]) => IDLE.has(state);
  const first = [...all.filter((one) => !isIdle(one)), ...all.filter(isIdle)];
  keyed($("environments"), folded("all-environments", all, first), ({ id, state, reason, isDefault }) =>
    h("li", { data: { state, environment: id } },
      h("span", { className: "dot", data: { state }, "aria-hidden": "true" }),
      h("span", { className: "named" }, machineLink(id), isDefault ? h("span", { className: "tag", title: "Threads that choose nothing work here" }, "default") : null),
      h("span", { className: "word" }, state),
      reason && state !== "ready" ? h("span", { className: "why" }, reason) : null,
      RETRY.has(state) ? h("button", { className: "small", onclick: (event) => reconnect(id, event.target), "aria-label": `Try again: ${id}` }, "Try again") : null));
  show("no-environments", environments.size === 0);
  drawPlaces();
  drawAttached();
  drawMachine();
}

/** Connects at once, whatever happened before; how it went is told as every change is. */
async function reconnect(id, button) {
  button.disabled = true;
  await link.call("environment/info", { environmentId: id }).catch((error) => console.warn(error.message));
  button.disabled = false;
}

for (const button of ["all-environments", "all-places"]) {
  $(button).onclick = () => { if (!unfolded.delete(button)) unfolded.add(button); drawEnvironments(); };
}

const hear = {
  "environment/changed"({ environmentId, state, reason, generation, event }) {
    const was = environments.get(environmentId)?.state;
    if (event === "removed") environments.delete(environmentId);
    else environments.set(environmentId, { ...environments.get(environmentId), environmentId, state, reason, generation });
    drawEnvironments();
    if (isMachineOpen(environmentId) && was !== state) lookAtMachine();
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
    const archived = $("archived").checked || undefined;
    const page = await link.call("thread/list", { limit: shown, sortKey: "recency_at", searchTerm, archived });
    cursor = page.nextCursor;
    const ids = page.data.map((thread) => thread.id);
    const more = new Map();
    for (let at = 0; at < ids.length; at += 100) {
      const { data } = await link.call("thread/overview", { threadIds: ids.slice(at, at + 100) });
      for (const entry of data) more.set(entry.threadId, entry);
    }
    threads.clear();
    for (const thread of page.data) threads.set(thread.id, { ...thread, ...more.get(thread.id), id: thread.id, archived: Boolean(archived) });
    drawThreads();
    drawFacts();
    drawQuestions();
    // A thread that waits for an answer is announced even if it is not open.
    for (const thread of threads.values()) {
      if (thread.status.type === "active" && (thread.holder?.isHere !== false || thread.holder.address)) subscribe(thread.id);
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
  const { isHere, node, address, host, pid } = thread.holder;
  if (isHere) return "held here";
  return address ? `held by node ${node ?? host} at ${address}` : `held by ${host}, process ${pid}`;
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
    about: [thread.damaged ? "damaged" : null, ago(thread.updatedAt), turns(thread), tokens(thread.totalTokens), thread.createdBy ? `by ${thread.createdBy}` : null, thread.holder ? holder(thread) : null].filter(Boolean), isFork: Boolean(thread.forkedFromId), current: thread.id === current,
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
  const searches = $("search").value.trim() !== "" || $("archived").checked;
  show("no-threads", threads.size === 0 && !searches);
  show("none-found", threads.size === 0 && searches);
  show("more", Boolean(cursor));
}

$("more").onclick = () => { shown += 50; refresh(); };
$("search").oninput = () => { shown = 50; refresh(); };
$("archived").onchange = () => { shown = 50; refresh(); };

// ---------------------------------------------------------------- one thread

let open = null;
/** Turns that are read at once. */
const PAGE = 15;

function fresh(id) {
  return { id, items: new Map(), turn: null, tokens: null, outputs: new Map(), progress: new Map(), environments: [], ended: new Set(), background: [], older: null, isReading: false, version: 0 };
}

async function openThread(id) {
  const mine = open = fresh(id);
  complain("thread-error", null);
  show("only-read", false);
  closeFind();
  show("rename", false);
  list.clear();
  drawThread();
  try {
    const opened = await link.call("thread/resume", { threadId: id, excludeTurns: true });
    heard.add(id);
    if (open !== mine) return;
    take({ ...opened.thread, model: opened.model ?? opened.thread.model, modelProvider: opened.modelProvider ?? opened.thread.modelProvider });
  } catch (error) {
    // Another program may hold it: it can still be read.
    const read = await link.call("thread/read", { threadId: id }).catch((trouble) => complain("thread-error", trouble.message));
    if (open !== mine) return;
    mine.isReadOnly = true;
    if (read) {
      const { data: [about] } = await link.call("thread/overview", { threadIds: [id] }).catch(() => ({ data: [] }));
      if (open !== mine) return;
      show("only-read", about?.holder?.isHere === false);
      if (about?.holder?.isHere !== false) complain("thread-error", `It can only be read here: ${error.message}`);
      take({ ...read.thread, environments: read.thread.environments ?? about?.environments });
    }
  }
  if (open === mine) await readOlder();
}

function take(thread) {
  open.environments = thread.environments ?? [];
  open.thread = thread;
  drawThread();
  lookForBackground();
}

/** Reads a page of turns before those that are there; the newest ones first of all. */
async function readOlder() {
  const mine = open;
  if (mine.isReading || mine.older === "none") return;
  mine.isReading = true;
  try {
    const page = await link.call("thread/turns/list", { threadId: mine.id, cursor: mine.older, limit: PAGE, sortDirection: "desc", itemsView: "full" });
    if (open !== mine) return;
    // What was told meanwhile is newer than what was read.
    const [told, ended] = [mine.items, mine.ended];
    mine.items = new Map();
    mine.ended = new Set();
    for (const turn of page.data.reverse()) {
      for (const item of turn.items) put(turn.id, item);
      if (turn.plan) putPlan(turn.id, turn.plan);
      if (turn.status === "inProgress" && !ended.has(turn.id)) mine.turn = turn.id;
      else if (turn.status !== "inProgress") end(turn);
    }
    for (const [key, entry] of told) {
      const read = mine.items.get(key);
      const isOlder = read?.item?.status && read.item.status !== "inProgress" && entry.item?.status === "inProgress";
      if (!isOlder) mine.items.set(key, entry);
    }
    for (const id of ended) mine.ended.add(id);
    mine.older = page.nextCursor ?? "none";
  } catch (error) {
    mine.older = "none";
    // A thread in which nothing was said has no turns.
    if (!/not materialized|has no|no turns/.test(error.message)) console.warn(error.message);
  } finally { mine.isReading = false; }
  if (open !== mine) return;
  show("older", mine.older !== "none");
  drawThread();
  drawItems();
}

$("older").onclick = () => readOlder();

const changed = (entry) => Object.assign(entry, { version: open.version += 1 });

function put(turn, item) {
  const known = open.items.get(item.id);
  if (known?.item.status && known.item.status !== "inProgress" && item.status === "inProgress") return;
  open.items.set(item.id, changed({ kind: "item", turn, item }));
}

function putPlan(turn, told) {
  open.items.set(`plan of ${turn}`, changed({ kind: "plan", turn, explanation: told.explanation, plan: told.plan }));
}

function end(turn) {
  if (open.ended.has(turn.id)) return;
  open.ended.add(turn.id);
  if (open.turn === turn.id) open.turn = null;
  open.items.set(`end of ${turn.id}`, changed({ kind: "end", turn: turn.id, status: turn.status, error: turn.error?.message ?? null, durationMs: turn.durationMs }));
}

const about = (thread) => open?.id === thread;

/** Adds to a text of an item that is being made. */
function grow(threadId, itemId, add) {
  const known = about(threadId) && open.items.get(itemId);
  if (!known) return;
  known.item = add(known.item);
  changed(known);
  drawItems();
}

function thinks(member) {
  return ({ threadId, itemId, delta, summaryIndex, contentIndex }) => grow(threadId, itemId, (item) => {
    const texts = [...(item[member] ?? [])];
    const index = summaryIndex ?? contentIndex ?? 0;
    texts[index] = (texts[index] ?? "") + delta;
    return { ...item, [member]: Array.from(texts, (text) => text ?? "") };
  });
}

Object.assign(hear, {
  "thread/started": () => refresh(),
  "thread/closed"({ threadId }) { heard.delete(threadId); refresh(); },
  "thread/archived": () => refresh(),
  "thread/unarchived": () => refresh(),
  "thread/deleted": () => refresh(),
  "thread/reverted"({ threadId }) { if (about(threadId)) openThread(threadId); refresh(); },
  "thread/name/updated"({ threadId, threadName }) {
    if (about(threadId) && open.thread) { open.thread.name = threadName; if (threads.has(threadId)) threads.get(threadId).name = threadName; drawThread(); }
    refresh();
  },
  "thread/settings/updated"({ threadId, threadSettings }) {
    if (!about(threadId) || !open.thread) return;
    Object.assign(open.thread, { model: threadSettings.model, modelProvider: threadSettings.modelProvider });
    drawThread();
  },
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
  "turn/plan/updated"({ threadId, turnId, explanation, plan: steps }) {
    if (about(threadId)) { putPlan(turnId, { explanation, plan: steps }); drawItems(); }
  },
  "item/started"({ threadId, turnId, item }) {
    if (about(threadId)) { put(turnId, item); drawItems(); }
  },
  "item/completed"({ threadId, turnId, item }) {
    if (!about(threadId)) return;
    open.outputs.delete(item.id);
    open.progress.delete(item.id);
    put(turnId, item);
    drawItems();
    if (item.type === "commandExecution" && item.processId) lookForBackground();
  },
  "item/agentMessage/delta"({ threadId, itemId, delta }) {
    grow(threadId, itemId, (item) => ({ ...item, text: (item.text ?? "") + delta }));
  },
  "item/reasoning/summaryTextDelta": thinks("summary"),
  "item/reasoning/textDelta": thinks("content"),
  "item/mcpToolCall/progress"({ threadId, itemId, message }) {
    if (about(threadId)) { open.progress.set(itemId, message); drawItems(); }
  },
  "item/fileChange/patchUpdated"({ threadId, itemId, changes }) {
    grow(threadId, itemId, (item) => ({ ...item, changes }));
  },
  "item/commandExecution/outputDelta"({ threadId, itemId, delta }) {
    if (!about(threadId)) return;
    // The end is what people look at; the whole is in the item once it is over.
    const known = open.outputs.get(itemId) ?? { text: "", version: 0 };
    open.outputs.set(itemId, { text: (known.text + delta).slice(-20_000), version: known.version + 1 });
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

/** The name of the page, with how many questions wait. */
function entitle(name) {
  const waiting = questions.size ? `(${questions.size}) ` : "";
  document.title = name ? `${waiting}${visible(name, "line")} · Outpost` : `${waiting}Outpost`;
}

function nameOfOpen() {
  const thread = { ...open.thread, ...threads.get(open.id) };
  return thread.preview !== undefined || thread.name ? title(thread) : "…";
}

function drawTitle() {
  const names = { thread: open && nameOfOpen(), new: "New thread", machine: route.machine };
  entitle(names[document.body.dataset.view]);
}

function drawThread() {
  if (!open) return;
  const thread = { ...open.thread, ...threads.get(open.id) };
  $("thread-title").replaceChildren(...parts(nameOfOpen(), "line"));
  drawTitle();
  drawAttached();
  show("stop", Boolean(open.turn));
  $("send").textContent = open.turn ? "Steer" : "Send";
  show("say", !open.isReadOnly);
  $("archive").textContent = thread.archived ? "Unarchive" : "Archive";
  if (document.activeElement !== $("model")) $("model").value = open.model ?? open.thread?.model ?? "";
  drawFacts();
}

/** Where the open thread works, and how it stands there. The first is where calls go that name no other. */
function drawAttached() {
  const places = (open?.environments ?? []).map((place, at) => [place.environmentId, { ...place, isPrimary: at === 0, state: environments.get(place.environmentId)?.state ?? "missing" }]);
  keyed($("thread-environments"), folded("all-places", places), ({ environmentId, cwd, state, isPrimary }) => h("li", { data: { primary: String(isPrimary) } },
    h("span", { className: "dot", data: { state }, "aria-hidden": "true" }), machineLink(environmentId),
    isPrimary ? h("span", { className: "tag", title: "Calls that name no other environment go here" }, "primary") : null,
    h("span", { className: "hint" }, state), h("code", {}, code(cwd, "word"))));
}

function drawFacts() {
  if (!open) return;
  const thread = { ...open.thread, ...threads.get(open.id) };
  const facts = [
    ["Model", [thread.modelProvider, open.thread?.model ?? thread.model].filter(Boolean).join(" / ")],
    ["State", thread.status ? standing(thread)[1] : ""],
    ["Turns", String(threads.get(open.id)?.turns ?? "")],
    ["Spent", tokens(open.tokens ?? thread.totalTokens)],
    ["Holder", threads.has(open.id) ? holder(thread) : ""],
    ["Forked from", thread.forkedFromId ?? ""],
  ].filter(([, value]) => value);
  keyed($("facts"), facts.map(([name, value]) => [name, { name, value }]), ({ name, value }) => h("div", {}, h("dt", {}, name),
    h("dd", {}, name === "Forked from" ? h("a", { href: `#/thread/${value}` }, value.slice(0, 8)) : value)));
}

// ---------------------------------------------------------------- its items

/** Which question stands at which row, and the row that stays in view. */
let waits = new Map();
let first = null;
let search = { text: "", found: [], at: -1 };

const list = new VirtualList($("items"), {
  signature(key) {
    const entry = open.items.get(key);
    const question = waits.has(key) ? signature(waits.get(key)) + (key === first ? waits.size : "") : "";
    const mark = search.found[search.at] === key ? "current" : "";
    return [entry?.version, open.outputs.get(key)?.version, open.progress.get(key), question, mark].join(" ");
  },
  make(key) {
    const entry = open.items.get(key);
    const row = h("li", { className: search.found[search.at] === key ? "match" : "" });
    if (waits.has(key)) {
      row.className += key === first ? " asked first" : " asked";
      row.append(card(waits.get(key), key === first ? waits.size - 1 : 0));
    } else if (entry.kind === "end") row.append(turnEnd(entry, forkButton({ lastTurnId: entry.turn }, "Fork after this turn")));
    else if (entry.kind === "plan") row.append(plan(entry));
    else {
      const drawn = drawItem({ item: entry.item, output: open.outputs.get(key)?.text, progress: open.progress.get(key) });
      if (entry.item.type === "userMessage") drawn.querySelector(".who")?.append(forkButton({ beforeTurnId: entry.turn }, "Fork before this message"));
      row.append(drawn);
    }
    return row;
  },
  reachedStart: () => { if (open?.older && open.older !== "none") readOlder(); },
  drawn() {
    show("to-end", !list.isAtEnd && !first);
    for (const output of document.querySelectorAll("pre[data-live]")) output.scrollTop = output.scrollHeight;
  },
});

$("to-end").onclick = () => list.toEnd();

// What stays in view stays between these two, however high they are.
for (const [id, name] of [["head", "--head"], ["say", "--say"]]) {
  new ResizeObserver(([{ target }]) => document.documentElement.style.setProperty(name, `${target.offsetHeight}px`)).observe($(id));
}

function drawItems() {
  if (!open) return;
  waits = questionsOf(open.id);
  const keys = [...open.items.keys()];
  // A question that is about no item stands where the thread is now.
  for (const key of waits.keys()) if (!open.items.has(key)) keys.push(key);
  first = keys.find((key) => waits.has(key)) ?? null;
  list.set(keys, new Set(first ? [first] : []));
  const runs = ({ item }) => item?.type === "commandExecution" && item.status === "inProgress" && !waits.has(item.id);
  const running = [...open.items.values()].filter(runs)
    .map(({ item }) => [item.id, { command: item.command, place: item.environmentId, process: null, last: lastLine(open.outputs.get(item.id)?.text) }]);
  const behind = open.background.map((one) => [`process ${one.processId}`, { command: one.command, place: one.environmentId, process: one.processId, last: "" }]);
  drawRunning($("running"), [...running, ...behind], terminate);
  show("processes", running.length + behind.length > 0);
}

function lastLine(text) { return (text ?? "").trimEnd().split("\n").pop().slice(0, 200); }

let looking = null;

async function lookForBackground() {
  clearTimeout(looking);
  const mine = open;
  if (!mine || mine.isReadOnly) return;
  const listed = await link.call("thread/backgroundTerminals/list", { threadId: mine.id }).catch(() => ({ data: [] }));
  if (open !== mine) return;
  mine.background = listed.data;
  drawItems();
  if (listed.data.length) looking = setTimeout(lookForBackground, 2000);
}

async function terminate(processId) {
  await link.call("thread/backgroundTerminals/terminate", { threadId: open.id, processId }).catch((error) => complain("thread-error", error.message));
  lookForBackground();
}

// ---------------------------------------------------------------- questions

function drawQuestions() {
  drawElsewhere(open?.id);
  drawItems();
  drawTitle();
}

listen({
  changed: drawQuestions,
  titleOf: (id) => title(threads.get(id) ?? { preview: "another thread" }),
  isInView: (id) => about(id),
});

// ---------------------------------------------------------------- finding in a thread

function closeFind() {
  search = { text: "", found: [], at: -1 };
  $("find-text").value = "";
  $("found").textContent = "";
  show("find", false);
}

function openFind() {
  if (!open) return;
  show("find", true);
  $("find-text").focus();
  $("find-text").select();
}

/** Everything that was said and done is looked through, so all of it is read first. */
async function findAll() {
  const [mine, text] = [open, $("find-text").value.trim().toLowerCase()];
  const isCurrent = () => open === mine && $("find-text").value.trim().toLowerCase() === text;
  search = { text, found: [], at: -1 };
  if (!text) { $("found").textContent = ""; return list.draw(); }
  while (isCurrent() && mine.older !== "none") {
    $("found").textContent = "reading what was before";
    if (mine.isReading) await new Promise((resolve) => setTimeout(resolve, 20));
    else await readOlder();
  }
  if (!isCurrent()) return;
  const holds = ([key, entry]) => words({ ...entry, output: open.outputs.get(key)?.text }).toLowerCase().includes(text);
  search.found = [...open.items].filter(holds).map(([key]) => key);
  search.at = search.found.length - 1;
  step(0);
}

/** Goes to a match; behind the last one comes the first. */
function step(by) {
  const count = search.found.length;
  if (!count) { $("found").textContent = search.text ? "nothing was found" : ""; return list.draw(); }
  search.at = (search.at + by + count) % count;
  $("found").textContent = `${search.at + 1} of ${count}`;
  list.reveal(search.found[search.at]);
}

let typing = null;
$("find-text").oninput = () => { clearTimeout(typing); typing = setTimeout(findAll, 150); };
$("find").onsubmit = (event) => {
  event.preventDefault();
  if ($("find-text").value.trim().toLowerCase() !== search.text) { clearTimeout(typing); findAll(); } else step(1);
};
$("find-before").onclick = () => step(-1);
$("find-close").onclick = () => { closeFind(); list.draw(); $("find-button").focus(); };
$("find-button").onclick = openFind;

// ---------------------------------------------------------------- what is done to a thread

const fails = (error) => complain("thread-error", error.message);

async function fork(point) {
  try {
    const { thread } = await link.call("thread/fork", { threadId: open.id, excludeTurns: true, ...point });
    heard.add(thread.id);
    await refresh();
    location.hash = `#/thread/${thread.id}`;
  } catch (error) { fails(error); }
}

function forkButton(point, label) {
  return h("button", { className: "small quiet", onclick: () => fork(point), "aria-label": label, title: label }, "Fork");
}

$("fork").onclick = () => fork({});

$("rename-button").onclick = () => {
  show("rename", true);
  $("name").value = { ...open.thread, ...threads.get(open.id) }.name ?? "";
  $("name").focus();
};
function closeRename() { show("rename", false); $("rename-button").focus(); }
$("rename-cancel").onclick = closeRename;
$("rename").onsubmit = async (event) => {
  event.preventDefault();
  try {
    await link.call("thread/name/set", { threadId: open.id, name: $("name").value.trim() });
    closeRename();
  } catch (error) { fails(error); }
};

$("archive").onclick = async () => {
  const isArchived = threads.get(open.id)?.archived;
  try {
    await link.call(isArchived ? "thread/unarchive" : "thread/archive", { threadId: open.id });
    if (!isArchived) location.hash = "#/";
    else $("archived").checked = false;
    await refresh();
    drawThread();
  } catch (error) { fails(error); }
};

$("take-over").onclick = () => sure("Take this thread over? The program that holds it cannot write it any more, and its turn stops there.", "Take over", async () => {
  const id = open.id;
  try {
    await link.call("thread/takeover", { threadId: id });
    if (about(id)) await openThread(id);
    refresh();
  } catch (error) { fails(error); }
});

// ---------------------------------------------------------------- models

async function loadModels() {
  const { data } = await link.call("model/list", { limit: 1000 }).catch(() => ({ data: [] }));
  const named = (model) => (model.displayName && model.displayName !== model.model ? `${model.modelProvider} / ${model.model}: ${model.displayName}` : `${model.modelProvider} / ${model.model}`);
  $("new-model").replaceChildren(h("option", { value: "" }, "as configured"),
    ...data.map((model) => h("option", { value: JSON.stringify([model.modelProvider, model.model]) }, `${named(model)}${model.isDefault ? " (configured)" : ""}`)));
  $("models").replaceChildren(...[...new Set(data.map((model) => model.model))].map((model) => h("option", { value: model })));
}

$("model").onchange = async () => {
  const model = $("model").value.trim();
  if (!open || !model || model === open.thread?.model) return;
  complain("thread-error", null);
  try {
    await link.call("thread/settings/update", { threadId: open.id, model });
    if (open.thread) open.thread.model = model;
    drawFacts();
  } catch (error) { fails(error); $("model").value = open.thread?.model ?? ""; }
};

// ---------------------------------------------------------------- saying something

const said = (text) => [{ type: "text", text, text_elements: [] }];

async function startTurn(threadId, text) {
  await link.call("turn/start", { threadId, input: said(text), clientUserMessageId: crypto.randomUUID?.() ?? `${now()}-${Math.random()}` });
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
    list.toEnd();
  } catch (error) { complain("thread-error", error.message); } finally { $("send").disabled = false; }
};

for (const [field, form] of [["text", "say"], ["first", "start"]]) {
  $(field).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $(form).requestSubmit(); }
  });
}

$("stop").onclick = () => link.call("turn/interrupt", { threadId: open.id, turnId: open.turn }).catch(fails);

/** Places that a new thread may work in, in the order in which they were chosen. */
const places = new Map();

function drawPlaces() {
  const isFirst = (id) => places.keys().next().value === id;
  keyed($("places"), [...environments].map(([id, { state }]) => [id, { id, state, isChosen: places.has(id), isPrimary: isFirst(id) }]), ({ id, state, isPrimary }) => {
    const cwd = h("input", { className: "cwd", "aria-label": `Directory in ${id}`, placeholder: "/absolute/path", hidden: !places.has(id), value: places.get(id) ?? "" });
    cwd.oninput = () => places.set(id, cwd.value);
    const box = h("input", { type: "checkbox", checked: places.has(id) });
    box.onchange = () => choose(id, box.checked);
    return h("li", { data: { place: id } }, h("label", {}, box, badge(id), isPrimary ? h("span", { className: "tag" }, "primary") : null, h("span", { className: "hint" }, state)), cwd);
  });
}

/** Chooses a place for a new thread, or not any more. */
async function choose(id, isWanted) {
  if (isWanted) places.set(id, places.get(id) ?? "");
  else places.delete(id);
  const hadFocus = $("places").contains(document.activeElement);
  drawPlaces();
  const row = [...$("places").children].find((one) => one.dataset.place === id);
  if (hadFocus) row?.querySelector("input[type=checkbox]").focus();
  if (!isWanted || places.get(id)) return;
  // Where that machine begins by itself is the best guess.
  const info = await link.call("environment/info", { environmentId: id }).catch(() => null);
  const field = () => [...$("places").children].find((one) => one.dataset.place === id)?.querySelector(".cwd");
  if (info?.cwd && places.get(id) === "" && field()) {
    const cwd = decodeURIComponent(info.cwd.replace(/^file:\/\//, ""));
    field().value = cwd;
    places.set(id, cwd);
  }
}

$("start").onsubmit = async (event) => {
  event.preventDefault();
  complain("start-error", null);
  const params = {};
  if (places.size) params.environments = [...places].map(([environmentId, cwd]) => ({ environmentId, cwd }));
  if ($("sandbox").value) params.sandbox = $("sandbox").value;
  if ($("approval").value) params.approvalPolicy = $("approval").value;
  if ($("new-model").value) [params.modelProvider, params.model] = JSON.parse($("new-model").value);
  try {
    const { thread } = await link.call("thread/start", params);
    heard.add(thread.id);
    await startTurn(thread.id, $("first").value);
    $("first").value = "";
    location.hash = `#/thread/${thread.id}`;
    refresh();
  } catch (error) { complain("start-error", error.message); }
};

// ---------------------------------------------------------------- keys

const FIELDS = "input, textarea, select, [contenteditable]";
const SETTING = "outpost-single-keys";
$("keys-on").checked = localStorage.getItem(SETTING) !== "off";
$("keys-on").onchange = () => localStorage.setItem(SETTING, $("keys-on").checked ? "on" : "off");
$("keys-button").onclick = () => $("keys").showModal();

/** Goes so many items further, or to the first or last one. */
function walk(by) {
  if (!open || !list.keys.length) return;
  const current = document.activeElement?.closest?.("#items li[data-key]")?.dataset.key;
  const from = current ?? list.current();
  list.reveal(current || by < 0 ? list.neighbour(from, by) : from, { focus: true, block: "nearest" });
}

const KEYS = {
  j: () => walk(1),
  k: () => walk(-1),
  g: () => { if (open) list.reveal(list.keys[0], { focus: true, block: "nearest" }); },
  G: () => { if (open) list.reveal(list.keys.at(-1), { focus: true, block: "nearest" }); },
  a() {
    if (open && first) {
      list.reveal(first);
      document.querySelector("#items .question button:not([disabled])")?.focus();
    } else document.querySelector("#questions a")?.focus();
  },
  r: () => { if (open) $("text").focus(); },
  f: () => openFind(),
  "/": () => $("search").focus(),
  n: () => { location.hash = "#/new"; },
  "?": () => $("keys").showModal(),
};

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || $("app").hidden || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (!$("find").hidden) $("find-close").click();
    else if (!$("rename").hidden) closeRename();
    else if (event.target.matches?.(FIELDS)) $("main").focus({ preventScroll: true });
    return;
  }
  if (event.target.matches?.(FIELDS) || !$("keys-on").checked) return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

// ---------------------------------------------------------------- which part is shown

async function route() {
  const id = location.hash.match(/^#\/thread\/([\w-]+)$/)?.[1];
  const machine = location.hash.match(/^#\/machine\/(.+)$/)?.[1];
  const place = location.hash.match(/^#\/new\/(.+)$/)?.[1];
  route.machine = machine ? decodeURIComponent(machine) : null;
  const view = id ? "thread" : machine ? "machine" : location.hash === "#/new" || place ? "new" : "list";
  document.body.dataset.view = view;
  for (const one of ["thread", "machine", "new"]) show(one, view === one);
  show("nothing", view === "list");
  if (view !== "thread") open = null;
  if (view !== "machine") closeMachine();
  drawTitle();
  drawThreads();
  if (place) choose(decodeURIComponent(place), true);
  document.querySelector('#threads [aria-current="page"]')?.scrollIntoView({ block: "nearest" });
  if (id) await openThread(id);
  if (machine) await openMachine(route.machine, environments);
  drawQuestions();
}

/** Keyboard focus follows to where the user went. */
function arrive() {
  scrollTo(0, 0);
  const place = { new: "first", thread: "main", machine: "main" }[document.body.dataset.view];
  if (place) $(place).focus({ preventScroll: true });
}

// The way past the lists is no other part of the page.
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };

addEventListener("hashchange", () => {
  route().catch((error) => console.warn(error.message));
  arrive();
});
// What other programs of this home do to threads is not told, so it is looked up now and then.
setInterval(() => { if (link.isOpen() && !document.hidden) refresh(); }, 10_000);

const state = await session();
if (state?.in) {
  show("app", true);
  show("keys-button", true);
  show("logout", !state.open);
  offerNotifications();
  connect({ begin, heard: (method, params) => hear[method]?.(params), asked, tell });
} else {
  show("login", true);
  show("link", false);
  show("wrong", location.hash === "#wrong");
  $("token").focus();
}
