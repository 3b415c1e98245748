// The threads at the side of the page: a list that can be searched, with each fork below what it was forked from.

import { $, badge, complain, h, keyed, show } from "/dom.js";
import { ago, link } from "/link.js";

/** What else shows something of the list, drawn anew with it. Set once, by the page. */
let changed = () => {};
export function listen(hooks) { ({ changed } = hooks); }

export const threads = new Map();
export const heard = new Set();
let cursor = null;
let shown = 50;
let refreshing = null;
/** Before that it is not known whether there are any. */
let isRead = false;

/** Which reading of the list was begun last, and which one is shown: the answer to an older one may come later. */
let [begun, taken] = [0, 0];

/** Reads the list anew; many wishes at once are one. */
export function refresh() {
  refreshing ??= (async () => {
    await new Promise((resolve) => setTimeout(resolve, 50));
    refreshing = null;
    const number = begun += 1;
    const searchTerm = $("search").value.trim() || undefined;
    const archived = $("archived").checked || undefined;
    const page = await link.call("thread/list", { limit: shown, sortKey: "recency_at", searchTerm, archived });
    const ids = page.data.map((thread) => thread.id);
    const more = new Map();
    for (let at = 0; at < ids.length; at += 100) {
      const { data } = await link.call("thread/overview", { threadIds: ids.slice(at, at + 100) });
      for (const entry of data) more.set(entry.threadId, entry);
    }
    if (number < taken) return;
    taken = number;
    cursor = page.nextCursor;
    isRead = true;
    threads.clear();
    for (const thread of page.data) threads.set(thread.id, { ...thread, ...more.get(thread.id), id: thread.id, archived: Boolean(archived) });
    drawThreads();
    changed();
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

export function title(thread) { return thread.name || thread.preview || "(nothing was said yet)"; }

/** What a thread does, in a word, and what kind of word that is. */
export function standing(thread) {
  const { type, activeFlags = [] } = thread.status;
  if (type === "active" && activeFlags.length) return ["waiting", "waiting for you"];
  if (type === "active") return ["active", "working"];
  if (type === "systemError") return ["systemError", "stopped by an error"];
  return [type, type === "idle" ? "idle" : "not loaded"];
}

export function tokens(count) {
  if (!count) return "no tokens";
  return count < 10_000 ? `${count} tokens` : `${Math.round(count / 1000)}k tokens`;
}

export function holder(thread) {
  if (!thread.holder) return "not in use";
  const { isHere, node, address, host, pid } = thread.holder;
  if (isHere) return "open in this server";
  return address ? `in use by node ${node ?? host} at ${address}` : `in use by ${host}, process ${pid}`;
}

/** Badges of the first few, and how many more there are. */
function badges(ids) {
  const more = ids.length - 3;
  if (more <= 1) return ids.map(badge);
  return [...ids.slice(0, 3).map(badge), h("span", { title: ids.slice(3).join(", ") }, `and ${more} more`)];
}

function turns(thread) { return thread.turns === 1 ? "1 turn" : `${thread.turns ?? 0} turns`; }

/** The forest of forks: a fork stands below what it was forked from, if that is shown. */
export function drawThreads() {
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
  show("no-threads", isRead && threads.size === 0 && !searches);
  show("none-found", isRead && threads.size === 0 && searches);
  show("more", Boolean(cursor));
}

$("more").onclick = () => { shown += 50; refresh(); };
$("search").oninput = () => { shown = 50; refresh(); };
$("archived").onchange = () => { shown = 50; refresh(); };

/** Forks a thread, at a point of it or at its end, and goes to the fork. */
export async function fork(threadId, point) {
  try {
    const { thread } = await link.call("thread/fork", { threadId, excludeTurns: true, ...point });
    heard.add(thread.id);
    await refresh();
    location.hash = `#/thread/${thread.id}`;
  } catch (error) { complain("thread-error", error.message); }
}

/** A thread that was opened stands as the server says now. */
export function opened(id, status) {
  heard.add(id);
  if (!threads.has(id) || !status) return;
  threads.get(id).status = status;
  drawThreads();
}

export const hear = {
  "thread/started": () => refresh(),
  "thread/closed"({ threadId }) { heard.delete(threadId); refresh(); },
  "thread/archived": () => refresh(),
  "thread/unarchived": () => refresh(),
  "thread/deleted": () => refresh(),
  "thread/reverted": () => refresh(),
  "thread/name/updated"({ threadId, threadName }) {
    if (threads.has(threadId)) threads.get(threadId).name = threadName;
    refresh();
  },
  "thread/status/changed"({ threadId, status }) {
    const thread = threads.get(threadId);
    if (thread) { thread.status = status; drawThreads(); }
    refresh();
  },
  "thread/tokenUsage/updated"({ threadId, tokenUsage }) {
    const thread = threads.get(threadId);
    if (thread) thread.totalTokens = tokenUsage.total.totalTokens;
    drawThreads();
  },
  "turn/completed": () => refresh(),
};
