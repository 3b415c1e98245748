// Ten thousand threads and fifty machines: what the page asks for, and what is in the document, does not grow with them.
import { PAGE, check, logIn, look, page, play, text } from "./stage.mjs";

const MACHINES = 51;
let [asked, received] = [0, 0];
page.on("websocket", (socket) => {
  socket.on("framesent", () => { asked += 1; });
  socket.on("framereceived", ({ payload }) => { received += payload.length; });
});
const elements = () => page.evaluate(() => document.querySelectorAll("*").length);
const shown = (count) => page.waitForFunction((count) => document.querySelectorAll("#threads li").length === count, count);

await play(async () => {
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();
  await shown(50);
  await text("#threads .title", "question 9999");
  check(asked < 20, `${asked} messages were sent to show the lists`);
  check(received < 500_000, `${received} bytes were read to show the lists`);
  check(await elements() < 1500, `${await elements()} elements are in the document`);
  check(await page.locator("#environments li").count() === 8, "machines are folded");
  await look("many");
  await page.getByRole("button", { name: `Show all ${MACHINES}` }).click();
  check(await page.locator("#environments li").count() === MACHINES, "and unfolded");

  // Older ones come when they are asked for, and any of them is found by its words.
  await page.getByRole("button", { name: "Show older threads" }).click();
  await shown(100);
  await page.getByLabel("Find threads").fill("question 4321");
  await shown(1);
  await page.locator("#threads a").click();
  await text("#items .said", "question 4321");
  check(await elements() < 2500, `${await elements()} elements are in the document`);
  await look("many-found");
});
