// Clients that others wrote, against a running server: `node clients.mjs eventsource|websocket|agui PORT TOKEN SESSION`.
// Prints one JSON value. OPENAGENTIC_TEST_NODE_MODULES holds eventsource, ws and @ag-ui/client.
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

setInterval(() => {}, 1000); // an EventSource that waits to come back keeps no process alive
console.log(JSON.stringify(await { eventsource, websocket, agui }[client]()));
process.exit(0);
