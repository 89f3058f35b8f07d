// An editor made of the official TypeScript SDK. Arguments: folder, then the agent's command line; prints what it saw as JSON.
// Needs OPENAGENTIC_TEST_NODE_MODULES, where @agentclientprotocol/sdk is.
import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";
import { Readable, Writable } from "node:stream";

const acp = await import(
  pathToFileURL(process.env.OPENAGENTIC_TEST_NODE_MODULES + "/@agentclientprotocol/sdk/dist/v1/stable/acp.js")
);
const [folder, command, ...args] = process.argv.slice(2);
const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const updates = [];
const asked = [];
let cancelNext = null;
const { agent: to, client: from } = acp.methods;
const seen = await acp
  .client({ name: "sdk" })
  .onNotification(from.session.update, ({ params }) => void updates.push(params.update))
  .onRequest(from.session.requestPermission, async ({ params }) => {
    asked.push(params.toolCall);
    if (cancelNext !== null) {
      await cancelNext(params.sessionId);
      return { outcome: { outcome: "cancelled" } };
    }
    const allow = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: allow.optionId } };
  })
  .connectWith(stream, async (ctx) => {
    const result = {};
    const tick = () => new Promise((done) => setTimeout(done, 50));
    result.initialized = await ctx.request(to.initialize, {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities: {},
      clientInfo: { name: "sdk", version: "1" },
    });
    const { sessionId } = await ctx.request(to.session.new, { cwd: folder, mcpServers: [] });
    const prompt = (text) => ctx.request(to.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    result.first = (await prompt("one")).stopReason;
    await tick();
    result.live = updates.splice(0);
    result.mode = await ctx.request(to.session.setMode, { sessionId, modeId: "default" });
    cancelNext = (id) => ctx.notify(to.session.cancel, { sessionId: id });
    result.cancelled = (await prompt("two")).stopReason;
    await tick();
    updates.splice(0);
    await ctx.request(to.session.load, { sessionId, cwd: folder, mcpServers: [] });
    await tick();
    result.loaded = updates.splice(0);
    result.listed = (await ctx.request(to.session.list, {})).sessions.map((row) => row.sessionId === sessionId);
    result.unknown = await ctx.request(to.session.load, { sessionId: "nobody", cwd: folder, mcpServers: [] }).then(
      () => null,
      (error) => error.code,
    );
    await ctx.request(to.session.close, { sessionId });
    await ctx.request(to.session.delete, { sessionId });
    result.left = (await ctx.request(to.session.list, {})).sessions.length;
    return result;
  });
agent.stdin.end();
const code = await new Promise((done) => agent.on("exit", done));
process.stdout.write(JSON.stringify({ ...seen, asked, code }));
process.exit(0);
