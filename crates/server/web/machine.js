// One machine: how it stands, what its sandbox holds, what runs there, and what ran there last.

import { $, code, complain, h, keyed, parts, show } from "/dom.js";
import { ago, link, took } from "/link.js";

let current = null;
let looking = null;

export function openId() { return current?.id ?? null; }
export function isOpen(id) { return current?.id === id; }
export function close() { current = null; clearTimeout(looking); }

export async function openMachine(id, environments) {
  current = { id, info: null, activity: null, environments };
  complain("machine-error", null);
  drawMachine();
  await look();
}

/** Looks at what runs there, again and again while the page is open. What the machine says of itself is asked only if it is connected. */
export async function look() {
  clearTimeout(looking);
  const mine = current;
  if (!mine) return;
  const entry = mine.environments.get(mine.id);
  const [info, activity] = await Promise.all([
    entry?.state === "ready" ? link.call("environment/info", { environmentId: mine.id }).catch(() => mine.info) : mine.info,
    link.call("environment/activity", { environmentId: mine.id }).catch((error) => { complain("machine-error", error.message); return mine.activity; }),
  ]);
  if (current !== mine) return;
  Object.assign(mine, { info, activity });
  drawMachine();
  looking = setTimeout(() => { if (document.hidden) return; look(); }, 5000);
}

$("connect").onclick = async () => {
  const mine = current;
  complain("machine-error", null);
  $("connect").disabled = true;
  try {
    mine.info = await link.call("environment/info", { environmentId: mine.id });
  } catch (error) {
    if (current === mine) complain("machine-error", error.message);
  } finally { $("connect").disabled = false; }
  if (current === mine) look();
};

const plainPath = (uri) => (uri ? decodeURIComponent(uri.replace(/^file:\/\//, "")) : "");

export function drawMachine() {
  if (!current) return;
  const { id, info, activity } = current;
  const entry = current.environments.get(id);
  const state = entry?.state ?? "missing";
  $("machine-title").replaceChildren(...parts(id, "line"));
  $("machine-state").replaceChildren(h("span", { className: "dot", data: { state }, "aria-hidden": "true" }), ` ${state}`,
    entry?.isDefault ? h("span", { className: "tag" }, "default") : "");
  complain("machine-reason", state === "ready" ? null : entry?.reason);
  $("connect").textContent = state === "failed" || state === "needs login" ? "Try again" : "Connect";
  show("connect", ["idle", "failed", "needs login"].includes(state));
  $("work-there").href = `#/new/${encodeURIComponent(id)}`;
  const facts = [
    ["Address", entry?.address], ["Version", info?.executorVersion], ["System", info?.platformOs], ["Shell", info?.shell?.path],
    ["Directory", plainPath(info?.cwd)], ["Executor", info?.executorId ?? entry?.executorId], ["Started as", info?.instanceId ?? entry?.instanceId],
  ].filter(([, value]) => value);
  keyed($("machine-facts"), facts, (value, name) => h("div", {}, h("dt", {}, name), h("dd", {}, code(value, "word"))));
  drawVerdict(info);
  const processes = activity?.processes ?? [];
  keyed($("machine-processes"), processes.map((one) => [`${one.threadId} ${one.processId}`, one]), ({ threadId, processId, command, cwd }) => h("li", {},
    h("p", { className: "command" }, code(command)), h("p", { className: "hint" }, "in ", code(cwd, "word"), " · ", h("a", { href: `#/thread/${threadId}` }, `thread ${threadId.slice(0, 8)}`)),
    h("div", { className: "buttons" }, h("button", { onclick: () => end(threadId, processId) }, "End it"))));
  show("no-processes", activity !== null && processes.length === 0);
  const commands = activity?.commands ?? [];
  keyed($("machine-commands"), commands.map((one) => [`${one.threadId} ${one.itemId}`, { ...one, when: one.startedAtMs ? ago(one.startedAtMs / 1000) : "" }]), (one) => h("li", {},
    h("p", { className: "command" }, "$ ", code(one.command)),
    h("p", { className: "hint" }, h("span", { className: "how", data: { kind: one.status } }, outcome(one)), ` ${[one.when, took(one.durationMs)].filter(Boolean).join(", ")} · `,
      h("a", { href: `#/thread/${one.threadId}` }, `thread ${one.threadId.slice(0, 8)}`))));
  show("no-commands", activity !== null && commands.length === 0);
}

function outcome({ status, exitCode }) {
  if (exitCode !== null && exitCode !== undefined) return exitCode === 0 ? "done" : `exit code ${exitCode}`;
  return { inProgress: "running", completed: "done", failed: "failed", declined: "not allowed" }[status] ?? status;
}

/** What the sandbox of a machine holds, each promise with what holds it or why it does not. */
function drawVerdict(info) {
  const rows = info?.sandbox ?? [];
  show("verdict", rows.length > 0);
  if (!rows.length) return;
  const broken = rows.filter((row) => !row.holds).length;
  $("verdict").dataset.kind = broken ? "broken" : "whole";
  $("verdict-word").textContent = broken ? `${broken} of ${rows.length} promises do not hold here` : `all ${rows.length} promises hold here`;
  keyed($("promises"), rows.map((row) => [row.promise, row]), ({ promise, holds, mechanism, reason }) => h("li", { data: { holds: String(holds) } },
    h("span", { className: "tick", role: "img", "aria-label": holds ? "holds" : "does not hold", data: { status: holds ? "completed" : "failed" } }, holds ? "✓" : "✗"),
    h("span", {}, h("span", {}, promise), h("span", { className: "hint" }, ` ${[mechanism, holds ? null : reason].filter(Boolean).join(": ")}`))));
  show("limits-part", Boolean(info?.limits?.length));
  keyed($("limits"), (info?.limits ?? []).map((limit) => [limit, limit]), (limit) => h("li", { className: "hint" }, limit));
}

async function end(threadId, processId) {
  await link.call("thread/backgroundTerminals/terminate", { threadId, processId }).catch((error) => complain("machine-error", error.message));
  look();
}

