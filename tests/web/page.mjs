// Drives the page in Chromium: logs in, starts a turn, allows a command, watches its output, loses and kills its environment,
// and looks at everything with a checker for accessibility. Says on standard output what the test around it is to do.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { PAGE, WORK, check, context, logIn, look, lookInTheDark, page, play, text, wish } from "./stage.mjs";

const environment = (state) => page.locator(`#environments li[data-environment="box"][data-state="${state}"]`).waitFor();

await play(async () => {
  // Without a token there is nothing to see.
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await look("login");
  await page.getByLabel("Token of a client").fill("0".repeat(64));
  await page.getByRole("button", { name: "Log in" }).click();
  await text("#wrong", "Invalid token");
  await logIn();
  const cookies = await context.cookies();
  check(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", `the cookie: ${JSON.stringify(cookies)}`);
  await environment("ready");
  await look("empty");

  // A turn is started, and a command is allowed.
  await page.getByRole("link", { name: "New thread" }).click();
  await page.locator("#places label").filter({ hasText: "box" }).getByRole("checkbox").check();
  await page.getByLabel("Directory in box").fill(WORK);
  await page.getByLabel("Sandbox", { exact: true }).selectOption("danger-full-access");
  await page.getByLabel("Ask me").selectOption("untrusted");
  const steps = "echo x >> counter; for step in one two three; do echo step $step; while [ ! -e $step ]; do sleep 0.05; done; done; echo over";
  await page.getByLabel("Prompt", { exact: true }).fill(`$ ${steps}`);
  await look("new");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.locator(".question .badge").filter({ hasText: "box" }).waitFor();
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
  await page.getByLabel("Message", { exact: true }).fill("$ echo here again");
  await page.getByRole("button", { name: "Send" }).click();
  await text(".question pre", "here again");
  await page.getByRole("button", { name: "Allow once" }).click();
  await text("#items article[data-type=commandExecution] pre", "here again");
  await page.locator('#items > li[data-key^="end of"]:last-child').waitFor();

  // What is asked about is shown exactly; a long command is allowed only after all of it was seen.
  await page.getByLabel("Message", { exact: true }).fill(`$ echo p\u0430ss \u202e\u200b ${"y".repeat(1700)} seen`);
  await page.getByRole("button", { name: "Send" }).click();
  await text(".question pre", "echo p<U+0430:\u0430>ss <U+202E><U+200B> ");
  await text(".question .terms", "Sandbox");
  const allow = page.getByRole("button", { name: "Allow once" });
  check(await allow.isDisabled(), "what is folded cannot be allowed");
  check(!(await page.locator(".question pre").textContent()).includes("seen"), "it is folded");
  await look("folded");
  await page.getByRole("button", { name: /^Show all of it: 1 line, 17\d\d characters/ }).click();
  await text(".question pre", "seen");
  await allow.click();
  await text("#items pre", "p\u0430ss <U+202E><U+200B>");
  await page.locator('#items > li[data-key^="end of"]:last-child').waitFor();

  // A fork stands below what it was forked from.
  const first = page.url();
  await page.getByRole("button", { name: "Fork", exact: true }).click();
  await page.locator("#threads ul a[aria-current=page]").waitFor();
  check(page.url() !== first, "the fork is shown");
  await text("#items pre", "here again");
  await text("#facts dt", "Forked from");
  await look("fork");
  await lookInTheDark("dark");

  // After a reload everything is there again, without a new login.
  await page.reload();
  await text("#items pre", "here again");
  await page.goto(PAGE);
  await page.locator("#threads > li").first().waitFor();
  check(await page.locator("#threads .badge").filter({ hasText: "box" }).count() === 2, "threads show where they work");
  await look("list");
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token of a client").waitFor();
});
