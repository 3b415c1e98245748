// Elements out of texts. Whatever others wrote goes through `parts`, and no text is ever read as HTML.

import { MARK, show as visible } from "/shown.js";

export { visible };
export const $ = (id) => document.getElementById(id);

/** A text as nodes: what could deceive is marked, and the marks stand out. Texts of ours have nothing to mark. */
export function parts(text, form = "text") {
  const shown = visible(String(text), form);
  const nodes = [];
  let at = 0;
  for (const { 0: mark, index } of shown.matchAll(MARK)) {
    const element = document.createElement("mark");
    element.textContent = mark;
    nodes.push(shown.slice(at, index), element);
    at = index + mark.length;
  }
  return [...nodes, shown.slice(at)];
}

/** Attributes that people read. */
const READ = new Set(["title", "aria-label", "placeholder", "alt"]);

/** An element; text children are never read as HTML, and go through `parts`. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (READ.has(name)) element.setAttribute(name, visible(String(value), "line"));
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  const there = children.filter((child) => child !== undefined && child !== null && child !== false);
  element.append(...there.flatMap((child) => (typeof child === "string" || typeof child === "number" ? parts(child) : child)));
  return element;
}

/** What will be carried out, or a path: whatever is not plain ASCII is marked. */
export const code = (text, form = "script") => h("span", { className: "exact" }, parts(text ?? "", form));

/** Keeps one element per key, so that what has the focus keeps it. */
export function keyed(container, entries, make) {
  const old = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let at = container.firstChild;
  for (const [key, entry] of entries) {
    const signature = JSON.stringify(entry);
    let element = old.get(key);
    if (!element || element.signature !== signature) {
      const fresh = make(entry, key);
      fresh.dataset.key = key;
      fresh.signature = signature;
      if (element) {
        if (at === element) at = element.nextSibling;
        const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
        element.replaceWith(fresh);
        if (fresh.nextSibling !== at) container.insertBefore(fresh, at);
        // Only links keep it: it must not come to an answer that its user never saw.
        if (focused) [...fresh.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
      } else container.insertBefore(fresh, at);
      element = fresh;
    } else if (element !== at) container.insertBefore(element, at);
    else at = at.nextSibling;
    old.delete(key);
  }
  for (const gone of old.values()) gone.remove();
}

export function show(id, isVisible) { $(id).hidden = !isVisible; }
export function complain(id, text) { $(id).replaceChildren(...parts(text ?? "", "line")); show(id, Boolean(text)); }

const TINTS = 6;

/** The same colour for the same environment, on every screen; the colours themselves are in the style sheet. */
function tint(id) {
  let sum = 0;
  for (const letter of id) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return String(sum % TINTS);
}

export function badge(id) {
  if (!id) return null;
  return h("span", { className: "badge", data: { tint: tint(id) }, title: `environment ${id}` }, id);
}

/** The same as a way to the machine's own page. */
export function machineLink(id) {
  if (!id) return null;
  return h("a", { className: "badge", href: `#/machine/${encodeURIComponent(id)}`, data: { tint: tint(id) }, title: `environment ${id}` }, id);
}

/** Asks before something that cannot be taken back; does it, or nothing. */
export function sure(question, word, action) {
  const dialog = $("sure");
  $("sure-question").replaceChildren(...parts(question, "line"));
  $("sure-yes").textContent = word;
  dialog.onclose = () => { if (dialog.returnValue === "yes") action(); };
  dialog.returnValue = "";
  dialog.showModal();
}
