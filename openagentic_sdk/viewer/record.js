"use strict";
// The page of a signed record verifies itself: each leaf is digested with its salt, the leaves form an event's digest, these
// form the chain, and the signed statement contains the chain's end. Text reaches the page through textContent only.

const record = JSON.parse(document.getElementById("record").textContent);
const encoder = new TextEncoder();
const SSH_NAMESPACE = "record@openagentic-sdk";

function bytes(hex) {
  if (!/^(?:[0-9a-f]{2})*$/.test(hex)) throw new Error("not hexadecimal");
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const hexOf = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
const same = (one, other) => hexOf(one) === hexOf(other);
const sha = async (data, name = "SHA-256") => new Uint8Array(await crypto.subtle.digest(name, data));
const base64 = (text) => Uint8Array.from(atob(text.replace(/\s/g, "")), (letter) => letter.charCodeAt(0));

async function eventDigest(leaves) {
  const made = await Promise.all(
    leaves.map(([salt, text, leaf]) => (leaf === null ? sha(joined(bytes(salt), encoder.encode(text))) : bytes(leaf))),
  );
  return sha(joined(...made));
}

// --- ssh signatures: OpenSSH, PROTOCOL.sshsig -------------------------------------------------------------------------

function sshStrings(data, count) {
  const parts = [];
  for (let at = 0; parts.length < count; ) {
    const size = new DataView(data.buffer, data.byteOffset + at, 4).getUint32(0);
    if (at + 4 + size > data.length) throw new Error("the signature is cut");
    parts.push(data.subarray(at + 4, at + 4 + size));
    at += 4 + size;
  }
  return parts;
}

function sshString(data) {
  const size = new Uint8Array(4);
  new DataView(size.buffer).setUint32(0, data.length);
  return joined(size, data);
}

async function sshProof(armored, statement) {
  const blob = base64(armored.replace(/-----(BEGIN|END) SSH SIGNATURE-----/g, ""));
  if (hexOf(blob.subarray(0, 10)) !== "53534853494700000001") throw new Error("it is not an ssh signature of version 1");
  const [key, namespace, reserved, hash, signature] = sshStrings(blob.subarray(10), 5);
  const words = new TextDecoder();
  const [kind, raw] = sshStrings(key, 2);
  const fingerprint = btoa(String.fromCharCode(...(await sha(key)))).replace(/=+$/, "");
  const name = `SHA256:${fingerprint}`;
  if (words.decode(namespace) !== SSH_NAMESPACE) return { name, proof: "invalid", how: "it was made for something else" };
  if (words.decode(kind) !== "ssh-ed25519") return { name, proof: "unchecked", how: "ssh-keygen can check this kind of key" };
  const digest = await sha(statement, words.decode(hash) === "sha256" ? "SHA-256" : "SHA-512");
  const signed = joined(encoder.encode("SSHSIG"), sshString(namespace), sshString(reserved), sshString(hash), sshString(digest));
  let known;
  try {
    known = await crypto.subtle.importKey("raw", raw, "Ed25519", false, ["verify"]);
  } catch {
    return { name, proof: "unchecked", how: "this browser does not support Ed25519; ssh-keygen can check it" };
  }
  const holds = await crypto.subtle.verify("Ed25519", known, sshStrings(signature, 2)[1], signed);
  return { name, proof: holds ? "valid" : "invalid", how: holds ? "made with this key; find out whose key it is" : "it is not a signature of this statement" };
}

async function voucher(signature, statement) {
  const said = { installation: "only the holder of the installation's key can check it", timestamp: "openssl ts can check it", witness: "its witness can check it" };
  try {
    if (signature.by === "ssh") return { by: "ssh", ...(await sshProof(String(signature.signature), statement)) };
  } catch (error) {
    return { by: "ssh", name: "", proof: "invalid", how: String(error.message ?? error) };
  }
  return { by: String(signature.by), name: String(signature.name ?? signature.time ?? ""), proof: "unchecked", how: said[signature.by] ?? "unknown here" };
}

// --- the whole record ------------------------------------------------------------------------------------------------

async function checkRange(range, before, problems) {
  const stated = JSON.parse(range.statement);
  for (const name of ["session_id", "from_seq", "to_seq", "before", "head"]) {
    if (stated[name] !== range[name]) problems.push(`checkpoint ${range.seq}: its statement contains another ${name}`);
  }
  if (range.before !== before.head || range.from_seq !== before.to_seq + 1) problems.push(`checkpoint ${range.seq}: it does not follow the one before it`);
  const digests = base64(range.digests);
  let head = bytes(range.before);
  if (digests.length !== 32 * (range.to_seq - range.from_seq + 1)) problems.push(`checkpoint ${range.seq}: it covers other events`);
  for (let seq = range.from_seq; seq <= range.to_seq; seq++) {
    const wanted = digests.subarray(32 * (seq - range.from_seq), 32 * (seq - range.from_seq + 1));
    head = await sha(joined(head, wanted));
    const event = record.events[seq - 1];
    let found = null;
    try {
      found = event && event.leaves && (await eventDigest(event.leaves));
    } catch {
      found = null;
    }
    if (event) event.holds = Boolean(found) && same(found, wanted);
    if (!event || !event.holds) problems.push(`event ${seq}: it is not what was signed`);
  }
  if (hexOf(head) !== range.head) problems.push(`checkpoint ${range.seq}: its digests do not match its head`);
  const vouchers = [];
  for (const signature of range.signatures) vouchers.push(await voucher(signature, encoder.encode(range.statement)));
  for (const each of vouchers) {
    if (each.proof === "invalid") problems.push(`checkpoint ${range.seq}: the signature by ${each.by} does not hold: ${each.how}`);
  }
  return vouchers;
}

function line(tag, text, className) {
  const node = document.createElement(tag);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

async function checkAll() {
  const problems = [];
  const shown = document.getElementById("ranges");
  let before = { head: "0".repeat(64), to_seq: 0 };
  let vouched = 0;
  for (const range of record.ranges) {
    const vouchers = await checkRange(range, before, problems);
    for (const each of vouchers) {
      shown.append(line("li", `events 1 to ${range.to_seq}: ${each.by} ${each.name} (${each.proof}: ${each.how})`, each.proof));
      if (each.proof === "valid") vouched = range.to_seq;
    }
    before = range;
  }
  for (const problem of problems) shown.append(line("li", problem, "invalid"));
  const unsigned = record.events.slice(before.to_seq).filter((each) => each.event.type !== "record.signed").length;
  const rows = document.querySelector("#events tbody");
  record.events.forEach((each, place) => {
    const row = document.createElement("tr");
    const state = each.holds === undefined ? "not signed" : each.holds ? "as signed" : "CHANGED";
    const texts = each.leaves.map(([, text, leaf]) => (leaf === null ? text : "(erased)"));
    row.append(line("td", String(place + 1)), line("td", state, each.holds === false ? "invalid" : ""), line("td", texts.join("\n")));
    rows.append(row);
  });
  const said = problems.length ? `does not hold: ${problems.length} problems` : vouched ? `holds: somebody vouches for events 1 to ${vouched}` : "is intact, but this page cannot check who signed it";
  const verdict = document.getElementById("verdict");
  verdict.textContent = `The record ${said}.${unsigned ? ` The last ${unsigned} events are not signed.` : ""}`;
  verdict.className = problems.length ? "invalid" : "valid";
}

document.getElementById("title").textContent = `Record of session ${record.session_id}`;
if (globalThis.crypto?.subtle) {
  checkAll().catch((error) => {
    document.getElementById("verdict").textContent = `The record cannot be checked: ${error.message ?? error}`;
    document.getElementById("verdict").className = "invalid";
  });
} else {
  document.getElementById("verdict").textContent = "This browser cannot check signatures here: open the file itself, or run `openagentic-sdk sessions verify --signed FILE`.";
}
