// The provider of the AI SDK that uses both of our doors, `exec` and `app-server`. Ends with an assertion that says what went wrong.
import assert from "node:assert";
import { createCodexAppServer, createCodexExec } from "ai-sdk-provider-codex-cli";
import { generateText, streamText } from "ai";

const common = { codexPath: process.env.OUTPOST, cwd: process.env.WORK, env: { ...process.env } };
const exec = createCodexExec({
  defaultSettings: { ...common, skipGitRepoCheck: true, approvalMode: "never", sandboxMode: "danger-full-access", allowNpx: false },
});
const first = await generateText({ model: exec("scripted-model"), prompt: "say where you are" });
assert.equal(first.text, "I am there.");
const options = { dangerouslyBypassApprovalsAndSandbox: true, reasoningEffort: "low", addDirs: [process.env.WORK], color: "never" };
const second = await generateText({ model: exec("scripted-model", options), prompt: "and now" });
assert.equal(second.text, "with options");

const server = createCodexAppServer({ defaultSettings: { ...common, approvalPolicy: "never", sandboxPolicy: "danger-full-access" } });
const stream = streamText({ model: server("scripted-model"), prompt: "say where you are" });
const kinds = [];
for await (const part of stream.fullStream) kinds.push(part.type);
assert.equal(await stream.text, "I am there.");
assert.ok(kinds.includes("tool-call") && kinds.includes("tool-result") && kinds.at(-1) === "finish", kinds.join());
const failed = await generateText({ model: server("scripted-model"), maxRetries: 0, prompt: "fail" }).catch((error) => error);
assert.match(failed.message, /no such model/);
await server.close?.();
process.exit(0);
