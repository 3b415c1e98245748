// The official TypeScript SDK on `outpost exec --experimental-json`.
import assert from "node:assert/strict";
import { Codex } from "@openai/codex-sdk";

const codex = new Codex({ codexPathOverride: process.env.OUTPOST, env: { ...process.env } });
const options = { workingDirectory: process.env.WORK, skipGitRepoCheck: true, sandboxMode: "danger-full-access", approvalPolicy: "never" };

const thread = codex.startThread({ ...options, model: "scripted-model" });
const first = await thread.run("say where you are");
assert.ok(thread.id, "a thread has an id");
assert.equal(first.finalResponse, "I am there.");
const command = first.items.find((item) => item.type === "command_execution");
assert.equal(command.status, "completed");
assert.equal(command.exit_code, 0);
assert.match(command.aggregated_output, /ran-once/);
assert.equal(first.usage.input_tokens, 2, "two answers of one token each");

const second = await thread.run("and now?");
assert.equal(second.finalResponse, "the same thread");

const { events } = await codex.resumeThread(thread.id, options).runStreamed("stream");
const seen = [];
for await (const event of events) seen.push(event);
assert.equal(seen[0].type, "thread.started");
assert.equal(seen[0].thread_id, thread.id, "a resumed thread keeps its id");
assert.equal(seen.at(-1).type, "turn.completed");
assert.ok(seen.some((event) => event.type === "item.completed" && event.item.type === "agent_message"));

await assert.rejects(codex.startThread(options).run("this one fails"), /no such model/);

const schema = { type: "object", properties: { n: { type: "number" } }, required: ["n"], additionalProperties: false };
const shaped = await codex.startThread(options).run("a number", { outputSchema: schema });
assert.deepEqual(JSON.parse(shaped.finalResponse), { n: 1 });

const abort = new AbortController();
setTimeout(() => abort.abort(), 700);
await assert.rejects(codex.startThread(options).run("this one never ends", { signal: abort.signal }));
