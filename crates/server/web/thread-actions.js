// What is done to the open thread: messages, its model, stop, rename, fork, archive, take over.

import { $, complain, show, sure } from "/dom.js";
import { link, now } from "/link.js";
import { openThread } from "/thread.js";
import { drawFacts, drawThread } from "/thread-head.js";
import { list } from "/thread-items.js";
import { isOpen, open } from "/thread-open.js";
import { fork, refresh, threads } from "/threads.js";

const fails = (error) => complain("thread-error", error.message);

$("fork").onclick = () => fork(open.id, {});

$("rename-button").onclick = () => {
  show("rename", true);
  $("name").value = { ...open.thread, ...threads.get(open.id) }.name ?? "";
  $("name").focus();
};
export function closeRename() { show("rename", false); $("rename-button").focus(); }
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
    if (isOpen(id)) await openThread(id);
    refresh();
  } catch (error) { fails(error); }
});

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

const said = (text) => [{ type: "text", text, text_elements: [] }];

export async function startTurn(threadId, text) {
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

$("stop").onclick = () => link.call("turn/interrupt", { threadId: open.id, turnId: open.turn }).catch(fails);
