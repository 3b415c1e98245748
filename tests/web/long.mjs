// A thread of ten thousand items: it opens at its end, only what can be seen is in the document, and all of it can be reached.
import { PAGE, check, logIn, look, page, play, text } from "./stage.mjs";

const { THREAD } = process.env;
const rows = () => page.locator("#items > li[data-key]").count();
const size = () => page.evaluate(() => Number(document.querySelector("#items > li[data-key]").getAttribute("aria-setsize")));
const settle = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
const inView = (words) => page.evaluate((words) => [...document.querySelectorAll("#items > li[data-key]")].some((row) => {
  const box = row.getBoundingClientRect();
  return row.textContent.includes(words) && box.bottom > 60 && box.top < innerHeight;
}), words);

let [asked, received, opened] = [0, 0, 0];
page.on("websocket", (socket) => {
  socket.on("framesent", ({ payload }) => { asked += 1; opened += payload.includes('"thread/resume"') ? 1 : 0; });
  socket.on("framereceived", ({ payload }) => { received += payload.length; });
});

await play(async () => {
  await page.goto(`${PAGE}#/thread/${THREAD}`);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();
  [asked, received, opened] = [0, 0, 0];
  const began = performance.now();
  await page.goto(`${PAGE}#/thread/${THREAD}`);

  // It opens at its end, and reads no more than that.
  await text("#items .said", "answer 2499");
  console.log(`the end was in the document ${Math.round(performance.now() - began)} ms after it was asked for`);
  check(await inView("answer 2499"), "the end is in view");
  const read = await size();
  check(read < 500, `${read} items were read to show the end`);
  check(opened === 1, `the thread was opened ${opened} times`);
  check(asked < 20, `${asked} messages were sent to show the end`);
  check(received < 500_000, `${received} bytes were read to show the end`);
  check(await rows() < 120, `${await rows()} rows are in the document`);
  await look("long-end");

  // Further up there is more, and what the user looks at stays where it is while it comes.
  for (let round = 0; round < 3; round += 1) {
    const before = await size();
    await page.evaluate(() => scrollTo(0, 0));
    await page.waitForFunction((before) => Number(document.querySelector("#items > li[data-key]")?.getAttribute("aria-setsize")) > before, before);
    await settle();
  }
  check(await rows() < 120, `${await rows()} rows are in the document`);

  // All of it is found.
  await page.getByRole("button", { name: "Find" }).click();
  await page.getByLabel("Find in this thread").fill("question 3 of");
  await text("#found", "1 of 1");
  check(await inView("question 3 of"), "what was found is in view");
  const all = await size();
  check(all >= 10_000, `${all} items are in the list`);
  check(await rows() < 120, `${await rows()} rows of ${all} are in the document`);
  await look("long-found");

  // From match to match in both directions; behind the last one comes the first. The newest is shown first.
  await page.getByLabel("Find in this thread").fill("question 124");
  await text("#found", "11 of 11");
  check(await inView("question 1249 of"), "the last match is in view");
  for (const [button, where, words] of [
    ["The next match", /^1 of 11$/, "question 124 of"], ["The next match", /^2 of 11$/, "question 1240 of"],
    ["The match before", /^1 of 11$/, "question 124 of"], ["The match before", /^11 of 11$/, "question 1249 of"],
    ["The match before", /^10 of 11$/, "question 1248 of"],
  ]) {
    await page.getByRole("button", { name: button }).click();
    await text("#found", where);
    await settle();
    check(await inView(words), `${words} is in view at ${where}`);
  }
  await page.getByLabel("Find in this thread").press("Enter");
  await text("#found", "11 of 11");
  await page.getByLabel("Find in this thread").fill("question 999999");
  await text("#found", "nothing was found");

  // To its end, and anywhere else, by keyboard.
  await page.keyboard.press("Escape");
  await page.locator("#main").focus();
  await page.keyboard.press("g");
  await settle();
  check(await inView("question 0 of"), "the first item is in view");
  await page.keyboard.press("G");
  await settle();
  check(await inView("answer 2499"), "the last one is");
  for (const share of [0.25, 0.5, 0.75]) {
    await page.evaluate((share) => scrollTo(0, document.documentElement.scrollHeight * share), share);
    await settle();
    await settle();
    const seen = await page.evaluate(() => [...document.querySelectorAll("#items > li[data-key]")].filter((row) => row.getBoundingClientRect().top < innerHeight && row.getBoundingClientRect().bottom > 60).length);
    check(seen > 2, `${seen} rows are in view at ${share}`);
    check(await rows() < 120, `${await rows()} rows are in the document at ${share}`);
  }
  await page.getByRole("button", { name: "To the end" }).click();
  await settle();
  check(await inView("answer 2499"), "back at the end");

  // What is new at the end is followed.
  await page.getByLabel("Message", { exact: true }).fill("> the very last words");
  await page.getByRole("button", { name: "Send" }).click();
  await text("#items .said", "the very last words");
  await page.locator("#items .turn-end").last().waitFor();
  await settle();
  check(await inView("the very last words"), "what is new is in view");
});
