// A program made from the contract: `node contract_program.ts ORIGIN TOKEN` asks, answers and prints the final text.
import type { Event, Operations, Refusal, UserQuestion } from "./contract.ts";

const [origin, token] = process.argv.slice(2) as [string, string];
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };

type Call<Name extends keyof Operations> = Operations[Name]["result"];

async function ask<Name extends keyof Operations>(
  method: Operations[Name]["method"],
  path: string,
  body?: Operations[Name]["body"],
): Promise<Call<Name>> {
  const answer = await fetch(origin + path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  const value: unknown = await answer.json();
  if (!answer.ok) throw new Error((value as Refusal).error.code);
  return value as Call<Name>;
}

async function* follow(session: string, after: number): AsyncGenerator<Event> {
  const answer = await fetch(`${origin}/v1/sessions/${session}/events?until=result&after=${after}`, {
    headers: { ...headers, Accept: "text/event-stream" },
  });
  let rest = "";
  for await (const chunk of answer.body!.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + chunk).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data !== "") yield JSON.parse(data) as Event;
    }
  }
}

function told(event: Event): string | UserQuestion {
  switch (event.type) {
    case "result":
      return event.stop_reason === "waiting" ? "" : event.final_text;
    case "user.question":
      return event;
    case "tool.result":
      return event.outcome === "denied" ? "denied" : "";
    default:
      return "";
  }
}

async function converse(): Promise<string> {
  const { session_id: session } = await ask<"create_session">("POST", "/v1/sessions", { prompt: "Tea?" });
  let after = 0;
  for (let round = 0; round < 2; round += 1) {
    let question: UserQuestion | null = null;
    for await (const event of follow(session, after)) {
      after = event.seq ?? after;
      const found = told(event);
      if (typeof found !== "string") question = found;
      else if (found !== "") return found;
    }
    if (question !== null) {
      const body: Operations["answer"]["body"] = { question_id: question.question_id, answer: "milk" };
      await ask<"answer">("POST", `/v1/sessions/${session}/answers`, body);
    }
  }
  return "";
}

console.log(await converse());
process.exit(0);
