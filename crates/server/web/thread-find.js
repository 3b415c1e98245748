// Finding words in the open thread.

import { $, show } from "/dom.js";
import { words } from "/items.js";
import { mark, readOlder } from "/thread-items.js";
import { open } from "/thread-open.js";

let search = { text: "", found: [], at: -1 };

export function closeFind() {
  search = { text: "", found: [], at: -1 };
  $("find-text").value = "";
  $("found").textContent = "";
  show("find", false);
  mark(null);
}

export function openFind() {
  if (!open) return;
  show("find", true);
  $("find-text").focus();
  $("find-text").select();
}

/** Everything that was said and done is looked through, so all of it is read first. */
async function findAll() {
  const [mine, text] = [open, $("find-text").value.trim().toLowerCase()];
  const isCurrent = () => open === mine && $("find-text").value.trim().toLowerCase() === text;
  search = { text, found: [], at: -1 };
  if (!text) { $("found").textContent = ""; return mark(null); }
  while (isCurrent() && mine.older !== "none") {
    $("found").textContent = "reading what was before";
    if (mine.isReading) await new Promise((resolve) => setTimeout(resolve, 20));
    else await readOlder();
  }
  if (!isCurrent()) return;
  const holds = ([key, entry]) => words({ ...entry, output: open.outputs.get(key)?.text }).toLowerCase().includes(text);
  search.found = [...open.items].filter(holds).map(([key]) => key);
  search.at = search.found.length - 1;
  step(0);
}

/** Goes to a match; behind the last one comes the first. */
function step(by) {
  const count = search.found.length;
  if (!count) { $("found").textContent = search.text ? "nothing was found" : ""; return mark(null); }
  search.at = (search.at + by + count) % count;
  $("found").textContent = `${search.at + 1} of ${count}`;
  mark(search.found[search.at]);
}

let typing = null;
$("find-text").oninput = () => { clearTimeout(typing); typing = setTimeout(findAll, 150); };
$("find").onsubmit = (event) => {
  event.preventDefault();
  if ($("find-text").value.trim().toLowerCase() !== search.text) { clearTimeout(typing); findAll(); } else step(1);
};
$("find-before").onclick = () => step(-1);
$("find-close").onclick = () => { closeFind(); $("find-button").focus(); };
$("find-button").onclick = openFind;
