// Clients that others wrote, against a running server: `node clients.mjs NAME PORT TOKEN SESSION`.
// Prints one JSON value. OPENAGENTIC_TEST_NODE_MODULES holds their packages.
import { createRequire } from "node:module";

const need = createRequire(process.env.OPENAGENTIC_TEST_NODE_MODULES + "/");
const [client, port, token, session] = process.argv.slice(2);
const origin = `http://127.0.0.1:${port}`;
const path = `/v1/sessions/${session}/events`;
const headers = { Authorization: `Bearer ${token}` };

async function eventsource() {
  const { EventSource } = await import(need.resolve("eventsource"));
  const seen = [];
  let opens = 0;
  await new Promise((done) => {
    const source = new EventSource(origin + path, {
      fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, ...headers } }),
    });
    source.onopen = () => { opens += 1; };
    source.onmessage = (message) => {
      seen.push([Number(message.lastEventId), JSON.parse(message.data).seq]);
      if (seen.length === 21) { source.close(); done(); }
    };
  });
  return { seen, opens };
}

async function websocket() {
  const WebSocket = need("ws");
  const socket = new WebSocket(`ws://127.0.0.1:${port}${path}`, { headers });
  const seen = [];
  return new Promise((done) => {
    socket.on("open", () => socket.ping("there?"));
    socket.on("pong", (data) => seen.push(`pong ${data}`));
    socket.on("message", (data) => {
      const event = JSON.parse(data);
      if (event.seq) seen.push(event.seq);
      if (event.seq === 21) socket.send(JSON.stringify({ post: "nothing", id: "x".repeat(200000) }));
      if (event.type === "reply") { seen.push([event.status, event.id.length]); socket.close(1000); }
    });
    socket.on("close", (code) => done({ seen, code }));
  });
}

async function agui() {
  const { HttpAgent } = need("@ag-ui/client");
  const agent = new HttpAgent({ url: `${origin}/v1/ag-ui/tea`, headers, threadId: "thread-of-a-client" });
  agent.addMessage({ id: "m1", role: "user", content: "Tea?" });
  await agent.runAgent({ runId: "r1" });
  const [interrupt] = agent.pendingInterrupts ?? agent.interrupts ?? [];
  const waiting = interrupt ?? null;
  const resume = [{ interruptId: waiting?.id ?? process.argv[6], status: "resolved", payload: { answer: "lemon" } }];
  if (waiting) await agent.runAgent({ runId: "r2", resume });
  return { waiting, messages: agent.messages };
}

async function openai() {
  const { default: OpenAI, NotFoundError } = await import(need.resolve("openai"));
  const client = new OpenAI({ baseURL: `${origin}/v1`, apiKey: token, maxRetries: 0 });
  const ask = { model: "tea", input: "Tea?" };
  const { id, output_text: plain } = await client.responses.create({ ...ask, metadata: { table: "4" } });
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const cut = await client.responses.create({ ...ask, stream: true, background: true });
  const deltas = [];
  let name, cursor;
  const take = (event) => {
    name ??= event.response?.id;
    cursor = event.sequence_number;
    if (event.type === "response.output_text.delta") deltas.push(event.delta);
  };
  for await (const event of cut) { take(event); if (cursor && deltas.length === 2) break; }
  for await (const event of await client.responses.retrieve(name, { stream: true, starting_after: cursor })) take(event);
  const behind = await client.responses.create({ ...ask, previous_response_id: id });
  const whole = await client.responses.stream({ ...ask, text: { format: { type: "text" } } }).finalResponse();
  const missing = await client.responses.retrieve("resp_none_000000000000").catch((error) => error);
  const { status } = await client.responses.cancel(id); // has no body, and so no media type
  const { metadata } = await client.responses.retrieve(id);
  return {
    plain, models, streamed: deltas.join(""), behind: behind.previous_response_id === id, whole: whole.output_text,
    missing: [missing instanceof NotFoundError, missing.code], status, metadata,
  };
}

async function langchain() {
  const { ChatOpenAI } = await import(need.resolve("@langchain/openai"));
  const given = { apiKey: token, configuration: { baseURL: `${origin}/v1` }, useResponsesApi: true, maxRetries: 0 };
  const model = new ChatOpenAI({ ...given, model: "tea" });
  const deltas = [];
  for await (const chunk of await model.stream("Tea?")) deltas.push(chunk.text);
  const said = [["system", "Be kind."], ["user", "Tea?"]];
  const refused = await new ChatOpenAI({ ...given, model: "strict" }).invoke(said).catch((error) => error);
  return { plain: (await model.invoke(said)).text, streamed: deltas.join(""), refused: [refused.status, refused.message] };
}

async function aisdk() {
  const { createOpenAI } = await import(need.resolve("@ai-sdk/openai"));
  const { generateText, streamText } = await import(need.resolve("ai"));
  const provider = createOpenAI({ baseURL: `${origin}/v1`, apiKey: token });
  const ask = (name) => ({ model: provider.responses(name), prompt: "Tea?", maxRetries: 0 });
  const { text, finishReason } = await generateText(ask("tea"));
  const deltas = [];
  for await (const delta of streamText(ask("tea")).textStream) deltas.push(delta);
  const parked = await generateText(ask("asks"));
  const failed = await generateText(ask("fails")).catch((error) => error);
  return { plain: text, finishReason, streamed: deltas.join(""), parked: parked.finishReason, failed: failed.message };
}

async function agents() {
  const { Agent, Runner } = await import(need.resolve("@openai/agents-core"));
  const { OpenAIProvider } = await import(need.resolve("@openai/agents-openai"));
  const modelProvider = new OpenAIProvider({ apiKey: token, baseURL: `${origin}/v1`, useResponses: true });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  const agent = new Agent({ name: "front desk", model: "tea", instructions: "Be kind." });
  const first = await runner.run(agent, "Tea?");
  const next = await runner.run(agent, "More?", { previousResponseId: first.lastResponseId });
  const streamed = await runner.run(agent, "Tea?", { stream: true });
  const deltas = [];
  for await (const piece of streamed.toTextStream()) deltas.push(piece);
  return { plain: first.finalOutput, next: next.finalOutput, streamed: deltas.join("") };
}

setInterval(() => {}, 1000); // an EventSource that waits to come back keeps no process alive
console.log(JSON.stringify(await { eventsource, websocket, agui, openai, langchain, aisdk, agents }[client]()));
process.exit(0);
