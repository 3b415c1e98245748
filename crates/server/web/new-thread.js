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

export async function loadModels() {
  const { data } = await link.call("model/list", { limit: 1000 }).catch(() => ({ data: [] }));
  const named = (model) => (model.displayName && model.displayName !== model.model ? `${model.modelProvider} / ${model.model}: ${model.displayName}` : `${model.modelProvider} / ${model.model}`);
  $("new-model").replaceChildren(h("option", { value: "" }, "as configured"),
    ...data.map((model) => h("option", { value: JSON.stringify([model.modelProvider, model.model]) }, `${named(model)}${model.isDefault ? " (configured)" : ""}`)));
  $("models").replaceChildren(...[...new Set(data.map((model) => model.model))].map((model) => h("option", { value: model })));
}
