// What people do all day: look at plans, changes and calls, answer questions, rename, fork, find. The browser's clock is three days
// ahead of the server's, and notifications are allowed.
import { PAGE, WORK, check, context, logIn, look, lookInTheDark, page, play, resize, text, wish } from "./stage.mjs";

await context.addInitScript(() => {
  const real = Date.now.bind(Date);
  Date.now = () => real() + 3 * 86_400_000;
  window.notes = [];
  window.Notification = class {
    static permission = "granted";
    constructor(title, options) { window.notes.push({ title, ...options }); }
    close() { window.notes.push({ closed: true }); }
  };
});

/** Whether all of it is on the screen, below the head and above the place to write. */
const isInView = (selector) => page.evaluate((selector) => {
  const box = document.querySelector(selector)?.getBoundingClientRect();
  const [head, say] = ["head", "say"].map((id) => document.getElementById(id).getBoundingClientRect());
  return Boolean(box) && box.top >= head.bottom - 1 && box.bottom <= Math.min(say.top, innerHeight) + 1;
}, selector);
const focused = () => page.evaluate(() => document.activeElement.closest("li[data-key]")?.dataset.key ?? document.activeElement.id);
const settle = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

await play(async () => {
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();
  await page.locator("#environments li").first().waitFor();
  check(await page.locator("#environments .tag").filter({ hasText: "default" }).count() === 1, "the default environment is marked");

  // Two places; the first one is the primary. A model can be chosen.
  await page.getByRole("link", { name: "New thread" }).click();
  for (const place of ["local", "gone"]) {
    await page.locator("#places label").filter({ hasText: place }).getByRole("checkbox").check();
    await page.getByLabel(`Directory in ${place}`).fill(WORK);
  }
  check(await page.locator("#places li", { hasText: "primary" }).count() === 1, "one of the chosen places is the primary");
  check((await page.locator("#new-model option").allTextContents()).some((name) => name.includes("scripted")), "models are offered");
  await page.getByLabel("Prompt", { exact: true }).fill("Mend the greeting");
  await page.getByRole("button", { name: "Start", exact: true }).click();

  // A question stands at its item: in view, in the title, and wherever the user scrolls.
  await page.locator(".question").waitFor();
  await text(".question pre", "make everything");
  check(await page.title().then((title) => title.startsWith("(1) ")), `the title says that a question waits: ${await page.title()}`);
  check(await page.locator("#items > li > .question").count() === 1, "the question stands in the list, at its item");
  for (const [width, height] of [[1280, 900], [390, 844]]) {
    await resize(width, height);
    await settle();
    for (const place of [0, 1e6, 0]) {
      await page.evaluate((y) => scrollTo(0, y), place);
      await settle();
      check(await isInView(".question"), `the question is in view at a width of ${width}, scrolled to ${place}`);
    }
  }
  await resize(1280, 900);
  await look("daily-asked");

  // Elsewhere it is announced, and leads back.
  await page.getByRole("link", { name: "Outpost" }).click();
  await text("#questions li", "Run a command");
  check(await page.title().then((title) => title === "(1) Outpost"), `the title of the list: ${await page.title()}`);
  await look("daily-elsewhere");
  await page.locator("#questions a").click();
  await page.locator(".question").waitFor();
  await page.waitForFunction(() => document.getElementById("asked").hidden);

  // By keyboard: to the question, and an answer.
  await page.keyboard.press("a");
  check(await page.evaluate(() => document.activeElement.textContent) === "Allow once", "a key leads to the question");
  await page.waitForFunction(() => !document.body.dataset.settling);
  await page.keyboard.press("Enter");
  await text("#items .trouble, #items pre", "made");

  // Whether a tool of an MCP server may run is asked, too.
  await text(".question", "Run a tool");
  await text(".question pre", '"text": "over here"');
  await look("daily-tool");
  await page.locator(".question").getByRole("button", { name: "Allow once" }).click();

  // The change of a file is asked about with its diff, in colours.
  await text(".question .diff .line[data-kind=added]", "+good day");
  await text(".question .diff .line[data-kind=removed]", "-hello");
  await look("daily-patch");
  await page.getByRole("button", { name: "Allow once" }).click();
  await text("#items .turn-end", "end of the turn");
  check(!(await page.title()).startsWith("("), "nothing waits any more");

  // Everything that happened is there, also after a reload.
  for (const round of ["heard", "read"]) {
    check(await page.locator("#items .plan li[data-status=completed]").count() === 1 && await page.locator("#items .plan li").count() === 3, `${round}: the plan is a check list`);
    await text("#items .plan .who", "Plan: 1 of 3 done");
    const failed = page.locator("#items article[data-type=commandExecution]").filter({ hasText: "uname -a" });
    check(await failed.count() === 1 && /gone/.test(await failed.textContent()) && /failed/.test(await failed.textContent()), `${round}: a call to an environment that failed leaves a trace`);
    const pictured = page.locator("#items article[data-type=imageView]");
    check(await pictured.locator(".trouble").count() === 1, `${round}: what could not be looked at says why`);
    const called = page.locator("#items article[data-type=mcpToolCall]");
    await called.locator("summary", { hasText: "Arguments" }).click();
    await called.locator("summary", { hasText: "Result" }).click();
    await called.locator("pre", { hasText: '"text": "over here"' }).waitFor();
    check((await called.locator("pre").last().textContent()).includes("over here"), `${round}: what a tool answered is shown`);
    check(await page.locator("#items article[data-type=fileChange] .diff .line[data-kind=added]").count() === 1, `${round}: changes are coloured`);
    check(await page.locator("#items .rich strong").count() === 1 && await page.locator("#items .rich table").count() === 1, `${round}: Markdown is read`);
    check(await page.locator("#items img, #items script, #items iframe").count() === 0, `${round}: no text of others is HTML`);
    check((await page.locator("#items .rich").last().textContent()).includes("<img src=x onerror"), `${round}: HTML is shown as it is`);
    check(await page.locator("#thread-environments li[data-primary=true] .tag").count() === 1 && await page.locator("#thread-environments .tag").count() === 1, `${round}: the primary is marked`);
    if (round === "heard") {
      await page.reload();
      await text("#items .turn-end", "end of the turn");
    }
  }
  await look("daily-thread");
  await lookInTheDark("daily-dark");

  // Ages are those of the server's clock.
  check(/just now|min ago/.test(await page.locator("#threads .about").first().textContent()), `the browser's clock does not count: ${await page.locator("#threads .about").first().textContent()}`);

  // It is renamed, and another model is chosen.
  await page.getByRole("button", { name: "Rename" }).click();
  await page.getByLabel("Name", { exact: true }).fill("The greeting");
  await page.keyboard.press("Enter");
  await text("#thread-title", "The greeting");
  await text("#threads .title", "The greeting");
  await page.locator("#model").fill("another-model");
  await page.locator("#model").press("Tab");
  await text("#facts dd", "another-model");

  // What was said and done is found.
  await page.locator("#main").focus();
  await page.keyboard.press("f");
  check(await focused() === "find-text", "a key leads to the search");
  await page.keyboard.type("good day");
  await text("#found", "1 of 1");
  check(await page.locator("#items > li.match article[data-type=fileChange]").count() === 1, "the match is marked");
  await page.getByLabel("Find in this thread").fill("no such words");
  await text("#found", "nothing was found");
  await page.keyboard.press("Escape");
  check(await page.locator("#find").isHidden(), "Escape closes the search");

  // From item to item by keyboard, and to all keys.
  await page.locator("#main").focus();
  await page.keyboard.press("g");
  const beginning = await focused();
  await page.keyboard.press("j");
  const second = await focused();
  check(beginning && second && beginning !== second, `j goes to the next item: ${beginning}, ${second}`);
  await page.keyboard.press("k");
  check(await focused() === beginning, "k goes back");
  await page.keyboard.press("G");
  check((await focused()).startsWith("end of"), `G goes to the end: ${await focused()}`);
  await page.keyboard.press("?");
  await page.locator("#keys[open]").waitFor();
  await look("daily-keys");
  await page.keyboard.press("Escape");
  await page.locator("#keys").waitFor({ state: "hidden" });
  await page.keyboard.press("r");
  check(await focused() === "text", `r leads to the message: ${await focused()}`);
  await page.keyboard.type("jk");
  check(await page.locator("#text").inputValue() === "jk", "keys that are typed are typed");
  await page.locator("#text").fill("");

  // Forked before a message, it begins anew.
  const before = page.url();
  await page.locator("#items .user").getByRole("button", { name: "Fork before this message" }).click();
  await page.waitForURL((url) => url.href !== before);
  await text("#facts dt", "Forked from");
  check(await page.locator("#items article").count() === 0, "a fork before the first message is empty");
  await page.goto(before);
  await text("#items .turn-end", "end of the turn");
  await page.getByRole("button", { name: "Fork after this turn" }).click();
  await page.waitForURL((url) => url.href !== before);
  await text("#items .turn-end", "end of the turn");

  // Put away, and taken out again.
  await page.goto(before);
  await text("#thread-title", "The greeting");
  await page.getByRole("button", { name: "Archive", exact: true }).click();
  await page.waitForFunction(() => ![...document.querySelectorAll("#threads .title")].some((one) => one.textContent === "The greeting"));
  await page.getByLabel("Archived threads").check();
  await page.locator("#threads a", { has: page.getByText("The greeting", { exact: true }) }).click();
  await page.getByRole("button", { name: "Unarchive" }).click();
  await page.waitForFunction(() => !document.getElementById("archived").checked && [...document.querySelectorAll("#threads .title")].some((one) => one.textContent === "The greeting"));

  // The machine's own page: its sandbox, what ran there, what runs there.
  await page.locator("#environments a").filter({ hasText: "local" }).click();
  await text("#machine-title", "local");
  await page.locator("#promises li").first().waitFor();
  await text("#verdict-word", /promises/);
  await text("#machine-commands li", "make everything");
  await look("daily-machine");
  await page.goto(`${PAGE}#/machine/gone`);
  await text("#machine-reason", /./);
  await page.getByRole("button", { name: "Try again", exact: true }).click();
  await text("#machine-error", /./);
  await look("daily-machine-gone");

  // A question that comes while the page is elsewhere is a notification.
  await page.goto(before);
  await text("#items .turn-end", "end of the turn");
  await wish("ask");
  await page.getByLabel("Message", { exact: true }).fill("And again");
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#stop:not([hidden])").waitFor();
  await page.goto(`${PAGE}#/new`);
  await wish("answer");
  await text("#questions li", "Run a command");
  const notes = await page.evaluate(() => window.notes);
  check(notes.length === 1 && notes[0].body.includes("touch again"), `a notification: ${JSON.stringify(notes)}`);
  await page.locator("#questions a").click();
  await page.locator(".question").waitFor();
  await page.getByRole("button", { name: "Do not allow" }).click();
  await page.locator('#items > li[data-key^="end of"]:last-child').waitFor();
  check((await page.evaluate(() => window.notes)).some((note) => note.closed), "the notification goes with the question");

  // A picture that the model made is shown, with where it was saved; also after a reload.
  for (const round of ["heard", "read"]) {
    await text("#items article[data-type=imageGeneration] .hint", /Image saved as .*image-1\.png/);
    const made = page.locator("#items article[data-type=imageGeneration] img");
    check(await made.evaluate((picture) => picture.decode().then(() => picture.naturalWidth)) === 1, `${round}: the picture is drawn`);
    check(await made.getAttribute("alt") === "a single pixel", `${round}: it says what it shows`);
    if (round === "heard") await page.reload();
  }
});
