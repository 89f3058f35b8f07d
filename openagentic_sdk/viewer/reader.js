"use strict";
// The readable conversation: prompts, answers, collapsible calls with inputs and results, subagents inside the call that
// started them. Security invariant: session text reaches the page through textContent only.

const reader = { blocks: new Map(), calls: new Map(), open: new Map(), last: null };
const MARKS = { ok: "✓", error: "✗", denied: "⊘", cancelled: "■", unknown: "?" };
const MAX_PART = 20000;
const MAX_GROUP = 50;

// Invisible characters and those that change the text direction are shown as escapes, except letter joiners.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff0-\uffff\u{e0000}-\u{e0fff}]/gu;

function seen(text) {
  return String(text).replace(/\r\n/g, "\n").replace(HIDDEN, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  const shown = children.filter((child) => child !== null && child !== undefined && child !== "");
  node.append(...shown.map((child) => (child instanceof Node ? child : seen(child))));
  return node;
}

// --- the subset of Markdown that models write ------------------------------------------------------------------------

const INLINE = /(`+)(.+?)\1|\*\*(?=\S)(.+?)\*\*|\*(?=[^\s*])([^*]+?)\*|\[([^\[\]]+)\]\((https?:\/\/[^()\s]+)\)/g;

function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    if (found[2] !== undefined) parts.push(make("code", "", found[2]));
    else if (found[3] !== undefined) parts.push(make("strong", "", ...inline(found[3])));
    else if (found[4] !== undefined) parts.push(make("em", "", ...inline(found[4])));
    else parts.push(make("span", "link", found[5]), ` (${found[6]})`);
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

function cells(row) {
  return row.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
}

function markdown(text) {
  const out = make("div", "markdown");
  const lines = seen(text).split("\n");
  let paragraph = [];
  let list = null;
  const flush = () => {
    if (paragraph.length) out.append(make("p", "", ...paragraph.flatMap((line, place) => (place ? [make("br"), ...inline(line)] : inline(line)))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const fence = /^\s{0,12}(`{3,}|~{3,})\s*([^`]*)$/.exec(line);
    const heading = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);
    if (!item && !(/^\s{2,}\S/.test(line) && list)) list = null;
    if (fence) {
      flush();
      const code = [];
      while (++at < lines.length && !lines[at].trim().startsWith(fence[1])) code.push(lines[at]);
      out.append(make("pre", "code", code.join("\n")));
    } else if (heading) {
      flush();
      out.append(make(`h${Math.min(heading[1].length + 2, 6)}`, "", ...inline(heading[2])));
    } else if (line.trim().startsWith("|") && /^[\s|:-]+$/.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
      flush();
      const table = make("table", "", make("tr", "", ...cells(line).map((cell) => make("th", "", ...inline(cell)))));
      at++;
      while ((lines[at + 1] ?? "").trim().startsWith("|")) table.append(make("tr", "", ...cells(lines[++at]).map((cell) => make("td", "", ...inline(cell)))));
      out.append(table);
    } else if (item) {
      flush();
      const tag = /\d/.test(item[2]) ? "ol" : "ul";
      if (!list) out.append((list = make(tag)));
      const entry = make("li", "", ...inline(item[3]));
      entry.dataset.depth = String(Math.min(Math.floor(item[1].length / 2), 6));
      if (tag === "ol") entry.value = Number.parseInt(item[2], 10);
      list.append(entry);
    } else if (/^\s*>/.test(line)) {
      flush();
      out.append(make("blockquote", "", ...inline(line.replace(/^\s*>\s?/, ""))));
    } else if (!line.trim()) {
      flush();
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return out;
}

// --- blocks ----------------------------------------------------------------------------------------------------------

function link(event) {
  const mark = make("a", "seq", `#${event.seq}`);
  mark.href = `#${event.seq}`;
  mark.title = "the raw event";
  mark.addEventListener("click", (click) => {
    click.preventDefault();
    view("events");
    choose(event.seq, true);
  });
  return mark;
}

function block(event, kind, ...children) {
  const node = make("section", `block ${kind}`, ...children, link(event));
  place(event).append(node);
  remember(event, node);
  return node;
}

function remember(event, node) {
  reader.blocks.set(event.seq, node);
}

// The container of an event: for a subagent's event, the call that started the subagent.
function place(event) {
  const call = event.parent_tool_use_id ? reader.calls.get(event.parent_tool_use_id) : null;
  if (call && !call.children) {
    call.children = make("div", "children");
    call.node.append(call.children);
  }
  return group(call?.children ?? byId("conversation"));
}

// The last group of blocks, which is not full. For every frame, a browser examines each child of a scrolled element, even
// distant ones: groups keep their number small.
function group(container) {
  const last = container.lastElementChild;
  if (last && last.childElementCount < MAX_GROUP) return last;
  return container.appendChild(make("div", "group"));
}

function note(event, text, kind = "note") {
  block(event, kind, make("span", "", text));
}

function part(text, className = "") {
  const whole = seen(typeof text === "string" ? text : JSON.stringify(text, null, 1));
  const pre = make("pre", className, whole.slice(0, MAX_PART));
  if (whole.length > MAX_PART) {
    const more = make("button", "more", `show all ${whole.length.toLocaleString()} characters`);
    more.type = "button";
    more.addEventListener("click", () => { pre.textContent = whole; });
    return make("div", "", pre, more);
  }
  return pre;
}

function diff(before, after) {
  const node = make("pre", "diff");
  for (const [sign, text] of [["-", before], ["+", after]]) {
    for (const line of text === "" ? [] : seen(text).split("\n")) node.append(make("span", sign === "-" ? "removed" : "added", `${sign} ${line}\n`));
  }
  return node;
}

// The page contains images by digest; missing ones are described.
function attachments(parts) {
  return (Array.isArray(parts) ? parts : []).map((file) => {
    const address = given.pictures?.[file?.sha256];
    const about = [file?.name ?? file?.url, file?.media_type, file?.size === undefined ? "" : `${Number(file.size).toLocaleString()} bytes`];
    const said = `${file?.type ?? "file"} ${about.filter(Boolean).join(", ")}`;
    if (!address) return make("p", "decision", said);
    const image = make("img", "picture");
    image.alt = image.title = said;
    image.src = address;
    return image;
  });
}

function inputOf(call) {
  const { name, input } = call.use;
  const given = input ?? {};
  if (name === "Bash") return make("pre", "command", `$ ${given.command ?? ""}`);
  if (name === "Edit") {
    const edits = Array.isArray(given.edits) ? given.edits : [given];
    return make("div", "", ...edits.map((edit) => diff(String(edit.old ?? edit.old_string ?? ""), String(edit.new ?? edit.new_string ?? ""))));
  }
  if (name === "Write") return diff("", String(given.content ?? ""));
  return part(given);
}

function outputOf(result) {
  if (result.error_message) return part(result.error_message, "error");
  const output = result.output;
  if (output && typeof output === "object" && "exit_code" in output) {
    const text = [output.stdout, output.stderr, output.exit_code ? `(exit code ${output.exit_code})` : ""].filter(Boolean).join("\n");
    return part(text || "(nothing)");
  }
  return make("div", "", output === null || output === undefined ? "" : part(output), ...attachments(result.attachments));
}

// The provenance of a call's value, from the label rules.
function provenance(found) {
  const where = found.seq ? `${found.source}, event ${found.seq}` : found.source;
  return `${found.argument} ${found.value}: ${found.label}, ${where}${found.line ? `: “${found.line}”` : ""}`;
}

// A call's content is created when it is opened, because most are never opened.
function fill(call) {
  if (call.filled && call.filled === call.result) return;
  call.filled = call.result ?? call.use;
  const rows = [inputOf(call)];
  if (call.decision) {
    const by = call.decision.answered_by ? ` by ${call.decision.answered_by}` : "";
    rows.push(make("p", "decision", `${call.decision.allowed ? "allowed" : "refused"}${by}: ${call.decision.reason} `, link(call.decision)));
    for (const found of call.decision.details?.labels?.findings ?? []) rows.push(make("p", "decision", provenance(found)));
  }
  if (call.result) rows.push(outputOf(call.result), make("p", "decision", "result ", link(call.result)));
  call.inside.replaceChildren(...rows);
}

function head(call) {
  const outcome = call.result?.outcome ?? "running";
  const took = call.result?.duration_s ? ` ${call.result.duration_s < 1 ? `${Math.round(call.result.duration_s * 1000)} ms` : `${call.result.duration_s.toFixed(1)} s`}` : "";
  const given = call.use.input ?? {};
  const about = String(given.command ?? given.file_path ?? given.pattern ?? given.query ?? given.url ?? given.prompt ?? JSON.stringify(given)).slice(0, 300);
  call.summary.replaceChildren(
    make("span", `mark ${outcome}`, MARKS[outcome] ?? "●"), make("strong", "", call.use.name), make("span", "about", about),
    make("span", "took", `${outcome === "ok" || outcome === "running" ? "" : outcome}${took}`),
  );
}

function beginCall(event) {
  const call = { use: event, inside: make("div", "inside"), summary: make("summary") };
  call.node = make("details", "call", call.summary, call.inside);
  call.summary.addEventListener("click", () => fill(call));
  call.node.addEventListener("toggle", () => { if (call.node.open) fill(call); });
  reader.calls.set(event.tool_use_id, call);
  head(call);
  remember(event, block(event, "tool", call.node));
}

function changeCall(event, change) {
  const call = reader.calls.get(event.tool_use_id);
  if (!call) return;
  change(call);
  reader.blocks.set(event.seq, call.node.parentElement);
  head(call);
  if (call.node.open) fill(call);
}

const TELL = {
  "user.message": (event) => {
    if (event.origin && event.origin !== "user" && event.origin !== "steering") return note(event, `${event.origin}: ${event.text.slice(0, 300)}`);
    const extra = attachments(event.attachments);
    return block(event, "prompt", make("h2", "", event.origin === "steering" ? "You, meanwhile" : "You"), markdown(event.text), ...extra);
  },
  "assistant.message": (event) => {
    if (event.text) block(event, "answer", make("h2", "", event.agent_name ?? "Agent"), markdown(event.text));
    if (event.incomplete) note(event, "the answer was cut here", "note error");
  },
  "assistant.reasoning": (event) => block(event, "thought", make("details", "", make("summary", "", "reasoning"), make("pre", "", event.text ?? ""))),
  "tool.use": beginCall,
  "permission.decision": (event) => changeCall(event, (call) => { call.decision = event; }),
  "tool.started": (event) => changeCall(event, () => {}),
  "tool.result": (event) => changeCall(event, (call) => { call.result = event; }),
  "user.question": (event) => note(event, `? ${event.prompt}${event.details?.reason ? ` (asked because ${event.details.reason})` : ""}`, "note question"),
  "user.answer": (event) => {
    const how = [event.answered_by ?? "user", event.approver?.how, event.mac ? "signed" : ""].filter(Boolean).join(", ");
    note(event, `→ ${event.answer} (${how})`, "note question");
  },
  "session.compacted": (event) => block(event, "note", make("details", "", make("summary", "", "the conversation so far was summarised"), markdown(event.summary ?? ""))),
  "session.rewound": (event) => {
    for (const [seq, node] of reader.blocks) if (seq > event.to_seq && seq < event.seq) node.classList.add("undone");
    note(event, `rewound to event ${event.to_seq}`);
  },
  "session.forked": (event) => note(event, `a copy of ${event.parent_session_id} up to event ${event.parent_seq}`),
  "model.retry": (event) => note(event, `retried: ${event.reason}`, "note error"),
  "system.notice": (event) => note(event, event.message),
  "log.recovered": (event) => note(event, "the log was repaired here", "note error"),
  "todo.updated": (event) => block(event, "note", make("ul", "todos", ...event.todos.map((todo) => make("li", String(todo.status), todo.content)))),
  "result": (event) => {
    const ends = { end: "ended", waiting: "waits for an answer", suspended: "suspended: another process resumes it" };
    note(event, ends[event.stop_reason] ?? `stopped: ${event.stop_reason} ${event.error_message ?? ""}`, ends[event.stop_reason] ? "note" : "note error");
  },
};

function readOn(events) {
  for (const event of events) {
    try {
      TELL[event.type]?.(event);
    } catch (wrong) {  // a malformed event must not hide the others
      note(event, `this ${event.type} cannot be shown: ${wrong.message}`, "note error");
    }
    // Events without content of their own are found at the preceding element.
    if (reader.blocks.has(event.seq)) reader.last = reader.blocks.get(event.seq);
    else if (reader.last) reader.blocks.set(event.seq, reader.last);
  }
}

// Hide elements without a matching event; without a filter, show all.
function filterReader(shown, isWhole) {
  byId("conversation").classList.toggle("filtered", !isWhole);
  const kept = new Set(shown.map((event) => reader.blocks.get(event.seq)));
  for (const node of byId("conversation").querySelectorAll(".block")) {
    node.hidden = !isWhole && !kept.has(node) && ![...node.querySelectorAll(".block")].some((inner) => kept.has(inner));
  }
}

function reveal(seq, unfolded) {
  const node = reader.blocks.get(seq);
  for (const old of document.querySelectorAll(".block.chosen")) old.classList.remove("chosen");
  if (!node) return;
  node.classList.add("chosen");
  for (let outer = node.parentElement; outer; outer = outer.parentElement) if (outer.tagName === "DETAILS") outer.open = true;
  const own = node.querySelector(":scope > details.call");
  if (unfolded && own) own.open = true;
  node.scrollIntoView({ block: "center" });
}

function step(by) {
  const nodes = [...byId("conversation").querySelectorAll(".block:not([hidden])")].filter((node) => node.checkVisibility());
  const now = nodes.findIndex((node) => node.classList.contains("chosen"));
  const next = nodes[Math.min(Math.max(now + by, 0), nodes.length - 1)];
  if (!next) return;
  for (const [seq, node] of reader.blocks) if (node === next) return choose(seq, false);
}

// Enter toggles the selected element.
function unfold() {
  const inner = byId("conversation").querySelector(".block.chosen > details");
  if (inner) inner.open = !inner.open;
}

function view(name) {
  document.body.dataset.view = name;
  byId("view").textContent = name === "events" ? "Conversation" : "Raw events";
  if (name === "events") { renderRows(); byId("list").focus(); }
}

function printed() {
  for (const call of reader.calls.values()) { fill(call); call.node.open = true; }
}
