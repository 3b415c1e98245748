// A thread of which a disk returned other bytes: the list marks it, and the page says what is missing, where it was.
import { PAGE, check, logIn, look, page, play, text } from "./stage.mjs";

await play(async () => {
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();
  await text("#threads > li", "damaged");
  await look("damaged-list");
  await page.locator("#threads > li a").first().click();

  // In the place of what is lost, between what is there.
  await text("#items article.missing [role=note]", "is missing here");
  const said = await page.locator("#items article .said").allTextContents();
  const at = (words) => said.findIndex((one) => one.startsWith(words));
  const missing = said.findIndex((one) => one.includes("is missing here"));
  check(at("first answer") === -1, `what is damaged is not shown: ${JSON.stringify(said)}`);
  check(at("first question") < missing && missing < at("second answer"), `in its place: ${JSON.stringify(said)}`);
  await text("#thread-error", "cannot be read");
  await look("damaged");
});
