// A browser with the page in it, and a way to look at it. Whatever is wrong is collected and told at the end.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { mkdirSync, readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";

export const { PAGE, TOKEN, WORK } = process.env;
const { TOOLS, PICTURES } = process.env;
const require = createRequire(join(TOOLS, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
mkdirSync(PICTURES, { recursive: true });

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
export async function wish(what) {
  console.log(`wish ${what}`);
  await lines.next();
}

export const problems = [];
export const check = (fine, what) => { if (!fine) problems.push(what); };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
export const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
export const page = await context.newPage();
// Only a page that hangs takes so long, however busy the machine is.
page.setDefaultTimeout(180_000);
page.on("console", (message) => { if (message.type() === "error") problems.push(`console: ${message.text()} (${message.location().url})`); });
page.on("crash", () => problems.push("the page crashed"));
page.on("pageerror", (error) => problems.push(`error: ${error.message}`));

// For work on the page: its looks and its scripts from the disk, so that nothing has to be built in between.
for (const name of process.env.FILES ? readdirSync(process.env.FILES).filter((name) => !name.endsWith(".html")) : []) {
  const contentType = name.endsWith(".css") ? "text/css" : "text/javascript";
  await context.route(new URL(name, PAGE).href, (route) => route.fulfill({ contentType, body: readFileSync(join(process.env.FILES, name)) }));
}

/** A picture is for people: one that the browser cannot take right now, as happens when it is busy, is asked for again, and fails no test. */
async function picture(name) {
  for (let attempt = 0; attempt < 3 && !page.isClosed(); attempt += 1) {
    try {
      await page.screenshot({ path: join(PICTURES, `${name}.png`), timeout: 30_000 });
      return;
    } catch (error) {
      console.log(`no picture of ${name}: ${error.message.split("\n")[0]}`);
      await page.waitForTimeout(250);
    }
  }
}

/** Buttons that are wider than what they stand in. */
const cutButtons = () => page.evaluate(() => [...document.querySelectorAll("button, .button")].filter((button) => {
  if (!button.checkVisibility() || getComputedStyle(button).position === "absolute") return false;
  return button.getBoundingClientRect().right > button.parentElement.getBoundingClientRect().right + 1;
}).map((button) => button.textContent));

/**
 * Gives the window a size, and waits until the page has drawn itself in it, which a busy browser does some frames later. A scroll in the
 * same frame counts as a part of the change, and no user is so quick.
 */
export async function resize(width, height) {
  await page.setViewportSize({ width, height });
  await page.waitForFunction(([width, height]) => innerWidth === width && innerHeight === height, [width, height]);
  await drawn();
}

/** Waits for some frames. */
const drawn = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))));

/** Scrolls the page, and waits until it has taken notice. */
export async function scroll(y) {
  await page.evaluate((y) => scrollTo(0, y), y);
  await drawn();
}

/** Looks at the page as it is: accessible, no wider than the screen, and a picture of it. */
export async function look(name) {
  for (const [size, width, height] of [["desktop", 1280, 900], ["phone", 390, 844]]) {
    await resize(width, height);
    await page.waitForTimeout(100);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= width, `${name} is ${wide} pixels wide on a screen of ${width}`);
    const cut = await cutButtons();
    check(cut.length === 0, `${name}, ${size}: these buttons are cut: ${cut.join(", ")}`);
    // In the page's own world scripts from elsewhere are forbidden, as they should be; a debugger may.
    const found = await page.evaluate(`(() => { ${axe}; return axe.run(document, { resultTypes: ["violations"] }); })()`);
    for (const one of found.violations.filter((one) => ["serious", "critical"].includes(one.impact))) {
      problems.push(`${name}, ${size}: ${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
    }
    await picture(`${name}-${size}`);
  }
  await resize(1280, 900);
}

/** The same in the dark. */
export async function lookInTheDark(name) {
  await page.emulateMedia({ colorScheme: "dark" });
  await look(name);
  await page.emulateMedia({ colorScheme: "light" });
}

export const text = (selector, wanted) => page.locator(selector).filter({ hasText: wanted }).first().waitFor();

/** Comes in with the token of a client. */
export async function logIn() {
  await page.getByLabel("Token of a client").fill(TOKEN);
  await page.getByRole("button", { name: "Log in" }).click();
  await text("#link-text", /^connected$/);
}

/** Plays a story, and tells what was wrong with it. */
export async function play(story) {
  try {
    await story();
  } catch (error) {
    problems.push(error.stack ?? String(error));
    await picture(`trouble-${basename(process.argv[1], ".mjs")}`).catch(() => {});
  }
  for (const problem of problems) console.log(problem);
  await browser.close().catch(() => {});
  process.exit(problems.length ? 1 : 0);
}
