// Security invariant of this script: session text reaches the page through textContent only.

const ROW = 24;
const KINDS = {
  user: ["user.", "assistant.", "todo."],
  model: ["model."],
  tool: ["tool."],
  subagent: ["subagent."],
  permission: ["permission."],
  hook: ["hook."],
  session: ["system.", "session.", "skill.", "log.", "result"],
};
const LANES = ["model", "tool", "subagent", "permission", "hook"];
const byId = (id) => document.getElementById(id);
const given = JSON.parse(byId("data").textContent);

const state = { events: [], shown: [], hidden: new Set(), words: "", chosen: null, spans: [], curves: [], pauses: [] };

function kindOf(event) {
  for (const [kind, prefixes] of Object.entries(KINDS)) {
    if (prefixes.some((prefix) => event.type.startsWith(prefix))) return kind;
  }
  return "session";
}

function lineOf(event) {
  const parts = [event.name, event.text, event.prompt, event.reason, event.message, event.error_message, event.summary];
  if (event.type === "tool.use" || event.type === "tool.started") parts.push(JSON.stringify(event.input ?? ""));
  if (event.type === "tool.result") parts.push(event.outcome, JSON.stringify(event.output ?? ""));
  if (event.type === "model.response") parts.push(event.model, usageText(event.usage), event.finish_reason);
  if (event.type === "result") parts.push(event.stop_reason, event.final_text);
  return parts.filter(Boolean).join("  ").slice(0, 2000).replace(/\s+/g, " ").slice(0, 300);
}

function usageText(usage) {
  const count = (number) => Number(number ?? 0).toLocaleString("en");
  return usage ? `${count(usage.input_tokens)} + ${count(usage.output_tokens)} tokens, ${cachedText(usage)}` : "";
}

function cachedText({ input_tokens: all, cached_input_tokens: cached }) {
  return `${all ? ((100 * (cached ?? 0)) / all).toFixed(0) : 0} % cached`;
}

function isError(event) {
  return event.is_error === true || event.allowed === false || Boolean(event.error_type);
}

// --- times of events ------------------------------------------------------------------------------------------------

function fold(events) {
  const open = new Map();
  for (const event of events) {
    const { type, ts } = event;
    if (type === "model.request") open.set("model", event);
    if (type === "model.response") span("model", open.get("model"), event, event.model ?? "model");
    if (type === "tool.started") open.set(event.tool_use_id, event);
    if (type === "tool.result") span("tool", open.get(event.tool_use_id), event, open.get(event.tool_use_id)?.name ?? "tool");
    if (type === "subagent.started") open.set(event.child_session_id, event);
    if (type === "subagent.finished") span("subagent", open.get(event.child_session_id), event, event.name);
    if (type === "permission.decision") state.spans.push({ lane: "permission", from: ts - (event.waited_s ?? 0), to: ts, event, label: event.name });
    if (type === "hook.event") state.spans.push({ lane: "hook", from: ts - (event.duration_s ?? 0), to: ts, event, label: event.name });
    if (type === "model.response") {
      const last = state.curves.at(-1) ?? { cost: 0 };
      state.curves.push({ ts, context: event.usage?.input_tokens ?? null, cost: last.cost + (event.cost_usd ?? 0) });
    }
  }
}

function span(lane, from, event, label) {
  state.spans.push({ lane, from: (from ?? event).ts, to: event.ts, event, label });
}

// --- the timeline ---------------------------------------------------------------------------------------------------

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Drawn time: the hours between two runs are compressed to a sliver.
function drawn(ts) {
  let cut = 0;
  for (const pause of state.pauses) if (pause.until <= ts) cut += pause.cut;
  return ts - cut;
}

function findPauses() {
  state.pauses = [];
  const between = (type) => type === "result" || type === "system.init" || type.startsWith("session.");
  const idle = (index) => between(state.events[index - 1].type) || between(state.events[index].type);
  for (let index = 1; index < state.events.length; index++) {
    const gap = state.events[index].ts - state.events[index - 1].ts;
    if (gap > 1 && idle(index)) state.pauses.push({ until: state.events[index].ts, cut: gap - 0.1 });
  }
}

function bounds() {
  const first = state.events[0]?.ts ?? 0;
  return { first, length: Math.max(drawn(state.events.at(-1)?.ts ?? first) - first, 0.001) };
}

// The nonempty lanes, in order.
function lanes() {
  const used = new Set(state.spans.map((item) => item.lane));
  return LANES.filter((lane) => used.has(lane));
}

function draw() {
  const canvas = byId("lanes");
  const shown = lanes();
  const top = shown.length * 24 + 8;
  const hasCost = state.curves.some((point) => point.cost);
  canvas.style.height = `${top + (state.curves.length ? (hasCost ? 80 : 40) : 0)}px`;
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "12px system-ui, sans-serif";
  const { first, length } = bounds();
  const left = 92;
  const at = (ts) => left + ((drawn(ts) - first) / length) * (width - left - 10);
  shown.forEach((lane, index) => {
    pen.fillStyle = colour("soft");
    pen.fillText(lane, 8, 18 + index * 24);
  });
  for (const item of state.spans) {
    const y = 6 + shown.indexOf(item.lane) * 24;
    pen.fillStyle = colour(isError(item.event) ? "error" : item.lane);
    pen.fillRect(at(item.from), y, Math.max(at(item.to) - at(item.from), 2), 16);
  }
  if (state.curves.length) curve(pen, "context", at, width, top, 32, "model");
  if (hasCost) curve(pen, "cost", at, width, top + 40, 32, "permission");
  if (state.chosen !== null) {
    const event = state.events.find((one) => one.seq === state.chosen);
    if (event) {
      pen.fillStyle = colour("fore");
      pen.fillRect(at(event.ts), 0, 1, height);
    }
  }
}

function curve(pen, name, at, width, top, tall, shade) {
  const points = state.curves.filter((point) => point[name] !== null);
  const most = Math.max(...points.map((point) => point[name]), 0);
  pen.fillStyle = colour("soft");
  pen.fillText(name, 8, top + 16);
  if (!most) return;
  pen.fillText(name === "cost" ? `$${most.toFixed(4)}` : `${most} tok`, 8, top + 30);
  pen.strokeStyle = colour(shade);
  pen.beginPath();
  points.forEach((point, index) => {
    const y = top + tall - (point[name] / most) * tall;
    if (index) pen.lineTo(at(point.ts), y);
    else pen.moveTo(at(point.ts), y);
  });
  pen.stroke();
}

function pick(click) {
  const box = byId("lanes").getBoundingClientRect();
  const lane = lanes()[Math.floor((click.clientY - box.top - 6) / 24)];
  const { first, length } = bounds();
  const ts = first + ((click.clientX - box.left - 92) / (box.width - 102)) * length;
  const distance = (item) => Math.max(drawn(item.from) - ts, ts - drawn(item.to), 0);
  const near = state.spans.filter((item) => item.lane === lane).sort((a, b) => distance(a) - distance(b))[0];
  if (near) choose(near.event.seq, true);
}

// --- the list -------------------------------------------------------------------------------------------------------

function refilter() {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  state.shown = state.events.filter((event) => {
    if (state.hidden.has(kindOf(event))) return false;
    if (!words.length) return true;
    event.searched ??= JSON.stringify(event).toLowerCase();
    return words.every((word) => event.searched.includes(word));
  });
  byId("rows").style.height = `${state.shown.length * ROW}px`;
  byId("count").textContent = `${state.shown.length} of ${state.events.length} events`;
  filterReader(state.shown, state.shown.length === state.events.length);
  renderRows();
}

function renderRows() {
  const list = byId("list");
  const start = Math.max(Math.floor(list.scrollTop / ROW) - 10, 0);
  const end = Math.min(start + Math.ceil(list.clientHeight / ROW) + 20, state.shown.length);
  byId("rows").replaceChildren(...state.shown.slice(start, end).map((event, offset) => row(event, start + offset)));
}

function row(event, index) {
  const line = document.createElement("div");
  line.className = isError(event) ? "row error" : "row";
  line.style.top = `${index * ROW}px`;
  line.id = `row-${event.seq}`;
  line.setAttribute("role", "option");
  line.setAttribute("aria-selected", String(event.seq === state.chosen));
  for (const [name, text] of [["seq", String(event.seq)], ["type", event.type], ["text", lineOf(event)]]) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = seen(text);
    line.append(part);
  }
  line.addEventListener("click", () => choose(event.seq, false));
  return line;
}

function choose(seq, scroll) {
  state.chosen = seq;
  history.replaceState(null, "", `#${seq}`);
  const index = state.shown.findIndex((event) => event.seq === seq);
  const list = byId("list");
  if (index >= 0 && (scroll || index * ROW < list.scrollTop || (index + 1) * ROW > list.scrollTop + list.clientHeight)) {
    list.scrollTop = Math.max(index * ROW - list.clientHeight / 2, 0);
  }
  list.setAttribute("aria-activedescendant", `row-${seq}`);
  renderRows();
  draw();
  reveal(seq, scroll);
  commands(seq);
  open(state.events.find((event) => event.seq === seq));
}

function open(event) {
  if (!event) return;
  const head = document.createElement("h2");
  head.textContent = `${event.seq} ${event.type}`;
  const facts = document.createElement("dl");
  for (const [name, value] of Object.entries(event)) {
    if (name === "searched" || name === "type" || value === null) continue;
    const term = document.createElement("dt");
    term.textContent = name;
    const shown = document.createElement("dd");
    const text = document.createElement("pre");
    text.textContent = seen(name === "ts" ? timeText(value) : typeof value === "string" ? value : JSON.stringify(value, null, 1));
    shown.append(text);
    facts.append(term, shown);
  }
  byId("detail").replaceChildren(head, facts);
}

function timeText(ts) {
  const time = new Date(ts * 1000);
  return Number.isNaN(time.getTime()) ? String(ts) : time.toISOString();
}

// The terminal commands that continue from an event.
function commands(seq) {
  const id = given.session;
  const lines = [
    [`continue from event ${seq} with another model or prompt`, `openagentic-sdk whatif ${id} --at ${seq} --model MODEL`],
    [`copy the session up to event ${seq}`, `openagentic-sdk sessions fork ${id} --at-seq ${seq}`],
    ["replay it from its log, and compare", `openagentic-sdk replay ${id}`],
    ["continue it", `openagentic-sdk chat --resume ${id}`],
  ];
  const rows = lines.flatMap(([about, command]) => [make("dt", "", about), make("dd", "", make("pre", "command", command))]);
  byId("commands").firstElementChild.replaceChildren(...rows);
}

function move(step) {
  const now = state.shown.findIndex((event) => event.seq === state.chosen);
  const next = state.shown[Math.min(Math.max(now + step, 0), state.shown.length - 1)];
  if (next) choose(next.seq, false);
}

const KEYS = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };

function pressed(key) {
  const types = key.target.matches("input, textarea, select") || key.ctrlKey || key.metaKey || key.altKey;
  if (key.target === byId("list") && key.key in KEYS) {
    key.preventDefault();
    move(Number.isFinite(KEYS[key.key]) ? KEYS[key.key] : Math.sign(KEYS[key.key]) * state.shown.length);
  } else if (key.target === byId("list") && key.key === "Enter") {
    byId("detail").focus();
  } else if (!types && (key.key === "j" || key.key === "k")) {
    step(key.key === "j" ? 1 : -1);
  } else if (!types && key.key === "e") {
    view(document.body.dataset.view === "events" ? "reader" : "events");
  } else if (!types && key.key === "/") {
    key.preventDefault();
    byId("search").focus();
  } else if (key.key === "Enter" && key.target === byId("conversation")) {
    unfold();
  } else if (key.key === "Escape") {
    byId(document.body.dataset.view === "events" ? "list" : "conversation").focus();
  }
}

// --- initial events and later ones ----------------------------------------------------------------------------------

function take(events) {
  for (const event of events) state.events.push(event);
  readOn(events);
  readSteps(events);
  fold(events);
  findPauses();
  const responses = state.events.filter((event) => event.type === "model.response");
  const sum = (name) => responses.reduce((total, event) => total + (event.usage?.[name] ?? 0), 0);
  const cost = state.curves.at(-1)?.cost ?? 0;
  const unknown = responses.some((event) => event.usage && event.cost_usd == null);
  const facts = [
    `${responses.length} model calls`,
    usageText({
      input_tokens: sum("input_tokens"),
      output_tokens: sum("output_tokens"),
      cached_input_tokens: sum("cached_input_tokens"),
    }),
    cost || !unknown ? `$${cost.toFixed(4)}${unknown ? " + unknown" : ""}` : "cost unknown",
    `${bounds().length.toFixed(1)} s`,
  ];
  byId("facts").textContent = facts.join(", ");
  // The cause was computed when the page was built; later events may have resolved it.
  byId("why").hidden = !given.why || state.events.length > given.events.length;
  for (const event of events) byId(`kind-${kindOf(event)}`).hidden = false;
  refilter();
  draw();
}

// Show the size of the next request and, below it, its parts and what a compaction would drop.
function showContext(lines) {
  const [first, ...rest] = lines.map(seen);
  byId("context").firstElementChild.textContent = first;
  byId("context").lastElementChild.textContent = rest.join("\n");
}

function begin() {
  byId("title").textContent = seen(given.title);
  byId("why").textContent = (given.why ?? []).map(seen).join("\n");
  showContext(given.context);
  for (const kind of Object.keys(KINDS)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.id = `kind-${kind}`;
    button.hidden = true; // until the first such event
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!on));
      if (on) state.hidden.add(kind);
      else state.hidden.delete(kind);
      refilter();
    });
    byId("kinds").append(button);
  }
  byId("search").addEventListener("input", (input) => {
    state.words = input.target.value;
    refilter();
  });
  byId("filters").addEventListener("submit", (submit) => submit.preventDefault());
  byId("list").addEventListener("scroll", renderRows);
  byId("lanes").addEventListener("click", pick);
  document.addEventListener("keydown", pressed);
  byId("view").addEventListener("click", () => view(document.body.dataset.view === "events" ? "reader" : "events"));
  window.addEventListener("beforeprint", printed);
  window.addEventListener("resize", () => { renderRows(); draw(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  byId("tools").hidden = !given.session;
  byId("tools").addEventListener("click", () => {
    byId("commands").hidden = !byId("commands").hidden;
    byId("tools").setAttribute("aria-expanded", String(!byId("commands").hidden));
  });
  take(given.events);
  commands(state.events.at(-1)?.seq ?? 0);
  const wanted = Number(location.hash.slice(1));
  if (wanted) choose(wanted, true);
  window.addEventListener("hashchange", () => choose(Number(location.hash.slice(1)), true));
  if (given.live) goLive();
}

begin();
