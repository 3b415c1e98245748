// Every answer to a question, machines that are connected and tried again, what runs on them, and the keys that were not pressed elsewhere.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { PAGE, WORK, check, context, logIn, look, page, play, text, wish } from "./stage.mjs";

// A browser that has not been asked for notifications yet.
await context.addInitScript(() => {
  window.wishes = 0;
  window.Notification = class {
    static permission = "default";
    static async requestPermission() { window.wishes += 1; this.permission = "granted"; return "granted"; }
    close() {}
  };
});

const made = (name) => existsSync(join(WORK, name));
const answer = (name) => page.locator(".question").getByRole("button", { name, exact: true }).click();
/** For a moment after an answer the next one is not taken. */
const settled = () => page.waitForFunction(() => !document.body.dataset.settling);
const focused = () => page.evaluate(() => document.activeElement.id);
const over = (count) => page.waitForFunction((count) => document.querySelectorAll('#items > li[data-key^="end of"]').length === count, count);

await play(async () => {
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();

  // Notifications are offered until the user has said something to them.
  await page.getByRole("button", { name: "Notify me" }).click();
  await page.locator("#notify").waitFor({ state: "hidden" });
  check(await page.evaluate(() => window.wishes) === 1, "the browser was asked once");

  // A machine that is connected by hand.
  await page.locator("#environments a").filter({ hasText: "box" }).click();
  await text("#machine-state", "idle");
  check(await page.locator("#verdict").isHidden(), "nothing is known of its sandbox yet");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await text("#machine-state", "ready");
  await page.locator("#promises li").first().waitFor();
  await text("#machine-facts dt", "Version");
  await page.locator("#no-processes").waitFor();
  await look("answers-connected");

  // One that cannot be reached is tried again from the list, once it runs.
  await page.locator("#environments a").filter({ hasText: "late" }).click();
  await text("#machine-state", "idle");
  await page.getByRole("button", { name: "Connect", exact: true }).click();
  await text("#machine-state", "failed");
  await text("#environments li[data-environment=late] .why", /./);
  await wish("start");
  await page.getByRole("button", { name: "Try again: late" }).click();
  await page.locator("#environments li[data-environment=late][data-state=ready]").waitFor();
  await text("#machine-state", "ready");

  // A thread there, all by keyboard: its machine is chosen, and where that begins is the directory.
  await page.locator("#environments a").filter({ hasText: "box" }).click();
  await text("#machine-title", "box");
  await page.getByRole("link", { name: "New thread there" }).focus();
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement.id === "first");
  check(await page.locator("#places label").filter({ hasText: "box" }).getByRole("checkbox").isChecked(), "the machine is chosen");
  await page.waitForFunction(() => document.querySelector('#places input[aria-label="Directory in box"]').value !== "");
  await page.getByLabel("Directory in box").fill(WORK);
  await page.locator("#new-model").selectOption({ label: "scripted / chosen-model" });
  await page.locator("#first").focus();
  await page.keyboard.type("Begin");
  await page.keyboard.press("Control+Enter");

  // In this thread: the same command is not asked about again.
  await text(".question pre", "touch always");
  check(!made("always"), "nothing runs before the answer");
  await answer("Allow in this thread");
  // Once: another command is asked about, and then the same one again.
  await text(".question pre", "touch once");
  check(made("always"), "what was allowed ran");
  await settled();
  await answer("Allow once");
  await text(".question pre", "rm once");
  await settled();
  await answer("Allow once");
  await text(".question pre", "touch once");
  check(!made("once"), "a yes for once does not count twice");
  await settled();
  await answer("Do not allow");

  // By a rule that the agent suggests: what begins alike is not asked about any more.
  await text(".question .rule", "Always allow what begins with mkdir");
  await look("answers-rule");
  await settled();
  await page.locator(".question .rule").click();

  // What the agent wants to know is chosen from what it offers.
  await text(".question label", "Which colour?");
  check(made("first") && made("second"), "the rule counts at once");
  await look("answers-input");
  check((await page.locator(".question option").allTextContents()).includes("blue: cold"), "what an answer means is said");
  await page.locator(".question select").selectOption("blue");
  await answer("Answer");

  // More than the sandbox allows.
  await text(".question", "More than the sandbox allows");
  await text(".question .command", "write /data");
  await look("answers-permissions");
  await settled();
  await answer("Do not grant");

  // What runs on shows at the thread and at its machine, and is ended there.
  await text(".question pre", "sleep 1000");
  await settled();
  await answer("Allow once");
  await over(1);
  await text("#running li", "sleep 1000");
  check(!made("once"), "what was not allowed did not run");

  // Garbage that a model streams is text.
  await text("#items .said", "<U+202E>");
  check(await page.locator("#items script, #items img, #items iframe").count() === 0, "no text of others is HTML");
  await look("answers-garbage");
  await page.locator("#thread-environments a").filter({ hasText: "box" }).click();
  await text("#machine-processes li", "sleep 1000");
  await look("answers-running");
  await page.locator("#machine-processes li").getByRole("button", { name: "End it" }).click();
  await page.locator("#no-processes").waitFor();
  await text("#machine-commands li", "touch always");
  await page.locator("#machine-commands a").first().click();
  await over(1);
  await page.locator("#processes").waitFor({ state: "hidden" });

  // A turn is stopped by an answer.
  await page.keyboard.press("r");
  await page.keyboard.type("And once more");
  await page.keyboard.press("Control+Enter");
  await text(".question pre", "touch stopped");
  await answer("Stop the turn");
  await over(2);
  await text("#items .turn-end", "interrupted");
  check(!made("stopped"), "it did not run");

  // Keys that lead elsewhere, and the switch that takes them away.
  await page.locator("#main").focus();
  await page.keyboard.press("/");
  check(await focused() === "search", "a key leads to the search of threads");
  await page.keyboard.press("Escape");
  await page.keyboard.press("n");
  await page.waitForFunction(() => document.activeElement.id === "first");
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.getByLabel("Use keys without Ctrl").uncheck();
  await page.locator("#keys").getByRole("button", { name: "Close" }).click();
  const before = page.url();
  await page.goto(`${PAGE}#/`);
  await page.keyboard.press("n");
  check(page.url() !== before && !page.url().endsWith("#/new"), "keys that are switched off do nothing");
});
