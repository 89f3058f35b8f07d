// Each line that ends with `wrong` must be refused by the compiler, and no other line.
import type { Event, ListedSession, Operations, Refusal, SessionBody } from "./contract.ts";

export function text(event: Event): string {
  if (event.type === "result") return event.text; // wrong
  if (event.type === "user.question") return event.prompt;
  return event.final_text; // wrong
}
export const kind: Event["type"] = "tool.used"; // wrong
export const empty: SessionBody = {}; // wrong
export const misspelt: SessionBody = { prompt: "Tea?", agnet: "tea" }; // wrong
export const state: Operations["list_sessions"]["query"] = { state: "sleeping" }; // wrong
export const path: Operations["list_agents"]["path"] = "/v1/agent"; // wrong
export const method: Operations["cancel"]["method"] = "GET"; // wrong
export const body: Operations["list_agents"]["body"] = {}; // wrong
export const asked = (row: ListedSession): string => row.open_questions; // wrong
export const status = (refusal: Refusal): number => refusal.error.status;
