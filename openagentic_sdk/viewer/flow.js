// The steps of a workflow as a graph: one column for each group of concurrent steps, in dependency order.
// Mirrors parts/workflows/progress.py. Security invariant: text reaches the page through textContent only.

const flow = { isOne: false, steps: new Map(), calls: new Map(), questions: new Map(), level: 0 };
const STEP_STATES = { ok: "done", error: "failed", denied: "denied", unknown: "unknown" };

function readSteps(events) {
  for (const event of events) {
    if (!event.parent_tool_use_id) readStep(event);
  }
  if (flow.isOne) drawSteps();
}

function readStep(event) {
  const step = flow.calls.get(event.tool_use_id);
  if (event.type === "system.init") flow.isOne ||= event.provider === "workflow" && event.model === "workflow";
  else if (event.type === "tool.use") makeStep(event);
  else if (event.type === "user.answer") settleQuestion(event.question_id);
  else if (!step) return;
  else if (event.type === "tool.started") Object.assign(step, { state: "running", began: step.began ?? event.ts });
  else if (event.type === "user.question") {
    flow.questions.set(event.question_id, step);
    step.state = "waiting";
  } else if (event.type === "subagent.finished") step.cost = (step.cost ?? 0) + (event.cost_usd ?? 0);
  else if (event.type === "tool.result") endStep(step, event);
}

function makeStep({ tool_use_id: id, name, extras, seq }) {
  const [number, attempt] = String(id).split("_");
  const known = flow.steps.get(number) ?? { number, name, level: flow.level + 1, at: extras?.at ?? "" };
  Object.assign(known, { attempt: Number(attempt ?? 1), state: "waiting", began: null, ended: null, why: "", seq });
  flow.steps.set(number, known);
  flow.calls.set(id, known);
}

function settleQuestion(id) {
  const step = flow.questions.get(id);
  if (step?.state === "waiting") step.state = "running";
  flow.questions.delete(id);
}

function endStep(step, { outcome, ts, error_message: why, seq }) {
  if (step.began === null && outcome === "ok") { // a value that the body read, such as flow.now(): not work
    flow.steps.delete(step.number);
    return;
  }
  Object.assign(step, { state: STEP_STATES[outcome] ?? "cancelled", ended: ts, why: why ?? "", seq });
  flow.level = Math.max(flow.level, step.level);
}

function drawSteps() {
  const columns = new Map();
  for (const step of flow.steps.values()) columns.set(step.level, [...(columns.get(step.level) ?? []), step]);
  const drawn = [...columns].sort(([a], [b]) => a - b).map(([, steps]) => make("ol", "column", ...steps.map(stepBox)));
  const section = byId("flow");
  section.replaceChildren(...drawn);
  section.hidden = drawn.length === 0;
}

function stepBox(step) {
  const took = step.began && step.ended ? `${(step.ended - step.began).toFixed(1)} s` : "";
  const again = step.attempt > 1 ? `attempt ${step.attempt}` : "";
  const figures = [step.state, took, step.cost ? `$${step.cost.toFixed(4)}` : "", again].filter(Boolean).join(", ");
  const box = make("button", `step ${step.state}`, make("b", "", step.name), make("small", "", figures));
  box.type = "button";
  box.title = seen([`step ${step.number}`, step.at, step.why].filter(Boolean).join("; "));
  box.addEventListener("click", () => choose(step.seq, true));
  return make("li", "", box);
}
