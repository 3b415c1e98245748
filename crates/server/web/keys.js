// Keys that lead through the page. Those without Ctrl can be switched off.

import { $ } from "/dom.js";
import { closeRename } from "/thread-actions.js";
import { openFind } from "/thread-find.js";
import { first, list } from "/thread-items.js";
import { open } from "/thread-open.js";

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

for (const [field, form] of [["text", "say"], ["first", "start"]]) {
  $(field).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $(form).requestSubmit(); }
  });
}
