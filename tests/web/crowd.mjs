// The page with more of everything than fits: machines, threads, forks, output, a long command to allow.
import { PAGE, check, logIn, look, page, play, resize, scroll, text } from "./stage.mjs";

const MACHINES = 61;
/** Whether it comes to be on a screen of that height without scrolling. */
const isInSight = async (locator, height) => {
  for (let look = 0; look < 200; look += 1) {
    const box = await locator.boundingBox();
    if (box !== null && box.y >= 0 && box.y + box.height <= height) return true;
    await page.waitForTimeout(50);
  }
  return false;
};

await play(async () => {
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();

  // Machines do not bury the threads.
  await page.locator("#threads > li").first().waitFor();
  await look("crowd");
  await resize(390, 844);
  check(await isInSight(page.getByRole("link", { name: "New thread" }), 844), "on a phone the threads begin on the first screen");
  await resize(1280, 900);
  check(await page.locator("#environments li").count() === 8, "machines are folded");
  const fold = page.getByRole("button", { name: `Show all ${MACHINES}` });
  await fold.click();
  check(await page.locator("#environments li").count() === MACHINES, "and unfolded");
  await look("crowd-unfolded");
  await page.getByRole("button", { name: "Show fewer" }).click();

  // Threads are found by their words.
  const all = await page.locator("#threads li").count();
  check(all === 50, `the first fifty threads are shown, not ${all}`);
  await page.getByLabel("Find threads").fill("needle");
  await page.waitForFunction(() => document.querySelectorAll("#threads li").length === 1);
  await page.getByLabel("Find threads").fill("no such words");
  await text("#none-found", "Nothing was found");
  await page.getByLabel("Find threads").fill("");
  await page.waitForFunction(() => document.querySelectorAll("#threads li").length === 50);

  // By keyboard: the first stop leads past everything, and whoever opens a thread is in it.
  await page.reload();
  await page.locator("#threads > li").first().waitFor();
  await page.keyboard.press("Tab");
  check(await page.evaluate(() => document.activeElement.textContent) === "Skip to the thread", "the first stop is the way past the lists");
  await page.locator("#threads a").first().focus();
  await page.keyboard.press("Enter");
  await text("#items .said", "That was long");
  check(await page.evaluate(() => document.activeElement.id) === "main", "whoever opens a thread goes on from there");
  await look("crowd-thread");

  // What is to be allowed can be read, and the buttons are in sight.
  await page.getByRole("link", { name: "New thread" }).click();
  // The prompt comes first: it gets the keys once the view is shown.
  await page.waitForFunction(() => document.activeElement.id === "first");
  await look("crowd-new");
  await resize(390, 844);
  const highest = await page.evaluate(() => Math.max(...[...document.querySelectorAll("#places .hint")].map((word) => word.offsetHeight)));
  check(highest > 0 && highest < 30, `beside a long name a word is ${highest} pixels high`);
  await resize(1280, 900);
  await page.getByLabel("Ask me").selectOption("untrusted");
  const script = Array.from({ length: 80 }, (_, line) => `line ${line} of something that is longer than a phone is wide, or high`);
  await page.getByLabel("Prompt", { exact: true }).fill(["$ cat <<'EOF'", ...script, "EOF"].join("\n"));
  // The place is chosen, and the thread started twice, before the machine has said where it begins.
  await page.evaluate(() => {
    document.querySelector('#places li[data-place="local"] input[type=checkbox]').click();
    const start = [...document.querySelectorAll("#start button")].find((button) => button.textContent === "Start");
    start.click();
    start.click();
  });
  await page.locator(".question .badge").waitFor();
  check(await page.locator(".question").count() === 1, "it is started once");
  await look("crowd-asked");
  for (const [width, height] of [[1280, 900], [390, 844]]) {
    await resize(width, height);
    await scroll(0);
    check(await isInSight(page.getByRole("button", { name: "Allow once" }), height), `the answer is in sight at a width of ${width}`);
  }
  await page.locator(".question .unfold").click();
  await text(".question pre", "line 79 of something");
  check((await page.locator(".question pre").textContent()).split("\n").length === 82, "the command is shown line by line");
  await look("crowd-unfolded");
  // A reader at the top stays there when the turn goes on below.
  await scroll(0);
  await page.getByRole("button", { name: "Do not allow" }).click();
  await page.getByRole("button", { name: "To the end" }).click();
  await text("#items .turn-end", "end of the turn");
});
