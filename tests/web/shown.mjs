// Holds the page's `show` to the vectors that the program is held to, and shows texts that come in on standard input, so that the
// test around it can compare. Needs no browser.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { decode, show } from "../../crates/server/web/shown.js";

const vectors = JSON.parse(readFileSync(join(import.meta.dirname, "../../fixtures/shown.json"), "utf8"));
for (const { form, text, shown } of vectors) {
  const found = show(text, form);
  if (found !== shown) throw new Error(`${form} ${JSON.stringify(text)}: ${JSON.stringify(found)} instead of ${JSON.stringify(shown)}`);
  if (decode(found) !== text) throw new Error(`${JSON.stringify(found)} is not taken back`);
}
if (vectors.length < 40) throw new Error("there are too few vectors");

// Half of a pair, which only this language has, is shown and taken back as well.
for (const text of ["\ud800", "a\udc00b"]) if (decode(show(text)) !== text || /[\ud800-\udfff]/.test(show(text))) throw new Error("a half is not shown");

const given = JSON.parse(readFileSync(0, "utf8") || "[]");
for (const { text, form } of given) if (decode(show(text, form)) !== text) throw new Error(`${JSON.stringify(text)} is not taken back`);
process.stdout.write(JSON.stringify(given.map(({ text, form }) => show(text, form))));
