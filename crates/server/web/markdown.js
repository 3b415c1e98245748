// Markdown of agents, read into a tree of our own. Pure: tests run it without a browser. What is no Markdown here stays text; HTML is
// text, pictures are links, and a link leads nowhere but to the web.

/** Longer texts, and paragraphs, are shown as they are: a model that streams garbage does not hold up the page. */
const LONGEST = 200_000;
const LONGEST_PARAGRAPH = 20_000;
const DEEPEST = 6;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** The blocks of a text: `{type, ...}` with `children`, `text` or `items`. */
export function blocks(text, depth = 0) {
  if (text.length > LONGEST || depth > DEEPEST) return [{ type: "plain", text }];
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const found = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) found.push({ type: "paragraph", children: inline(paragraph.join("\n")) });
    paragraph = [];
  };
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(FENCE);
    if (fence) {
      flush();
      const close = new RegExp(`^ {0,3}${fence[1][0] === "~" ? "~" : "`"}{${fence[1].length},}[ \\t]*$`);
      let end = at + 1;
      while (end < lines.length && !close.test(lines[end])) end += 1;
      found.push({ type: "code", language: fence[2], text: lines.slice(at + 1, end).join("\n") });
      at = end + 1;
      continue;
    }
    if (!line.trim()) { flush(); at += 1; continue; }
    const heading = line.match(HEADING);
    if (heading) {
      flush();
      found.push({ type: "heading", level: heading[1].length, children: inline(heading[2]) });
      at += 1;
      continue;
    }
    if (RULE.test(line)) { flush(); found.push({ type: "rule" }); at += 1; continue; }
    if (QUOTE.test(line)) {
      flush();
      const inner = [];
      while (at < lines.length && QUOTE.test(lines[at])) inner.push(lines[at++].match(QUOTE)[1]);
      found.push({ type: "quote", children: blocks(inner.join("\n"), depth + 1) });
      continue;
    }
    if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && TABLE_RULE.test(lines[at + 1])) {
      const head = cells(line);
      if (head.length === cells(lines[at + 1]).length) {
        flush();
        const rows = [];
        at += 2;
        while (at < lines.length && lines[at].includes("|")) rows.push(cells(lines[at++]));
        const filled = (row) => head.map((_, column) => inline(row[column] ?? ""));
        found.push({ type: "table", head: head.map((cell) => inline(cell)), rows: rows.map(filled) });
        continue;
      }
    }
    const item = line.match(ITEM);
    // A number in the middle of a paragraph begins no list, unless it is the first one.
    if (item && (!paragraph.length || !/^\d/.test(item[2]) || /^1[.)]/.test(item[2]))) {
      flush();
      const [list, next] = readList(lines, at, depth);
      found.push(list);
      at = next;
      continue;
    }
    paragraph.push(line);
    at += 1;
  }
  flush();
  return found;
}

function readList(lines, from, depth) {
  const [, indent, first] = lines[from].match(ITEM);
  const isOrdered = /^\d/.test(first);
  const items = [];
  let at = from;
  while (at < lines.length) {
    const match = lines[at].match(ITEM);
    if (!match || RULE.test(lines[at]) || match[1].length < indent.length || match[1].length > indent.length + 3 || /^\d/.test(match[2]) !== isOrdered) break;
    const inner = [match[3] ?? ""];
    const least = indent.length + 2;
    at += 1;
    while (at < lines.length) {
      const line = lines[at];
      const spaces = line.search(/\S/);
      if (spaces === -1) {
        // An empty line belongs to the item only if something of it follows.
        const after = lines[at + 1] ?? "";
        if (after.search(/\S/) < least) break;
        inner.push("");
      } else if (spaces >= least) inner.push(line.slice(Math.min(spaces, least + (match[2].length - 1))));
      else if (ITEM.test(line) || QUOTE.test(line) || FENCE.test(line) || HEADING.test(line)) break;
      else inner.push(line.trim());
      at += 1;
    }
    const task = inner[0].match(/^\[([ xX])\][ \t]+(.*)$/);
    if (task) inner[0] = task[2];
    items.push({ done: task ? task[1] !== " " : null, children: blocks(inner.join("\n"), depth + 1) });
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  return [{ type: "list", isOrdered, start: isOrdered ? parseInt(first, 10) : 1, items }, at];
}

function cells(line) {
  const trimmed = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return trimmed.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const SPECIAL = new Set("\\`*_~[!hH");
const SAFE = /^(?:https?:\/\/|mailto:)[^\s<>"']+$/i;
const BARE = /^https?:\/\/[^\s<>"'`*|]+/i;

/** What stands within a line: texts, and `{type: "strong" | "em" | "strike" | "code" | "link", ...}`. */
export function inline(text, depth = 0) {
  if (text.length > LONGEST_PARAGRAPH || depth > DEEPEST) return [text];
  const found = [];
  let plain = "";
  const push = (node) => {
    if (plain) found.push(plain);
    plain = "";
    found.push(node);
  };
  let at = 0;
  while (at < text.length) {
    const c = text[at];
    if (!SPECIAL.has(c)) {
      plain += c;
      at += 1;
      continue;
    }
    const rest = text.slice(at, at + 2000);
    let match;
    if (c === "\\" && /^\\[!-/:-@[-`{-~]/.test(rest)) {
      plain += rest[1];
      at += 2;
    } else if (c === "`" && (match = rest.match(/^(`+)(?!`)([^]*?[^`])\1(?!`)/))) {
      push({ type: "code", text: match[2].replace(/\n/g, " ").replace(/^ (.*) $/, "$1") });
      at += match[0].length;
    } else if ((c === "*" || c === "_" || c === "~") && (match = emphasis(rest, text[at - 1]))) {
      push({ type: match.type, children: inline(match.inner, depth + 1) });
      at += match.length;
    } else if ((c === "[" || c === "!") && (match = rest.match(/^!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\]){0,500})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/))) {
      const words = match[1] || match[2];
      if (SAFE.test(match[2])) push({ type: "link", url: match[2], children: c === "!" ? [`picture: ${words}`] : inline(words, depth + 1) });
      else plain += match[0];
      at += match[0].length;
    } else if ((c === "h" || c === "H") && !/\w/.test(text[at - 1] ?? "") && (match = rest.match(BARE))) {
      const url = match[0].replace(/[.,;:!?)\]]+$/, "");
      push({ type: "link", url, children: [url] });
      at += url.length;
    } else {
      plain += c;
      at += 1;
    }
  }
  if (plain) found.push(plain);
  return found;
}

const KINDS = [["***", "strong"], ["**", "strong"], ["__", "strong"], ["~~", "strike"], ["*", "em"], ["_", "em"]];

/** Emphasis that begins here: its kind, what is in it, and how long it is with its marks. */
function emphasis(rest, before) {
  for (const [mark, type] of KINDS) {
    if (!rest.startsWith(mark) || /\s/.test(rest[mark.length] ?? " ")) continue;
    if (mark[0] === "_" && /\w/.test(before ?? "")) return null;
    let end = mark.length;
    while ((end = rest.indexOf(mark, end)) !== -1) {
      const isClosed = !/\s/.test(rest[end - 1]) && end > mark.length && (mark[0] !== "_" || !/\w/.test(rest[end + mark.length] ?? ""));
      if (isClosed && !(mark.length === 1 && (rest[end + 1] === mark || rest[end - 1] === mark))) {
        return { type, inner: rest.slice(mark.length, end), length: end + mark.length };
      }
      end += mark.length;
    }
  }
  return null;
}
