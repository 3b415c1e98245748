// A provider of the AI SDK on our app server.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { generateText, streamText } from "ai";
import { createCodexAppServer } from "ai-sdk-provider-codex-app-server";

let session;
let turns = 0;
// The client listens to a turn from when it was told of it, and not before: the model waits for that.
const created = (opened) => {
  session = opened;
  const file = `${process.env.WORK}/listens-${++turns}`;
  const looking = setInterval(() => {
    if (!opened.isActive()) return;
    clearInterval(looking);
    writeFileSync(file, "");
  }, 5);
};
const provider = createCodexAppServer({
  defaultSettings: {
    codexPath: process.env.OUTPOST,
    cwd: process.env.WORK,
    env: { ...process.env },
    approvalMode: "never",
    sandboxMode: "danger-full-access",
    threadMode: "persistent",
    onSessionCreated: created,
  },
});
const model = provider("scripted-model");

let text = "";
const kinds = [];
for await (const part of streamText({ model, prompt: "say where you are" }).fullStream) {
  kinds.push(part.type);
  if (part.type === "text-delta") text += part.text ?? part.delta ?? "";
}
assert.equal(text, "I am there.");
assert.ok(kinds.some((kind) => kind.startsWith("tool")), kinds.join());
assert.ok(session.threadId);
const { text: second } = await generateText({ model, prompt: "and now?" });
assert.equal(second, "the same thread");
process.exit(0);
