"use strict";
// Start a new session from the list, then open its page.

const { root } = JSON.parse(document.getElementById("data").textContent);
const [form, prompt, agent, send] = ["say", "prompt", "agent", "send"].map((id) => document.getElementById(id));
const trouble = document.getElementById("trouble");
let key = "";

async function start() {
  if (send.disabled || !prompt.value.trim()) return;
  send.disabled = true;
  trouble.textContent = "";
  key ||= Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  try {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    const body = JSON.stringify({ agent: agent.value, prompt: prompt.value });
    const answer = await fetch(`${root}/v1/sessions`, { method: "POST", headers, body });
    const made = await answer.json();
    if (answer.ok) return location.assign(`${root}/sessions/${encodeURIComponent(made.session_id)}`);
    trouble.textContent = made.error?.message ?? `The server answered ${answer.status}.`;
    key = "";
  } catch {
    trouble.textContent = "The server does not answer: try again."; // with the same key, so that the retry is idempotent
  }
  send.disabled = false;
}

form.addEventListener("submit", (submit) => { submit.preventDefault(); start(); });
form.addEventListener("input", () => { key = ""; });
prompt.addEventListener("keydown", (pressed) => {
  if (pressed.key !== "Enter" || pressed.shiftKey || pressed.isComposing) return;
  pressed.preventDefault();
  start();
});
