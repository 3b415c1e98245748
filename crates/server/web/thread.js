// One thread: opening it, and what is told of it while it is open.
//
// What is known of it is in thread-open.js; what is drawn in thread-head.js and thread-items.js; what is done to it in thread-actions.js.

import { complain, show } from "/dom.js";
import { link } from "/link.js";
import { closeFind } from "/thread-find.js";
import { drawFacts, drawThread } from "/thread-head.js";
import { drawItems, list, lookForBackground, readOlder } from "/thread-items.js";
import { end, grow, isOpen, open, openFresh, put, putPlan } from "/thread-open.js";
import { opened } from "/threads.js";

export async function openThread(id) {
  const mine = openFresh(id);
  complain("thread-error", null);
  show("only-read", false);
  closeFind();
  show("rename", false);
  list.clear();
  drawThread();
  try {
    const { thread, model, modelProvider } = await link.call("thread/resume", { threadId: id, excludeTurns: true });
    opened(id, thread.status);
    if (open !== mine) return;
    take({ ...thread, model: model ?? thread.model, modelProvider: modelProvider ?? thread.modelProvider });
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

function thinks(member) {
  return ({ threadId, itemId, delta, summaryIndex, contentIndex }) => {
    const grew = grow(threadId, itemId, (item) => {
      const texts = [...(item[member] ?? [])];
      const index = summaryIndex ?? contentIndex ?? 0;
      texts[index] = (texts[index] ?? "") + delta;
      return { ...item, [member]: Array.from(texts, (text) => text ?? "") };
    });
    if (grew) drawItems();
  };
}

export const hear = {
  "thread/reverted"({ threadId }) { if (isOpen(threadId)) openThread(threadId); },
  "thread/name/updated"({ threadId, threadName }) {
    if (isOpen(threadId) && open.thread) { open.thread.name = threadName; drawThread(); }
  },
  "thread/settings/updated"({ threadId, threadSettings }) {
    if (!isOpen(threadId) || !open.thread) return;
    Object.assign(open.thread, { model: threadSettings.model, modelProvider: threadSettings.modelProvider });
    drawThread();
  },
  "thread/tokenUsage/updated"({ threadId, tokenUsage }) {
    if (isOpen(threadId)) { open.tokens = tokenUsage.total.totalTokens; drawFacts(); }
  },
  "turn/started"({ threadId, turn }) {
    if (isOpen(threadId)) { open.turn = turn.id; drawThread(); }
  },
  "turn/completed"({ threadId, turn }) {
    if (isOpen(threadId)) { end(turn); drawThread(); drawItems(); lookForBackground(); }
  },
  "turn/plan/updated"({ threadId, turnId, explanation, plan: steps }) {
    if (isOpen(threadId)) { putPlan(turnId, { explanation, plan: steps }); drawItems(); }
  },
  "item/started"({ threadId, turnId, item }) {
    if (isOpen(threadId)) { put(turnId, item); drawItems(); }
  },
  "item/completed"({ threadId, turnId, item }) {
    if (!isOpen(threadId)) return;
    open.outputs.delete(item.id);
    open.progress.delete(item.id);
    put(turnId, item);
    drawItems();
    if (item.type === "commandExecution" && item.processId) lookForBackground();
  },
  "item/agentMessage/delta"({ threadId, itemId, delta }) {
    if (grow(threadId, itemId, (item) => ({ ...item, text: (item.text ?? "") + delta }))) drawItems();
  },
  "item/reasoning/summaryTextDelta": thinks("summary"),
  "item/reasoning/textDelta": thinks("content"),
  "item/mcpToolCall/progress"({ threadId, itemId, message }) {
    if (isOpen(threadId)) { open.progress.set(itemId, message); drawItems(); }
  },
  "item/fileChange/patchUpdated"({ threadId, itemId, changes }) {
    if (grow(threadId, itemId, (item) => ({ ...item, changes }))) drawItems();
  },
  "item/commandExecution/outputDelta"({ threadId, itemId, delta }) {
    if (!isOpen(threadId)) return;
    // The end is what people look at; the whole is in the item once it is over.
    const known = open.outputs.get(itemId) ?? { text: "", version: 0 };
    open.outputs.set(itemId, { text: (known.text + delta).slice(-20_000), version: known.version + 1 });
    drawItems();
  },
  "error"({ threadId, error, willRetry }) {
    if (isOpen(threadId)) complain("thread-error", willRetry ? `${error.message}; trying again` : error.message);
  },
  "warning"({ threadId, message }) {
    if (isOpen(threadId)) complain("thread-error", message);
  },
};
