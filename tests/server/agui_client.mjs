// Plays recorded AG-UI events through the official client, which checks their order, and prints the messages it made of them.
// stdin: one JSON array of runs, each {input, events}; stdout: one JSON array of {messages, error}. Needs @ag-ui/client and rxjs.
import { createRequire } from "node:module";

const need = createRequire(process.env.OPENAGENTIC_TEST_NODE_MODULES + "/");
const { AbstractAgent } = need("@ag-ui/client");
const { from } = need("rxjs");
const { EventSchema } = need("@ag-ui/core/schemas");

class Recorded extends AbstractAgent {
  run() {
    return from(this.events);
  }
}

let text = "";
for await (const chunk of process.stdin) text += chunk;
console.error = console.warn = () => {};
const results = [];
for (const thread of JSON.parse(text)) {
  const agent = new Recorded({ threadId: thread.threadId, initialMessages: thread.messages });
  const result = { errors: [] };
  for (const run of thread.runs) {
    try {
      for (const event of run.events) EventSchema.parse(event);
      agent.events = run.events;
      if (run.message) agent.addMessage(run.message);
      await agent.runAgent({ runId: run.runId, resume: run.resume });
    } catch (error) {
      result.errors.push(String(error?.message ?? error).slice(0, 500));
    }
  }
  result.messages = agent.messages;
  results.push(result);
}
process.stdout.write(JSON.stringify(results));
