// Served pages only: follow the session over one WebSocket, and send the person's messages over the same one.

const MAX_SENT = 4000000; // the server's limit for one message
const CHANGES_CONTEXT = new Set(["model.response", "session.compacted", "context.cleared", "session.rewound", "result"]);
const RUNS_AGAIN = new Set(["stopped", "suspended", "failed"]);
const live = { socket: null, misses: 0, number: 0, unanswered: new Map(), partials: new Map(), asked: new Map(), files: [], state: "", reading: null, pause: 1000 };

// --- the WebSocket: only one, because a browser limits the connections to a server across all its tabs -----------------

function follow() {
  const url = new URL(given.live.address, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.searchParams.set("after", state.events.at(-1)?.seq ?? 0);
  const socket = (live.socket = new WebSocket(url));
  const come = [];
  const show = () => {
    const fresh = come.splice(0).filter((event) => event.seq > (state.events.at(-1)?.seq ?? 0));
    if (fresh.length) atTheEnd(() => { take(fresh); fresh.forEach(notice); });
  };
  socket.addEventListener("open", () => {
    if (live.misses) refresh();
    live.misses = 0;
    say("trouble", "");
    for (const { message } of live.unanswered.values()) socket.send(message);
  });
  socket.addEventListener("message", ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "reply") return answered(event);
    if (!event.seq) { show(); return streamed(event); }
    if (!come.length) setTimeout(show, 50);
    come.push(event);
  });
  socket.addEventListener("close", (close) => {
    show();
    live.misses += 1;
    if (close.code === 1009) refuseLarge();
    if (close.code === 4009) return location.reload(); // the log was replaced: read it again
    if (close.code >= 4000 || live.misses > 60) say("trouble", "The connection has ended, so this page shows nothing newer. Reload it, or sign in again.");
    else {
      if (live.misses > 1) say("trouble", "The server cannot be reached: trying again.");
      setTimeout(follow, Math.min(500 * live.misses, 5000));
    }
  });
}

// Unacknowledged messages are sent again on the next connection; their key makes this idempotent.
function post(action, body) {
  const id = ++live.number;
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const message = JSON.stringify({ post: action, body, id, key });
  if (message.length > MAX_SENT) return Promise.resolve({ status: 413, error: "This is too large to be sent: attach less." });
  return new Promise((resolve) => {
    live.unanswered.set(id, { message, resolve });
    if (live.socket?.readyState === WebSocket.OPEN) live.socket.send(message);
  });
}

// A message too large for a proxy or for this server would end every new connection too.
function refuseLarge() {
  const largest = [...live.unanswered].reduce((most, each) => (most && most[1].message.length >= each[1].message.length ? most : each), null);
  if (largest) answered({ id: largest[0], status: 413, body: { error: { message: "This is too large to be sent: attach less." } } });
}

function answered({ id, status, body }) {
  const { resolve } = live.unanswered.get(id) ?? {};
  live.unanswered.delete(id);
  resolve?.({ status, error: status < 300 ? "" : String(body?.error?.message ?? `The server answered ${status}.`) });
}

async function tell(action, body) {
  const { status, error } = await post(action, body);
  say("trouble", error);
  return status;
}

// --- incoming events --------------------------------------------------------------------------------------------------

function say(id, text) {
  const node = byId(id);
  if (node && node.textContent !== seen(text)) node.textContent = seen(text);
}

// The element that scrolls: on a phone, the whole page.
function scrolled() {
  return getComputedStyle(byId("conversation")).overflowY === "visible" ? document.scrollingElement : byId("conversation");
}

// Keep a page that is scrolled to the end at the end.
function atTheEnd(change) {
  const box = scrolled();
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  change();
  if (follows) box.scrollTop = box.scrollHeight;
}

// Streamed text: a new attempt discards that of the previous one, and the stored message replaces it.
function streamed(event) {
  if (event.type !== "assistant.delta" && event.type !== "reasoning.delta") return;
  const key = event.parent_tool_use_id ?? "";
  let partial = live.partials.get(key);
  const kind = event.type === "assistant.delta" ? "answer" : "thought";
  if (partial?.attempt !== event.attempt || partial?.kind !== kind) {
    partial?.node.remove();
    partial = { attempt: event.attempt, kind, text: make("div", "streamed") };
    partial.node = make("section", `block ${kind} partial`, make("h2", "", kind === "answer" ? (event.agent_name ?? "Agent") : "Reasoning"), partial.text);
    atTheEnd(() => place(event).append(partial.node));
    live.partials.set(key, partial);
  }
  atTheEnd(() => partial.text.append(seen(event.text_delta ?? event.text ?? "")));
  stand("running");
}

function notice(event) {
  const key = event.parent_tool_use_id ?? "";
  if (event.type === "assistant.message" || event.type === "model.retry" || event.type === "result") {
    live.partials.get(key)?.node.remove();
    live.partials.delete(key);
  }
  if (!key && CHANGES_CONTEXT.has(event.type)) readContext();
  if (event.type === "user.question") ask(event);
  if (event.type === "user.answer") settle(event.question_id);
  if (event.type === "assistant.message" && event.text && !key) say("status", `The agent: ${event.text.slice(0, 300)}`);
  if (key) return;
  if (event.type === "result") {
    if (event.stop_reason !== "waiting") for (const id of [...live.asked.keys()]) settle(id);
    stand({ waiting: "waiting", suspended: "suspended", error: "failed" }[event.stop_reason] ?? "idle");
  } else if (/^(user\.message|system\.init|model\.|tool\.)/.test(event.type)) stand("running");
}

// Query the window again during the run: at most once a second, and less often for a session that takes long to read.
function readContext() {
  live.reading ??= setTimeout(async () => {
    live.reading = null;
    const began = performance.now();
    const answer = await fetch(given.live.address.replace(/\/events$/, "/context")).catch(() => null);
    if (answer?.ok) showContext((await answer.json()).lines);
    live.pause = Math.max(1000, 10 * (performance.now() - began));
  }, live.pause);
}

// The state of the session: available buttons, and the announcement for screen readers.
function stand(now) {
  if (live.state === now) return;
  live.state = now;
  const runs = now === "running" || now === "queued";
  document.title = `${now === "waiting" ? "(?) " : runs ? "… " : ""}${seen(given.title)}`;
  say("status", { running: "The agent is working.", queued: "The run is queued.", waiting: "The agent waits for an answer." }[now] ?? "No run is in progress.");
  if (!byId("say")) return;
  byId("send").textContent = runs ? "Send to the run" : "Send";
  byId("cancel").hidden = !runs && now !== "waiting";
  byId("go-on").hidden = !RUNS_AGAIN.has(now);
  byId("undo").disabled = runs;
}

async function refresh() {
  const answer = await fetch(given.live.address.replace(/\/events$/, ""));
  if (!answer.ok) return;
  const row = await answer.json();
  row.open_questions.forEach(ask);
  stand(row.state);
}

// --- questions --------------------------------------------------------------------------------------------------------

const WORDS = { yes: "Allow", always: "Allow in this session", "always save": "Allow in this project from now on", no: "Reject" };

function ask(question) {
  const id = question.question_id;
  if (live.asked.has(id) || !byId("questions")) return;
  const details = question.details ?? {};
  const isPermission = question.kind === "permission";
  const title = make("h2", "", question.prompt);
  title.id = `question-${live.asked.size}-${live.number++}`;
  const card = make("section", "asked", title);
  card.setAttribute("aria-labelledby", title.id);
  if (details.reason) card.append(make("p", "decision", `asked because ${details.reason}`));
  if (isPermission && details.input?.file_path) card.append(make("p", "decision", details.input.file_path));
  if (isPermission && details.tool_name) card.append(wide(inputOf({ use: { name: details.tool_name, input: details.input } })));
  else if (Array.isArray(details.preview)) card.append(wide(part(details.preview.join("\n"))));
  for (const found of details.labels?.findings ?? []) card.append(make("p", "decision", provenance(found)));
  if (Array.isArray(details.offers) && details.offers.length) card.append(make("p", "decision", `“${WORDS.always}” allows: ${details.offers.join(", ")}`));
  if (given.live.may_answer) card.append(answers(question, isPermission, details));
  else card.append(make("p", "decision", "You may not answer questions here."));
  live.asked.set(id, card);
  byId("questions").append(card);
  say("status", `The agent asks: ${question.prompt}`);
}

// Elements that scroll horizontally must be reachable by keyboard too.
function wide(node) {
  for (const inner of [node, ...node.querySelectorAll("pre")]) if (inner.tagName === "PRE") inner.tabIndex = 0;
  return node;
}

function button(text, className, click) {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", click);
  return made;
}

function answers(question, isPermission, details) {
  const form = make("form", "buttons");
  const choices = question.choices ?? [];
  const give = async (answer) => {
    for (const each of form.elements) each.disabled = true;
    const status = await tell("answers", { question_id: question.question_id, answer });
    if (status >= 300) for (const each of form.elements) each.disabled = false;
    else byId("prompt").focus();
  };
  const words = make("input", "own-words");
  words.setAttribute("aria-label", isPermission ? "Reason for a rejection" : "Your own answer");
  words.placeholder = isPermission ? "reason, if you reject" : "your own answer";
  const picked = [];
  for (const choice of choices) {
    if (details.multi_select && !isPermission) {
      const box = make("input");
      box.type = "checkbox";
      picked.push([box, choice]);
      form.append(make("label", "choice", box, choice));
    } else {
      const shown = isPermission ? (WORDS[choice] ?? choice) : choice;
      form.append(button(shown, choice === "no" ? "refuse" : "", () => give(isPermission && choice === "no" ? `no ${words.value}`.trim() : choice)));
    }
  }
  if (isPermission || !choices.length || details.free_text) form.append(words);
  if (!isPermission && (picked.length || !choices.length || details.free_text)) {
    const send = make("button", "", "Answer");
    form.append(send);
  }
  form.addEventListener("submit", (submit) => {
    submit.preventDefault();
    if (isPermission) return;
    give([...picked.filter(([box]) => box.checked).map(([, choice]) => choice), ...(words.value ? [words.value] : [])].join(", "));
  });
  return form;
}

function settle(id) {
  const card = live.asked.get(id);
  live.asked.delete(id);
  if (card?.contains(document.activeElement)) byId("prompt")?.focus();
  card?.remove();
}

// --- messages from the person -------------------------------------------------------------------------------------------

function base64(data) {
  let text = "";
  for (let at = 0; at < data.length; at += 0x8000) text += String.fromCharCode(...data.subarray(at, at + 0x8000));
  return btoa(text);
}

async function attach(files) {
  for (const file of files) {
    const type = /^(image|audio)\//.exec(file.type)?.[1] ?? "file";
    const data = base64(new Uint8Array(await file.arrayBuffer()));
    const made = { type, name: file.name, media_type: file.type || "text/plain", data };
    const row = make("li", "", `${file.name} `, button("Remove", "", () => { live.files = live.files.filter((each) => each !== made); row.remove(); byId("prompt").focus(); }));
    row.querySelector("button").setAttribute("aria-label", `Remove ${seen(file.name)}`);
    live.files.push(made);
    byId("files").append(row);
  }
}

async function send() {
  const text = byId("prompt").value.trim();
  if (byId("send").disabled || (!text && !live.files.length)) return;
  const prompt = live.files.length ? [...(text ? [{ type: "text", text }] : []), ...live.files] : text;
  byId("send").disabled = true;
  let status = live.state === "running" || live.state === "queued" ? await tell("messages", { prompt }) : 0;
  if (status === 0 || status === 409) status = await tell("runs", { prompt }); // 409: the run has just ended, so send a new prompt
  byId("send").disabled = false;
  if (status >= 300) return;
  if (byId("prompt").value.trim() === text) byId("prompt").value = ""; // else the person has typed on meanwhile
  live.files = [];
  byId("files").replaceChildren();
  byId("prompt").focus();
}

function goLive() {
  stand(given.live.state);
  given.live.questions.forEach(ask);
  scrolled().scrollTop = scrolled().scrollHeight;
  follow();
  if (!byId("say")) return;
  byId("say").addEventListener("submit", (submit) => { submit.preventDefault(); send(); });
  byId("prompt").addEventListener("keydown", (key) => {
    if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
    key.preventDefault();
    send();
  });
  byId("go-on").addEventListener("click", () => tell("runs", { prompt: null }));
  byId("cancel").addEventListener("click", () => tell("cancel", {}));
  byId("undo").addEventListener("click", () => tell("rewind", { turns: 1 }));
  byId("attach").addEventListener("click", () => byId("chosen-files").click());
  byId("chosen-files").addEventListener("change", async (change) => { await attach(change.target.files); change.target.value = ""; });
}
