// The form of a new thread: what is to be done, where, and with which model.

import { $, badge, complain, h, keyed } from "/dom.js";
import { environments } from "/environments.js";
import { link } from "/link.js";
import { startTurn } from "/thread-actions.js";
import { heard, refresh } from "/threads.js";

/** Places that a new thread may work in, in the order in which they were chosen. */
const places = new Map();

export function drawPlaces() {
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
export async function choose(id, isWanted) {
  if (isWanted) places.set(id, places.get(id) ?? "");
  else places.delete(id);
  const hadFocus = $("places").contains(document.activeElement);
  drawPlaces();
  const row = [...$("places").children].find((one) => one.dataset.place === id);
  if (hadFocus) row?.querySelector("input[type=checkbox]").focus();
  if (isWanted) await fillIn(id);
}

/** Says where a machine begins by itself, which is the best guess, unless a directory is there by then. */
async function fillIn(id) {
  if (places.get(id) !== "") return;
  const info = await link.call("environment/info", { environmentId: id }).catch(() => null);
  if (!info?.cwd || places.get(id) !== "") return;
  places.set(id, decodeURIComponent(info.cwd.replace(/^file:\/\//, "")));
  const field = [...$("places").children].find((one) => one.dataset.place === id)?.querySelector(".cwd");
  if (field) field.value = places.get(id);
}

/** A second click means the same thread. */
let isStarting = false;

$("start").onsubmit = async (event) => {
  event.preventDefault();
  if (isStarting) return;
  isStarting = true;
  complain("start-error", null);
  try {
    // A quick user starts before a machine has answered.
    await Promise.all([...places.keys()].map(fillIn));
    const nowhere = [...places].find(([, cwd]) => cwd === "")?.[0];
    if (nowhere) throw new Error(`${nowhere} does not say in which directory it begins; type one`);
    const params = {};
    if (places.size) params.environments = [...places].map(([environmentId, cwd]) => ({ environmentId, cwd }));
    if ($("sandbox").value) params.sandbox = $("sandbox").value;
    if ($("approval").value) params.approvalPolicy = $("approval").value;
    if ($("new-model").value) [params.modelProvider, params.model] = JSON.parse($("new-model").value);
    const { thread } = await link.call("thread/start", params);
    heard.add(thread.id);
    await startTurn(thread.id, $("first").value);
    $("first").value = "";
    location.hash = `#/thread/${thread.id}`;
    refresh();
  } catch (error) { complain("start-error", error.message); } finally { isStarting = false; }
};

export async function loadModels() {
  const { data } = await link.call("model/list", { limit: 1000 }).catch(() => ({ data: [] }));
  const named = (model) => (model.displayName && model.displayName !== model.model ? `${model.modelProvider} / ${model.model}: ${model.displayName}` : `${model.modelProvider} / ${model.model}`);
  $("new-model").replaceChildren(h("option", { value: "" }, "as configured"),
    ...data.map((model) => h("option", { value: JSON.stringify([model.modelProvider, model.model]) }, `${named(model)}${model.isDefault ? " (configured)" : ""}`)));
  $("models").replaceChildren(...[...new Set(data.map((model) => model.model))].map((model) => h("option", { value: model })));
}
