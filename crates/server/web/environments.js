// The environments at the side of the page, and how each stands.

import { $, h, keyed, machineLink, show } from "/dom.js";
import { link } from "/link.js";
import { isOpen as isMachineOpen, look as lookAtMachine } from "/machine.js";

/** What else shows environments, drawn anew with them. Set once, by the page. */
let changed = () => {};
export function listen(hooks) { ({ changed } = hooks); }

export const environments = new Map();

/** More environments than this are folded: what is in use, and what is in trouble, is what people look for. */
const FEW = 8;
const IDLE = new Set(["idle", "disabled"]);
const unfolded = new Set();

/** All of them if that is asked for, and else the first few; the button says how many there are. */
export function folded(button, all, first = all) {
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
  changed();
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

export const hear = {
  "environment/changed"({ environmentId, state, reason, generation, event }) {
    const was = environments.get(environmentId)?.state;
    if (event === "removed") environments.delete(environmentId);
    else environments.set(environmentId, { ...environments.get(environmentId), environmentId, state, reason, generation });
    drawEnvironments();
    if (isMachineOpen(environmentId) && was !== state) lookAtMachine();
  },
};

export async function loadEnvironments() {
  for (const entry of (await link.call("environment/watch")).data) environments.set(entry.environmentId, entry);
  drawEnvironments();
}
