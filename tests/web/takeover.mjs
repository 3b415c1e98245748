// A thread that another program holds can be read, and taken over.
import { PAGE, check, logIn, look, page, play, text } from "./stage.mjs";

await play(async () => {
  await page.goto(PAGE);
  await page.getByLabel("Token of a client").waitFor();
  await logIn();
  await text("#threads .about", "in use by");
  await page.locator("#threads a").first().click();
  await page.locator("#only-read").waitFor();
  await text("#items .said", "wait for a file");
  check(await page.locator("#say").isHidden(), "nothing can be said to it");
  await look("held");
  await page.getByRole("button", { name: "Take over" }).click();
  await page.locator("#sure[open]").waitFor();
  await look("sure");
  await page.getByRole("button", { name: "Cancel" }).click();
  check(await page.locator("#only-read").isVisible(), "who says no changes nothing");
  await page.getByRole("button", { name: "Take over" }).click();
  await page.locator("#sure").getByRole("button", { name: "Take over" }).click();
  await page.locator("#only-read").waitFor({ state: "hidden" });
  await page.locator("#say").waitFor();
  await text("#facts dd", "open in this server");
});
