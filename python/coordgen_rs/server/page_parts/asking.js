// What is asked of the server: answers as streams of events, and errors in words that help.

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = $("key").value.trim();
  if (/[^\x20-\x7e]/.test(key)) throw new Refused("An API key holds letters without accents, digits and signs alone.", 0);
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

// A response of the server; what it refuses is thrown.
async function answered(path, body, signal) {
  const sent = { headers: headers(), signal, ...(body !== undefined && { method: "POST", body: JSON.stringify(body) }) };
  let response;
  try {
    response = await fetch(path, sent);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached: is it still running?", 0);
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  if (response.status === 401) throw new Refused(wantsKey(), response.status);
  throw new Refused(told?.error?.message ?? `The server answered with status ${response.status}.`, response.status);
}

// The server has keys: say so, and where to type one. What was said, in the page's own words.
function wantsKey() {
  const typed = $("key").value.trim();
  $("more").open = true;
  $("key-told").textContent = typed ? "The server does not know this key." : "This server wants an API key: type it here.";
  $("key-told").hidden = false;
  $("key").setAttribute("aria-invalid", "true");
  $("key").focus();
  return typed ? "The server does not know the API key in Settings." : "This server wants an API key: type it in Settings.";
}

const LONGEST_MS = 8;  // of work on events before the page may draw, and hear keys

// A turn for what waits, which unlike a timer is not put off in a tab behind others.
const turn = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); resolve(); };
  port2.postMessage(null);
});

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", began = performance.now();
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      part = { done: true };
    }
    if (part.done) throw new Error("The answer broke off: the server or the network closed the connection.");
    held += part.value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const one of parts) {
      if (!one.startsWith("data: ")) continue;  // a comment, while there is nothing to tell
      const data = one.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
      if (performance.now() - began > LONGEST_MS) {
        await turn();
        began = performance.now();
      }
    }
  }
}

// A chat's answer, and what is needed to go on with it.
function chatBody(messages) {
  const prediction = $("prediction").value, effort = $("effort").value;
  return { messages, ...sampling(), ...(effort && { reasoning_effort: effort }),
    ...(prediction && { prediction: { type: "content", content: prediction } }) };
}

function streamed(body) {
  return { ...body, stream: true, stream_options: { include_usage: true }, return_token_ids: true,
    coordgen: { spans: true, trees: true, drafts: $("drafts").checked } };
}

// What goes on with an answer behind its last token: the same tokens that a higher limit had given.
async function bodyBehind({ messages, model, reasoning_effort: effort }, ids, signal) {
  const rendered = await (await answered("apply-template",
    { messages, ...(model && { model }), ...(effort && { reasoning_effort: effort }) }, signal)).json();
  const read = await (await answered("tokenize",
    { content: rendered.prompt, ...(model && { model }) }, signal)).json();
  return { prompt: [...read.tokens, ...ids], ...sampling(), ...(model && { model }) };
}

// The text of all tokens of an answer, also where a character's bytes are in two parts of it.
async function textOf(ids, model, signal) {
  const told = await (await answered("detokenize", { tokens: ids, ...(model && { model }) }, signal)).json();
  return told.content;
}
