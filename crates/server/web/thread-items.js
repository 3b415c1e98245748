// What was said and done in the open thread, each question at its item, and what runs.

import { $, complain, h, show } from "/dom.js";
import { drawItem, drawRunning, plan, turnEnd } from "/items.js";
import { link } from "/link.js";
import { VirtualList } from "/list.js";
import { card, questionsOf, signature } from "/questions.js";
import { drawThread } from "/thread-head.js";
import { end, open, put, putPlan } from "/thread-open.js";
import { fork } from "/threads.js";

/** Which question stands at which row, and the row that stays in view. */
let waits = new Map();
export let first = null;
/** The row that a search stands at. */
let marked = null;

export const list = new VirtualList($("items"), {
  signature(key) {
    const mark = marked === key ? "current" : "";
    // A card shows nothing of its item: made anew with it, it would lose the focus, or a click that has only begun.
    if (waits.has(key)) return ["question", signature(waits.get(key)), key === first ? waits.size : "", mark].join(" ");
    return [open.items.get(key)?.version, open.outputs.get(key)?.version, open.progress.get(key), mark].join(" ");
  },
  make(key) {
    const entry = open.items.get(key);
    const row = h("li", { className: marked === key ? "match" : "" });
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

export function drawItems() {
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

export async function lookForBackground() {
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

function forkButton(point, label) {
  return h("button", { className: "small quiet", onclick: () => fork(open.id, point), "aria-label": label, title: label }, "Fork");
}

/** Marks a row and brings it into view; without a key, no row is marked. */
export function mark(key) {
  marked = key;
  if (key) list.reveal(key);
  else list.draw();
}

/** Turns that are read at once. */
const PAGE = 15;

/** Reads a page of turns before those that are there; the newest ones first of all. */
export async function readOlder() {
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
