// Holds the page's Markdown to what it should read, and to what it must never do. Needs no browser.
import { blocks, inline } from "../../crates/server/web/markdown.js";

const same = (found, wanted, what) => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
};
const check = (fine, what) => { if (!fine) throw new Error(what); };
const paragraph = (...children) => ({ type: "paragraph", children });

same(blocks("# A *b*\n\ntext\nmore"), [{ type: "heading", level: 1, children: ["A ", { type: "em", children: ["b"] }] }, paragraph("text\nmore")], "a heading and a paragraph");
same(inline("**a** __b__ ~~c~~ `d*` e_f_g 2*3*4 \\*h\\*"), [
  { type: "strong", children: ["a"] }, " ", { type: "strong", children: ["b"] }, " ", { type: "strike", children: ["c"] }, " ", { type: "code", text: "d*" },
  " e_f_g 2", { type: "em", children: ["3"] }, "4 *h*"], "emphasis");
same(blocks("```rust\nfn main() {}\n# no heading\n```\nafter"), [{ type: "code", language: "rust", text: "fn main() {}\n# no heading" }, paragraph("after")], "code");
same(blocks("```\nnever closed"), [{ type: "code", language: "", text: "never closed" }], "a fence while it streams");
same(blocks("> a\n> b\n\nc"), [{ type: "quote", children: [paragraph("a\nb")] }, paragraph("c")], "a quotation");
same(blocks("| a | b |\n|---|:-:|\n| 1 | `x\\|y` |\nend"), [
  { type: "table", head: [["a"], ["b"]], rows: [[["1"], [{ type: "code", text: "x|y" }]]] }, paragraph("end")], "a table");
same(blocks("---"), [{ type: "rule" }], "a rule");

const [list] = blocks("- one\n- two\n  - deeper\n  more\n- [x] done\n- [ ] open");
check(list.type === "list" && list.items.length === 4, `a list: ${JSON.stringify(list)}`);
check(list.items[1].children[1]?.type === "list", `a list in a list: ${JSON.stringify(list.items[1])}`);
same(list.items.map(({ done }) => done), [null, null, true, false], "a check list");
const [ordered] = blocks("3. c\n4. d");
check(ordered.isOrdered && ordered.start === 3 && ordered.items.length === 2, `a numbered list: ${JSON.stringify(ordered)}`);
same(blocks("It was\n1984. A year").length, 1, "a number in a paragraph");

// Links lead to the web and nowhere else; everything that is not Markdown stays text.
same(inline("[a](https://example.org/x)"), [{ type: "link", url: "https://example.org/x", children: ["a"] }], "a link");
same(inline("see https://example.org/y."), ["see ", { type: "link", url: "https://example.org/y", children: ["https://example.org/y"] }, "."], "an address");
for (const bad of ["[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](data:text/html,x)", "[a](//example.org)", "[a](/logout)", "![a](file:///etc/passwd)", "<img src=x onerror=alert(1)>", "<script>x</script>"]) {
  check(!JSON.stringify(inline(bad)).includes('"link"') && inline(bad).join("").includes(bad.slice(0, 6)), `${bad}: ${JSON.stringify(inline(bad))}`);
}
check(JSON.stringify(inline("![p](https://example.org/p.png)")).includes("picture: p"), "a picture is a link");

// Garbage ends, and nothing of it is lost. A budget of work, not of time: each would take hours if it were read in the square of its length.
for (const piece of ["*", "**a", "[", "`", "_a_", "~~", "> ", "- ", "|", "\\", "![", "[a](", "h", "<b>", "```\n", "1. "]) {
  for (const text of [piece.repeat(20_000), `${piece}x\n`.repeat(5000)]) {
    const letters = (node) => (typeof node === "string" ? node.length : Object.values(node ?? {}).reduce((sum, one) => sum + (typeof one === "object" && one !== null ? letters(one) : typeof one === "string" ? one.length : 0), 0));
    check(letters(blocks(text)) >= 0, piece);
  }
}
const deep = blocks("> ".repeat(500) + "x");
check(JSON.stringify(deep).includes("x"), "what is too deep is shown as it is");
console.log("fine");
