// The chat: what is asked of the server, and what happens when.

const $ = (id) => document.getElementById(id);
let messages = [], running = null, follows = true, stepCosts = null;

function keepInView() { if (follows) $("log").scrollTop = $("log").scrollHeight; }

function added(role) {
  $("empty").hidden = true;
  const article = made("article", role);
  article.append(made("div", "who", role === "user" ? "You" : "Model"));
  $("log").append(article);
  return article;
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer broke off: the server or the network closed the connection.");
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;  // a comment, while there is nothing to tell
      const data = part.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

async function asked(body, signal) {
  const response = await fetch("v1/chat/completions",
    { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  if (response.status === 401) $("more").open = true;
  throw new Error(told?.error?.message ?? `status ${response.status}`);
}

function request() {
  const system = $("system").value, prediction = $("prediction").value, seed = $("seed").value;
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    max_tokens: Number($("limit").value) || 256,
    temperature: Number($("temperature").value) || 0,
    ...(seed !== "" && { seed: Number(seed) }),
    ...(prediction && { prediction: { type: "content", content: prediction } }),
    stream: true,
    stream_options: { include_usage: true },
    coordgen: { spans: true, trees: true, drafts: $("drafts").checked },
  };
}

async function send() {
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  follows = true;
  added("user").append(made("div", "said", shown(text)));
  messages.push({ role: "user", content: text });
  const body = request(), answer = new Answer(), control = busy(), talk = messages;
  let last = null, usage = null;
  keepInView();
  try {
    for await (const event of events(await asked(body, control.signal))) {
      const [choice] = event.choices;
      if (event.usage) usage = event.usage;
      if (choice?.delta.content || event.coordgen?.token_spans) {
        answer.step(choice.delta.content ?? "", event.coordgen);
      }
      if (choice?.finish_reason) last = event;
      keepInView();
    }
    if (last && usage) compared(answer, answer.figures(last, usage), body, last);
  } catch (error) {
    if (error.name === "AbortError") answer.stopped();
    else answer.fail(error);
  }
  answer.said.classList.remove("waiting");
  if (answer.text) talk.push({ role: "assistant", content: answer.text });
  else talk.pop();
  $("spoken").textContent = `${answer.text || "no answer"} ${answer.ended}`.trim();
  idle();
  keepInView();
}

// A button that asks the same without drafts, and tells how that compares.
function compared(answer, place, body, last) {
  if (!body.coordgen.drafts) return;
  const button = made("button", "", "Compare with plain decoding");
  button.type = "button";
  place.append(button);
  button.onclick = async () => {
    if (running) return;
    button.disabled = true;
    const control = busy();
    const plain = { ...body, stream: false, coordgen: { drafts: false }, stream_options: undefined,
      ...(last.coordgen.seed !== null && { seed: last.coordgen.seed }) };
    try {
      const told = await (await asked(plain, control.signal)).json();
      const speed = told.timings.predicted_per_second;
      const ratio = last.timings.predicted_per_second / speed;
      const same = told.choices[0].message.content === answer.text ? "the same text" : "ANOTHER TEXT";
      button.replaceWith(made("span", "", `Plain: ${speed.toFixed(0)} tokens/s and ${same}, ` +
        `so drafts were ${ratio.toFixed(2)} times as fast this time`));
    } catch (error) {
      button.disabled = false;
      if (error.name !== "AbortError") answer.fail(error);
    }
    idle();
  };
}

function busy() {
  running = new AbortController();
  $("stop").hidden = false;
  $("send").disabled = true;
  return running;
}

function idle() {
  running = null;
  $("stop").hidden = true;
  $("send").disabled = false;
  $("text").focus();
}

async function named() {
  const response = await fetch("v1/models", { headers: headers() }).catch(() => null);
  if (response?.ok) {
    const [model] = (await response.json()).data;
    $("model").textContent = model.id;
    document.title = `${model.id} · coordgen`;
    stepCosts = model.step_us ?? null;
    if (model.state === "loading") setTimeout(named, 1000);
  } else if (response?.status === 401) {
    $("more").open = true;
  }
}

$("form").onsubmit = (event) => { event.preventDefault(); send(); };
$("stop").onclick = () => running?.abort();
$("key").onchange = named;
$("anew").onclick = () => {
  running?.abort();
  messages = [];
  document.querySelectorAll("article").forEach((article) => article.remove());
  $("empty").hidden = false;
  $("text").focus();
};
$("theme").onclick = () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
};
$("log").onscroll = () => {
  const log = $("log");
  follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
};
$("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
};
addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
named();
