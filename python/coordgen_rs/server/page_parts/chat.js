// The chat: what is asked of the server, and what happens when.

const kept = new Kept();
const tokens = new Map();  // of each answer of this visit, so that it can be gone on with
const bodies = new Map();  // what was asked for it
const partial = new Set();  // those that were stopped or gone on with, so that one request gives no such answer
const views = new Map();  // of the messages of this dialogue
const THEME = "coordgen-theme";
let dialogue = newDialogue(), running = null, follows = true, lastTop = 0;

function keepInView() {
  if (!follows) return;
  $("log").scrollTop = $("log").scrollHeight;
  lastTop = $("log").scrollTop;
}

// Whoever scrolls up reads there and is left in peace; at the end the page follows again. What grows between two
// frames must not look like scrolling: then the way to the end is longer, but the place is the same.
function followed() {
  const log = $("log"), rest = log.scrollHeight - log.scrollTop - log.clientHeight;
  if (rest <= 1) follows = true;
  else if (log.scrollTop < lastTop) follows = false;
  else if (log.scrollTop > lastTop) follows = rest < 40;
  lastTop = log.scrollTop;
}

const articleFor = (message) => document.querySelector(`article[data-id="${message.id}"]`);
function focusOn(message) { articleFor(message)?.querySelector(".acts button:enabled")?.focus(); }

// The branch of the dialogue that is chosen, from its record.
function show() {
  const branch = branchOf(dialogue);
  arrange([$("empty"), ...branch.map((it) => viewOf(it).article)]);
  $("empty").hidden = branch.length > 0;
  tallied();
  keepInView();
}

// Only what changes its place is moved: a long answer is not laid out again.
function arrange(elements) {
  const log = $("log");
  elements.forEach((it, at) => { if (log.children[at] !== it) log.insertBefore(it, log.children[at] ?? null); });
  while (log.children.length > elements.length) log.lastElementChild.remove();
}

// A message as it was shown before, steps and all, or from its record.
function viewOf(message) {
  const before = views.get(message.id);
  if (before && running?.message !== message) before.refresh();
  if (before) return before;
  const view = message.role === "user" ? new Question(message) : new Answer(message).whole();
  views.set(message.id, view);
  return view;
}

function tallied() {
  const told = savedBy(Object.values(dialogue.messages));
  $("saved").textContent = told;
  $("saved").hidden = !told;
}

// Say something behind a message of the model, and have it answered.
function ask(text, files, parent = dialogue.current) {
  if (running) return;
  if (parent !== null && dialogue.messages[parent].role === "user") parent = dialogue.messages[parent].parent;
  const question = newMessage(parent, "user", text);
  question.files = files;
  dialogue.system = $("system").value;
  put(dialogue, question);
  done(kept.put(dialogue));
  follows = true;
  listDialogues();
  show();
  answer(question);
}

function another(message) {
  if (running) return;
  const question = dialogue.messages[message.parent];
  const isSame = JSON.stringify(bodyFor(question)) === JSON.stringify(bodies.get(message.id));
  if (isSame && isGreedy()) {
    $("more").open = true;
    $("temperature").focus();
    return tell("At temperature 0 the answer would be the same: choose a higher one.");
  }
  if (isSame && $("seed").value !== "") {
    $("more").open = true;
    $("seed").focus();
    return tell("With this seed the answer would be the same: choose another one, or none.");
  }
  answer(question);
}

const bodyFor = (question) => chatBody(asMessages(branchOf(dialogue, question.id), $("system").value));

async function answer(question) {
  if (running) return;
  const own = dialogue, body = bodyFor(question), message = put(own, newMessage(question.id, "assistant", ""));
  question.error = null;
  dialogue.model = model()?.id ?? "";
  bodies.set(message.id, body);
  tokens.set(message.id, []);
  running = { control: new AbortController(), question, message, dialogue: own };
  $("more").open = false;  // settings would cover the answer
  const view = new Answer(message);
  views.set(message.id, view);
  follows = true;
  show();
  await stream(view, "v1/chat/completions", body);
  if (!message.content && !message.thinking) {  // nothing was said: the question stays, and can be sent again
    const why = message.error ?? (message.state === "stopped" ? "Stopped before the answer began." : "The answer is empty.");
    takeOut(own, message);
    views.delete(message.id);
    const before = siblingsOf(own, message).at(-1);
    if (before) showThrough(own, before);
    (before ?? question).error = message.error = why;
  }
  await ended(view);
}

// Go on with an answer where it was cut.
async function goOn(view) {
  if (running) return;
  const { message } = view, body = bodies.get(message.id), ids = tokens.get(message.id), before = message.content;
  running = { control: new AbortController(), question: dialogue.messages[message.parent], message, dialogue };
  message.error = null;
  if (body.temperature > 0) partial.add(message.id);
  busy(true);
  try {
    const behind = await bodyBehind(body, ids, running.control.signal);
    await stream(view, "v1/completions", behind);
    bodies.set(message.id, { ...body, max_tokens: body.max_tokens + behind.max_tokens });
    if (!message.thinking) {
      const whole = await textOf(ids, body.model);
      if (whole.startsWith(before.slice(0, -8))) message.content = whole;
    }
  } catch (error) {
    message.error = error.name === "AbortError" ? null : error.message;
  }
  await ended(view);
}

// Show an answer as it comes; what it took, and how it ended, goes into its message.
async function stream(view, path, body) {
  const { message } = view, ids = tokens.get(message.id), firstRow = view.steps.rows.length;
  let last = null, usage = null;
  message.state = "failed";
  view.said.classList.add("waiting");
  busy(true);
  try {
    for await (const event of events(await answered(path, streamed(body), running.control.signal))) {
      const [choice] = event.choices;
      if (event.usage) usage = event.usage;
      if (choice?.token_ids) ids.push(...choice.token_ids);
      const delta = choice?.delta ?? (choice && { content: choice.text });
      if (delta?.content || delta?.reasoning_content || event.coordgen?.token_spans) view.step(delta, event.coordgen);
      if (choice?.finish_reason) last = event;
    }
    message.state = { length: "cut", capacity: "done" }[last?.coordgen.finish_reason] ?? "done";
    if (last && usage) {
      const costs = model()?.step_us;
      message.figures = together(message.figures, figuresOf(last, usage, view.steps.rows.slice(firstRow), costs));
    }
    if (last?.coordgen.finish_reason === "capacity") {
      message.error = "The context is full: edit an earlier message, or start a new chat.";
    }
    if (last?.coordgen.seed != null) bodies.set(message.id, { ...bodies.get(message.id), seed: last.coordgen.seed });
  } catch (error) {
    message.state = error.name === "AbortError" ? "stopped" : "failed";
    partial.add(message.id);
    message.error = error.name === "AbortError" ? null : error.message;
  }
}

async function ended(view) {
  const { message } = view, { question, dialogue: own } = running;
  running = null;
  busy(false);
  view.draw();
  show();
  if (model()?.state !== "ready") named();  // by now it says what is recommended, and what its steps cost
  $("spoken").textContent = [message.content || "no answer", message.state === "stopped" ? "Stopped." : "",
    message.error ?? question.error ?? ""].filter(Boolean).join(" ");
  own.changed = now();
  if (kept.has(own)) await done(kept.put(own));
  listDialogues();
  keepInView();
}

// Ask the same without drafts, and tell how that compares.
async function compare(view, place) {
  if (running) return;
  const { message } = view, body = bodies.get(message.id);
  const own = dialogue;
  running = { control: new AbortController(), question: own.messages[message.parent], message, dialogue: own };
  place.disabled = true;
  busy(true);
  try {
    const plain = { ...body, coordgen: { drafts: false } };
    const told = await (await answered("v1/chat/completions", plain, running.control.signal)).json();
    const isSame = (told.choices[0].message.content ?? "") === message.content;
    if (isSame) message.figures.measured = told.timings.predicted_per_second;
    else message.error = "Plain decoding gave ANOTHER TEXT.";
    if (kept.has(own)) await done(kept.put(own));
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
  running = null;
  busy(false);
  view.refresh();
  tallied();
}

function stopped() { running?.control.abort(); }

function busy(isBusy) {
  $("stop").hidden = !isBusy;
  $("send").disabled = isBusy;
  document.body.classList.toggle("busy", isBusy);
  if (isBusy) tell("");
}

function anew() {
  stopped();
  views.clear();
  dialogue = newDialogue();
  $("system").value = typedSystem;
  arrange([$("empty")]);
  $("empty").hidden = false;
  tallied();
  listDialogues();
  $("text").focus();
}

// On a phone Enter breaks the line, as everywhere there, and the button sends.
const isTouched = () => matchMedia("(pointer: coarse)").matches;
const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouched();

function send() {
  const text = $("text").value.trim();
  if ((!text && !attached.length) || running) return;
  const files = attached;
  $("text").value = "";
  attached = [];
  showAttached();
  ask(text, files);
  $("text").focus();
}

$("form").onsubmit = (event) => { event.preventDefault(); send(); };
$("stop").onclick = () => { stopped(); $("text").focus(); };
$("anew").onclick = anew;
$("theme").onclick = () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem(THEME, document.documentElement.dataset.theme);
};
$("log").onscroll = followed;
$("text").onkeydown = (event) => {
  if (sends(event)) {
    event.preventDefault();
    send();
  }
};
addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.isComposing) stopped(); });
$("keys").textContent = isTouched() ? "Enter breaks the line" : "Enter sends, Shift+Enter breaks the line, Esc stops";
if (["dark", "light"].includes(localStorage.getItem(THEME))) document.documentElement.dataset.theme = localStorage.getItem(THEME);
remembered();
named();
kept.changed = () => {
  listDialogues();
  if (!running && dialogue.current !== null) show();
};
done(kept.open()).then(listDialogues);
