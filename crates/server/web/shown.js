// Text that this page did not write, and the one function that makes it visible: the same as `outpost_wire::shown`, and held to
// the same results by `fixtures/shown.json`. Pure: tests run it without a browser.

/** Never seen, or seen where they are not: format characters, fillers, what is private or no character, surrogates, our frame. */
const HIDDEN = [
  [0x00AD, 0x00AD], [0x034F, 0x034F], [0x061C, 0x061C], [0x115F, 0x1160], [0x17B4, 0x17B5], [0x180B, 0x180F], [0x200B, 0x200F],
  [0x2028, 0x202E], [0x2060, 0x206F], [0x258C, 0x258C], [0x2800, 0x2800], [0x3164, 0x3164], [0xD800, 0xF8FF], [0xFDD0, 0xFDEF],
  [0xFE00, 0xFE0F], [0xFEFF, 0xFEFF], [0xFFA0, 0xFFA0], [0xFFF0, 0xFFFB], [0xFFFE, 0xFFFF], [0x13430, 0x1345F], [0x1BCA0, 0x1BCA3],
  [0x1D173, 0x1D17A], [0x1FFFE, 0x1FFFF], [0xE0000, 0x10FFFF],
];
/** Drawn over the character before them. */
const COMBINING = [[0x0300, 0x036F], [0x0483, 0x0489], [0x1AB0, 0x1AFF], [0x1DC0, 0x1DFF], [0x20D0, 0x20FF], [0xFE20, 0xFE2F]];
const MOST_COMBINING = 3;
/** Letters that a mark shows beside their number. */
const LETTERS = [
  [0x00C0, 0x024F], [0x0391, 0x03A1], [0x03A3, 0x03C9], [0x0401, 0x0401], [0x0410, 0x0451], [0x3041, 0x3096], [0x30A1, 0x30FA],
  [0x4E00, 0x9FFF], [0xAC00, 0xD7A3],
];
const PICTURES = [[0x2600, 0x27BF], [0x1F000, 0x1FAFF]];
const JOINER = 0x200D;
const STYLES = [0xFE0E, 0xFE0F];

const isIn = (ranges, code) => ranges.some(([first, last]) => first <= code && code <= last);

/**
 * A text as it can be shown without harm. Forms: `text` is a message or output, `line` the same on one line; `script` is what will
 * be carried out, where everything that is not ASCII is marked, and `word` the same on one line.
 */
export function show(text, form = "text") {
  const isCode = form === "script" || form === "word";
  const hasLines = form === "text" || form === "script";
  const chars = Array.from(text);
  let [first, last, combining, shown] = [null, null, 0, ""];
  const passes = (c, code) => {
    if (c === "\n" || c === "\t") return hasLines;
    if (c === "+" && first === "<" && last === "U") return false;
    if (c === "x" && first === "<" && last === "0") return false;
    if (c >= " " && c <= "~") return true;
    if (isCode) return false;
    const before = last === null ? null : last.codePointAt(0);
    if (STYLES.includes(code)) return before !== null && before > 0x7F && !STYLES.includes(before);
    if (code === JOINER) return before !== null && (isIn(PICTURES, before) || STYLES.includes(before));
    if (isIn(HIDDEN, code) || code < 0xA0) return false;
    return !isIn(COMBINING, code) || (before !== null && before > 0x20 && combining < MOST_COMBINING);
  };
  chars.forEach((c, at) => {
    const code = c.codePointAt(0);
    // The end of a line as some write it moves nothing.
    const endsLine = c === "\r" && form === "text" && chars[at + 1] === "\n";
    if (endsLine || (c !== "\r" && passes(c, code))) {
      shown += c;
      combining = isIn(COMBINING, code) ? combining + 1 : 0;
      [first, last] = [last, c];
    } else {
      const number = code.toString(16).toUpperCase().padStart(4, "0");
      shown += isCode && isIn(LETTERS, code) ? `<U+${number}:${c}>` : `<U+${number}>`;
      [first, last, combining] = [null, null, 0];
    }
  });
  return shown;
}

/** A mark; bytes that are no text are marked by other programs only. */
export const MARK = /<U\+([0-9A-F]{4,6})(?::[^>])?>|<0x[0-9A-F]{2}>/gu;

/** The text of which this was shown. */
export function decode(shown) {
  return shown.replace(MARK, (mark, number) => (number ? String.fromCodePoint(parseInt(number, 16)) : mark));
}
