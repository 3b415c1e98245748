// What the user is asked: whether something may be done, and what the agent wants to know. A question stands at its item; those of
// other threads, and of the lists, are announced at the top, in the title and as notifications.

import { badge, code, h, keyed, $, show, visible } from "/dom.js";
import { fileDiff } from "/items.js";
import { link } from "/link.js";

const KNOWN = {
  "item/commandExecution/requestApproval": "Run a command",
  "item/fileChange/requestApproval": "Change files",
  "item/permissions/requestApproval": "More than the sandbox allows",
  "item/tool/requestUserInput": "The agent asks",
  "mcpServer/elicitation/request": "An MCP server asks",
};

/** Whether the question is if a tool of a server may run: the protocol words it as a form without members. */
const isTool = ({ method, params }) => method === "mcpServer/elicitation/request" && params._meta?.codex_approval_kind === "mcp_tool_call";
const heading = (question) => (isTool(question) ? "Run a tool" : KNOWN[question.method]);
/** What it is about, in one line. */
const summary = ({ params }) => params.command ?? params.questions?.[0]?.question ?? params.message ?? "";

/** Questions by their ids. */
export const questions = new Map();
/** The questions that were unfolded. */
const whole = new Set();
const announced = new Map();

/** Who is to know when questions come and go, and what a thread is called. Set once, by the page. */
let changed = () => {};
let titleOf = () => "";
let isInView = () => false;
export function listen(hooks) { ({ changed, titleOf, isInView } = hooks); }

export function asked({ id, method, params }) {
  if (!KNOWN[method]) return link.refuse(id, "this page cannot answer that");
  questions.set(id, { method, params });
  announce(id);
  changed();
}

export function forget() {
  for (const id of [...questions.keys()]) announced.get(id)?.close();
  announced.clear();
  questions.clear();
  whole.clear();
  changed();
}

/** If a question goes away, another one moves below a finger that is just coming down: for a moment nothing is answered. */
const STEADY = 500;
let settling = null;
const isSteady = () => settling === null;

export function resolved(id) {
  if (questions.delete(id) && questions.size) {
    clearTimeout(settling);
    settling = setTimeout(() => { settling = null; delete document.body.dataset.settling; }, STEADY);
    document.body.dataset.settling = "1";
  }
  whole.delete(id);
  announced.get(id)?.close();
  announced.delete(id);
  changed();
}

/** The questions of a thread, by the item that they stand at. */
export function questionsOf(thread) {
  return new Map([...questions].filter(([, { params }]) => params.threadId === thread).map(([id, question]) => [question.params.itemId ?? question.params._meta?.itemId ?? `question ${id}`, id]));
}

/** A text that is different whenever the card is. */
export function signature(id) { return `${id} ${whole.has(id)}`; }

// ---------------------------------------------------------------- notifications

/** Whether this browser has notifications that were neither allowed nor forbidden yet. */
export function offerNotifications() {
  const isOpen = "Notification" in window && Notification.permission === "default";
  show("notify", isOpen);
  $("notify").onclick = async () => { await Notification.requestPermission(); show("notify", false); };
}

function announce(id) {
  const { params } = questions.get(id);
  if (!("Notification" in window) || Notification.permission !== "granted") return;
  if (!document.hidden && isInView(params.threadId)) return;
  const body = [params.environmentId, summary(questions.get(id))].filter(Boolean).join(": ");
  const note = new Notification(`Outpost: ${heading(questions.get(id))}`, { body: visible(body, "line").slice(0, 200), tag: `outpost ${params.threadId} ${id}` });
  note.onclick = () => { window.focus(); location.hash = `#/thread/${params.threadId}`; note.close(); };
  announced.set(id, note);
}

// ---------------------------------------------------------------- answers

function decide(id, decision) {
  if (!isSteady()) return;
  link.answer(id, { decision });
  resolved(id);
}

/** Grants what was asked for, for a turn or for the thread; without a scope, nothing. */
function grant(id, permissions, scope) {
  if (!isSteady()) return;
  link.answer(id, scope ? { permissions, scope } : { permissions: {} });
  resolved(id);
}

/** Answers an MCP server, or says whether its tool may run. */
function reply(id, action, more = {}) {
  if (!isSteady()) return;
  link.answer(id, { action, content: null, _meta: null, ...more });
  resolved(id);
}

/** Permissions in words, one a line. */
function worded(permissions) {
  const files = permissions?.fileSystem;
  return [
    ...(permissions?.network?.enabled ? ["use the network"] : []),
    ...(files?.read ?? []).map((path) => `read ${path}`),
    ...(files?.write ?? []).map((path) => `write ${path}`),
  ];
}

/** More than this of what is asked about is folded, and must be looked at before it is allowed. */
const LONG = { lines: 16, characters: 1600, shownLines: 6, shownCharacters: 300 };

/** What is asked about, line by line: the command, or the changes of files. */
function subject(method, params) {
  if (params._meta?.tool_name) {
    const shown = JSON.stringify(params._meta.tool_params ?? {}, null, 2).split("\n");
    return [{ text: `${params.serverName}: ${params._meta.tool_name}`, form: "word" }, ...shown.map((text) => ({ text, form: "script" }))];
  }
  const script = (text, before) => text.split("\n").map((line, at) => ({ text: `${at ? "  " : before}${line}`, form: "script" }));
  if (method !== "item/fileChange/requestApproval") return script(params.command ?? "", "$ ");
  const named = ({ path, kind }) => `${kind?.type ?? "change"} ${path}${kind?.move_path ? ` to ${kind.move_path}` : ""}`;
  return (params.terms?.changes ?? []).flatMap((change) => [{ text: named(change), form: "word", change }, ...(change.diff ? script(change.diff, "  ") : [])]);
}

/** Lines in full; or, if they are long, their beginning and a button for the rest. */
function exactly(id, lines) {
  const label = { tabIndex: 0, role: "region", "aria-label": "What is asked about" };
  const characters = lines.reduce((sum, { text }) => sum + text.length, 0);
  const drawn = (some) => some.flatMap(({ text, form }, at) => [at ? "\n" : null, code(text, form)]);
  const isLong = lines.length > LONG.lines || characters > LONG.characters;
  const changes = lines.filter(({ change }) => change).map(({ change }) => change);
  if (!isLong || whole.has(id)) {
    if (!changes.length) return { body: h("pre", { ...label, className: isLong ? "long" : "" }, ...drawn(lines)), unfold: null };
    const files = lines.filter(({ change }) => change).map(({ text, form, change }) => h("div", {}, h("p", { className: "command" }, code(text, form)), change.diff ? fileDiff(change, "script") : null));
    return { body: h("div", { className: isLong ? "files long" : "files", ...label }, ...files), unfold: null };
  }
  const begin = lines.slice(0, LONG.shownLines).map(({ text, form }) => ({ text: text.slice(0, LONG.shownCharacters), form }));
  const open = () => { whole.add(id); changed(); };
  return {
    body: h("pre", label, ...drawn(begin)),
    unfold: h("button", { className: "unfold", onclick: open }, `Show all of it: ${lines.length === 1 ? "1 line" : `${lines.length} lines`}, ${characters} characters`),
  };
}

/** Where it runs, in which sandbox, and why it is asked. Each stands in a row of its own that no text of others can leave. */
function terms({ cwd, reason, terms = {} }) {
  // For clients that know no terms the server says there, too, that it is asked again.
  const own = terms.changed ? reason?.replace(/^Asked again, because .*? changed\. /, "") : reason;
  const rows = [
    ["Asked again", terms.changed?.length ? `changed since it was allowed: ${terms.changed.join(", ")}` : null, "line"],
    ["Directory", cwd, "word"],
    ["Sandbox", terms.sandbox, "line"],
    ["Run by", terms.program?.join(" "), "word"],
    ["Asked because", terms.why, "line"],
    ["Agent's reason", own !== terms.why ? own : null, "line"],
  ].filter(([, value]) => value);
  return h("dl", { className: "terms" }, ...rows.map(([name, value, form]) => h("div", {}, h("dt", {}, name),
    h("dd", {}, code(value.length > 400 ? `${value.slice(0, 400)} … ${value.length - 400} more characters` : value, form)))));
}

/** The card of a question, where its item is. */
export function card(id, others) {
  const question = questions.get(id);
  const { method, params } = question;
  const more = others > 0 ? h("p", { className: "hint" }, `${others === 1 ? "1 more question" : `${others} more questions`} after this one`) : null;
  const frame = (...children) => h("section", { className: "question", "aria-label": `Waiting for you: ${heading(question)}`, data: { question: String(id) } }, ...children);
  const top = h("div", { className: "head" }, badge(params.environmentId), h("strong", {}, heading(question)), h("span", { className: "how", data: { kind: "inProgress" } }, "waiting for you"));
  if (method === "item/tool/requestUserInput") return frame(top, input(id, params), more);
  if (method === "mcpServer/elicitation/request" && !isTool(question)) return frame(top, elicitation(id, params), more);
  const hint = terms(params);
  const wider = worded(params.permissions ?? params.additionalPermissions).map((line) => h("p", { className: "command" }, "+ ", code(line, "word")));
  if (method === "item/permissions/requestApproval") {
    return frame(top, ...wider, hint,
      h("div", { className: "buttons" },
        h("button", { className: "primary", onclick: () => grant(id, params.permissions, "turn") }, "Grant for this turn"),
        h("button", { onclick: () => grant(id, params.permissions, "session") }, "Grant in this thread"),
        h("button", { onclick: () => grant(id) }, "Do not grant")), more);
  }
  const { body, unfold } = exactly(id, subject(method, params));
  const first = unfold ? { disabled: true, title: "Show all of it first" } : {};
  if (isTool(question)) {
    return frame(top, body, unfold, h("p", { className: "hint" }, params.message),
      h("div", { className: "buttons" },
        h("button", { className: "primary", ...first, onclick: () => reply(id, "accept", { content: {} }) }, "Allow once"),
        h("button", { ...first, onclick: () => reply(id, "accept", { content: {}, _meta: { persist: "session" } }) }, "Allow in this thread"),
        h("button", { onclick: () => reply(id, "decline") }, "Do not allow"),
        h("button", { onclick: () => reply(id, "cancel") }, "Stop the turn")), more);
  }
  // A rule that the agent suggests: it is written down, and counts for every thread.
  const rule = (params.availableDecisions ?? []).find((one) => one?.acceptWithExecpolicyAmendment);
  const begin = rule?.acceptWithExecpolicyAmendment.execpolicy_amendment?.join(" ") ?? "";
  return frame(top, body, unfold, ...wider, hint,
    h("div", { className: "buttons" },
      h("button", { className: "primary", ...first, onclick: () => decide(id, "accept") }, "Allow once"),
      h("button", { ...first, onclick: () => decide(id, "acceptForSession") }, "Allow in this thread"),
      begin ? h("button", { ...first, className: "rule", onclick: () => decide(id, rule) }, "Always allow what begins with ", code(begin, "word")) : null,
      h("button", { onclick: () => decide(id, "decline") }, "Do not allow"),
      h("button", { onclick: () => decide(id, "cancel") }, "Stop the turn")), more);
}

/** The agent asks the user something. */
function input(id, params) {
  const form = h("form", {}, ...params.questions.map((question, number) => {
    const name = `question-${id}-${number}`;
    const field = question.options?.length
      ? h("select", { id: name, name: question.id }, ...question.options.map((option) => h("option", { value: option.label ?? option }, [option.label ?? option, option.description].filter(Boolean).join(": "))))
      : h("input", { id: name, name: question.id, type: question.isSecret ? "password" : "text" });
    return h("div", {}, h("label", { htmlFor: name }, question.question), field);
  }), h("div", { className: "buttons" }, h("button", { className: "primary" }, "Answer")));
  form.onsubmit = (event) => {
    event.preventDefault();
    const answers = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, { answers: [value] }]));
    link.answer(id, { answers });
    resolved(id);
  };
  return form;
}

/** A server asks the user something: a form, or a page to visit. */
function elicitation(id, params) {
  const members = Object.entries(params.requestedSchema?.properties ?? {});
  const needed = new Set(params.requestedSchema?.required ?? []);
  const fields = members.map(([name, { type, title, description, enum: choices, default: preset }], number) => {
    const own = `asked-${id}-${number}`;
    const common = { id: own, name, required: needed.has(name) && type !== "boolean" };
    const field = choices
      ? h("select", common, ...choices.map((choice) => h("option", { value: choice, selected: choice === preset }, choice)))
      : type === "boolean" ? h("input", { id: own, name, type: "checkbox", checked: preset === true })
        : h("input", { ...common, type: type === "number" || type === "integer" ? "number" : "text", step: type === "number" ? "any" : null, value: preset ?? "" });
    return h("div", { className: type === "boolean" ? "check" : "" }, h("label", { htmlFor: own }, title ?? name), field, description ? h("p", { className: "hint" }, description) : null);
  });
  const safe = /^https?:\/\//i.test(params.url ?? "");
  const address = params.url ? h("p", {}, safe ? h("a", { href: params.url, target: "_blank", rel: "noopener noreferrer" }, params.url) : code(params.url, "word")) : null;
  const form = h("form", {}, h("p", {}, h("strong", {}, params.serverName), ": ", params.message), address, ...fields,
    h("div", { className: "buttons" }, h("button", { className: "primary" }, params.url ? "It is done" : "Answer"),
      h("button", { type: "button", onclick: () => reply(id, "decline") }, "Do not answer")));
  form.onsubmit = (event) => {
    event.preventDefault();
    const values = members.map(([name, { type }]) => {
      const field = form.elements.namedItem(name);
      if (type === "boolean") return [name, field.checked];
      if (field.value === "") return [name, undefined];
      return [name, type === "number" || type === "integer" ? Number(field.value) : field.value];
    });
    reply(id, "accept", { content: Object.fromEntries(values.filter(([, value]) => value !== undefined)) });
  };
  return form;
}

/** Questions of threads that are not open, at the top of the page. */
export function drawElsewhere(thread) {
  const others = [...questions].filter(([, { params }]) => params.threadId !== thread);
  show("asked", others.length > 0);
  keyed($("questions"), others.map(([id, question]) => [String(id), { ...question, name: titleOf(question.params.threadId) }]), ({ method, params, name }) => h("li", {},
    badge(params.environmentId), h("span", {}, heading({ method, params })), h("span", { className: "command cut" }, code(summary({ params }), "word")),
    h("a", { className: "button", href: `#/thread/${params.threadId}` }, "Look at it", h("span", { className: "cut" }, ` in ${name}`))));
}
