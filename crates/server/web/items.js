// What was said and done, as elements. Data comes in, elements go out; nothing here knows the link.

import { badge, code, h, keyed, machineLink, parts } from "/dom.js";
import { took } from "/link.js";
import { blocks } from "/markdown.js";

// ---------------------------------------------------------------- Markdown

/** Markdown as elements. */
export function markdown(text) {
  return h("div", { className: "said rich" }, ...blocks(text).map(block));
}

function block(node) {
  switch (node.type) {
    case "heading":
      // Headings of an agent stand below those of the page.
      return h("p", { className: "heading", role: "heading", "aria-level": String(Math.min(6, node.level + 2)), data: { level: String(node.level) } }, ...node.children.map(piece));
    case "paragraph": return h("p", {}, ...node.children.map(piece));
    case "rule": return h("hr");
    case "quote": return h("blockquote", {}, ...node.children.map(block));
    case "code": return node.language === "diff" || node.language === "patch" ? diff(node.text, "Changes") : scrolled(node.text, "Code", "code");
    case "list": return list(node);
    case "table":
      return h("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Table" }, h("table", {},
        h("thead", {}, h("tr", {}, ...node.head.map((cell) => h("th", { scope: "col" }, ...cell.map(piece))))),
        h("tbody", {}, ...node.rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, ...cell.map(piece))))))));
    default: return h("p", { className: "plain-text" }, node.text);
  }
}

function list(node) {
  const items = node.items.map(({ done, children }) => h("li", { data: done === null ? {} : { done: String(done) } },
    done === null ? null : tick(done ? "completed" : "pending"), ...tight(children)));
  return h(node.isOrdered ? "ol" : "ul", node.isOrdered && node.start !== 1 ? { start: node.start } : {}, ...items);
}

/** An item with a single paragraph needs none. */
function tight(children) {
  const [first, ...rest] = children;
  if (first?.type !== "paragraph") return children.map(block);
  return [h("span", {}, ...first.children.map(piece)), ...rest.map(block)];
}

function piece(node) {
  if (typeof node === "string") return h("span", {}, node);
  const inside = () => node.children.map(piece);
  switch (node.type) {
    case "strong": return h("strong", {}, ...inside());
    case "em": return h("em", {}, ...inside());
    case "strike": return h("s", {}, ...inside());
    case "code": return h("code", {}, code(node.text, "line"));
    default: {
      const link = h("a", { href: node.url, target: "_blank", rel: "noopener noreferrer nofollow", title: node.url }, ...inside());
      // Where a link leads is said, whatever its words promise.
      const says = node.children.length === 1 && node.children[0] === node.url;
      return says ? link : h("span", {}, link, h("span", { className: "hint" }, ` (${host(node.url)})`));
    }
  }
}

function host(url) {
  try { return new URL(url).host || url; } catch { return url; }
}

/** Whether something is done, for eyes and for screen readers. */
function tick(status) {
  const [sign, word] = { completed: ["☑", "done"], inProgress: ["◐", "at work"], pending: ["☐", "to do"] }[status] ?? ["☐", status];
  return h("span", { className: "tick", role: "img", "aria-label": word, data: { status } }, sign);
}

/** A plan as a check list. */
export function plan({ explanation, plan: steps }) {
  const done = steps.filter((step) => step.status === "completed").length;
  return h("article", { className: "item plan", data: { type: "plan" } },
    h("p", { className: "who" }, `Plan: ${done} of ${steps.length} done`),
    explanation ? h("p", { className: "hint" }, explanation) : null,
    h("ul", { className: "steps" }, ...steps.map(({ step, status }) => h("li", { data: { status } }, tick(status), h("span", {}, step)))));
}

// ---------------------------------------------------------------- texts that may be long

/** More lines of a diff than this are folded. */
const LINES = 300;
const LONG = 20_000;

/** Text that can be scrolled with the keyboard, too. */
function scrolled(text, label, className) {
  return h("pre", { tabIndex: 0, role: "region", "aria-label": label.slice(0, 120), className: className ?? "" }, text);
}

/** Output: its end is what people look at. */
export function long(text, label, isLive) {
  const kept = text.slice(-LONG);
  const shown = kept.length < text.length ? `… ${text.length - kept.length} characters before this are not shown\n${kept}` : kept;
  const pre = scrolled(shown, label);
  if (isLive) pre.dataset.live = "1";
  return pre;
}

const kindOf = (line) => {
  if (/^(?:\+\+\+|---|diff |index |\\ No newline)/.test(line)) return "meta";
  return { "+": "added", "-": "removed", "@": "hunk" }[line[0]] ?? "same";
};

/** A diff, each line in its colour; signs say the same to those who see no colours. */
export function diff(text, label, form = "text") {
  const lines = text.replace(/\n$/, "").split("\n");
  const pre = h("pre", { tabIndex: 0, role: "region", "aria-label": label.slice(0, 120), className: "diff" });
  const add = (some) => pre.append(...some.map((line) => h("span", { className: "line", data: { kind: kindOf(line) } }, parts(`${line}\n`, form))));
  add(lines.slice(0, LINES));
  if (lines.length <= LINES) return pre;
  const more = h("button", { className: "unfold", onclick: () => { add(lines.slice(LINES)); more.remove(); } }, `Show all ${lines.length} lines`);
  return h("div", {}, pre, more);
}

/** The changes of one file. Of a new or a removed file the whole content is given, without signs. What is to be allowed is shown in the form of code. */
export function fileDiff({ path, kind, diff: text }, form = "text") {
  const sign = { add: "+", delete: "-" }[kind?.type];
  const whole = sign && !/^(?:@@|diff |--- )/m.test(text) ? text.replace(/\n$/, "").split("\n").map((line) => sign + line).join("\n") : text;
  return diff(whole, `Changes of ${path}`, form);
}

/** How much a diff adds and removes. */
export function counts({ kind, diff: text = "" }) {
  const lines = text.replace(/\n$/, "").split("\n");
  if (!text) return "";
  if (kind?.type === "add") return `+${lines.length}`;
  if (kind?.type === "delete") return `−${lines.length}`;
  const of = (wanted) => lines.filter((line) => kindOf(line) === wanted).length;
  return `+${of("added")} −${of("removed")}`;
}

/** Any value, so that it can be read. */
export function json(value, label) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return long(text ?? "", label);
}

// ---------------------------------------------------------------- items

const HOW = { inProgress: "running", completed: "done", failed: "failed", declined: "not allowed" };

function how(item) {
  let word = HOW[item.status] ?? item.status ?? "";
  if (item.exitCode !== null && item.exitCode !== undefined) word = item.exitCode === 0 ? "done" : `exit code ${item.exitCode}`;
  if (item.type === "commandExecution" && item.status === "completed" && item.processId && item.exitCode === null) word = "goes on";
  if (item.durationMs) word += `, ${took(item.durationMs)}`;
  return h("span", { className: "how", data: { kind: item.status ?? "" } }, word);
}

function unfolding(summary, ...children) {
  return h("details", {}, h("summary", {}, summary), ...children);
}

/** What an MCP server answered: its texts, or all of it. */
function answer(result) {
  const content = result?.content ?? result;
  if (!Array.isArray(content)) return json(content, "Result");
  const texts = content.map((part) => (part?.type === "text" || part?.type === "inputText" ? part.text : part?.text ?? `[${part?.type ?? "something"}]`));
  const more = result?.structuredContent ? [unfolding("Structured result", json(result.structuredContent, "Structured result"))] : [];
  return h("div", {}, long(texts.join("\n"), "Result"), ...more);
}

function isEmpty(value) {
  return value === null || value === undefined || (typeof value === "object" && Object.keys(value).length === 0);
}

const box = (item, kind, ...children) => h("article", { className: `item ${kind}`, data: { type: item.type } }, ...children);
const head = (item, words) => h("div", { className: "head" }, machineLink(item.environmentId), h("span", { className: "command" }, ...words), how(item));

/** What a picture is, by how its first bytes look in base64. */
const pictureKind = (data) => (data.startsWith("/9j/") ? "image/jpeg" : data.startsWith("R0lG") ? "image/gif" : data.startsWith("UklG") ? "image/webp" : "image/png");

function imageWords({ savedPath, result, status }) {
  if (savedPath) return ["Image saved as ", code(savedPath, "word")];
  if (result) return ["Image made; it is kept in the thread"];
  return status === "in_progress" ? ["An image is being made"] : ["No image was made (", code(status, "word"), ")"];
}

/** One item. `output` is what a running command has printed, `progress` what an MCP server says meanwhile. */
export function drawItem({ item, output, progress }) {
  switch (item.type) {
    case "userMessage":
      return box(item, "user", h("p", { className: "who" }, item.by ?? "You"),
        h("p", { className: "said plain-text" }, item.content.map((part) => part.text ?? `[${part.type}]`).join("\n")));
    case "agentMessage":
      if (item.damage) return box(item, "missing", h("p", { className: "said", role: "note" }, item.text));
      return box(item, "agent", h("p", { className: "who" }, "Agent"), markdown(item.text));
    case "reasoning": {
      const text = [...item.summary, ...item.content].join("\n\n");
      return box(item, "agent", text ? unfolding("Thoughts", markdown(text)) : h("p", { className: "hint" }, "Thinking"));
    }
    case "commandExecution": {
      const text = item.aggregatedOutput || output || "";
      return box(item, "work", head(item, ["$ ", code(item.command)]),
        text ? long(text, `Output of ${item.command}`, item.status === "inProgress") : null,
        item.sandboxHint ? h("p", { className: "hint" }, item.sandboxHint) : null);
    }
    case "fileChange":
      return box(item, "work",
        head(item, item.changes.flatMap((change, at) => [at ? "\n" : null, code(`${change.kind.type} ${change.path}${change.kind.move_path ? ` to ${change.kind.move_path}` : ""}`, "word"),
          h("span", { className: "counts" }, ` ${counts(change)}`)])),
        item.error ? h("p", { className: "trouble" }, item.error) : null,
        ...item.changes.filter((change) => change.diff).map((change) => fileDiff(change)));
    case "mcpToolCall":
    case "dynamicToolCall": {
      const name = item.type === "mcpToolCall" ? `${item.server}: ${item.tool}` : [item.namespace, item.tool].filter(Boolean).join(": ");
      const result = item.result ?? item.contentItems;
      const error = item.error?.message ?? item.error;
      return box(item, "work", head(item, [code(name, "word")]),
        isEmpty(item.arguments) ? null : unfolding("Arguments", json(item.arguments, "Arguments")),
        progress ? h("p", { className: "hint" }, progress) : null,
        error ? h("p", { className: "trouble" }, typeof error === "string" ? error : JSON.stringify(error)) : null,
        isEmpty(result) ? null : unfolding("Result", answer(result)));
    }
    case "collabAgentToolCall":
      return box(item, "work", h("div", { className: "head" }, h("span", { className: "command" }, item.tool), how(item)),
        item.prompt ? h("p", { className: "said plain-text" }, item.prompt) : null,
        ...item.receiverThreadIds.map((id) => h("a", { href: `#/thread/${id}` }, `agent ${id.slice(0, 8)}`)));
    case "imageView":
      return box(item, "work", head(item, ["look at ", code(item.path, "word")]), item.error ? h("p", { className: "trouble" }, item.error) : null);
    case "imageGeneration":
      return box(item, "work", h("p", { className: "hint" }, ...imageWords(item)),
        item.result ? h("img", { className: "made", src: `data:${pictureKind(item.result)};base64,${item.result}`, alt: item.revisedPrompt ?? "An image that the model made" }) : null);
    case "contextCompaction":
      return box(item, "work", h("p", { className: "hint" }, "What was said before was summarised for the model."));
    case "enteredReviewMode":
      return box(item, "work", h("p", { className: "hint" }, "A review begins."), markdown(item.review));
    case "exitedReviewMode":
      return box(item, "agent", h("p", { className: "who" }, "Review"), markdown(item.review));
    default:
      return box(item, "work", head(item, [item.tool ?? item.path ?? item.type]), item.error ? h("p", { className: "trouble" }, String(item.error)) : null);
  }
}

/** The words in an item, for those who look for some. */
export function words({ item, plan: steps, output }) {
  if (steps) return steps.map(({ step }) => step).join("\n");
  if (!item) return "";
  const said = [item.text, item.command, item.aggregatedOutput, output, item.prompt, item.path, item.review, item.server, item.tool, item.error?.message ?? item.error];
  const lists = [...(item.content ?? []), ...(item.summary ?? [])].map((part) => part?.text ?? part);
  const changes = (item.changes ?? []).flatMap(({ path, diff: text }) => [path, text]);
  const values = [item.arguments, item.type === "imageGeneration" ? item.revisedPrompt : item.result, item.contentItems].filter((value) => !isEmpty(value)).map((value) => JSON.stringify(value));
  return [...said, ...lists, ...changes, ...values].filter((text) => typeof text === "string").join("\n");
}

const ENDS = { completed: "end of the turn", interrupted: "interrupted", failed: "failed" };

export function turnEnd({ status, error, durationMs }, fork) {
  const said = ENDS[status] ?? status;
  const long = durationMs ? `${said}, ${took(durationMs)}` : said;
  return h("p", { className: "turn-end" }, h("span", {}, error ? `${said}: ${error}` : long), fork);
}

// ---------------------------------------------------------------- running processes

/** Commands that run: what, where, and what they said last. */
export function drawRunning(container, running, terminate) {
  keyed(container, running, ({ command, place, process, last }) => h("li", {},
    h("p", { className: "cut" }, badge(place), " ", h("span", { className: "command" }, code(command, "word"))),
    last ? h("p", { className: "hint command cut" }, last) : null,
    process ? h("div", { className: "buttons" }, h("button", { onclick: () => terminate(process) }, "End it")) : null));
}
