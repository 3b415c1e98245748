// The head of the open thread: its name, where it works, and what is known of it. The name of the browser's tab, too.

import { $, code, h, keyed, machineLink, parts, show, visible } from "/dom.js";
import { environments, folded } from "/environments.js";
import { openId as openMachineId } from "/machine.js";
import { questions } from "/questions.js";
import { open } from "/thread-open.js";
import { holder, standing, threads, title, tokens } from "/threads.js";

/** The name of the page, with how many questions wait. */
function entitle(name) {
  const waiting = questions.size ? `(${questions.size}) ` : "";
  document.title = name ? `${waiting}${visible(name, "line")} · Outpost` : `${waiting}Outpost`;
}

function nameOfOpen() {
  const thread = { ...open.thread, ...threads.get(open.id) };
  return thread.preview !== undefined || thread.name ? title(thread) : "…";
}

export function drawTitle() {
  const names = { thread: open && nameOfOpen(), new: "New thread", machine: openMachineId() };
  entitle(names[document.body.dataset.view]);
}

export function drawThread() {
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
export function drawAttached() {
  const places = (open?.environments ?? []).map((place, at) => [place.environmentId, { ...place, isPrimary: at === 0, state: environments.get(place.environmentId)?.state ?? "missing" }]);
  keyed($("thread-environments"), folded("all-places", places), ({ environmentId, cwd, state, isPrimary }) => h("li", { data: { primary: String(isPrimary) } },
    h("span", { className: "dot", data: { state }, "aria-hidden": "true" }), machineLink(environmentId),
    isPrimary ? h("span", { className: "tag", title: "Calls that name no other environment go here" }, "primary") : null,
    h("span", { className: "hint" }, state), h("code", {}, code(cwd, "word"))));
}

export function drawFacts() {
  if (!open) return;
  const thread = { ...open.thread, ...threads.get(open.id) };
  const facts = [
    ["Model", [thread.modelProvider, open.thread?.model ?? thread.model].filter(Boolean).join(" / ")],
    ["State", thread.status ? standing(thread)[1] : ""],
    ["Turns", String(threads.get(open.id)?.turns ?? "")],
    ["Spent", tokens(open.tokens ?? thread.totalTokens)],
    ["Started by", thread.createdBy ?? ""],
    ["Holder", threads.has(open.id) ? holder(thread) : ""],
    ["Forked from", thread.forkedFromId ?? ""],
  ].filter(([, value]) => value);
  keyed($("facts"), facts.map(([name, value]) => [name, { name, value }]), ({ name, value }) => h("div", {}, h("dt", {}, name),
    h("dd", {}, name === "Forked from" ? h("a", { href: `#/thread/${value}` }, value.slice(0, 8)) : value)));
}
