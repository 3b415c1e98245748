// An editor's side of the Agent Client Protocol, with the adapter between it and our app server.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import path from "node:path";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const adapter = spawn("node", [path.join(import.meta.dirname, "node_modules/@agentclientprotocol/codex-acp/dist/index.js")], {
  stdio: ["pipe", "pipe", "inherit"],
  env: { ...process.env, CODEX_PATH: process.env.OUTPOST, NO_BROWSER: "1", INITIAL_AGENT_MODE: "agent-full-access" },
});
let updates = [];
let questions = 0;
const { agent, client } = acp.methods;
const editor = acp
  .client({ name: "editor" })
  .onNotification(client.session.update, ({ params }) => void updates.push(params.update))
  .onRequest(client.session.requestPermission, ({ params }) => {
    questions += 1;
    const once = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: once.optionId } };
  });

await editor.connectWith(acp.ndJsonStream(Writable.toWeb(adapter.stdin), Readable.toWeb(adapter.stdout)), async (context) => {
  const hello = await context.request(agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
  });
  assert.ok(hello.protocolVersion >= 1);
  const cwd = process.env.WORK;
  const { sessionId } = await context.request(agent.session.new, { cwd, mcpServers: [] });
  const ask = async (text) => {
    updates = [];
    const { stopReason } = await context.request(agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    const said = updates.filter((update) => update.sessionUpdate === "agent_message_chunk").map((update) => update.content.text).join("");
    return { stopReason, said };
  };
  const kinds = () => updates.map((update) => update.sessionUpdate);

  assert.deepEqual(await ask("say where you are"), { stopReason: "end_turn", said: "I am there." });
  assert.ok(kinds().includes("tool_call") && kinds().includes("tool_call_update"), kinds().join());

  const endless = ask("this one never ends");
  setTimeout(() => context.notify(agent.session.cancel, { sessionId }), 700);
  assert.equal((await endless).stopReason, "cancelled");

  updates = [];
  await context.request(agent.session.load, { sessionId, cwd, mcpServers: [] });
  assert.ok(kinds().includes("user_message_chunk"), kinds().join());
  const { sessions } = await context.request(agent.session.list, { cwd });
  assert.ok(sessions.some((session) => session.sessionId === sessionId));

  await context.request(agent.session.setMode, { sessionId, modeId: "workspace-write" });
  const asked = await ask("leave the sandbox");
  assert.equal(questions, 1);
  assert.equal(asked.said, "It is made.");
  adapter.kill();
  process.exit(0);
});
