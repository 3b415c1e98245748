// Drives the page in Chromium: logs in, starts a turn, allows a command, watches its output, loses and kills its environment,
// and looks at everything with a checker for accessibility. Says on standard output what the test around it is to do.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const { TOOLS, PAGE, TOKEN, WORK, PICTURES } = process.env;
const require = createRequire(join(TOOLS, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
mkdirSync(PICTURES, { recursive: true });

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function wish(what) {
  console.log(`wish ${what}`);
  await lines.next();
}

const problems = [];
const check = (fine, what) => { if (!fine) problems.push(what); };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
const page = await context.newPage();
page.setDefaultTimeout(30_000);
page.on("console", (message) => { if (message.type() === "error") problems.push(`console: ${message.text()}`); });
page.on("pageerror", (error) => problems.push(`error: ${error.message}`));

// For work on the page: its looks and its script from the disk, so that nothing has to be built in between.
for (const [name, contentType] of process.env.FILES ? [["page.css", "text/css"], ["page.js", "text/javascript"]] : []) {
  await page.route(new URL(name, PAGE).href, (route) => route.fulfill({ contentType, body: readFileSync(join(process.env.FILES, name)) }));
}

/** Looks at the page as it is: accessible, no wider than the screen, and a picture of it. */
async function look(name) {
  for (const [size, width, height] of [["desktop", 1280, 900], ["phone", 390, 844]]) {
    await page.setViewportSize({ width, height });
    await page.waitForTimeout(100);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= width, `${name} is ${wide} pixels wide on a screen of ${width}`);
    // In the page's own world scripts from elsewhere are forbidden, as they should be; a debugger may.
    const found = await page.evaluate(`(() => { ${axe}; return axe.run(document, { resultTypes: ["violations"] }); })()`);
    for (const one of found.violations.filter((one) => ["serious", "critical"].includes(one.impact))) {
      problems.push(`${name}, ${size}: ${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
    }
    await page.screenshot({ path: join(PICTURES, `${name}-${size}.png`) });
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}

/** The same in the dark. */
async function lookInTheDark(name) {
  await page.emulateMedia({ colorScheme: "dark" });
  await look(name);
  await page.emulateMedia({ colorScheme: "light" });
}

const text = (selector, wanted) => page.locator(selector).filter({ hasText: wanted }).first().waitFor();
const environment = (state) => page.locator(`#environments li[data-environment="box"][data-state="${state}"]`).waitFor();

try {
  // Without a token there is nothing to see.
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await look("login");
  await page.getByLabel("Token of a client").fill("0".repeat(64));
  await page.getByRole("button", { name: "Log in" }).click();
  await text("#wrong", "not good");
  await page.getByLabel("Token of a client").fill(TOKEN);
  await page.getByRole("button", { name: "Log in" }).click();
  await text("#link-text", /^connected$/);
  const cookies = await context.cookies();
  check(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", `the cookie: ${JSON.stringify(cookies)}`);
  await environment("ready");
  await look("empty");

  // A turn is started, and a command is allowed.
  await page.getByRole("link", { name: "New thread" }).click();
  await page.locator("#places label").filter({ hasText: "box" }).getByRole("checkbox").check();
  await page.getByLabel("Directory in box").fill(WORK);
  await page.getByLabel("Sandbox").selectOption("danger-full-access");
  await page.getByLabel("Ask me").selectOption("untrusted");
  const steps = "echo x >> counter; for step in one two three; do echo step $step; while [ ! -e $step ]; do sleep 0.05; done; done; echo over";
  await page.getByLabel("What is to be done").fill(`$ ${steps}`);
  await look("new");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.locator("#questions .badge").filter({ hasText: "box" }).waitFor();
  await look("asked");
  await page.getByRole("button", { name: "Allow once" }).click();

  // Its output is watched; the connection is lost in the middle and comes back.
  await text("#items pre", "step one");
  check(await page.locator("#items article[data-type=commandExecution] .badge").first().textContent() === "box", "the command has its badge");
  await text("#running", "step one");
  await look("running");
  await wish("cut");
  await environment("recovering");
  await look("recovering");
  writeFileSync(join(WORK, "one"), "");
  await wish("mend");
  await environment("ready");
  await text("#items pre", "step two");
  writeFileSync(join(WORK, "two"), "");
  writeFileSync(join(WORK, "three"), "");
  await text("#items pre", "over");
  await text("#items .turn-end", "end of the turn");
  await page.locator("#processes").waitFor({ state: "hidden" });

  // The environment is killed, and comes back.
  await wish("kill");
  await environment("recovering");
  await wish("start");
  await environment("ready");
  await page.getByLabel("Say something").fill("$ echo here again");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByRole("button", { name: "Allow once" }).click();
  await text("#items pre", "here again");
  await page.locator("#items .turn-end").nth(1).waitFor();

  // A fork stands below what it was forked from.
  const first = page.url();
  await page.getByRole("button", { name: "Fork" }).click();
  await page.locator("#threads ul a[aria-current=page]").waitFor();
  check(page.url() !== first, "the fork is shown");
  await text("#items pre", "here again");
  await text("#facts dt", "Forked from");
  await look("fork");
  await lookInTheDark("dark");

  // After a reload everything is there again, and nobody has to log in.
  await page.reload();
  await text("#items pre", "here again");
  await page.goto(PAGE);
  await page.locator("#threads > li").first().waitFor();
  check(await page.locator("#threads .badge").filter({ hasText: "box" }).count() === 2, "threads show where they work");
  await look("list");
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token of a client").waitFor();
} catch (error) {
  problems.push(error.stack ?? String(error));
  await page.screenshot({ path: join(PICTURES, "trouble.png") }).catch(() => {});
}
await browser.close();
for (const problem of problems) console.log(problem);
process.exit(problems.length ? 1 : 0);
