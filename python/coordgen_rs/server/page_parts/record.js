// A dialogue as a record: a tree of messages, since questions are edited and answered again, and the branch that
// is shown. The same record is kept in the browser, exported, imported, and read by `coordgen chat`.

const FORMAT = 1;
const ROLES = ["user", "assistant"], STATES = ["done", "cut", "stopped", "failed"];
const MOST_IMPORTED = 64 << 20;  // bytes

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)),
  (byte) => byte.toString(16).padStart(2, "0")).join("");
const now = () => new Date().toISOString();

function newDialogue() {
  return { format: FORMAT, id: newId(), title: "", created: now(), changed: now(), model: "", system: "",
    messages: Object.create(null), current: null };
}

function newMessage(parent, role, content) {
  return { id: newId(), parent, role, content, thinking: "", created: now(), files: [], state: "done", error: null,
    figures: null, spans: null };
}

// Put a message behind its parent, and show it.
function put(dialogue, message) {
  dialogue.messages[message.id] = message;
  families.delete(dialogue);
  dialogue.current = message.id;
  dialogue.changed = now();
  if (!dialogue.title && message.role === "user") dialogue.title = titled(message);
  return message;
}

const titled = ({ content, files }) => Array.from(content.trim() || files[0]?.name || "").slice(0, 60).join("");

// Take out a message that nothing follows.
function takeOut(dialogue, message) {
  delete dialogue.messages[message.id];
  takenOut.add(message.id);
  families.delete(dialogue);
  if (dialogue.current === message.id) dialogue.current = message.parent;
}

// The messages that are shown, oldest first.
function branchOf(dialogue, id = dialogue.current) {
  const branch = [];
  for (let at = id; at !== null; at = dialogue.messages[at].parent) branch.push(dialogue.messages[at]);
  return branch.reverse();
}

const families = new WeakMap();  // of each dialogue, the messages behind each one; until they change
const takenOut = new Set();  // their ids, so that another tab's copy does not bring them back

// All that follow one message, this one among them, oldest first.
function siblingsOf(dialogue, { parent }) {
  if (!families.has(dialogue)) {
    const found = new Map(), inOrder = Object.values(dialogue.messages)
      .sort((a, b) => a.created < b.created ? -1 : Number(a.created > b.created));
    for (const it of inOrder) {
      if (!found.has(it.parent)) found.set(it.parent, []);
      found.get(it.parent).push(it);
    }
    families.set(dialogue, found);
  }
  return families.get(dialogue).get(parent) ?? [];
}

// An answer of which nothing came, as when the page was left.
const isUnsaid = (message) => message.role === "assistant" && !message.content && !message.thinking;

// A dialogue as the browser's database has it.
function reopened(read) {
  const dialogue = { ...read, messages: Object.assign(Object.create(null), read.messages) };
  for (const message of Object.values(dialogue.messages).filter(isUnsaid)) {
    takeOut(dialogue, message);
    takenOut.delete(message.id);  // another tab may be saying it
  }
  return dialogue;
}

// Add the messages that another tab has put into its copy of a dialogue.
function merge(dialogue, other) {
  for (const [id, message] of Object.entries(other?.messages ?? {})) {
    if (id in dialogue.messages || takenOut.has(id) || isUnsaid(message)) continue;
    dialogue.messages[id] = message;
    families.delete(dialogue);
  }
}

// Show the branch through a message, down to what was said last.
function showThrough(dialogue, message) {
  for (let last = message; last;) {
    dialogue.current = last.id;
    last = siblingsOf(dialogue, { parent: last.id }).at(-1);
  }
}

// Go on with a dialogue as another tab has.
function followOn(dialogue, other) {
  merge(dialogue, other);
  [dialogue.title, dialogue.changed] = [other.title, other.changed];
  showThrough(dialogue, dialogue.messages[dialogue.current]);
}

// What a message says to the model: its text, and its files, each in a fence that it does not hold itself.
function saidBy(message) {
  const parts = message.content ? [message.content] : [];
  for (const { name, text } of message.files) {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    parts.push(`${name}:\n${fence}\n${text.trimEnd()}\n${fence}`);
  }
  return parts.join("\n\n");
}

// A branch as the server takes it; what failed without a word is no turn.
function asMessages(branch, system) {
  const said = branch.filter((it) => it.role === "user" || it.content);
  return [...(system ? [{ role: "system", content: system }] : []),
    ...said.map((it) => ({ role: it.role, content: saidBy(it) }))];
}

// A file of dialogues: one, or a list. Everything is copied field by field, and checked.
function imported(text) {
  let read;
  try { read = JSON.parse(text); } catch (error) { throw new Error(`it is no JSON: ${error.message}`); }
  const list = Array.isArray(read) ? read : [read];
  if (!list.length) throw new Error("there is no dialogue in it");
  return list.map(importedOne);
}

function importedOne(read) {
  if (read?.format !== FORMAT) throw new Error(`it is no dialogue of format ${FORMAT}`);
  const text = (value, what) => {
    if (typeof value !== "string") throw new Error(`${what} is no text`);
    return value;
  };
  const oneOf = (value, all, what) => {
    if (!all.includes(value)) throw new Error(`${what} is ${JSON.stringify(value)?.slice(0, 40)}`);
    return value;
  };
  const object = (value, what) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${what} is no object`);
    return value;
  };
  const dialogue = newDialogue(), ids = new Map();
  for (const name of ["title", "created", "changed", "model", "system"]) dialogue[name] = text(read[name] ?? "", name);
  const messages = Object.entries(object(read.messages, "messages"));
  if (!messages.length) throw new Error("there is no message in it");
  for (const [id] of messages) ids.set(id, newId());
  const known = (id, what) => {
    if (id === null) return null;
    if (!ids.has(id)) throw new Error(`${what} is unknown`);
    return ids.get(id);
  };
  for (const [id, it] of messages) {
    const message = newMessage(known(object(it, "a message").parent, "a message's parent"),
      oneOf(it.role, ROLES, "a role"), text(it.content, "a content"));
    message.id = ids.get(id);
    message.thinking = text(it.thinking ?? "", "a thinking");
    message.created = text(it.created ?? "", "a created");
    message.state = oneOf(it.state ?? "done", STATES, "a state");
    message.error = it.error == null ? null : text(it.error, "an error");
    if (!Array.isArray(it.files ?? [])) throw new Error("files is no list");
    message.files = (it.files ?? []).map((file) => (
      { name: text(file?.name, "a file's name"), text: text(file?.text, "a file") }));
    message.spans = importedSpans(it.spans, message.content);
    message.figures = importedFigures(it.figures);
    dialogue.messages[message.id] = message;
  }
  dialogue.current = known(read.current ?? null, "the current message");
  checkTree(dialogue);
  if (dialogue.current === null) showThrough(dialogue, siblingsOf(dialogue, { parent: null }).at(-1));
  return dialogue;
}

// Each message follows one of the other role, and none itself.
function checkTree(dialogue) {
  const depths = new Map([[null, 0]]), count = Object.keys(dialogue.messages).length;
  for (const start of Object.values(dialogue.messages)) {
    const path = [];
    let at = start;
    for (; at && !depths.has(at.id); at = dialogue.messages[at.parent]) {
      if (path.length > count) throw new Error("its messages follow in a circle");
      path.push(at);
    }
    let depth = at ? depths.get(at.id) : 0;
    for (const message of path.reverse()) depths.set(message.id, ++depth);
    if (start.role !== ROLES[(depths.get(start.id) - 1) % 2]) throw new Error("user and assistant do not take turns");
  }
}

function importedSpans(spans, content) {
  if (!Array.isArray(spans)) return null;
  let end = 0;
  const isOne = (it) => Array.isArray(it) && it[0] === end && it[1] >= it[0] && (end = it[1], typeof it[2] === "string");
  return spans.every(isOne) && end <= content.length ? spans.map(([from, to, source]) => [from, to, source]) : null;
}

const NEEDED = ["prompt", "reused", "tokens", "steps", "perSecond", "seconds"];
const FIGURES = [...NEEDED, "plainSeconds", "measured"];

function importedFigures(figures) {
  if (typeof figures !== "object" || figures === null) return null;
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value) && value >= 0;
  const found = Object.fromEntries(FIGURES.filter((name) => isNumber(figures[name])).map((name) => [name, figures[name]]));
  if (NEEDED.some((name) => !(name in found))) return null;
  const sources = Object.entries(figures.sources ?? {}).filter(([, count]) => isNumber(count));
  return { ...found, sources: Object.fromEntries(sources) };
}
